//! Asking memory for what will be needed, evenly over what is computed.

use crate::arch::simd::{Simd8, code_bytes, scale_bytes};
use crate::soon::{LINE_BYTES, Soon};

/// Asks for something at each group of eight blocks of a product. (A closure would do, but whether
/// one is inlined is the compiler's choice, and a call here costs as much as the group.)
pub(super) trait Ask<S> {
    /// At group `g` of the rows that are computed together.
    fn at_group(&mut self, s: S, g: usize);
}

/// Asks for what follows in memory, each group the next lines.
pub(super) struct Following<'a, const TY: u8, const R: usize> {
    /// Codes and scales, and how far ahead of their start is asked.
    pub(super) codes: (&'a [u8], usize),
    pub(super) scales: (&'a [u8], usize),
}

impl<S: Simd8, const TY: u8, const R: usize> Ask<S> for Following<'_, TY, R> {
    #[inline(always)]
    fn at_group(&mut self, s: S, g: usize) {
        let (codes, scales) = (R * code_bytes::<TY>(8), R * scale_bytes::<TY>(8));
        for line in 0..codes.div_ceil(LINE_BYTES) {
            s.prefetch(self.codes.0, self.codes.1 + g * codes + line * LINE_BYTES);
        }
        for line in 0..scales.div_ceil(LINE_BYTES) {
            s.prefetch(
                self.scales.0,
                self.scales.1 + g * scales + line * LINE_BYTES,
            );
        }
    }
}

impl<S: Simd8> Ask<S> for Ahead<'_> {
    #[inline(always)]
    fn at_group(&mut self, s: S, _g: usize) {
        self.ask(s);
    }
}

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
