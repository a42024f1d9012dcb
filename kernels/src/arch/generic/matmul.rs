//! Several tokens: each lane of a sum is a row, of a panel whose codes were unpacked once.

use bytemuck::cast_slice;

use super::by_type;
use super::matvec::{self, Token};
use super::panel::{Panel, carve};
use crate::arch::simd::{Q4O, Simd, Simd8, offset_shift};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::dispatch::TOKENS_AT_ONCE;
use crate::view::{Activations, Rows};

/// Tokens whose sums are in registers together.
const TILE: usize = 4;
/// Up to so many tokens, unpacking rows for each token costs less than making panels.
const TOKENS_FEW: usize = 2;
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
        ty if x.tokens() <= TOKENS_FEW => by_type!(ty, few::<P>(p, w, x, out)),
        ty => by_type!(ty, many::<P, S>(p, s, w, x, out, scratch)),
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

/// A few rows at a time, token by token.
#[inline(always)]
fn few<P: Simd8, const TY: u8>(p: P, w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    const ROWS: usize = 4;
    for token in 0..x.tokens() {
        let token_x = Token::new(x, token);
        for first in (0..w.rows()).step_by(ROWS) {
            let rows = (w.rows() - first).min(ROWS);
            let mut part = [0.0; ROWS];
            matvec::quantized::<P, TY>(p, &w.slice(first, rows), &token_x, &mut part[..rows]);
            for (r, part) in part[..rows].iter().enumerate() {
                out[(first + r) * x.tokens() + token] = *part;
            }
        }
    }
}

/// Up to [`TOKENS_AT_ONCE`] tokens, token by token in rows of blocks.
struct Batch<'a> {
    blocks: usize,
    q: &'a [[[u8; 4]; 8]],
    scales: &'a [f32],
    /// i32 to add to a product of codes; for `Q4O` f32 `s_b * f32(t_b)`.
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
    for start in (0..x.tokens()).step_by(TOKENS_AT_ONCE) {
        let tokens = (x.tokens() - start).min(TOKENS_AT_ONCE);
        let mut scratch = &mut *scratch;
        let terms = carve::<u32>(&mut scratch, tokens * blocks);
        let mut panel = Panel::<S>::carve(&mut scratch, blocks);
        let range = start * blocks..(start + tokens) * blocks;
        let scales = &x.scales[range.clone()];
        fill_terms::<S, TY>(terms, scales, &x.sums[range.clone()]);
        let q: &[u8] = cast_slice(&x.q[range.start * BLOCK..range.end * BLOCK]);
        let q = q.as_chunks::<4>().0.as_chunks::<8>().0;
        let batch = Batch {
            blocks,
            q,
            scales,
            terms,
        };
        for first in (0..w.rows()).step_by(S::LANES) {
            panel.fill::<P, TY>(p, w, first);
            let rows = (w.rows() - first).min(S::LANES);
            let out = &mut out[first * x.tokens() + start..];
            let mut out = Output {
                out,
                stride: x.tokens(),
                rows,
            };
            let whole = tokens / TILE * TILE;
            for token in (0..whole).step_by(TILE) {
                tile::<S, TY, TILE>(s, &panel, &batch, token, &mut out);
            }
            for token in whole..tokens {
                tile::<S, TY, 1>(s, &panel, &batch, token, &mut out);
            }
        }
    }
}

#[inline(always)]
fn fill_terms<S: Simd, const TY: u8>(terms: &mut [u32], scales: &[f32], sums: &[i32]) {
    for ((term, scale), sum) in terms.iter_mut().zip(scales).zip(sums) {
        *term = match offset_shift(TY, S::Q8_BIAS) {
            Some(shift) => (-(sum << shift)) as u32,
            None => (scale * *sum as f32).to_bits(),
        };
    }
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
    for block in (j..x.blocks).step_by(8) {
        let w = &panel.codes[block];
        let mut acc = [s.zero_acc(); T];
        for step in 0..4 {
            let w = [s.bytes(&w[2 * step]), s.bytes(&w[2 * step + 1])];
            for t in 0..T {
                let a = &x.q[(first + t) * x.blocks + block];
                let a = [s.splat4(&a[2 * step]), s.splat4(&a[2 * step + 1])];
                acc[t] = s.dot2::<TY>(acc[t], w, a);
            }
        }
        let d = s.floats(&panel.d[block]);
        for t in 0..T {
            let at = (first + t) * x.blocks + block;
            let (scale, term) = (s.splat(x.scales[at]), x.terms[at]);
            let mut dot = s.done::<TY>(acc[t]);
            if offset_shift(TY, S::Q8_BIAS).is_some() {
                dot = s.add_w(dot, s.splat_w(term as i32));
            }
            let mut p = s.mul(s.mul(d, scale), s.to_f(dot));
            if TY == Q4O {
                let m = s.floats(&panel.m[block]);
                p = s.add(p, s.mul(m, s.splat(f32::from_bits(term))));
            }
            sum[t] = s.add(sum[t], p);
        }
    }
    sum
}
