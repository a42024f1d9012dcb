//! Which neurons the next section is likely to need: their reads begin while this one is computed,
//! and go on during the attention between the two.
//!
//! The residual stream changes little from layer to layer, so the next predictor, asked about the
//! stream as it is before this layer's feed-forward network, names most of what it will name when
//! its turn has come. Only reads are begun by it: what is computed is decided by the predictor of
//! the section itself, so a wrong guess costs time, never a bit. Where fewer than half of a
//! section's guesses turn out to be of use it stops guessing, and tries again later.

use core::ops::Range;

use spin::mutex::SpinMutex;
use tessera_hal::Cores;
use tessera_kernels::{Activations, Kernels};

use super::guess::Guesses;
use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::limits::{FEW_TOKENS_MAX, JOBS_MAX};
use crate::shape::Shape;
use crate::work::Inputs;

/// Guesses after which a section's share of useful ones is taken for known.
const ENOUGH: u16 = 64;
/// Guesses after which older ones count half.
const MANY: u16 = 1024;
/// Passes for which a section does not guess after guessing did not pay.
const PAUSE: u8 = 64;

/// What guesses about one section were worth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub struct Worth {
    made: u16,
    used: u16,
    pause: u8,
    unused: u8,
}

impl Worth {
    /// Whether to guess in this pass.
    fn pays(&self) -> bool {
        self.pause == 0
    }

    /// A pass begins.
    fn next_pass(&mut self) {
        if self.made >= ENOUGH && self.used < self.made / 2 {
            *self = Worth {
                pause: PAUSE,
                ..Worth::default()
            };
        } else {
            self.pause = self.pause.saturating_sub(1);
        }
    }

    /// A read was begun on a guess.
    pub fn guessed(&mut self) {
        if self.made >= MANY {
            (self.made, self.used) = (self.made / 2, self.used / 2);
        }
        self.made += 1;
    }

    /// A guess was right.
    pub fn was_right(&mut self) {
        self.used = (self.used + 1).min(self.made);
    }
}

/// One cluster of the next section.
pub struct Ahead<'a> {
    /// Its first neuron.
    pub first: usize,
    /// (bundles,): 1 where a token is likely to need one.
    pub likely: &'a mut [u8],
    /// All of it is known.
    pub is_known: bool,
}

/// Memory for looking ahead.
pub struct Foresight<'m> {
    inputs: Inputs<'m>,
    tokens: usize,
    likely: &'m mut [u8],
    /// (sections,): what guesses were worth.
    worth: &'m mut [Worth],
}

/// Bytes of what looking ahead takes.
pub fn bytes(shape: &Shape) -> usize {
    let bundles = shape.ffn_dim / shape.bundle_neurons;
    let sections = shape.n_layers * shape.n_ffns();
    Inputs::bytes(FEW_TOKENS_MAX, shape.dim)
        + carved_bytes(bundles)
        + carved_bytes(sections * size_of::<Worth>())
}

impl<'m> Foresight<'m> {
    /// Carves the memory.
    pub fn take(arena: &mut Arena<'m>, shape: &Shape) -> Result<Self, OutOfMemory> {
        let worth = arena.take(shape.n_layers * shape.n_ffns())?;
        worth.fill(Worth::default());
        Ok(Foresight {
            inputs: Inputs::take(arena, FEW_TOKENS_MAX, shape.dim)?,
            tokens: 0,
            likely: arena.take(shape.ffn_dim / shape.bundle_neurons)?,
            worth,
        })
    }

    /// What the next section would get if the residual stream `x` (tokens, dim) stayed as it is;
    /// `weight` is its norm's.
    pub fn expect<C: Cores>(
        &mut self,
        cores: &C,
        kernels: &Kernels,
        x: &[f32],
        weight: &[f32],
        eps: f32,
    ) {
        self.tokens = x.len() / weight.len();
        self.inputs.norm_rows(cores, kernels, x, weight, eps);
    }

    /// A pass begins.
    pub fn begin_pass(&mut self) {
        self.tokens = 0;
        self.worth.iter_mut().for_each(Worth::next_pass);
    }

    /// What guesses about `section` were worth, and what is expected of the one after it, if
    /// anything is and guessing pays.
    pub fn begin(
        &mut self,
        section: usize,
        dim: usize,
    ) -> (Option<&mut Worth>, Option<Expected<'_>>) {
        let tokens = core::mem::take(&mut self.tokens);
        let (before, after) = self.worth.split_at_mut(section + 1);
        let worth = before.last_mut();
        let next = after.first_mut().filter(|_| tokens > 0);
        let expected = next.filter(|next| next.pays()).map(|worth| Expected {
            section: section + 1,
            x: self.inputs.view(tokens, dim),
            likely: self.likely,
            worth,
        });
        (worth, expected)
    }
}

/// What was expected of one section.
pub struct Expected<'a> {
    /// Its index.
    pub section: usize,
    /// Its inputs (tokens, dim).
    pub x: Activations<'a>,
    /// (bundles,): room.
    pub likely: &'a mut [u8],
    /// What guesses about it were worth.
    pub worth: &'a mut Worth,
}

/// Clusters of the next section.
pub type AheadClusters<'a> = heapless::Vec<SpinMutex<Ahead<'a>>, JOBS_MAX>;

impl Expected<'_> {
    /// The clusters with these indices, nothing known of them yet, and where to note what is
    /// guessed of them.
    #[inline(never)]
    pub fn clusters<'a>(
        &'a mut self,
        shape: &Shape,
        indices: Range<usize>,
    ) -> (AheadClusters<'a>, Option<Guesses<'a>>) {
        let full = shape.cluster_neurons;
        let pieces = self.likely.chunks_mut(full / shape.bundle_neurons);
        let clusters = pieces.enumerate().skip(indices.start).take(indices.len());
        let clusters = clusters.map(|(index, likely)| {
            SpinMutex::new(Ahead {
                first: index * full,
                likely,
                is_known: false,
            })
        });
        let guesses = Guesses::new(self.section, self.worth);
        (clusters.collect(), Some(guesses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_stops_where_it_does_not_pay_and_is_tried_again() {
        let mut worth = Worth::default();
        for guess in 0..2 * u32::from(MANY) {
            worth.next_pass();
            assert!(worth.pays(), "{worth:?}");
            worth.guessed();
            if guess % 3 > 0 {
                worth.was_right();
            }
        }
        while worth.pays() {
            worth.guessed();
            worth.next_pass();
        }
        for _ in 0..PAUSE {
            assert!(!worth.pays());
            worth.next_pass();
        }
        assert!(worth.pays());
    }
}
