//! Asking memory for what the next call will need, evenly over this one.

use crate::arch::simd::Simd8;
use crate::soon::{LINE_BYTES, Soon};

/// What will be needed soon, and how far it was asked for.
pub(super) struct Ahead<'a> {
    soon: Soon<'a>,
    /// Where the stretch begins that is asked for.
    stretch: usize,
    /// What was asked for of it.
    at: usize,
    step_bytes: usize,
}

impl<'a> Ahead<'a> {
    /// Asks for all of `soon` in `steps` steps.
    #[inline(always)]
    pub(super) fn new(soon: Soon<'a>, steps: usize) -> Self {
        Ahead {
            soon,
            stretch: 0,
            at: 0,
            step_bytes: soon.lines().div_ceil(steps.max(1)) * LINE_BYTES,
        }
    }

    /// Whether there is anything to ask for.
    #[inline(always)]
    pub(super) fn is_given(&self) -> bool {
        self.step_bytes > 0
    }

    /// One step.
    #[inline(always)]
    pub(super) fn ask<S: Simd8>(&mut self, s: S) {
        let mut left = self.step_bytes;
        while left > 0 && self.stretch < self.soon.bytes.len() {
            let end = (self.at + left).min(self.soon.stretch_bytes);
            left -= (end - self.at).next_multiple_of(LINE_BYTES).min(left);
            while self.at < end {
                s.prefetch_far(self.soon.bytes, self.stretch + self.at);
                self.at += LINE_BYTES;
            }
            if self.at >= self.soon.stretch_bytes {
                self.stretch += self.soon.stride_bytes;
                self.at = 0;
            }
        }
    }
}
