//! What the kernels need of an instruction set. A value of an implementing type proves that the
//! CPU has it, so the methods are safe.
//!
//! Everything is `inline(always)`: bodies end up inside the `target_feature` functions of a
//! table. Closures would not, so the kernels have none.
#![allow(unsafe_code)]

use bytemuck::Pod;

use crate::block::WeightType;
use crate::interleave::STEPS;
use crate::tiles::{TILE_TOKENS, TileBlock};

/// Weight types as constants, for kernels that are compiled once for each.
pub(crate) const Q8: u8 = WeightType::Q8 as u8;
pub(crate) const Q6: u8 = WeightType::Q6 as u8;
pub(crate) const Q4: u8 = WeightType::Q4 as u8;
pub(crate) const Q4O: u8 = WeightType::Q4O as u8;
pub(crate) const Q5: u8 = WeightType::Q5 as u8;
pub(crate) const Q4K: u8 = WeightType::Q4K as u8;

/// True for the types of 4-bit codes.
pub(crate) const fn is_4bit(ty: u8) -> bool {
    matches!(ty, Q4 | Q4O | Q4K)
}

/// See [`WeightType::has_offset`].
pub(crate) const fn has_offset(ty: u8) -> bool {
    matches!(ty, Q4O | Q4K)
}

/// Vectors of `LANES` 32-bit lanes.
///
/// Integer products are taken four bytes a lane: unsigned weights (see [`Simd::Q8_BIAS`]) times
/// signed codes, 32 bytes deep (a block, or a group's neurons), two steps of four at a time.
pub(crate) trait Simd: Copy {
    /// 32-bit lanes of a vector.
    const LANES: usize;
    /// True if Q8 codes are stored plus 128 in a panel.
    const Q8_BIAS: bool;

    /// f32 lanes.
    type F: Copy;
    /// i32 lanes.
    type W: Copy;
    /// Four bytes a lane.
    type V: Copy;
    /// A sum of byte products on its way to `W`.
    type Acc: Copy;
    /// `V` in memory.
    type Bytes: Pod;
    /// `F` in memory.
    type Floats: Pod;

    /// Asks for the cache line that holds the byte `ahead` of the start of `bytes`, which may lie
    /// past their end.
    fn prefetch(self, bytes: &[u8], ahead: usize);

    fn bytes(self, bytes: &Self::Bytes) -> Self::V;
    fn to_bytes(self, a: Self::V) -> Self::Bytes;
    /// The same four bytes in each lane.
    fn splat4(self, bytes: &[u8; 4]) -> Self::V;
    fn zero_v(self) -> Self::V;
    /// Low and high halves of each byte.
    fn split4(self, a: Self::V) -> [Self::V; 2];
    /// Q8 codes as stored, with [`Simd::Q8_BIAS`] plus 128.
    fn biased(self, a: Self::V) -> Self::V;
    /// 16 in byte `n` of lane `l` where bit `l % 8` of `words[l / 8][n]` is set.
    fn fifth_bits(self, words: &[[u8; 4]]) -> Self::V;
    /// The same bits as bytes.
    fn vector(self, a: Self::F) -> Self::V;
    /// Scales of `LANES` blocks, whose own stand at `at` of a row's, and their minima where there
    /// are any: `minima_at` after the scales, or in the same bytes.
    fn scales_at<const TY: u8>(self, scales: &[u8], at: usize, minima_at: usize) -> [Self::F; 2];

    fn floats(self, floats: &Self::Floats) -> Self::F;
    fn floats_of(self, a: Self::V) -> Self::F;
    fn to_floats(self, a: Self::F) -> Self::Floats;
    /// `LANES` floats from `at` on; panics past the end.
    fn floats_at(self, floats: &[f32], at: usize) -> Self::F;
    /// The reverse of [`Simd::floats_at`].
    fn store_at(self, a: Self::F, floats: &mut [f32], at: usize);
    fn splat(self, a: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; not for NaN, and of zeros of both signs either.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger, likewise.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// All ones where `a < b`, else zeros; zeros for NaN.
    fn less(self, a: Self::F, b: Self::F) -> Self::W;

    fn splat_w(self, a: i32) -> Self::W;
    fn add_w(self, a: Self::W, b: Self::W) -> Self::W;
    fn sub_w(self, a: Self::W, b: Self::W) -> Self::W;
    fn and_w(self, a: Self::W, b: Self::W) -> Self::W;
    /// `!a & b`.
    fn and_not_w(self, a: Self::W, b: Self::W) -> Self::W;
    fn or_w(self, a: Self::W, b: Self::W) -> Self::W;
    fn max_w(self, a: Self::W, b: Self::W) -> Self::W;
    fn shift_left<const N: u32>(self, a: Self::W) -> Self::W;
    /// Shifts in the sign.
    fn shift_right<const N: u32>(self, a: Self::W) -> Self::W;
    fn to_f(self, a: Self::W) -> Self::F;
    /// Nearest integer, half to even. Not for NaN.
    fn round(self, a: Self::F) -> Self::W;
    fn bits(self, a: Self::F) -> Self::W;
    fn as_floats(self, a: Self::W) -> Self::F;
    /// Lane by lane the low bytes of `a[0]`, `a[1]`, `a[2]`, `a[3]`, which fit i8.
    fn quad(self, a: [Self::W; 4]) -> Self::V;

    fn zero_acc(self) -> Self::Acc;
    /// Adds the products of two times four bytes a lane. At most four steps.
    fn dot2<const TY: u8>(self, acc: Self::Acc, w: [Self::V; 2], a: [Self::V; 2]) -> Self::Acc;
    /// The sum of all steps.
    fn done<const TY: u8>(self, acc: Self::Acc) -> Self::W;

    /// Lane `l` of `out[v][t]`, `v` below `V`, is the product of row `v * LANES + l` of a block of
    /// a panel, as [`Simd8::panel`] ordered it, and of token `t`.
    #[inline(always)]
    fn tile<const TY: u8, const V: usize>(
        self,
        w: &PanelBlock<Self>,
        a: &TileBlock,
    ) -> Dots<Self, V> {
        tile_of_steps::<Self, TY, V, 2>(self, w, a)
    }
}

/// Vectors of rows in a panel.
pub(crate) const PANEL_VECTORS: usize = 2;

/// A block of a panel: (steps, vectors).
pub(crate) type PanelBlock<S> = [[<S as Simd>::Bytes; PANEL_VECTORS]; 8];
/// Products of a block with `V` vectors of rows: (vectors, tokens).
pub(crate) type Dots<S, const V: usize> = [[<S as Simd>::W; TILE_TOKENS]; V];

/// [`Simd::tile`] by [`Simd::dot2`], `T` tokens at once: each lane is a row, and has the same
/// activations.
#[inline(always)]
pub(crate) fn tile_of_steps<S: Simd, const TY: u8, const V: usize, const T: usize>(
    s: S,
    w: &PanelBlock<S>,
    a: &TileBlock,
) -> Dots<S, V> {
    let mut dots = [[s.splat_w(0); TILE_TOKENS]; V];
    for first in (0..TILE_TOKENS).step_by(T) {
        let mut acc = [[s.zero_acc(); T]; V];
        for step in 0..4 {
            let (even, odd) = (&w[2 * step], &w[2 * step + 1]);
            let mut w = [[s.zero_v(); 2]; V];
            for v in 0..V {
                w[v] = [s.bytes(&even[v]), s.bytes(&odd[v])];
            }
            for t in 0..T {
                let (even, odd) = (&a[2 * step], &a[2 * step + 1]);
                let a = [s.splat4(&even[first + t]), s.splat4(&odd[first + t])];
                for v in 0..V {
                    acc[v][t] = s.dot2::<TY>(acc[v][t], w[v], a);
                }
            }
        }
        for v in 0..V {
            for t in 0..T {
                dots[v][first + t] = s.done::<TY>(acc[v][t]);
            }
        }
    }
    dots
}

/// Vectors of eight 32-bit lanes: a block's codes in one `V`, eight blocks' scales in one `F`.
pub(crate) trait Simd8: Simd<Bytes = [u8; 32], Floats = [f32; 8]> {
    /// [`Simd::prefetch`] for what is needed later, into the second cache at least.
    fn prefetch_far(self, bytes: &[u8], ahead: usize);
    fn words(self, words: &[i32; 8]) -> Self::W;
    /// Eight signed codes.
    fn small(self, codes: &[i8; 8]) -> Self::F;
    /// Eight f16.
    fn halves(self, halves: &[u8; 16]) -> Self::F;
    fn to_halves(self, a: Self::F) -> [u16; 8];
    /// Scales and minima of the eight blocks of a super-block, see [`crate::SuperScales`].
    fn super_scales(self, bytes: &[u8; 16]) -> [Self::F; 2];
    /// Codes of a pair of blocks, one a byte, as stored. Q8 with [`Simd::Q8_BIAS`]: plus 128.
    fn pair<const TY: u8>(self, bytes: &[u8]) -> [Self::V; 2];

    /// Lane `j` is the whole product of `w[j]` and `a[j]`; 0 from lane `N` (2, 4 or 8) on.
    fn blocks<const TY: u8, const N: usize>(self, w: [Self::V; 8], a: &[[u8; 32]; 8]) -> Self::W;
    /// The eight accumulators of an interleaved row and of each of `T` tokens, over its whole runs
    /// of eight blocks. `ask(run)` is called before every second run.
    #[inline(always)]
    fn runs<const TY: u8, const T: usize>(
        self,
        row: &RowRuns<'_>,
        x: [&TokenRuns<'_>; T],
        ask: impl FnMut(usize),
    ) -> [Self::F; T] {
        one_by_one::<Self, TY, T>(self, row, x, ask)
    }

    /// Products of quads of `rows` with coefficients `c[quad][lanes[b]]`, for the pair of blocks at
    /// byte `at` of each row: `[b][k]` as in [`Simd8::zip4`]. `None`: there is no quicker way than
    /// zipping.
    ///
    /// # Safety
    /// The pair is there.
    #[inline(always)]
    unsafe fn quad_sums<const TY: u8>(
        self,
        _rows: &[[&[u8]; 4]],
        _at: usize,
        _c: &[[[u8; 4]; 16]; 8],
        _lanes: [usize; 2],
    ) -> Option<[[Self::Acc; 4]; 2]> {
        None
    }

    /// The same for the two pairs of 4-bit codes at byte `at`, with coefficients
    /// `c[quad][lane + b]`.
    ///
    /// # Safety
    /// The pairs are there.
    #[inline(always)]
    unsafe fn line_sums(
        self,
        _rows: &[[&[u8]; 4]],
        _at: usize,
        _c: &[[[u8; 4]; 16]; 8],
        _lane: usize,
    ) -> Option<[[Self::Acc; 4]; 4]> {
        None
    }

    /// Lane `j` of `out[i]` is lane `i` of `a[j]`.
    fn transpose8(self, a: [Self::V; 8]) -> [Self::V; 8];
    /// Columns `8 k..8 k + 4` and the four after them of a block of eight rows, a lane for each
    /// row, as [`Simd::tile`] wants them at `2 k` and `2 k + 1`.
    #[inline(always)]
    fn panel(self, words: [Self::V; 2]) -> [Self::V; 2] {
        words
    }
    /// Bytes of four rows side by side: lane `l` of `out[k]` has column
    /// `l / 4 * 16 + 4 * k + l % 4`.
    fn zip4(self, rows: [Self::V; 4]) -> [Self::V; 4];
    /// From the order of `zip4` to the natural one.
    fn unzip4(self, a: [Self::F; 4]) -> [Self::F; 4];

    /// `((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))`.
    fn tree(self, a: Self::F) -> f32;
    fn sum_w(self, a: Self::W) -> i32;
    /// 32 codes that fit i8, in order.
    fn codes(self, a: [Self::W; 4]) -> [u8; 32];
    /// Square root, correctly rounded.
    fn sqrt(self, a: f32) -> f32;
}

/// Eight blocks of a row, as stored.
pub(crate) struct EightBlocks<'a> {
    pub codes: &'a [u8],
    /// f16 scales, or the scales of a super-block.
    pub scales: &'a [u8; 16],
    /// f16 minima of `Q4O`.
    pub minima: &'a [u8; 16],
}

/// Eight blocks of activations.
pub(crate) struct EightInputs<'a, S: Simd> {
    pub q: &'a [[u8; 32]; 8],
    /// `s_b`.
    pub scales: S::F,
    /// See [`correction`].
    pub corrections: S::W,
    /// `s_b * f32(t_b)`.
    pub offsets: S::F,
}

/// The codes and scales of an interleaved row.
pub(crate) struct RowRuns<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    /// Where the minima of `Q4O` begin in `scales`.
    pub minima_at: usize,
}

/// One token's whole runs of eight blocks.
#[derive(Clone, Copy)]
pub(crate) struct TokenRuns<'a> {
    /// As [`crate::interleave_activations`] gives them.
    pub q: &'a [[[u8; 32]; 8]],
    pub scales: &'a [[f32; 8]],
    pub sums: &'a [[i32; 8]],
}

impl<'a> RowRuns<'a> {
    /// Run `run`.
    #[inline(always)]
    pub(crate) fn eight<const TY: u8>(&self, run: usize) -> EightBlocks<'a> {
        let bytes = code_bytes::<TY>(8);
        let eight = |at: usize| &self.scales[at..].as_chunks().0[0];
        EightBlocks {
            codes: &self.codes[run * bytes..][..bytes],
            scales: eight(run * 16),
            minima: eight(if TY == Q4O {
                self.minima_at + run * 16
            } else {
                run * 16
            }),
        }
    }
}

/// [`Simd8::runs`] run by run.
#[inline(always)]
pub(crate) fn one_by_one<S: Simd8, const TY: u8, const T: usize>(
    s: S,
    row: &RowRuns<'_>,
    x: [&TokenRuns<'_>; T],
    mut ask: impl FnMut(usize),
) -> [S::F; T] {
    let mut sums = [s.splat(0.0); T];
    for run in 0..x[0].q.len() {
        if run % 2 == 0 {
            ask(run);
        }
        add_run::<S, TY, T>(s, &mut sums, row, x, run);
    }
    sums
}

/// Adds run `run` of an interleaved row.
#[inline(always)]
pub(crate) fn add_run<S: Simd8, const TY: u8, const T: usize>(
    s: S,
    sums: &mut [S::F; T],
    row: &RowRuns<'_>,
    x: [&TokenRuns<'_>; T],
    run: usize,
) {
    let row = row.eight::<TY>(run);
    let bytes = code_bytes::<TY>(2);
    let mut acc = [s.zero_acc(); T];
    for pair in 0..4 {
        let w = s.pair::<TY>(&row.codes[pair * bytes..][..bytes]);
        let [even, odd] = [STEPS[2 * pair], STEPS[2 * pair + 1]];
        for t in 0..T {
            let q = &x[t].q[run];
            acc[t] = s.dot2::<TY>(acc[t], w, [s.bytes(&q[even]), s.bytes(&q[odd])]);
        }
    }
    for t in 0..T {
        let x = inputs::<S, TY>(s, &x[t].q[run], &x[t].scales[run], &x[t].sums[run]);
        sums[t] = add_dots::<S, TY>(s, sums[t], s.done::<TY>(acc[t]), &row, &x);
    }
}

/// What eight blocks of activations give to every row.
#[inline(always)]
pub(crate) fn inputs<'a, S: Simd8, const TY: u8>(
    s: S,
    q: &'a [[u8; 32]; 8],
    scales: &[f32; 8],
    sums: &[i32; 8],
) -> EightInputs<'a, S> {
    let (scales, sums) = (s.floats(scales), s.words(sums));
    EightInputs {
        q,
        scales,
        corrections: correction::<S, TY>(s, sums),
        offsets: s.mul(scales, s.to_f(sums)),
    }
}

/// Adds eight blocks that are in order.
#[inline(always)]
pub(crate) fn add_one<S: Simd8, const TY: u8>(
    s: S,
    sum: S::F,
    row: &EightBlocks<'_>,
    x: &EightInputs<'_, S>,
) -> S::F {
    let dots = eight_by_pairs::<S, TY>(s, row.codes, x.q);
    add_dots::<S, TY>(s, sum, dots, row, x)
}

/// Adds the products of eight blocks, given those of their codes.
#[inline(always)]
fn add_dots<S: Simd8, const TY: u8>(
    s: S,
    sum: S::F,
    dots: S::W,
    row: &EightBlocks<'_>,
    x: &EightInputs<'_, S>,
) -> S::F {
    let [d, m] = match TY {
        Q4K => s.super_scales(row.scales),
        Q4O => [s.halves(row.scales), s.halves(row.minima)],
        _ => [s.halves(row.scales); 2],
    };
    let dots = s.to_f(s.add_w(dots, x.corrections));
    let mut p = s.mul(s.mul(d, x.scales), dots);
    if has_offset(TY) {
        p = s.add(p, s.mul(m, x.offsets));
    }
    s.add(sum, p)
}

/// Products of eight blocks by [`Simd8::pair`] and [`Simd8::blocks`].
#[inline(always)]
fn eight_by_pairs<S: Simd8, const TY: u8>(s: S, codes: &[u8], a: &[[u8; 32]; 8]) -> S::W {
    let bytes = code_bytes::<TY>(2);
    let mut all = [s.zero_v(); 8];
    for p in 0..4 {
        [all[2 * p], all[2 * p + 1]] = s.pair::<TY>(&codes[p * bytes..][..bytes]);
    }
    s.blocks::<TY, 8>(all, a)
}

/// [`Simd::scales_at`] of eight blocks.
#[inline(always)]
pub(crate) fn eight_scales<S: Simd8, const TY: u8>(
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

/// What an unsigned code in a panel is too large by, as a power of two; `None`: nothing.
pub(crate) const fn offset_shift(ty: u8, q8_bias: bool) -> Option<u32> {
    match ty {
        Q4 => Some(3),
        Q5 => Some(4),
        Q6 => Some(5),
        Q8 if q8_bias => Some(7),
        _ => None,
    }
}

/// `-(offset * sums)`: what [`offset_shift`] says, taken off a product with codes of these sums.
#[inline(always)]
pub(crate) fn correction<S: Simd, const TY: u8>(s: S, sums: S::W) -> S::W {
    let zero = s.splat_w(0);
    match TY {
        Q4 => s.sub_w(zero, s.shift_left::<3>(sums)),
        Q5 => s.sub_w(zero, s.shift_left::<4>(sums)),
        Q6 => s.sub_w(zero, s.shift_left::<5>(sums)),
        Q8 if S::Q8_BIAS => s.sub_w(zero, s.shift_left::<7>(sums)),
        _ => zero,
    }
}

/// Bytes of `blocks` (a multiple of 2) blocks' codes.
pub(crate) const fn code_bytes<const TY: u8>(blocks: usize) -> usize {
    match TY {
        Q8 => blocks * 32,
        Q5 => blocks * 20,
        Q6 => blocks * 24,
        _ => blocks * 16,
    }
}

/// `bytes[at..at + N]`.
///
/// # Safety
/// They are there.
#[inline(always)]
pub(crate) unsafe fn chunk_at<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    debug_assert!(at + N <= bytes.len());
    // SAFETY: the caller's; an array of bytes needs no alignment.
    unsafe { &*bytes.as_ptr().add(at).cast() }
}

/// Bytes of `blocks` blocks' scales (and minima).
pub(crate) const fn scale_bytes<const TY: u8>(blocks: usize) -> usize {
    if TY == Q4O { blocks * 4 } else { blocks * 2 }
}
