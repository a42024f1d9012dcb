//! Scratch: carved into typed parts, and filled with rows whose codes stand one a byte.

use bytemuck::Pod;

use super::matvec::pair_or_last;
use crate::arch::simd::{Simd, Simd8, has_offset};
use crate::block::BLOCK;
use crate::quantize::block_scale;
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
    /// (blocks, 8): four columns of each row a vector.
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

    /// Unpacks up to `LANES` rows from `first` on. Lanes past the last row have scale 0.
    #[inline(always)]
    pub(super) fn fill<P: Simd8, const TY: u8>(&mut self, p: P, w: &Rows<'_>, first: usize) {
        let rows = (w.rows() - first).min(S::LANES);
        let blocks = w.cols() / BLOCK;
        for half in 0..S::LANES / 8 {
            let start = (first + half * 8).min(w.rows() - 1);
            let count = rows.saturating_sub(half * 8).min(8);
            for pair in 0..blocks.div_ceil(2) {
                let mut even = [p.zero_v(); 8];
                let mut odd = [p.zero_v(); 8];
                for r in 0..8 {
                    if r < count {
                        [even[r], odd[r]] = pair_or_last::<P, TY>(p, w.codes(start + r), pair);
                    }
                }
                self.store(p, 2 * pair, half, even);
                if 2 * pair + 1 < blocks {
                    self.store(p, 2 * pair + 1, half, odd);
                }
            }
        }
        self.fill_scales::<TY>(w, first, rows);
    }

    /// Stores one block of eight rows.
    #[inline(always)]
    fn store<P: Simd8>(&mut self, p: P, block: usize, half: usize, rows: [P::V; 8]) {
        let columns = p.transpose8(rows);
        for q in 0..8 {
            let lanes = bytemuck::bytes_of_mut(&mut self.codes[block][q]);
            lanes.as_chunks_mut().0[half] = p.to_bytes(columns[q]);
        }
    }

    #[inline(always)]
    fn fill_scales<const TY: u8>(&mut self, w: &Rows<'_>, first: usize, rows: usize) {
        let (ty, cols) = (w.ty(), w.cols());
        let d: &mut [f32] = bytemuck::cast_slice_mut(self.d);
        let m: &mut [f32] = bytemuck::cast_slice_mut(self.m);
        for r in 0..S::LANES {
            let scales = if r < rows { w.scales(first + r) } else { &[] };
            for block in 0..cols / BLOCK {
                let at = block * S::LANES + r;
                let (scale, min) = if r < rows {
                    block_scale(ty, cols, scales, block)
                } else {
                    (0.0, 0.0)
                };
                d[at] = scale;
                if has_offset(TY) {
                    m[at] = min;
                }
            }
        }
    }
}
