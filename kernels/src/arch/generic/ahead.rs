//! Asking memory for what the next call will need, evenly over this one.

use crate::arch::simd::Simd8;
use crate::soon::{LINE_BYTES, Soon};

/// Lines that are asked for at once, a pair.
const LINES: usize = 2;
const PAIR_BYTES: usize = LINES * LINE_BYTES;
/// A pair in the units that steps are counted in.
const PAIR: u32 = 256;

/// What will be needed soon, if anything, and how far it was asked for.
pub(super) struct Ahead<'a> {
    soon: Soon<'a>,
    /// Where the stretch begins that is asked for.
    stretch: usize,
    /// What was asked for of it.
    at: usize,
    /// What is due of pairs, and what becomes due with a step.
    due: u32,
    step: u32,
}

impl<'a> Ahead<'a> {
    /// Asks for all of `soon` in `steps` steps.
    #[inline(always)]
    pub(super) fn new(soon: Soon<'a>, steps: usize) -> Self {
        Ahead {
            soon,
            stretch: 0,
            at: 0,
            due: 0,
            step: (soon.times(PAIR_BYTES) * PAIR as usize).div_ceil(steps.max(1)) as u32,
        }
    }

    /// Asks for all of `soon` while `rows` rows of `runs` runs of blocks are multiplied. A row asks
    /// before every second run, and once where it has no whole run.
    #[inline(always)]
    pub(super) fn over_rows(soon: Soon<'a>, rows: usize, runs: usize) -> Self {
        Self::new(soon, rows * runs.div_ceil(2).max(1))
    }

    /// Whether there is anything to ask for.
    #[inline(always)]
    pub(super) fn is_given(&self) -> bool {
        self.step > 0
    }

    /// One step.
    #[inline(always)]
    pub(super) fn ask<S: Simd8>(&mut self, s: S) {
        if self.stretch >= self.soon.bytes.len() {
            return;
        }
        self.due += self.step;
        while self.due >= PAIR {
            self.due -= PAIR;
            for line in 0..LINES {
                s.prefetch_far(self.soon.bytes, self.stretch + self.at + line * LINE_BYTES);
            }
            self.at += PAIR_BYTES;
            if self.at >= self.soon.stretch_bytes {
                self.stretch += self.soon.stride_bytes;
                self.at = 0;
            }
        }
    }
}
