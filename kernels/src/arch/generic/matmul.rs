//! Several tokens: each lane of a sum is a row, of a panel whose codes were unpacked once.

use bytemuck::{cast_slice, must_cast};

use super::ahead::Ahead;
use super::by_type;
use super::few;
use super::matvec::{self, Token};
use super::panel::{Panel, carve};
use crate::arch::simd::{Simd, Simd8, has_offset, offset_shift};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::dispatch::TOKENS_AT_ONCE;
use crate::view::{Activations, Rows};

/// Accumulators in the order in which the tree adds them.
const TREE_ORDER: [usize; 8] = [0, 4, 2, 6, 1, 5, 3, 7];

/// See [`crate::Kernels::matmul`].
#[inline(always)]
pub(crate) fn matmul<P: Simd8, S: Simd>(
    p: P,
    s: S,
    w: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
    scratch: &mut [u8],
) {
    check::matmul(w, x, out, scratch);
    if out.is_empty() {
        return;
    }
    match w.ty() {
        WeightType::F32 => floats::<P, false>(p, w, x, out),
        WeightType::F16 => floats::<P, true>(p, w, x, out),
        ty if !few::pays(x) => by_type!(ty, many::<P, S>(p, s, w, x, out, scratch)),
        ty if x.tokens() == 1 => {
            let token = Token::new(x, 0);
            by_type!(ty, matvec::quantized::<P>(p, w, &token, out));
        }
        ty => by_type!(ty, few::quantized::<P>(p, w, x, out)),
    }
}

/// Row by row, so that a row is read once.
#[inline(always)]
fn floats<P: Simd8, const HALF: bool>(p: P, w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(x.tokens()).enumerate() {
        for (token, out) in out.iter_mut().enumerate() {
            let x = &x.x[token * x.cols()..][..x.cols()];
            *out = matvec::float_product::<P, HALF>(p, w.codes(row), x);
        }
    }
}

/// Up to [`TOKENS_AT_ONCE`] tokens.
struct Batch<'a> {
    tokens: usize,
    blocks: usize,
    /// (tokens, blocks)
    q: &'a [[[u8; 4]; 8]],
    /// (blocks, tokens)
    scales: &'a [f32],
    /// (blocks, tokens): i32 to add to a product of codes; for weights with an offset f32
    /// `s_b * f32(t_b)`.
    terms: &'a [u32],
}

/// `out[row * stride + token]`.
struct Output<'a> {
    out: &'a mut [f32],
    stride: usize,
    rows: usize,
}

#[inline(always)]
fn many<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
    scratch: &mut [u8],
) {
    let blocks = x.cols() / BLOCK;
    let steps = w.rows().div_ceil(S::LANES) * (S::LANES / 8) * blocks.div_ceil(2);
    let mut ahead = Ahead::new(w.soon(), steps);
    for start in (0..x.tokens()).step_by(TOKENS_AT_ONCE) {
        let tokens = (x.tokens() - start).min(TOKENS_AT_ONCE);
        let mut scratch = &mut *scratch;
        let scales = carve::<f32>(&mut scratch, tokens * blocks);
        let terms = carve::<u32>(&mut scratch, tokens * blocks);
        let mut panel = Panel::<S>::carve(&mut scratch, blocks);
        fill_terms::<P, S, TY>(p, x, start, tokens, scales, terms);
        let q: &[u8] = cast_slice(&x.q[start * x.cols()..][..tokens * x.cols()]);
        let q = q.as_chunks::<4>().0.as_chunks::<8>().0;
        let batch = Batch {
            tokens,
            blocks,
            q,
            scales,
            terms,
        };
        for first in (0..w.rows()).step_by(S::LANES) {
            panel.fill::<P, TY>(p, w, first, &mut ahead);
            let rows = (w.rows() - first).min(S::LANES);
            let out = &mut out[first * x.tokens() + start..];
            let mut out = Output {
                out,
                stride: x.tokens(),
                rows,
            };
            let mut done = 0;
            if S::LANES == 16 {
                done = tiles::<S, TY, 8>(s, &panel, &batch, done, &mut out);
            }
            done = tiles::<S, TY, 4>(s, &panel, &batch, done, &mut out);
            done = tiles::<S, TY, 2>(s, &panel, &batch, done, &mut out);
            tiles::<S, TY, 1>(s, &panel, &batch, done, &mut out);
        }
    }
}

/// Scales and terms of the tokens from `start` on, block by block.
#[inline(always)]
fn fill_terms<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    x: &Activations<'_>,
    start: usize,
    tokens: usize,
    scales: &mut [f32],
    terms: &mut [u32],
) {
    let blocks = x.cols() / BLOCK;
    let whole = [tokens / 8 * 8, blocks / 8 * 8];
    for token in (0..whole[0]).step_by(8) {
        for block in (0..whole[1]).step_by(8) {
            let (mut eight_scales, mut eight_terms) = ([p.zero_v(); 8], [p.zero_v(); 8]);
            for i in 0..8 {
                let at = (start + token + i) * blocks + block;
                let scale = p.floats_at(x.scales, at);
                let sums = p.words(&x.sums[at..].as_chunks().0[0]);
                eight_scales[i] = p.vector(scale);
                eight_terms[i] = p.vector(terms_of::<P, S, TY>(p, scale, sums));
            }
            let eight_scales = p.transpose8(eight_scales);
            let eight_terms = p.transpose8(eight_terms);
            for i in 0..8 {
                let at = (block + i) * tokens + token;
                scales[at..].as_chunks_mut().0[0] = p.to_floats(p.floats_of(eight_scales[i]));
                terms[at..].as_chunks_mut::<8>().0[0] = must_cast(p.to_bytes(eight_terms[i]));
            }
        }
    }
    for token in whole[0]..tokens {
        for block in (0..whole[1]).step_by(8) {
            let at = (start + token) * blocks + block;
            let scale = p.floats_at(x.scales, at);
            let sums = p.words(&x.sums[at..].as_chunks().0[0]);
            let eight_terms = p.to_floats(terms_of::<P, S, TY>(p, scale, sums));
            for i in 0..8 {
                scales[(block + i) * tokens + token] = x.scales[at + i];
                terms[(block + i) * tokens + token] = eight_terms[i].to_bits();
            }
        }
    }
    for token in 0..tokens {
        for block in whole[1]..blocks {
            let at = (start + token) * blocks + block;
            let (scale, sum) = (p.splat(x.scales[at]), p.splat_w(x.sums[at]));
            let term = p.to_floats(terms_of::<P, S, TY>(p, scale, sum))[0];
            scales[block * tokens + token] = x.scales[at];
            terms[block * tokens + token] = term.to_bits();
        }
    }
}

/// The bits of [`Batch::terms`] for the vectors `S`.
#[inline(always)]
fn terms_of<P: Simd8, S: Simd, const TY: u8>(p: P, scales: P::F, sums: P::W) -> P::F {
    match offset_shift(TY, S::Q8_BIAS) {
        Some(3) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<3>(sums))),
        Some(4) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<4>(sums))),
        Some(5) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<5>(sums))),
        Some(_) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<7>(sums))),
        None => p.mul(scales, p.to_f(sums)),
    }
}

/// A panel times the tokens from `first` on, `T` at a time as long as there are as many; returns
/// where they end.
#[inline(always)]
fn tiles<S: Simd, const TY: u8, const T: usize>(
    s: S,
    panel: &Panel<'_, S>,
    x: &Batch<'_>,
    mut first: usize,
    out: &mut Output<'_>,
) -> usize {
    while first + T <= x.tokens {
        tile::<S, TY, T>(s, panel, x, first, out);
        first += T;
    }
    first
}

/// A panel times `T` tokens from `first` on.
#[inline(always)]
fn tile<S: Simd, const TY: u8, const T: usize>(
    s: S,
    panel: &Panel<'_, S>,
    x: &Batch<'_>,
    first: usize,
    out: &mut Output<'_>,
) {
    let mut held = [[s.splat(0.0); T]; 3];
    for (i, j) in TREE_ORDER.into_iter().enumerate() {
        let mut sum = accumulator::<S, TY, T>(s, panel, x, first, j);
        // As many levels of the tree end here as `i` has ones at its end.
        for level in 0..3 {
            if (i >> level) & 1 == 0 {
                held[level] = sum;
                break;
            }
            for t in 0..T {
                sum[t] = s.add(held[level][t], sum[t]);
            }
        }
        if i == 7 {
            for t in 0..T {
                let lanes = s.to_floats(sum[t]);
                let lanes: &[f32] = cast_slice(core::slice::from_ref(&lanes));
                for (row, y) in lanes[..out.rows].iter().enumerate() {
                    out.out[row * out.stride + first + t] = *y;
                }
            }
        }
    }
}

/// Accumulator `A_j` of `T` tokens.
#[inline(always)]
fn accumulator<S: Simd, const TY: u8, const T: usize>(
    s: S,
    panel: &Panel<'_, S>,
    x: &Batch<'_>,
    first: usize,
    j: usize,
) -> [S::F; T] {
    let mut sum = [s.splat(0.0); T];
    let mut q = [&x.q[..0]; T];
    for t in 0..T {
        q[t] = &x.q[(first + t) * x.blocks..][..x.blocks];
    }
    let (codes, d) = (&panel.codes[..x.blocks], &panel.d[..x.blocks]);
    let mut block = j;
    while block < x.blocks {
        let mut a = [&[[0; 4]; 8]; T];
        for t in 0..T {
            a[t] = &q[t][block];
        }
        let dots = s.tile::<TY, T>(&codes[block], a);
        let at = block * x.tokens + first;
        let scales: &[f32; T] = &x.scales[at..].as_chunks().0[0];
        let terms: &[u32; T] = &x.terms[at..].as_chunks().0[0];
        let d = s.floats(&d[block]);
        for t in 0..T {
            let mut dot = dots[t];
            if offset_shift(TY, S::Q8_BIAS).is_some() {
                dot = s.add_w(dot, s.splat_w(terms[t] as i32));
            }
            let mut p = s.mul(s.mul(d, s.splat(scales[t])), s.to_f(dot));
            if has_offset(TY) {
                let m = s.floats(&panel.m[block]);
                p = s.add(p, s.mul(m, s.splat(f32::from_bits(terms[t]))));
            }
            sum[t] = s.add(sum[t], p);
        }
        block += 8;
    }
    sum
}
