//! One token: each lane of a sum is a block, as the crate docs number the accumulators.

use bytemuck::{cast_slice, must_cast_ref};

use super::ahead::Ahead;
use super::by_type;
use super::float::{Sums, four, four_halves, padded};
use crate::arch::simd::{
    EightBlocks, EightInputs, Q4K, Q4O, Simd8, add_one, code_bytes, correction, has_offset,
    scale_bytes,
};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::view::{Activations, Rows};

/// Rows taken together, so that activations are loaded once and latencies overlap.
pub(super) const ROWS: usize = 4;
/// Rows whose codes are longer than this are taken two at a time: what is asked for ahead shall not
/// fill the first cache.
pub(super) const WIDE_BYTES: usize = 20 << 10;
/// How far ahead codes are asked for, at least.
const PREFETCH_BYTES: usize = 8192;
/// Blocks taken together: the lanes.
pub(super) const BLOCKS: usize = 8;

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

/// One token's activations, in groups of eight blocks; the last group filled up with zeros.
pub(super) struct Token<'a> {
    blocks: usize,
    pub(super) q: &'a [[[u8; BLOCK]; BLOCKS]],
    scales: &'a [[f32; BLOCKS]],
    sums: &'a [[i32; BLOCKS]],
    tail: Group,
}

/// Eight blocks of activations.
struct Group {
    q: [[u8; BLOCK]; BLOCKS],
    scales: [f32; BLOCKS],
    sums: [i32; BLOCKS],
}

impl<'a> Token<'a> {
    #[inline(always)]
    pub(super) fn new(x: &Activations<'a>, token: usize) -> Self {
        let blocks = x.cols() / BLOCK;
        let q: &[u8] = cast_slice(&x.q[token * x.cols()..][..x.cols()]);
        let (scales, scales_rest) = x.scales[token * blocks..][..blocks].as_chunks();
        let (sums, sums_rest) = x.sums[token * blocks..][..blocks].as_chunks();
        let (q, q_rest) = q.as_chunks::<BLOCK>().0.as_chunks();
        let tail = Group {
            q: padded([0; BLOCK], q_rest),
            scales: padded(0.0, scales_rest),
            sums: padded(0, sums_rest),
        };
        Token {
            blocks,
            q,
            scales,
            sums,
            tail,
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
    let wide = ROWS * w.ty().code_bytes(w.cols()) > WIDE_BYTES;
    let at_once = if wide { 2 } else { ROWS };
    let mut ahead = Ahead::new(w.soon(), w.rows().div_ceil(at_once) * x.q.len());
    let done = if wide {
        0
    } else {
        chunks::<S, TY, ROWS>(s, w, x, out, 0, &mut ahead)
    };
    let done = chunks::<S, TY, 2>(s, w, x, out, done, &mut ahead);
    chunks::<S, TY, 1>(s, w, x, out, done, &mut ahead);
}

/// Rows from `first` on, `R` at a time as long as there are as many; returns where they end.
#[inline(always)]
fn chunks<S: Simd8, const TY: u8, const R: usize>(
    s: S,
    w: &Rows<'_>,
    x: &Token<'_>,
    out: &mut [f32],
    mut first: usize,
    ahead: &mut Ahead<'_>,
) -> usize {
    let turns = PREFETCH_BYTES.div_ceil(R * w.ty().code_bytes(w.cols()));
    let codes_ahead = turns * R * w.ty().code_bytes(w.cols());
    let scales_ahead = turns * R * w.ty().scale_bytes(w.cols());
    let (group_bytes, scale_bytes) = (code_bytes::<TY>(BLOCKS), scale_bytes::<TY>(BLOCKS));
    for out in out[first..].as_chunks_mut::<R>().0 {
        let (mut codes, mut scales) = ([&[][..]; R], [&[][..]; R]);
        for r in 0..R {
            codes[r] = w.codes(first + r);
            scales[r] = w.scales(first + r);
        }
        *out = rows::<S, TY, R>(s, codes, scales, x, |g| {
            if ahead.is_given() {
                ahead.ask(s);
            } else if w.follow_each_other() {
                for line in 0..(R * group_bytes).div_ceil(64) {
                    s.prefetch(codes[0], codes_ahead + g * R * group_bytes + line * 64);
                }
                for line in 0..(R * scale_bytes).div_ceil(64) {
                    s.prefetch(scales[0], scales_ahead + g * R * scale_bytes + line * 64);
                }
            }
        });
        first += R;
    }
    first
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
    let repeated = Group {
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
        let row = eight_blocks::<TY>(codes, scales, 0, 0);
        let lanes = s.to_floats(add_one::<S, TY>(s, s.splat(0.0), &row, &a));
        for (out, lanes) in out.iter_mut().zip(lanes.chunks_exact(B)) {
            let lane = |at: usize| if at < B { lanes[at] + 0.0 } else { 0.0 };
            *out = (lane(0) + lane(2)) + (lane(1) + lane(3));
        }
    }
    for row in done * at_once..out.len() {
        let codes = [w.codes(row)];
        [out[row]] = rows::<S, TY, 1>(s, codes, [w.scales(row)], x, |_| {});
    }
}

/// `R` rows. `ask(g)` is called for each group of eight blocks.
#[inline(always)]
pub(super) fn rows<S: Simd8, const TY: u8, const R: usize>(
    s: S,
    codes: [&[u8]; R],
    scales: [&[u8]; R],
    x: &Token<'_>,
    mut ask: impl FnMut(usize),
) -> [f32; R] {
    let mut acc = [s.splat(0.0); R];
    let mut twos = [s.zero_two(); ROWS / 2];
    let minima_at = x.blocks * 2;
    for (g, q) in x.q.iter().enumerate() {
        ask(g);
        let a = inputs::<S, TY>(s, q, &x.scales[g], &x.sums[g]);
        for two in 0..R / 2 {
            let rows = [
                &eight_blocks::<TY>(codes[2 * two], scales[2 * two], g, minima_at),
                &eight_blocks::<TY>(codes[2 * two + 1], scales[2 * two + 1], g, minima_at),
            ];
            twos[two] = s.add_two::<TY>(twos[two], rows, &a);
        }
        if R == 1 {
            let row = eight_blocks::<TY>(codes[0], scales[0], g, minima_at);
            acc[0] = add_one::<S, TY>(s, acc[0], &row, &a);
        }
    }
    for two in 0..R / 2 {
        [acc[2 * two], acc[2 * two + 1]] = s.split_two(twos[two]);
    }
    match x.blocks % BLOCKS {
        0 => {}
        1 | 2 => add_tails::<S, TY, R, 2>(s, codes, scales, x, &mut acc),
        3 | 4 => add_tails::<S, TY, R, 4>(s, codes, scales, x, &mut acc),
        _ => add_tails::<S, TY, R, 8>(s, codes, scales, x, &mut acc),
    }
    let mut out = [0.0; R];
    for r in 0..R {
        out[r] = s.tree(acc[r]);
    }
    out
}

/// Scales of eight blocks, whose own stand at `at` of a row's, and their minima where there are
/// any: `minima_at` after the scales, or in the same bytes.
#[inline(always)]
pub(super) fn eight_scales<S: Simd8, const TY: u8>(
    s: S,
    scales: &[u8],
    at: usize,
    minima_at: usize,
) -> [S::F; 2] {
    let eight = &scales[at..].as_chunks().0[0];
    if TY == Q4K {
        return s.super_scales(eight);
    }
    let d = s.halves(eight);
    if has_offset(TY) {
        [d, s.halves(&scales[minima_at + at..].as_chunks().0[0])]
    } else {
        [d, d]
    }
}

/// Eight blocks of a row from block `8 * g` on; minima begin `minima_at` after the scales.
#[inline(always)]
fn eight_blocks<'a, const TY: u8>(
    codes: &'a [u8],
    scales: &'a [u8],
    g: usize,
    minima_at: usize,
) -> EightBlocks<'a> {
    let bytes = code_bytes::<TY>(BLOCKS);
    let eight = |at: usize| &scales[at..].as_chunks().0[0];
    EightBlocks {
        codes: &codes[g * bytes..][..bytes],
        scales: eight(g * 16),
        minima: eight(if TY == Q4O {
            minima_at + g * 16
        } else {
            g * 16
        }),
    }
}

/// What eight blocks of activations give to every row.
#[inline(always)]
fn inputs<'a, S: Simd8, const TY: u8>(
    s: S,
    q: &'a [[u8; BLOCK]; BLOCKS],
    scales: &[f32; BLOCKS],
    sums: &[i32; BLOCKS],
) -> EightInputs<'a, S> {
    let (scales, sums) = (s.floats(scales), s.words(sums));
    EightInputs {
        q,
        scales,
        corrections: correction::<S, TY>(s, sums),
        offsets: s.mul(scales, s.to_f(sums)),
    }
}

/// Adds the last 1 to 7 blocks of each row, `N` at most; lanes past the end are zero.
#[inline(always)]
fn add_tails<S: Simd8, const TY: u8, const R: usize, const N: usize>(
    s: S,
    codes: [&[u8]; R],
    scales: [&[u8]; R],
    x: &Token<'_>,
    acc: &mut [S::F; R],
) {
    let (first, count) = (x.q.len() * BLOCKS, x.blocks % BLOCKS);
    let a = inputs::<S, TY>(s, &x.tail.q, &x.tail.scales, &x.tail.sums);
    for r in 0..R {
        let codes = &codes[r][x.q.len() * code_bytes::<TY>(BLOCKS)..];
        let mut all = [s.zero_v(); BLOCKS];
        for p in 0..N / 2 {
            if p * 2 < count {
                [all[2 * p], all[2 * p + 1]] = pair_or_last::<S, TY>(s, codes, p);
            }
        }
        let d = s.halves(&last_halves(scales[r], first, count));
        let dots = s.to_f(s.add_w(s.blocks::<TY, N>(all, a.q), a.corrections));
        let mut p = s.mul(s.mul(d, a.scales), dots);
        if has_offset(TY) {
            let m = s.halves(&last_halves(scales[r], x.blocks + first, count));
            p = s.add(p, s.mul(m, a.offsets));
        }
        acc[r] = s.add(acc[r], p);
    }
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
