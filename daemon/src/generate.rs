//! The loop that turns a prompt into a continuation.

use anyhow::{Result, bail};
use tessera_runtime::SessionError;
use tessera_runtime::digest::Digest;
use tessera_runtime::sampler::{Bias, Candidate, Sampler, SamplerOptions};

use crate::engine::LinuxSession;
use crate::metrics::Recorder;
use crate::options::GenerateArgs;
use crate::pressure::Yielding;
use crate::text::{TextStream, TokenBytes};

/// Why a continuation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model gave an end token.
    EndToken,
    /// As many tokens as were asked for.
    MaxTokens,
    /// A stop string.
    StopString,
    /// The context is full.
    ContextFull,
}

impl Finish {
    /// One word, for messages.
    pub fn reason(self) -> &'static str {
        match self {
            Self::EndToken => "end token",
            Self::MaxTokens => "token limit",
            Self::StopString => "stop string",
            Self::ContextFull => "context full",
        }
    }
}

/// Everything that generating needs besides the session; made once, so that no token allocates.
pub struct Generator {
    args: GenerateArgs,
    biases: Vec<Bias>,
    scratch: Vec<Candidate>,
    end_ids: Vec<u32>,
    turns: u64,
    /// Whether memory is given back, and how much.
    pub yielding: Option<Yielding>,
    /// Tokens of the context.
    pub history: Vec<u32>,
    /// Tokens of the last continuation, the end token not among them.
    pub output: Vec<u32>,
    /// Digest of every logit produced.
    pub digest: Digest,
}

impl Generator {
    /// Makes room for `seq_len` tokens.
    pub fn new(args: &GenerateArgs, vocab_size: usize, seq_len: usize, end_ids: Vec<u32>) -> Self {
        let bias = |&(id, bias): &(u32, f32)| Bias { id, bias };
        Generator {
            biases: args.logit_bias.iter().map(bias).collect(),
            scratch: vec![Candidate { id: 0, logit: 0.0 }; vocab_size],
            end_ids: if args.ignore_eos { Vec::new() } else { end_ids },
            history: Vec::with_capacity(seq_len),
            output: Vec::with_capacity(seq_len),
            digest: Digest::default(),
            turns: 0,
            yielding: yielding(args),
            args: args.clone(),
        }
    }

    /// Appends `prompt` and continues it. `emit` gets the text as it becomes certain.
    ///
    /// # Errors
    /// Options out of range, a prompt that does not fit, weights that cannot be read.
    pub fn run(
        &mut self,
        session: &mut LinuxSession,
        prompt: &[u32],
        bytes: Option<&TokenBytes>,
        recorder: &mut Recorder,
        emit: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<Finish> {
        let options = sampler_options(&self.args, &self.biases, self.turns);
        let mut sampler = Sampler::new(options, &mut self.scratch)?;
        let mut stream = TextStream::new(&self.args.stop)?;
        let (output, history, digest) = (&mut self.output, &mut self.history, &mut self.digest);
        self.turns += 1;
        output.clear();

        let begun_ns = session.now_ns();
        digest.add(session.append(prompt)?);
        history.extend(prompt);
        recorder
            .prefills
            .push((prompt.len(), session.now_ns() - begun_ns));
        let finish = loop {
            if output.len() == self.args.max_tokens {
                break Finish::MaxTokens;
            }
            if !output.is_empty() {
                if session.pos() == session.seq_len() {
                    break Finish::ContextFull;
                }
                if let Some(yielding) = &mut self.yielding {
                    yielding.look(session)?;
                }
                let (begun_ns, before) = (session.now_ns(), session.stats());
                digest.add(session.append(&output[output.len() - 1..])?);
                let ns = session.now_ns() - begun_ns;
                recorder.token(ns, session.stats().since(&before));
            }
            let token = sampler.sample(session.logits(), history)?;
            if self.end_ids.contains(&token) {
                break Finish::EndToken;
            }
            output.push(token);
            history.push(token);
            if let Some(bytes) = bytes
                && !bytes.is_control(token)
            {
                let piece = stream.push(bytes.bytes(token));
                emit(piece.text)?;
                if piece.stopped {
                    break Finish::StopString;
                }
            }
        };
        if finish != Finish::StopString {
            emit(stream.finish().text)?;
        }
        Ok(finish)
    }

    /// Forgets the history from `len` tokens on, with the session.
    pub fn truncate(&mut self, session: &mut LinuxSession, len: usize) {
        self.history.truncate(len);
        session.truncate(len);
    }
}

/// What `--yield-memory` asks for, where this system can tell.
fn yielding(args: &GenerateArgs) -> Option<Yielding> {
    if !args.yield_memory {
        return None;
    }
    let watched = Yielding::watch_system();
    if let Err(error) = &watched {
        eprintln!("[--yield-memory does nothing: memory pressure cannot be watched: {error}]");
    }
    watched.ok()
}

/// The options of one continuation; each later one draws from a seed of its own.
fn sampler_options<'a>(args: &GenerateArgs, biases: &'a [Bias], turn: u64) -> SamplerOptions<'a> {
    SamplerOptions {
        logit_biases: biases,
        penalty_last_count: args.repeat_last,
        repetition_penalty: args.repeat_penalty,
        frequency_penalty: args.frequency_penalty,
        presence_penalty: args.presence_penalty,
        top_k: args.top_k,
        typical_p: args.typical,
        top_p: args.top_p,
        min_p: args.min_p,
        temperature: args.temp,
        seed: args.seed.wrapping_add(turn),
    }
}

/// A plain sentence for a prompt that is longer than the context.
pub fn check_fits(session: &LinuxSession, prompt: &[u32]) -> Result<()> {
    let need = session.pos() + prompt.len();
    if need > session.seq_len() {
        let error = SessionError::ContextLengthExceeded {
            need,
            max: session.seq_len(),
        };
        bail!(
            "{error} (--ctx gives more, up to {})",
            session.image().shape().seq_len
        );
    }
    Ok(())
}
