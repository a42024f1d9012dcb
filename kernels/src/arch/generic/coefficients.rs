//! What the hidden values of a group and the scales of its down rows make for a stretch of outputs.

use super::float::{code, scale_of};
use crate::arch::simd::{Q4O, Simd, correction, has_offset};
use crate::block::{BLOCK, GROUP};
use crate::neurons::NeuronRows;
use crate::zip::{QUAD, QUADS};

/// Most lanes of any vector type.
pub(super) const LANES_MAX: usize = 16;
/// How far ahead a row's scales are asked for.
pub(super) const SCALES_AHEAD_BYTES: usize = 128;

/// A group's codes for a block of outputs in each lane.
pub(super) struct Coefficients {
    pub(super) c: [[[u8; QUAD]; LANES_MAX]; QUADS],
    scales: [f32; LANES_MAX],
    /// Sum of `h * m`.
    offsets: [f32; LANES_MAX],
    /// To be added to a product of codes, as the weights have an offset.
    terms: [f32; LANES_MAX],
}

impl Coefficients {
    /// For `LANES` blocks from `first` on, or all if there are `FEW`er. Scales `scales_ahead` bytes
    /// from a row's start are asked for.
    #[inline(always)]
    pub(super) fn new<S: Simd, const TY: u8, const FEW: bool>(
        s: S,
        w: &NeuronRows<'_>,
        h: &[f32],
        first: usize,
        scales_ahead: usize,
    ) -> Self {
        let blocks = w.cols() / BLOCK;
        let magnitude = s.splat_w(0x7fff_ffff);
        let mut g = [s.splat(0.0); GROUP];
        let (mut top, mut offset) = (s.splat_w(0), s.splat(0.0));
        for (n, (scales, &h)) in w.scales().iter().zip(h).enumerate() {
            let h = s.splat(h);
            s.prefetch(scales, scales_ahead);
            if TY == Q4O {
                s.prefetch(scales, blocks * 2 + scales_ahead);
            }
            let [d, m] = if FEW {
                few_scales::<S, TY>(s, scales, blocks)
            } else {
                s.scales_at::<TY>(scales, first * 2, blocks * 2)
            };
            g[n] = s.mul(h, d);
            top = s.max_w(top, s.and_w(magnitude, s.bits(g[n])));
            if has_offset(TY) {
                offset = s.add(offset, s.mul(h, m));
            }
        }
        let (scale, inverse, finite) = scale_of(s, top);
        let mut all = [[[0; QUAD]; LANES_MAX]; QUADS];
        let mut sums = s.splat_w(0);
        for quad in 0..w.scales().len().div_ceil(QUAD) {
            let mut c = [s.splat_w(0); QUAD];
            for i in 0..QUAD {
                c[i] = code(s, g[quad * QUAD + i], inverse, finite);
                sums = s.add_w(sums, c[i]);
            }
            let lanes = s.to_bytes(s.quad(c));
            all[quad][..S::LANES].copy_from_slice(bytemuck::cast_slice(bytemuck::bytes_of(&lanes)));
        }
        Coefficients {
            c: all,
            scales: lanes_of(s, scale),
            offsets: lanes_of(s, offset),
            terms: lanes_of(s, s.to_f(correction::<S, TY>(s, sums))),
        }
    }

    /// The contributions to the outputs of the block in lane `lane`, from the sums of its products
    /// of codes.
    #[inline(always)]
    pub(super) fn products<V: Simd, const TY: u8>(
        &self,
        v: V,
        lane: usize,
        sums: [V::Acc; 4],
    ) -> [V::F; 4] {
        let scale = v.splat(self.scales[lane]);
        let term = v.splat(self.terms[lane]);
        let offset = v.splat(self.offsets[lane]);
        let mut p = [scale; 4];
        for k in 0..BLOCK / V::LANES {
            let dot = v.to_f(v.done::<TY>(sums[k]));
            p[k] = if has_offset(TY) {
                v.add(v.mul(scale, dot), offset)
            } else {
                // Both are integers below 2^24, so their sum is exact.
                v.mul(scale, v.add(dot, term))
            };
        }
        p
    }
}

#[inline(always)]
fn lanes_of<S: Simd>(s: S, a: S::F) -> [f32; LANES_MAX] {
    let mut lanes = [0.0; LANES_MAX];
    s.store_at(a, &mut lanes, 0);
    lanes
}

/// Scales and minima of all `blocks` blocks of a row, fewer than lanes.
#[inline(always)]
fn few_scales<S: Simd, const TY: u8>(s: S, scales: &[u8], blocks: usize) -> [S::F; 2] {
    let mut padded = [0; 4 * LANES_MAX];
    let (d, m) = scales.split_at(blocks * 2);
    padded[..d.len()].copy_from_slice(d);
    padded[2 * LANES_MAX..][..m.len()].copy_from_slice(m);
    s.scales_at::<TY>(&padded, 0, 2 * LANES_MAX)
}
