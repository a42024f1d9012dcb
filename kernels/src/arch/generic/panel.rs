//! Scratch: carved into typed parts, and filled with rows whose codes stand one a byte.
#![allow(unsafe_code)]

use bytemuck::Pod;

use super::matvec::{last_halves, pair_or_last};
use crate::arch::simd::{
    PANEL_VECTORS, PanelBlock, Simd, Simd8, chunk_at, code_bytes, has_offset, is_4bit,
};
use crate::block::BLOCK;
use crate::dispatch::PANEL_ROWS_MAX;
use crate::interleave::INTERLEAVED;
use crate::view::Rows;

/// Eights of rows in the largest panel.
const PARTS_MAX: usize = PANEL_ROWS_MAX / 8;
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

/// [`Panel::ROWS`] rows, lane by lane: what `matmul` multiplies tokens with.
pub(super) struct Panel<'a, S: Simd> {
    /// (blocks): codes in the order of [`Simd8::panel`].
    pub codes: &'a mut [PanelBlock<S>],
    /// (blocks): scale of each row.
    pub d: &'a mut [[S::Floats; PANEL_VECTORS]],
    /// (blocks): minimum of each row, for weights with an offset.
    pub m: &'a mut [[S::Floats; PANEL_VECTORS]],
}

impl<'a, S: Simd> Panel<'a, S> {
    #[inline(always)]
    pub(super) fn carve(scratch: &mut &'a mut [u8], blocks: usize) -> Self {
        let codes = carve::<S::Bytes>(scratch, blocks * 8 * PANEL_VECTORS);
        Panel {
            codes: codes.as_chunks_mut().0.as_chunks_mut().0,
            d: carve(scratch, blocks * PANEL_VECTORS).as_chunks_mut().0,
            m: carve(scratch, blocks * PANEL_VECTORS).as_chunks_mut().0,
        }
    }

    /// Rows of a panel.
    pub(super) const ROWS: usize = PANEL_VECTORS * S::LANES;

    /// Unpacks up to [`Panel::ROWS`] rows from `first` on. Lanes past the last row have any
    /// numbers.
    #[inline(always)]
    pub(super) fn fill<P: Simd8, const TY: u8>(&mut self, p: P, w: &Rows<'_>, first: usize) {
        let rows = (w.rows() - first).min(Self::ROWS);
        let blocks = w.cols() / BLOCK;
        let parts = rows.div_ceil(8);
        let mut codes = [[&[][..]; 8]; PARTS_MAX];
        for r in 0..8 * parts {
            // A row that is not there is never looked at: its codes may be any.
            codes[r / 8][r % 8] = w.codes(first + r.min(rows - 1));
            assert!(codes[r / 8][r % 8].len() >= blocks / 2 * code_bytes::<TY>(2));
        }
        let (runs, rest) = self.codes.as_chunks_mut::<INTERLEAVED>();
        for (run, blocks) in runs.iter_mut().enumerate() {
            // Two pairs: 64 bytes of 4-bit codes, a cache line of each row.
            for two in 0..2 {
                for (part, codes) in codes[..parts].iter().enumerate() {
                    for pair in 2 * two..2 * two + 2 {
                        let at = run * INTERLEAVED / 2 + pair;
                        // SAFETY: the pair is one of a whole run, and the lengths were asserted.
                        let [even, odd] = unsafe { turned::<P, TY>(p, codes, at) };
                        for lane in 0..INTERLEAVED {
                            let words = p.panel([even[lane], odd[lane]]);
                            put::<P, S>(p, &mut blocks[lane], pair, part, words);
                        }
                    }
                }
            }
        }
        for (pair, two) in rest.chunks_mut(2).enumerate() {
            let at = blocks / INTERLEAVED * INTERLEAVED / 2 + pair;
            for (part, codes) in codes[..parts].iter().enumerate() {
                let mut both = [[p.zero_v(); 8]; 2];
                for r in 0..8 {
                    [both[0][r], both[1][r]] = pair_or_last::<P, TY>(p, codes[r], at);
                }
                for (block, words) in two.iter_mut().zip(both) {
                    let words = p.transpose8(words);
                    for k in 0..4 {
                        put::<P, S>(p, block, k, part, p.panel([words[2 * k], words[2 * k + 1]]));
                    }
                }
            }
        }
        self.fill_scales::<P, TY>(p, w, first, rows);
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
        let d: &mut [f32] = bytemuck::cast_slice_mut(self.d.as_flattened_mut());
        let m: &mut [f32] = bytemuck::cast_slice_mut(self.m.as_flattened_mut());
        for part in 0..rows.div_ceil(8) {
            let mut of_rows = [&[][..]; 8];
            for r in 0..8 {
                of_rows[r] = w.scales(first + (part * 8 + r).min(rows - 1));
            }
            for start in (0..blocks).step_by(8) {
                let eight = (blocks - start).min(8);
                let (mut scales, mut minima) = ([p.zero_v(); 8], [p.zero_v(); 8]);
                for r in 0..8 {
                    let [d, m] = if eight == 8 {
                        p.scales_at::<TY>(of_rows[r], start * 2, blocks * 2)
                    } else {
                        last_scales::<P, TY>(p, of_rows[r], start, blocks)
                    };
                    scales[r] = p.vector(d);
                    minima[r] = p.vector(m);
                }
                let scales = p.transpose8(scales);
                for b in 0..eight {
                    let at = (start + b) * Self::ROWS + part * 8;
                    p.store_at(p.floats_of(scales[b]), d, at);
                }
                if has_offset(TY) {
                    let minima = p.transpose8(minima);
                    for b in 0..eight {
                        let at = (start + b) * Self::ROWS + part * 8;
                        p.store_at(p.floats_of(minima[b]), m, at);
                    }
                }
            }
        }
    }
}

/// Stores what [`Simd8::panel`] made of two words of a block, its `k`-th, of the panel's rows from
/// `8 part` on.
#[inline(always)]
fn put<P: Simd8, S: Simd>(
    p: P,
    block: &mut PanelBlock<S>,
    k: usize,
    part: usize,
    words: [P::V; 2],
) {
    for i in 0..2 {
        let lanes: &mut [u8] = bytemuck::cast_slice_mut(&mut block[2 * k + i]);
        lanes.as_chunks_mut().0[part] = p.to_bytes(words[i]);
    }
}

/// Pair `pair` of eight rows: of the even and of the odd block (or step) each word of all rows.
///
/// # Safety
/// The rows have the pair.
#[inline(always)]
unsafe fn turned<P: Simd8, const TY: u8>(p: P, codes: &[&[u8]; 8], pair: usize) -> [[P::V; 8]; 2] {
    let bytes = code_bytes::<TY>(2);
    let mut both = [[p.zero_v(); 8]; 2];
    if is_4bit(TY) {
        // Half as many words to turn while two codes share a byte.
        for r in 0..8 {
            // SAFETY: the caller's.
            both[0][r] = p.bytes(unsafe { chunk_at(codes[r], pair * bytes) });
        }
        let words = p.transpose8(both[0]);
        for r in 0..8 {
            [both[0][r], both[1][r]] = p.split4(words[r]);
        }
        return both;
    }
    for r in 0..8 {
        // SAFETY: the caller's.
        let codes = unsafe { codes[r].get_unchecked(pair * bytes..(pair + 1) * bytes) };
        [both[0][r], both[1][r]] = p.pair::<TY>(codes);
    }
    [p.transpose8(both[0]), p.transpose8(both[1])]
}

/// Scales and minima of a row's last 1 to 7 blocks, from `start` on, and zeros.
#[inline(always)]
pub(super) fn last_scales<P: Simd8, const TY: u8>(
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
