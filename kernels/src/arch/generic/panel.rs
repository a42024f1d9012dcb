//! Scratch: carved into typed parts, and filled with rows whose codes stand one a byte.

use bytemuck::Pod;

use super::ahead::Ahead;
use super::matvec::{last_halves, pair_or_last};
use crate::arch::simd::{Simd, Simd8, code_bytes, has_offset};
use crate::block::BLOCK;
use crate::interleave::INTERLEAVED;
use crate::view::Rows;

/// Alignment of every part of scratch.
const ALIGN: usize = 64;

/// Takes `count` elements off the front of `scratch`, aligned.
#[inline(always)]
pub(super) fn carve<'a, T: Pod>(scratch: &mut &'a mut [u8], count: usize) -> &'a mut [T] {
    let free = core::mem::take(scratch);
    let pad = free.as_ptr().align_offset(ALIGN);
    let (taken, free) = free.split_at_mut(pad + count * size_of::<T>());
    *scratch = free;
    bytemuck::cast_slice_mut(&mut taken[pad..])
}

/// `LANES` rows, lane by lane: what `matmul` multiplies tokens with.
pub(super) struct Panel<'a, S: Simd> {
    /// (blocks, 8): codes in the order of [`Simd8::panel`].
    pub codes: &'a mut [[S::Bytes; 8]],
    /// (blocks): scale of each row.
    pub d: &'a mut [S::Floats],
    /// (blocks): minimum of each row, for weights with an offset.
    pub m: &'a mut [S::Floats],
}

impl<'a, S: Simd> Panel<'a, S> {
    #[inline(always)]
    pub(super) fn carve(scratch: &mut &'a mut [u8], blocks: usize) -> Self {
        let codes = carve::<S::Bytes>(scratch, blocks * 8).as_chunks_mut().0;
        Panel {
            codes,
            d: carve(scratch, blocks),
            m: carve(scratch, blocks),
        }
    }

    /// Unpacks up to `LANES` rows from `first` on, asking for `ahead` or for what follows them.
    /// Lanes past the last row have scale 0.
    #[inline(always)]
    pub(super) fn fill<P: Simd8, const TY: u8>(
        &mut self,
        p: P,
        w: &Rows<'_>,
        first: usize,
        ahead: &mut Ahead<'_>,
    ) {
        let rows = (w.rows() - first).min(S::LANES);
        let blocks = w.cols() / BLOCK;
        for half in 0..S::LANES / 8 {
            let start = (first + half * 8).min(w.rows() - 1);
            let count = rows.saturating_sub(half * 8).min(8);
            let mut codes = [&[][..]; 8];
            for r in 0..count {
                codes[r] = w.codes(start + r);
            }
            for pair in 0..blocks.div_ceil(2) {
                if ahead.is_given() {
                    ahead.ask(p);
                } else if w.follow_each_other() {
                    let pair_bytes = 8 * code_bytes::<TY>(2);
                    for line in 0..pair_bytes.div_ceil(64) {
                        let at = (8 * codes[0].len()) + pair * pair_bytes + line * 64;
                        p.prefetch_far(codes[0], at);
                    }
                }
                let mut even = [p.zero_v(); 8];
                let mut odd = [p.zero_v(); 8];
                for r in 0..8 {
                    if r < count {
                        [even[r], odd[r]] = pair_or_last::<P, TY>(p, codes[r], pair);
                    }
                }
                let (even, odd) = (p.transpose8(even), p.transpose8(odd));
                if pair / 4 < blocks / INTERLEAVED {
                    // Steps of eight blocks.
                    let first = pair / 4 * INTERLEAVED;
                    for lane in 0..INTERLEAVED {
                        let words = p.panel([even[lane], odd[lane]]);
                        self.store(p, first + lane, pair % 4, half, words);
                    }
                    continue;
                }
                for k in 0..4 {
                    let words = p.panel([even[2 * k], even[2 * k + 1]]);
                    self.store(p, 2 * pair, k, half, words);
                    if 2 * pair + 1 < blocks {
                        let words = p.panel([odd[2 * k], odd[2 * k + 1]]);
                        self.store(p, 2 * pair + 1, k, half, words);
                    }
                }
            }
        }
        self.fill_scales::<P, TY>(p, w, first, rows);
    }

    /// Stores what [`Simd8::panel`] made of two words of a block, its `k`-th.
    #[inline(always)]
    fn store<P: Simd8>(&mut self, p: P, block: usize, k: usize, half: usize, words: [P::V; 2]) {
        for i in 0..2 {
            let lanes = bytemuck::bytes_of_mut(&mut self.codes[block][2 * k + i]);
            lanes.as_chunks_mut().0[half] = p.to_bytes(words[i]);
        }
    }

    /// Scales of eight rows and eight blocks at a time, turned.
    #[inline(always)]
    fn fill_scales<P: Simd8, const TY: u8>(
        &mut self,
        p: P,
        w: &Rows<'_>,
        first: usize,
        rows: usize,
    ) {
        let blocks = w.cols() / BLOCK;
        let d: &mut [f32] = bytemuck::cast_slice_mut(self.d);
        let m: &mut [f32] = bytemuck::cast_slice_mut(self.m);
        for half in 0..S::LANES / 8 {
            let count = rows.saturating_sub(half * 8).min(8);
            for start in (0..blocks).step_by(8) {
                let eight = (blocks - start).min(8);
                let (mut scales, mut minima) = ([p.zero_v(); 8], [p.zero_v(); 8]);
                for r in 0..count {
                    let row = w.scales(first + half * 8 + r);
                    let [d, m] = if eight == 8 {
                        p.scales_at::<TY>(row, start * 2, blocks * 2)
                    } else {
                        last_scales::<P, TY>(p, row, start, blocks)
                    };
                    scales[r] = p.vector(d);
                    minima[r] = p.vector(m);
                }
                let scales = p.transpose8(scales);
                for b in 0..eight {
                    let at = (start + b) * S::LANES + half * 8;
                    p.store_at(p.floats_of(scales[b]), d, at);
                }
                if has_offset(TY) {
                    let minima = p.transpose8(minima);
                    for b in 0..eight {
                        let at = (start + b) * S::LANES + half * 8;
                        p.store_at(p.floats_of(minima[b]), m, at);
                    }
                }
            }
        }
    }
}

/// Scales and minima of a row's last 1 to 7 blocks, from `start` on, and zeros.
#[inline(always)]
fn last_scales<P: Simd8, const TY: u8>(
    p: P,
    scales: &[u8],
    start: usize,
    blocks: usize,
) -> [P::F; 2] {
    let count = blocks - start;
    let d = p.halves(&last_halves(scales, start, count));
    if has_offset(TY) {
        [d, p.halves(&last_halves(scales, blocks + start, count))]
    } else {
        [d, d]
    }
}
