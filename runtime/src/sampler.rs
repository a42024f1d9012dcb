//! Logits to a token.
//!
//! The steps, in this order (llama.cpp's default chain, with its meaning of each number):
//!
//! 1. logit biases
//! 2. repetition, frequency and presence penalties over the last tokens
//! 3. with temperature 0: the likeliest token, the lowest id of equals; done
//! 4. top-k
//! 5. typical-p
//! 6. top-p
//! 7. min-p
//! 8. temperature
//! 9. a seeded draw
//!
//! Steps 4 to 7 each look at the probabilities of what the step before left over, before the
//! temperature; each keeps at least one token. Nothing is allocated: the caller lends one
//! [`Candidate`] a token of the vocabulary. The same options, logits and history give the same
//! token on every machine: `exp` is our own, and probabilities are added as integers.
//!
//! Measured cost of a token for a vocabulary of 151,936 (AMD EPYC, SSE2 code): greedy 0.15 ms, the
//! default chain 0.18 ms, min-p alone 0.47 ms, top-p alone 0.67 ms, temperature alone 0.9 ms,
//! typical-p alone 1.0 ms (test `speed`).

mod candidates;
mod options;
mod pcg;
#[cfg(test)]
mod tests;

pub use options::{Bias, OptionsError, SamplerOptions};

use candidates::Candidates;
use pcg::Pcg32;

/// A token and its logit: the sampler's scratch memory, one for each token of the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its logit, after biases and penalties.
    pub logit: f32,
}

/// Why no token was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SampleError {
    /// There is no logit to choose from.
    Empty,
    /// The scratch memory has fewer candidates than there are logits.
    Scratch {
        /// Candidates lent.
        have: usize,
        /// Logits given.
        need: usize,
    },
    /// The first logit that is NaN or infinite.
    NonFinite {
        /// Its token.
        index: usize,
    },
    /// A token of the history, among those the penalties look at, is not in the vocabulary.
    History {
        /// Position in the history.
        index: usize,
        /// The token.
        id: u32,
        /// Logits given.
        vocab_size: usize,
    },
    /// A bias is for a token that is not in the vocabulary.
    Bias {
        /// Position in the biases.
        index: usize,
        /// The token.
        id: u32,
        /// Logits given.
        vocab_size: usize,
    },
    /// The biases ban every token.
    AllBanned,
}

impl core::fmt::Display for SampleError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Empty => f.write_str("no logits to sample from"),
            Self::Scratch { have, need } => {
                write!(f, "{need} logits, but scratch for {have} only")
            }
            Self::NonFinite { index } => write!(f, "the logit of token {index} is not finite"),
            Self::History {
                index,
                id,
                vocab_size,
            } => write!(
                f,
                "token {id} at position {index} of the history: the vocabulary has {vocab_size}"
            ),
            Self::Bias {
                index,
                id,
                vocab_size,
            } => {
                write!(
                    f,
                    "bias {index} is for token {id}: the vocabulary has {vocab_size}"
                )
            }
            Self::AllBanned => f.write_str("the biases ban every token"),
        }
    }
}

impl core::error::Error for SampleError {}

/// Chooses tokens; its only state between two tokens is the random generator's.
pub struct Sampler<'m> {
    options: SamplerOptions<'m>,
    scratch: &'m mut [Candidate],
    pcg: Pcg32,
}

impl<'m> Sampler<'m> {
    /// `scratch` holds at least as many candidates as the vocabulary has tokens.
    ///
    /// # Errors
    ///
    /// The first option that is out of its range.
    pub fn new(
        options: SamplerOptions<'m>,
        scratch: &'m mut [Candidate],
    ) -> Result<Self, OptionsError> {
        options.check()?;
        let pcg = Pcg32::new(options.seed);
        Ok(Sampler {
            options,
            scratch,
            pcg,
        })
    }

    /// Starts the draws again, from `seed`.
    pub fn reseed(&mut self, seed: u64) {
        self.pcg = Pcg32::new(seed);
    }

    /// Chooses the next token from `logits` (vocab_size,); `history` is every token so far, the
    /// latest last.
    ///
    /// # Errors
    ///
    /// Logits that are not finite and tokens out of range; then no random number was used up.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32, SampleError> {
        self.load(logits)?;
        let adjusted = &mut self.scratch[..logits.len()];
        add_biases(adjusted, self.options.logit_biases)?;
        penalize(adjusted, &self.options, history)?;
        let count = number(adjusted);
        if count == 0 {
            return Err(SampleError::AllBanned);
        }
        let mut candidates = Candidates::new(&mut adjusted[..count]);
        let options = &self.options;
        if options.temperature == 0.0 {
            return Ok(candidates.best().id);
        }
        if options.top_k > 0 {
            candidates.top_k(options.top_k);
        }
        if options.typical_p < 1.0 {
            candidates.typical(options.typical_p);
        }
        if options.top_p < 1.0 {
            candidates.top_p(options.top_p);
        }
        if options.min_p > 0.0 {
            candidates.min_p(options.min_p);
        }
        let pcg = &mut self.pcg;
        Ok(candidates.draw(options.temperature, |total| pcg.below(total)))
    }

    /// Copies the logits; until [`number`], `id` counts how often the history has the token.
    fn load(&mut self, logits: &[f32]) -> Result<(), SampleError> {
        if logits.is_empty() {
            return Err(SampleError::Empty);
        }
        if self.scratch.len() < logits.len() {
            return Err(SampleError::Scratch {
                have: self.scratch.len(),
                need: logits.len(),
            });
        }
        // Infinities and NaN are the largest magnitudes: one pass without a branch.
        let magnitude = |logit: &f32| logit.to_bits() & !(1 << 31);
        let largest = logits.iter().map(magnitude).max().unwrap_or(0);
        if largest >= f32::INFINITY.to_bits() {
            let index = logits.iter().position(|logit| !logit.is_finite());
            return Err(SampleError::NonFinite {
                index: index.unwrap_or(0),
            });
        }
        for (candidate, &logit) in self.scratch.iter_mut().zip(logits) {
            *candidate = Candidate { id: 0, logit };
        }
        Ok(())
    }
}

/// Keeps a changed logit finite; only a bias may ban a token.
fn bounded(logit: f32) -> f32 {
    logit.clamp(f32::MIN, f32::MAX)
}

fn add_biases(adjusted: &mut [Candidate], biases: &[Bias]) -> Result<(), SampleError> {
    let vocab_size = adjusted.len();
    for (index, &Bias { id, bias }) in biases.iter().enumerate() {
        let error = SampleError::Bias {
            index,
            id,
            vocab_size,
        };
        let logit = &mut adjusted.get_mut(id as usize).ok_or(error)?.logit;
        *logit = if bias == f32::NEG_INFINITY || *logit == f32::NEG_INFINITY {
            f32::NEG_INFINITY
        } else {
            bounded(*logit + bias)
        };
    }
    Ok(())
}

/// Steps over the last tokens twice: once to count them, once to change each seen logit.
fn penalize(
    adjusted: &mut [Candidate],
    options: &SamplerOptions<'_>,
    history: &[u32],
) -> Result<(), SampleError> {
    let off = options.repetition_penalty == 1.0
        && options.frequency_penalty == 0.0
        && options.presence_penalty == 0.0;
    if off {
        return Ok(());
    }
    let vocab_size = adjusted.len();
    let first = history.len().saturating_sub(options.penalty_last_count);
    for (index, &id) in history.iter().enumerate().skip(first) {
        let error = SampleError::History {
            index,
            id,
            vocab_size,
        };
        adjusted.get_mut(id as usize).ok_or(error)?.id += 1;
    }
    for &id in &history[first..] {
        let candidate = &mut adjusted[id as usize];
        let count = core::mem::take(&mut candidate.id);
        if count == 0 || candidate.logit == f32::NEG_INFINITY {
            continue;
        }
        let mut logit = candidate.logit;
        if logit <= 0.0 {
            logit *= options.repetition_penalty;
        } else {
            logit /= options.repetition_penalty;
        }
        logit = bounded(bounded(logit) - bounded(count as f32 * options.frequency_penalty));
        candidate.logit = bounded(logit - options.presence_penalty);
    }
    Ok(())
}

/// Numbers the candidates that are not banned, in order, and returns how many there are.
fn number(adjusted: &mut [Candidate]) -> usize {
    let mut count = 0;
    for index in 0..adjusted.len() {
        let logit = adjusted[index].logit;
        adjusted[count] = Candidate {
            id: index as u32,
            logit,
        };
        count += usize::from(logit != f32::NEG_INFINITY);
    }
    count
}
