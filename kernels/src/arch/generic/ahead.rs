//! Asking memory for what the next call will need, evenly over this one.

use crate::arch::simd::Simd8;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Bytes that will be needed next, and how far they were asked for.
pub(super) struct Ahead<'a> {
    bytes: &'a [u8],
    at: usize,
    step_bytes: usize,
}

impl<'a> Ahead<'a> {
    /// Asks for all of `bytes` in `steps` steps.
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], steps: usize) -> Self {
        let lines = bytes.len().div_ceil(LINE_BYTES).div_ceil(steps.max(1));
        Ahead {
            bytes,
            at: 0,
            step_bytes: lines * LINE_BYTES,
        }
    }

    /// Whether there is anything to ask for.
    #[inline(always)]
    pub(super) fn is_given(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// One step.
    #[inline(always)]
    pub(super) fn ask<S: Simd8>(&mut self, s: S) {
        let end = (self.at + self.step_bytes).min(self.bytes.len());
        while self.at < end {
            s.prefetch_far(self.bytes, self.at);
            self.at += LINE_BYTES;
        }
    }
}
