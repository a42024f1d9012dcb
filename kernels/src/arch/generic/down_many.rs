//! Down sums of several tokens: each lane is a token, so that sums lie as they are stored.
#![allow(unsafe_code)]

use core::ops::Range;

use super::ahead::Ahead;
use super::by_type;
use super::coefficients::LANES_MAX;
use super::down::{Quads, float_at};
use super::down_zipped::{self, quad_codes};
use super::float::scale_of;
use super::panel::{carve, last_scales};
use crate::arch::simd::{Q8, Simd, Simd8, code_bytes, correction, has_offset};
use crate::block::{BLOCK, GROUP, WeightType};
use crate::check;
use crate::neurons::NeuronRows;
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
    codes: &'a [[[u8; QUAD]; BLOCK]; QUADS],
    d: &'a [f32; GROUP],
    m: &'a [f32; GROUP],
    neurons: usize,
}

/// `h[n * h_stride + token]`, `acc[i * acc_stride + token]`.
struct Lanes<'a> {
    h: &'a [f32],
    h_stride: usize,
    acc: &'a mut [f32],
    acc_stride: usize,
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
    let [g] = carve::<S::Floats>(&mut scratch, GROUP).as_chunks_mut().0 else {
        unreachable!("as many as were carved")
    };
    let mut scales = EightScales::carve(&mut scratch);
    let whole = tokens / S::LANES * S::LANES;
    let rest = tokens - whole;
    h_rest.fill(0.0);
    acc_rest.fill(0.0);
    for (n, h) in h.chunks_exact(tokens).enumerate() {
        h_rest[n * S::LANES..][..rest].copy_from_slice(&h[whole..]);
    }
    let rows = w.zipped().is_none().then(|| Quads::new(w));
    let pairs = cols.start / (2 * BLOCK)..cols.end.div_ceil(2 * BLOCK);
    let mut next = Ahead::new(w.soon(), pairs.len());
    for pair in pairs {
        next.ask(p);
        match (&rows, w.zipped()) {
            (Some(rows), _) => zip_pair::<P, TY>(p, rows, pair, codes),
            (None, zipped) => copy_pair::<P, TY>(p, zipped.unwrap_or(&[]), pair, codes),
        }
        for (b, codes) in codes.iter().enumerate() {
            let index = 2 * pair + b;
            if index * BLOCK >= cols.end {
                break;
            }
            let [d, m] = scales.of::<P, TY>(p, w, index);
            let block = Block {
                codes,
                d,
                m,
                neurons: w.scales().len(),
            };
            let acc = &mut acc[(index * BLOCK - cols.start) * tokens..][..BLOCK * tokens];
            let mut lanes = Lanes {
                h,
                h_stride: tokens,
                acc: &mut *acc,
                acc_stride: tokens,
            };
            let mut first = 0;
            if const { S::LANES == LANES_MAX } {
                // As many registers as there are hold two vectors of tokens.
                while first + 2 * S::LANES <= whole {
                    add_lanes::<S, TY, 2>(s, &block, &mut lanes, first, g);
                    first += 2 * S::LANES;
                }
            }
            while first < whole {
                add_lanes::<S, TY, 1>(s, &block, &mut lanes, first, g);
                first += S::LANES;
            }
            if rest > 0 {
                copy_rest::<S>(acc, tokens, acc_rest, true);
                let mut lanes = Lanes {
                    h: h_rest,
                    h_stride: S::LANES,
                    acc: acc_rest,
                    acc_stride: S::LANES,
                };
                add_lanes::<S, TY, 1>(s, &block, &mut lanes, 0, g);
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
    assert!(bytes.len() == pair_bytes || TY == Q8 && 2 * bytes.len() == pair_bytes);
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

/// Scales and minima of a group, for eight blocks of outputs: (blocks, neurons).
struct EightScales<'a> {
    d: &'a mut [[f32; GROUP]; 8],
    m: &'a mut [[f32; GROUP]; 8],
    /// Which eight blocks.
    eight: usize,
}

impl<'a> EightScales<'a> {
    #[inline(always)]
    fn carve(scratch: &mut &'a mut [u8]) -> Self {
        let rows = carve::<f32>(scratch, 2 * 8 * GROUP);
        let [d, m] = rows.as_chunks_mut().0.as_chunks_mut().0 else {
            unreachable!("as many as were carved")
        };
        let eight = usize::MAX;
        EightScales { d, m, eight }
    }

    /// Those of block `index`; whoever is not there has zeros.
    #[inline(always)]
    fn of<P: Simd8, const TY: u8>(
        &mut self,
        p: P,
        w: &NeuronRows<'_>,
        index: usize,
    ) -> [&[f32; GROUP]; 2] {
        if self.eight != index / 8 {
            self.eight = index / 8;
            self.fill::<P, TY>(p, w);
        }
        [&self.d[index % 8], &self.m[index % 8]]
    }

    #[inline(always)]
    fn fill<P: Simd8, const TY: u8>(&mut self, p: P, w: &NeuronRows<'_>) {
        let (blocks, start) = (w.cols() / BLOCK, self.eight * 8);
        for first in (0..GROUP).step_by(8) {
            let (mut d, mut m) = ([p.zero_v(); 8], [p.zero_v(); 8]);
            for n in 0..8 {
                let Some(scales) = w.scales().get(first + n) else {
                    break;
                };
                let both = if start + 8 <= blocks {
                    p.scales_at::<TY>(scales, start * 2, blocks * 2)
                } else {
                    last_scales::<P, TY>(p, scales, start, blocks)
                };
                (d[n], m[n]) = (p.vector(both[0]), p.vector(both[1]));
            }
            let (d, m) = (p.transpose8(d), p.transpose8(m));
            for block in 0..8 {
                p.store_at(p.floats_of(d[block]), &mut self.d[block], first);
                p.store_at(p.floats_of(m[block]), &mut self.m[block], first);
            }
        }
    }
}

/// What the hidden values of `LANES` tokens make for a block of outputs.
#[derive(Clone, Copy)]
struct TokenCoefficients<S: Simd> {
    c: [S::V; QUADS],
    scale: S::F,
    /// Sum of `h * m`.
    offset: S::F,
    /// To be added to a product of codes.
    term: S::W,
}

impl<S: Simd> TokenCoefficients<S> {
    /// Of the tokens from `first` on; works in `g`.
    #[inline(always)]
    fn new<const TY: u8>(
        s: S,
        block: &Block<'_>,
        lanes: &Lanes<'_>,
        first: usize,
        g: &mut [S::Floats; GROUP],
    ) -> Self {
        let magnitude = s.splat_w(0x7fff_ffff);
        let (mut top, mut offset) = (s.splat_w(0), s.splat(0.0));
        let neurons = block.d.iter().zip(block.m).zip(g.iter_mut());
        for (h, ((d, m), g)) in lanes.h.chunks_exact(lanes.h_stride).zip(neurons) {
            let h = s.floats_at(h, first);
            let product = s.mul(h, s.splat(*d));
            *g = s.to_floats(product);
            top = s.max_w(top, s.and_w(magnitude, s.bits(product)));
            if has_offset(TY) {
                offset = s.add(offset, s.mul(h, s.splat(*m)));
            }
        }
        for g in &mut g[block.neurons..] {
            *g = s.to_floats(s.splat(0.0));
        }
        let (scale, inverse, finite) = scale_of(s, top);
        // Where a value is not finite the sum is not a number, whatever the codes.
        let scale = s.as_floats(s.or_w(s.bits(scale), s.and_not_w(finite, s.splat_w(-1))));
        let mut c = [s.zero_v(); QUADS];
        for quad in 0..QUADS {
            let mut four = [s.splat_w(0); QUAD];
            for i in 0..QUAD {
                four[i] = s.round(s.mul(s.floats(&g[quad * QUAD + i]), inverse));
            }
            c[quad] = s.quad(four);
        }
        let (mut sums, ones) = (s.zero_acc(), s.splat4(&[1; 4]));
        for step in 0..QUADS / 2 {
            sums = s.dot2::<TY>(sums, [ones; 2], [c[2 * step], c[2 * step + 1]]);
        }
        TokenCoefficients {
            c,
            scale,
            offset,
            term: correction::<S, TY>(s, s.done::<TY>(sums)),
        }
    }
}

/// One block of outputs of `V` times `LANES` tokens from `first` on.
#[inline(always)]
fn add_lanes<S: Simd, const TY: u8, const V: usize>(
    s: S,
    block: &Block<'_>,
    lanes: &mut Lanes<'_>,
    first: usize,
    g: &mut [S::Floats; GROUP],
) {
    let mut x = [TokenCoefficients::new::<TY>(s, block, lanes, first, g); V];
    for v in 1..V {
        x[v] = TokenCoefficients::new::<TY>(s, block, lanes, first + v * S::LANES, g);
    }
    for at in 0..BLOCK {
        let mut acc = [s.zero_acc(); V];
        for step in 0..QUADS / 2 {
            let w = [&block.codes[2 * step][at], &block.codes[2 * step + 1][at]];
            let w = [s.splat4(w[0]), s.splat4(w[1])];
            for v in 0..V {
                acc[v] = s.dot2::<TY>(acc[v], w, [x[v].c[2 * step], x[v].c[2 * step + 1]]);
            }
        }
        for v in 0..V {
            let dot = s.to_f(s.add_w(s.done::<TY>(acc[v]), x[v].term));
            let mut p = s.mul(x[v].scale, dot);
            if has_offset(TY) {
                p = s.add(p, x[v].offset);
            }
            let at = at * lanes.acc_stride + first + v * S::LANES;
            let y = s.add(s.floats_at(lanes.acc, at), p);
            s.store_at(y, lanes.acc, at);
        }
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
