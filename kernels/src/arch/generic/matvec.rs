//! One token: each lane of a sum is a block, as the crate docs number the accumulators. Rows are
//! taken one after the other, so that memory is read in one stream.

use bytemuck::{cast_slice, must_cast_ref};

use super::ahead::Ahead;
use super::by_type;
use super::float::{Sums, four, four_halves, padded};
use crate::arch::simd::{
    RowRuns, Simd8, TokenRuns, add_one, code_bytes, has_offset, inputs, scale_bytes,
};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::view::{Activations, Rows};

/// How far ahead a row's codes are asked for.
pub(super) const PREFETCH_BYTES: usize = 8192;
/// Blocks taken together: the lanes.
const BLOCKS: usize = 8;

/// See [`crate::Kernels::matvec`].
#[inline(always)]
pub(crate) fn matvec<S: Simd8>(s: S, w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    check::matvec(w, x, out);
    match w.ty() {
        WeightType::F32 => floats::<S, false>(s, w, x.x, out),
        WeightType::F16 => floats::<S, true>(s, w, x.x, out),
        ty => {
            let token = Token::new(x, 0);
            by_type!(ty, quantized::<S>(s, w, &token, out));
        }
    }
}

/// One token's activations, in runs of eight blocks; the last blocks filled up with zeros.
#[derive(Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) blocks: usize,
    pub(super) runs: TokenRuns<'a>,
    tail: Tail,
}

/// Eight blocks of activations.
#[derive(Clone, Copy)]
struct Tail {
    q: [[u8; BLOCK]; BLOCKS],
    scales: [f32; BLOCKS],
    sums: [i32; BLOCKS],
}

impl<'a> Token<'a> {
    /// Token `token` of `x`.
    #[inline(always)]
    pub(super) fn new(x: &Activations<'a>, token: usize) -> Self {
        let blocks = x.cols() / BLOCK;
        let q: &[u8] = cast_slice(&x.interleaved[token * x.cols()..][..x.cols()]);
        let (scales, scales_rest) = x.scales[token * blocks..][..blocks].as_chunks();
        let (sums, sums_rest) = x.sums[token * blocks..][..blocks].as_chunks();
        let (q, q_rest) = q.as_chunks::<BLOCK>().0.as_chunks();
        Token {
            blocks,
            runs: TokenRuns { q, scales, sums },
            tail: Tail {
                q: padded([0; BLOCK], q_rest),
                scales: padded(0.0, scales_rest),
                sums: padded(0, sums_rest),
            },
        }
    }
}

/// Quantised rows times one token: `out` has one value a row.
#[inline(always)]
pub(super) fn quantized<S: Simd8, const TY: u8>(
    s: S,
    w: &Rows<'_>,
    x: &Token<'_>,
    out: &mut [f32],
) {
    if w.follow_each_other() {
        match x.blocks {
            2 => return narrow::<S, TY, 2>(s, w, x, out),
            4 => return narrow::<S, TY, 4>(s, w, x, out),
            _ => {}
        }
    }
    let runs = x.runs.q.len();
    let mut ahead = Ahead::over_rows(w.soon(), w.rows(), runs);
    let rows_ahead = PREFETCH_BYTES.div_ceil(w.ty().code_bytes(w.cols()));
    let scales_ahead = rows_ahead * w.ty().scale_bytes(w.cols());
    for (index, out) in out.iter_mut().enumerate() {
        let (codes, scales) = (w.codes(index), w.scales(index));
        if runs == 0 {
            ahead.ask(s);
        }
        [*out] = row::<S, TY, 1>(s, codes, scales, [x], |run| {
            if ahead.is_given() {
                ahead.ask(s);
            } else if w.follow_each_other() {
                ask_for_runs::<S, TY>(s, [codes, scales], [PREFETCH_BYTES, scales_ahead], run);
            }
        });
    }
}

/// Asks for what is `ahead` of two runs, codes and scales, of a row.
#[inline(always)]
pub(super) fn ask_for_runs<S: Simd8, const TY: u8>(
    s: S,
    [codes, scales]: [&[u8]; 2],
    ahead: [usize; 2],
    run: usize,
) {
    let (code_bytes, scale_bytes) = (code_bytes::<TY>(BLOCKS), scale_bytes::<TY>(BLOCKS));
    for line in 0..(2 * code_bytes).div_ceil(64) {
        s.prefetch(codes, ahead[0] + run * code_bytes + line * 64);
    }
    if (run * scale_bytes).is_multiple_of(64) {
        s.prefetch(scales, ahead[1] + run * scale_bytes);
    }
}

/// Rows of `B` blocks, 2 or 4, which follow each other: several of them stand where a longer one
/// has eight blocks. Each lane gets what it gets alone, and the lanes of a row are added in the
/// order of a tree whose other lanes are zero.
#[inline(always)]
fn narrow<S: Simd8, const TY: u8, const B: usize>(
    s: S,
    w: &Rows<'_>,
    x: &Token<'_>,
    out: &mut [f32],
) {
    let at_once = BLOCKS / B;
    let mut ahead = Ahead::new(w.soon(), 1);
    ahead.ask(s);
    let done = if has_offset(TY) {
        0
    } else {
        out.len() / at_once
    };
    let tail = &x.tail;
    let repeated = Tail {
        q: core::array::from_fn(|lane| tail.q[lane % B]),
        scales: core::array::from_fn(|lane| tail.scales[lane % B]),
        sums: core::array::from_fn(|lane| tail.sums[lane % B]),
    };
    let a = inputs::<S, TY>(s, &repeated.q, &repeated.scales, &repeated.sums);
    let (row_bytes, scale_bytes) = (code_bytes::<TY>(B), scale_bytes::<TY>(B));
    let (codes, scales) = w.all();
    for (eight, out) in out.chunks_exact_mut(at_once).take(done).enumerate() {
        let codes = &codes[eight * at_once * row_bytes..];
        let scales = &scales[eight * at_once * scale_bytes..];
        for line in 0..(at_once * row_bytes).div_ceil(64) {
            s.prefetch(codes, PREFETCH_BYTES + line * 64);
        }
        let row = RowRuns {
            codes,
            scales,
            minima_at: 0,
        };
        let row = row.eight::<TY>(0);
        let lanes = s.to_floats(add_one::<S, TY>(s, s.splat(0.0), &row, &a));
        for (out, lanes) in out.iter_mut().zip(lanes.chunks_exact(B)) {
            let lane = |at: usize| if at < B { lanes[at] + 0.0 } else { 0.0 };
            *out = (lane(0) + lane(2)) + (lane(1) + lane(3));
        }
    }
    for index in done * at_once..out.len() {
        [out[index]] = row::<S, TY, 1>(s, w.codes(index), w.scales(index), [x], |_| {});
    }
}

/// One interleaved row times `T` tokens. `ask(run)` is called before every second run.
#[inline(always)]
pub(super) fn row<S: Simd8, const TY: u8, const T: usize>(
    s: S,
    codes: &[u8],
    scales: &[u8],
    x: [&Token<'_>; T],
    ask: impl FnMut(usize),
) -> [f32; T] {
    let blocks = x[0].blocks;
    let row = RowRuns {
        codes,
        scales,
        minima_at: blocks * 2,
    };
    let mut runs = [&x[0].runs; T];
    for t in 0..T {
        runs[t] = &x[t].runs;
    }
    let sums = s.runs::<TY, T>(&row, runs, ask);
    let mut out = [0.0; T];
    for t in 0..T {
        let sums = match blocks % BLOCKS {
            0 => sums[t],
            1 | 2 => add_tail::<S, TY, 2>(s, codes, scales, x[t], sums[t]),
            3 | 4 => add_tail::<S, TY, 4>(s, codes, scales, x[t], sums[t]),
            _ => add_tail::<S, TY, 8>(s, codes, scales, x[t], sums[t]),
        };
        out[t] = s.tree(sums);
    }
    out
}

/// Adds the last 1 to 7 blocks of a row, `N` at most, which are in order; lanes past the end are
/// zero.
#[inline(always)]
fn add_tail<S: Simd8, const TY: u8, const N: usize>(
    s: S,
    codes: &[u8],
    scales: &[u8],
    x: &Token<'_>,
    sums: S::F,
) -> S::F {
    let (runs, count) = (x.runs.q.len(), x.blocks % BLOCKS);
    let first = runs * BLOCKS;
    let a = inputs::<S, TY>(s, &x.tail.q, &x.tail.scales, &x.tail.sums);
    let codes = &codes[runs * code_bytes::<TY>(BLOCKS)..];
    let mut all = [s.zero_v(); BLOCKS];
    for p in 0..N / 2 {
        if p * 2 < count {
            [all[2 * p], all[2 * p + 1]] = pair_or_last::<S, TY>(s, codes, p);
        }
    }
    let d = s.halves(&last_halves(scales, first, count));
    let dots = s.to_f(s.add_w(s.blocks::<TY, N>(all, a.q), a.corrections));
    let mut p = s.mul(s.mul(d, a.scales), dots);
    if has_offset(TY) {
        let m = s.halves(&last_halves(scales, x.blocks + first, count));
        p = s.add(p, s.mul(m, a.offsets));
    }
    s.add(sums, p)
}

/// `count` (1 to 7) f16 from `first` on, and zeros.
#[inline(always)]
pub(super) fn last_halves(scales: &[u8], first: usize, count: usize) -> [u8; 16] {
    match scales[..(first + count) * 2].last_chunk() {
        Some(eight) => (u128::from_le_bytes(*eight) >> (16 * (8 - count))).to_le_bytes(),
        None => padded(0, &scales[first * 2..][..count * 2]),
    }
}

/// Pair `p` of a run of codes; where an odd number of Q8 blocks ends, the second one is zero.
#[inline(always)]
pub(super) fn pair_or_last<S: Simd8, const TY: u8>(s: S, codes: &[u8], p: usize) -> [S::V; 2] {
    let bytes = code_bytes::<TY>(2);
    let rest = &codes[p * bytes..];
    if rest.len() >= bytes {
        s.pair::<TY>(&rest[..bytes])
    } else {
        s.pair::<TY>(&padded::<u8, 64>(0, rest))
    }
}

/// Float rows times one token.
#[inline(always)]
pub(super) fn floats<S: Simd8, const HALF: bool>(s: S, w: &Rows<'_>, x: &[f32], out: &mut [f32]) {
    for (row, out) in out.iter_mut().enumerate() {
        *out = float_product::<S, HALF>(s, w.codes(row), x);
    }
}

/// One float row, as bytes, times one token.
#[inline(always)]
pub(super) fn float_product<S: Simd8, const HALF: bool>(s: S, row: &[u8], x: &[f32]) -> f32 {
    let mut sums = Sums::new(s);
    let (x, x_rest) = x.as_chunks::<32>();
    if HALF {
        let (row, row_rest) = row.as_chunks::<64>();
        for (w, x) in row.iter().zip(x) {
            sums.add_products(s, four_halves(s, w), four(s, x));
        }
        if !x_rest.is_empty() {
            let w = padded(0, row_rest);
            sums.add_products(s, four_halves(s, &w), four(s, &padded(0.0, x_rest)));
        }
    } else {
        let (row, row_rest) = row.as_chunks::<128>();
        for (w, x) in row.iter().zip(x) {
            sums.add_products(s, four_of_bytes(s, w), four(s, x));
        }
        if !x_rest.is_empty() {
            let w = padded(0, row_rest);
            sums.add_products(s, four_of_bytes(s, &w), four(s, &padded(0.0, x_rest)));
        }
    }
    sums.total(s)
}

/// The eight lanes of 32 f32 of any alignment.
#[inline(always)]
pub(super) fn four_of_bytes<S: Simd8>(s: S, bytes: &[u8; 128]) -> [S::F; 4] {
    let [a, b, c, d] = must_cast_ref::<[u8; 128], [[u8; 32]; 4]>(bytes);
    [
        s.floats_of(s.bytes(a)),
        s.floats_of(s.bytes(b)),
        s.floats_of(s.bytes(c)),
        s.floats_of(s.bytes(d)),
    ]
}
