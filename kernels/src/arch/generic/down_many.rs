//! Down sums of several tokens: each lane is a token, so that sums lie as they are stored.
#![allow(unsafe_code)]

use core::ops::Range;

use super::by_type;
use super::coefficients::LANES_MAX;
use super::down::{Quads, float_at};
use super::down_zipped::{self, quad_codes};
use super::float::{code, scale_of};
use super::panel::carve;
use crate::arch::simd::{Simd, Simd8, code_bytes, correction, has_offset};
use crate::block::{BLOCK, GROUP, WeightType};
use crate::check;
use crate::neurons::NeuronRows;
use crate::quantize::block_scale;
use crate::soon::Soon;
use crate::zip::{QUAD, QUADS};

/// Most tokens that are cheaper one by one than in the lanes of a vector.
const ALONE_MAX: usize = 4;

/// See [`crate::Kernels::down_group_many`].
#[allow(
    clippy::too_many_arguments,
    reason = "those of the table, and two vector types"
)]
#[inline(always)]
pub(crate) fn down_group_many<P: Simd8, S: Simd>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    cols: Range<usize>,
    tokens: usize,
    h: &[f32],
    acc: &mut [f32],
    scratch: &mut [u8],
) {
    check::down_group_many(w, &cols, tokens, h, acc, scratch);
    if acc.is_empty() {
        return;
    }
    match w.ty() {
        WeightType::F32 => floats::<P, false>(p, w, cols, tokens, h, acc),
        WeightType::F16 => floats::<P, true>(p, w, cols, tokens, h, acc),
        ty if w.zipped().is_some() && tokens <= ALONE_MAX && cols == (0..w.cols()) => {
            by_type!(ty, one_by_one::<P, S>(p, s, w, tokens, h, acc, scratch));
        }
        ty => {
            // A vector that would be at most half full is not worth its width.
            if tokens <= S::LANES / 2 {
                by_type!(
                    ty,
                    quantized::<P, P>(p, p, w, cols, tokens, h, acc, scratch)
                );
            } else {
                by_type!(
                    ty,
                    quantized::<P, S>(p, s, w, cols, tokens, h, acc, scratch)
                );
            }
        }
    }
}

/// A few tokens of a group whose rows are zipped: each as if it were alone.
#[inline(always)]
fn one_by_one<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    tokens: usize,
    h: &[f32],
    acc: &mut [f32],
    mut scratch: &mut [u8],
) {
    let codes = w.zipped().unwrap_or(&[]);
    let sums = carve::<f32>(&mut scratch, w.cols());
    let mut w = *w;
    for token in 0..tokens {
        let mut column = [0.0; GROUP];
        for (one, h) in column.iter_mut().zip(h.chunks_exact(tokens)) {
            *one = h[token];
        }
        for (sum, acc) in sums.iter_mut().zip(acc.chunks_exact(tokens)) {
            *sum = acc[token];
        }
        if const { S::LANES > P::LANES } && sums.len() >= S::LANES * BLOCK {
            down_zipped::quantized::<P, S, TY>(p, s, &w, codes, &column, sums);
        } else {
            down_zipped::quantized::<P, P, TY>(p, p, &w, codes, &column, sums);
        }
        for (sum, acc) in sums.iter().zip(acc.chunks_exact_mut(tokens)) {
            acc[token] = *sum;
        }
        // Asked for once.
        w.then(Soon::default());
    }
}

/// One block of outputs of a group, ready for every token.
struct Block<'a> {
    /// (quads, outputs): four neurons' codes.
    codes: &'a mut [[[u8; QUAD]; BLOCK]; QUADS],
    d: [f32; GROUP],
    m: [f32; GROUP],
    neurons: usize,
}

/// `h[n * h_stride + first]`, `acc[i * acc_stride + first]`: the lanes of one vector.
struct Lanes<'a> {
    h: &'a [f32],
    h_stride: usize,
    acc: &'a mut [f32],
    acc_stride: usize,
    first: usize,
}

#[allow(
    clippy::too_many_arguments,
    reason = "those of the table, and two vector types"
)]
#[inline(always)]
fn quantized<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    cols: Range<usize>,
    tokens: usize,
    h: &[f32],
    acc: &mut [f32],
    mut scratch: &mut [u8],
) {
    let codes = carve::<[[[u8; QUAD]; BLOCK]; QUADS]>(&mut scratch, 2);
    let h_rest = carve::<f32>(&mut scratch, GROUP * LANES_MAX);
    let acc_rest = carve::<f32>(&mut scratch, BLOCK * LANES_MAX);
    let whole = tokens / S::LANES * S::LANES;
    let rest = tokens - whole;
    h_rest.fill(0.0);
    acc_rest.fill(0.0);
    for (n, h) in h.chunks_exact(tokens).enumerate() {
        h_rest[n * S::LANES..][..rest].copy_from_slice(&h[whole..]);
    }
    let rows = w.zipped().is_none().then(|| Quads::new(w));
    for pair in cols.start / (2 * BLOCK)..cols.end.div_ceil(2 * BLOCK) {
        match (&rows, w.zipped()) {
            (Some(rows), _) => zip_pair::<P, TY>(p, rows, pair, codes),
            (None, zipped) => copy_pair::<P, TY>(p, zipped.unwrap_or(&[]), pair, codes),
        }
        for (b, codes) in codes.iter_mut().enumerate() {
            let index = 2 * pair + b;
            if index * BLOCK >= cols.end {
                break;
            }
            let block = Block::new(p, w, index, codes);
            let acc = &mut acc[(index * BLOCK - cols.start) * tokens..][..BLOCK * tokens];
            for first in (0..whole).step_by(S::LANES) {
                let mut lanes = Lanes {
                    h,
                    h_stride: tokens,
                    acc,
                    acc_stride: tokens,
                    first,
                };
                add_lanes::<S, TY>(s, &block, &mut lanes);
            }
            if rest > 0 {
                copy_rest::<S>(acc, tokens, acc_rest, true);
                let (h, acc) = (&*h_rest, &mut *acc_rest);
                let (h_stride, acc_stride) = (S::LANES, S::LANES);
                let mut lanes = Lanes {
                    h,
                    h_stride,
                    acc,
                    acc_stride,
                    first: 0,
                };
                add_lanes::<S, TY>(s, &block, &mut lanes);
            }
            if rest > 0 {
                copy_rest::<S>(acc, tokens, acc_rest, false);
            }
        }
    }
}

/// Copies the last tokens, which do not fill a vector, to `acc_rest` or back.
#[inline(always)]
fn copy_rest<S: Simd>(acc: &mut [f32], tokens: usize, acc_rest: &mut [f32], there: bool) {
    let whole = tokens / S::LANES * S::LANES;
    let lanes = acc_rest.chunks_exact_mut(S::LANES);
    for (acc, lanes) in acc.chunks_exact_mut(tokens).zip(lanes) {
        let (acc, lanes) = (&mut acc[whole..], &mut lanes[..tokens - whole]);
        if there {
            lanes.copy_from_slice(acc)
        } else {
            acc.copy_from_slice(lanes)
        }
    }
}

/// Codes of a pair of blocks, quad by quad.
#[inline(always)]
fn zip_pair<P: Simd8, const TY: u8>(
    p: P,
    rows: &Quads<'_>,
    pair: usize,
    codes: &mut [[[[u8; QUAD]; BLOCK]; QUADS]],
) {
    for quad in 0..QUADS {
        let zipped = if quad >= rows.len {
            [[p.zero_v(); 4]; 2]
        } else {
            // SAFETY: nothing is asked of a pair that may be cut off.
            unsafe { rows.zipped::<P, TY, false>(p, quad, pair) }
        };
        for b in 0..2 {
            for k in 0..4 {
                // Four outputs of the first half of a block, four of the second.
                let bytes: [[u8; QUAD]; 8] = bytemuck::must_cast(p.to_bytes(zipped[b][k]));
                codes[b][quad][k * 4..][..4].copy_from_slice(&bytes[..4]);
                codes[b][quad][BLOCK / 2 + k * 4..][..4].copy_from_slice(&bytes[4..]);
            }
        }
    }
}

/// The same of rows that are stored `zipped`.
#[inline(always)]
fn copy_pair<P: Simd8, const TY: u8>(
    p: P,
    zipped: &[u8],
    pair: usize,
    codes: &mut [[[[u8; QUAD]; BLOCK]; QUADS]],
) {
    let pair_bytes = GROUP * code_bytes::<TY>(2);
    let bytes = &zipped[pair * pair_bytes..];
    let bytes = &bytes[..bytes.len().min(pair_bytes)];
    let quad_bytes = bytes.len() / QUADS;
    for quad in 0..QUADS {
        for k in 0..4 {
            // SAFETY: a pair has its whole length, or the odd block is cut off: of Q8 alone.
            let both = unsafe {
                if bytes.len() == pair_bytes {
                    quad_codes::<P, TY, false>(p, bytes, quad * quad_bytes, k)
                } else {
                    quad_codes::<P, TY, true>(p, bytes, quad * quad_bytes, k)
                }
            };
            for b in 0..2 {
                let bytes: [[u8; QUAD]; 8] = bytemuck::must_cast(p.to_bytes(both[b]));
                codes[b][quad][k * 8..][..8].copy_from_slice(&bytes);
            }
        }
    }
}

impl<'a> Block<'a> {
    #[inline(always)]
    fn new<P: Simd8>(
        p: P,
        w: &NeuronRows<'_>,
        index: usize,
        codes: &'a mut [[[u8; QUAD]; BLOCK]; QUADS],
    ) -> Self {
        let (mut d, mut m) = ([0.0; GROUP], [0.0; GROUP]);
        if w.ty() == WeightType::Q4K {
            for (n, scales) in w.scales().iter().enumerate() {
                (d[n], m[n]) = block_scale(w.ty(), w.cols(), scales, index);
            }
        } else {
            floats_of_halves(p, w.scales(), 2 * index, &mut d);
            if w.ty().has_offset() {
                floats_of_halves(p, w.scales(), 2 * (w.cols() / BLOCK + index), &mut m);
            }
        }
        Block {
            codes,
            d,
            m,
            neurons: w.scales().len(),
        }
    }
}

/// The f16 at byte `at` of each neuron's scales, eight neurons at a time.
#[inline(always)]
fn floats_of_halves<P: Simd8>(p: P, scales: &[&[u8]], at: usize, out: &mut [f32; GROUP]) {
    for (scales, out) in scales.chunks(8).zip(out.as_chunks_mut().0) {
        let mut halves = [0; 16];
        for (half, scales) in halves.as_chunks_mut::<2>().0.iter_mut().zip(scales) {
            *half = scales[at..].as_chunks().0[0];
        }
        *out = p.to_floats(p.halves(&halves));
    }
}

/// One block of outputs of `LANES` tokens.
#[inline(always)]
fn add_lanes<S: Simd, const TY: u8>(s: S, block: &Block<'_>, lanes: &mut Lanes<'_>) {
    let magnitude = s.splat_w(0x7fff_ffff);
    let (mut top, mut offset) = (s.splat_w(0), s.splat(0.0));
    for n in 0..block.neurons {
        let h = s.floats_at(lanes.h, n * lanes.h_stride + lanes.first);
        let g = s.mul(h, s.splat(block.d[n]));
        top = s.max_w(top, s.and_w(magnitude, s.bits(g)));
        if has_offset(TY) {
            offset = s.add(offset, s.mul(h, s.splat(block.m[n])));
        }
    }
    let (scale, inverse, finite) = scale_of(s, top);
    let mut c = [s.zero_v(); QUADS];
    let mut sums = s.splat_w(0);
    for quad in 0..block.neurons.div_ceil(QUAD) {
        let mut four = [s.splat_w(0); QUAD];
        for i in 0..QUAD {
            let n = quad * QUAD + i;
            if n < block.neurons {
                let h = s.floats_at(lanes.h, n * lanes.h_stride + lanes.first);
                four[i] = code(s, s.mul(h, s.splat(block.d[n])), inverse, finite);
                sums = s.add_w(sums, four[i]);
            }
        }
        c[quad] = s.quad(four);
    }
    let term = correction::<S, TY>(s, sums);
    for at in 0..BLOCK {
        let mut acc = s.zero_acc();
        for step in 0..QUADS / 2 {
            let w = [&block.codes[2 * step][at], &block.codes[2 * step + 1][at]];
            let w = [s.splat4(w[0]), s.splat4(w[1])];
            acc = s.dot2::<TY>(acc, w, [c[2 * step], c[2 * step + 1]]);
        }
        let dot = s.to_f(s.add_w(s.done::<TY>(acc), term));
        let mut p = s.mul(scale, dot);
        if has_offset(TY) {
            p = s.add(p, offset);
        }
        let at = at * lanes.acc_stride + lanes.first;
        let y = s.add(s.floats_at(lanes.acc, at), p);
        s.store_at(y, lanes.acc, at);
    }
}

/// Float weights: neuron by neuron, eight tokens at a time.
#[inline(always)]
fn floats<P: Simd8, const HALF: bool>(
    p: P,
    w: &NeuronRows<'_>,
    cols: Range<usize>,
    tokens: usize,
    h: &[f32],
    acc: &mut [f32],
) {
    let whole = tokens / 8 * 8;
    for (i, acc) in cols.zip(acc.chunks_exact_mut(tokens)) {
        let mut weights = [0.0; GROUP];
        for (weight, codes) in weights.iter_mut().zip(w.codes()) {
            *weight = float_at::<HALF>(codes, i);
        }
        let neurons = weights[..w.codes().len()]
            .iter()
            .zip(h.chunks_exact(tokens));
        for first in (0..whole).step_by(8) {
            let mut sum = p.floats_at(acc, first);
            for (weight, h) in neurons.clone() {
                sum = p.add(sum, p.mul(p.floats_at(h, first), p.splat(*weight)));
            }
            p.store_at(sum, acc, first);
        }
        for (token, acc) in acc.iter_mut().enumerate().skip(whole) {
            for (weight, h) in neurons.clone() {
                *acc += h[token] * weight;
            }
        }
    }
}
