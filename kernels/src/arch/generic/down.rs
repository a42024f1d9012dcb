//! Down sums of one token: rows that stand anywhere are zipped four by four, so that a lane holds
//! one output's codes of four neurons.
#![allow(unsafe_code)]

use super::ahead::Ahead;
use super::by_type;
use super::coefficients::{Coefficients, LANES_MAX, SCALES_AHEAD_BYTES};
use super::down_zipped;
use super::float::four_halves;
use super::matvec::{four_of_bytes, pair_or_last};
use crate::arch::simd::{Q5, Q6, Simd, Simd8, chunk_at, code_bytes, is_4bit};
use crate::block::{BLOCK, GROUP, WeightType};
use crate::check;
use crate::math::f16_to_f32;
use crate::neurons::NeuronRows;
use crate::zip::{QUAD, QUADS};

/// How far ahead a row's codes are asked for, in pairs of blocks.
const PAIRS_AHEAD: usize = 16;

/// See [`crate::Kernels::down_group`].
#[inline(always)]
pub(crate) fn down_group<P: Simd8, S: Simd>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    h: &[f32],
    acc: &mut [f32],
    scratch: &mut [u8],
) {
    check::down_group(w, h, acc, scratch);
    // Vectors whose lanes there are blocks for; compiled twice only where there are two widths.
    if const { S::LANES > P::LANES } && w.cols() >= S::LANES * BLOCK {
        by_width::<P, S>(p, s, w, h, acc);
    } else {
        by_width::<P, P>(p, p, w, h, acc);
    }
}

/// With coefficients of as many blocks of outputs at once as `S` has lanes.
#[inline(always)]
fn by_width<P: Simd8, S: Simd>(p: P, s: S, w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32]) {
    match (w.ty(), w.zipped()) {
        (WeightType::F32, _) => floats::<P, false>(p, w, h, acc),
        (WeightType::F16, _) => floats::<P, true>(p, w, h, acc),
        (ty, Some(codes)) => {
            by_type!(ty, down_zipped::quantized::<P, S>(p, s, w, codes, h, acc));
        }
        (ty, None) => by_type!(ty, quantized::<P, S>(p, s, w, h, acc)),
    }
}

#[inline(always)]
fn quantized<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    h: &[f32],
    acc: &mut [f32],
) {
    let blocks = w.cols() / BLOCK;
    let rows = Quads::new(w);
    let next_codes = distance_to_next(w.codes());
    let next_scales = distance_to_next(w.scales());
    let pairs = blocks.div_ceil(2);
    if next_codes == 0 {
        // These rows were not asked for by the group before.
        for codes in w.codes() {
            for line in 0..(PAIRS_AHEAD.min(pairs) * code_bytes::<TY>(2)).div_ceil(64) {
                p.prefetch(codes, line * 64);
            }
        }
    }
    let mut next = Ahead::new(w.soon(), pairs);
    for (stretch, acc) in acc.chunks_mut(S::LANES * BLOCK).enumerate() {
        let start = stretch * S::LANES;
        // The last blocks again, where there are not as many more as lanes.
        let first = start.min(blocks.saturating_sub(S::LANES));
        let last = start + S::LANES >= blocks;
        let scales_ahead = if last {
            next_scales
        } else {
            first * 2 + SCALES_AHEAD_BYTES
        };
        let coefficients = if blocks >= S::LANES {
            Coefficients::new::<S, TY, false>(s, w, h, first, scales_ahead)
        } else {
            Coefficients::new::<S, TY, true>(s, w, h, first, scales_ahead)
        };
        for (four, acc) in acc.chunks_mut(4 * BLOCK).enumerate() {
            let pair = start / 2 + 2 * four;
            for pair in pair..pair + acc.len().div_ceil(2 * BLOCK) {
                if next.is_given() {
                    next.ask(p);
                } else {
                    let ahead = pair + PAIRS_AHEAD;
                    let ahead = if ahead < pairs {
                        ahead * code_bytes::<TY>(2)
                    } else {
                        next_codes + (ahead - pairs) * code_bytes::<TY>(2)
                    };
                    for codes in w.codes() {
                        p.prefetch(codes, ahead);
                    }
                }
            }
            add_pairs::<P, S, TY>(p, &rows, &coefficients, pair, 2 * pair - first, acc);
        }
    }
}

/// Bytes from a neuron's row to the one at its place in the next group, if rows lie at equal
/// distances; else 0.
#[inline(always)]
fn distance_to_next(rows: &[&[u8]]) -> usize {
    match rows {
        [first, second, .., last] if rows.len() == GROUP => {
            let step = (second.as_ptr() as usize).wrapping_sub(first.as_ptr() as usize);
            let whole = (last.as_ptr() as usize).wrapping_sub(first.as_ptr() as usize);
            if step.wrapping_mul(GROUP - 1) == whole {
                step.wrapping_mul(GROUP)
            } else {
                0
            }
        }
        _ => 0,
    }
}

/// A group's rows, all of the same length; the last quad filled up with rows whose codes `c` are
/// zero.
pub(super) struct Quads<'a> {
    rows: [[&'a [u8]; QUAD]; QUADS],
    row_bytes: usize,
    pub(super) len: usize,
}

impl<'a> Quads<'a> {
    #[inline(always)]
    pub(super) fn new(w: &NeuronRows<'a>) -> Self {
        let mut rows = [[w.codes().first().copied().unwrap_or(&[]); QUAD]; QUADS];
        rows.as_flattened_mut()[..w.codes().len()].copy_from_slice(w.codes());
        let row_bytes = rows[0][0].len();
        assert!(rows.as_flattened().iter().all(|row| row.len() == row_bytes));
        Quads {
            row_bytes,
            rows,
            len: w.codes().len().div_ceil(QUAD),
        }
    }

    /// True if a whole pair of blocks is at `pair`; half a pair may end a row of Q8.
    #[inline(always)]
    pub(super) fn has_pair<const TY: u8>(&self, pair: usize) -> bool {
        (pair + 1) * code_bytes::<TY>(2) <= self.row_bytes
    }

    /// Pair `pair` of the blocks of a quad, zipped.
    ///
    /// # Safety
    /// If `WHOLE`, the pair is there ([`Quads::has_pair`]).
    #[inline(always)]
    pub(super) unsafe fn zipped<S: Simd8, const TY: u8, const WHOLE: bool>(
        &self,
        s: S,
        quad: usize,
        pair: usize,
    ) -> [[S::V; 4]; 2] {
        let at = pair * code_bytes::<TY>(2);
        let mut even = [s.zero_v(); 4];
        let mut odd = even;
        for i in 0..QUAD {
            let row = self.rows[quad][i];
            // SAFETY: the caller's; all rows are as long.
            unsafe {
                match TY {
                    _ if !WHOLE => [even[i], odd[i]] = pair_or_last::<S, TY>(s, row, pair),
                    _ if is_4bit(TY) => even[i] = s.bytes(chunk_at(row, at)),
                    Q5 => [even[i], odd[i]] = s.pair::<TY>(chunk_at::<40>(row, at)),
                    Q6 => [even[i], odd[i]] = s.pair::<TY>(chunk_at::<48>(row, at)),
                    _ => [even[i], odd[i]] = s.pair::<TY>(chunk_at::<64>(row, at)),
                }
            }
        }
        if !WHOLE || !is_4bit(TY) {
            return [s.zip4(even), s.zip4(odd)];
        }
        let both = s.zip4(even);
        for k in 0..4 {
            [even[k], odd[k]] = s.split4(both[k]);
        }
        [even, odd]
    }
}

/// Adds a group's products with up to four blocks of outputs, whose coefficients are `lane` and the
/// next.
#[inline(always)]
fn add_pairs<S: Simd8, L: Simd, const TY: u8>(
    s: S,
    rows: &Quads<'_>,
    coefficients: &Coefficients,
    pair: usize,
    lane: usize,
    acc: &mut [f32],
) {
    let c = &coefficients.c;
    if is_4bit(TY) && acc.len() == 4 * BLOCK {
        let at = pair * code_bytes::<TY>(2);
        // SAFETY: four blocks of outputs are two whole pairs of codes.
        let sums = unsafe { s.line_sums(&rows.rows[..rows.len], at, c, lane) };
        if let Some(sums) = sums {
            return finish::<S, TY, 4>(s, coefficients, &sums, lane, acc);
        }
    }
    for (i, acc) in acc.chunks_mut(2 * BLOCK).enumerate() {
        let (pair, lane) = (pair + i, lane + 2 * i);
        let lanes = [lane, (lane + 1).min(L::LANES - 1)];
        // SAFETY: where `WHOLE` is set the pair is there.
        let sums = unsafe {
            if !rows.has_pair::<TY>(pair) {
                sums::<S, TY, false, false>(s, rows, c, pair, lanes)
            } else if rows.len == QUADS {
                sums::<S, TY, true, true>(s, rows, c, pair, lanes)
            } else {
                sums::<S, TY, true, false>(s, rows, c, pair, lanes)
            }
        };
        finish::<S, TY, 2>(s, coefficients, &sums, lane, acc);
    }
}

/// Adds products of codes with `B` blocks of outputs (or fewer), from `lane` on.
#[inline(always)]
fn finish<S: Simd8, const TY: u8, const B: usize>(
    s: S,
    coefficients: &Coefficients,
    sums: &[[S::Acc; 4]; B],
    lane: usize,
    acc: &mut [f32],
) {
    for (b, acc) in acc.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let p = s.unzip4(coefficients.products::<S, TY>(s, lane + b, sums[b]));
        for (acc, p) in acc.as_chunks_mut().0.iter_mut().zip(p) {
            *acc = s.to_floats(s.add(s.floats(acc), p));
        }
    }
}

/// A group's products with a pair of blocks; `FULL` if no quad is missing.
///
/// # Safety
/// If `WHOLE`, the pair is there.
#[inline(always)]
unsafe fn sums<S: Simd8, const TY: u8, const WHOLE: bool, const FULL: bool>(
    s: S,
    rows: &Quads<'_>,
    c: &[[[u8; QUAD]; LANES_MAX]; QUADS],
    pair: usize,
    lanes: [usize; 2],
) -> [[S::Acc; 4]; 2] {
    let len = if FULL { QUADS } else { rows.len };
    if WHOLE {
        let at = pair * code_bytes::<TY>(2);
        // SAFETY: the caller's.
        if let Some(sums) = unsafe { s.quad_sums::<TY>(&rows.rows[..len], at, c, lanes) } {
            return sums;
        }
    }
    let mut sums = [[s.zero_acc(); 4]; 2];
    for step in 0..len.div_ceil(2) {
        let quads = [2 * step, 2 * step + 1];
        // SAFETY: the caller's.
        let first = unsafe { rows.zipped::<S, TY, WHOLE>(s, quads[0], pair) };
        let second = if quads[1] < len {
            // SAFETY: the caller's.
            unsafe { rows.zipped::<S, TY, WHOLE>(s, quads[1], pair) }
        } else {
            [[s.zero_v(); 4]; 2]
        };
        for b in 0..2 {
            let c = [
                s.splat4(&c[quads[0]][lanes[b]]),
                s.splat4(&c[quads[1]][lanes[b]]),
            ];
            for k in 0..4 {
                sums[b][k] = s.dot2::<TY>(sums[b][k], [first[b][k], second[b][k]], c);
            }
        }
    }
    sums
}

/// Float weights: neuron by neuron, 32 outputs at a time.
#[inline(always)]
fn floats<S: Simd8, const HALF: bool>(s: S, w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32]) {
    let width = if HALF { 2 } else { 4 };
    let whole = acc.len() / BLOCK * BLOCK;
    let (chunks, rest) = acc.as_chunks_mut::<BLOCK>();
    for (at, acc) in chunks.iter_mut().enumerate() {
        let mut sums = super::float::four(s, acc);
        for (codes, &h) in w.codes().iter().zip(h) {
            let bytes = &codes[at * BLOCK * width..];
            let weights = if HALF {
                four_halves(s, &bytes.as_chunks().0[0])
            } else {
                four_of_bytes(s, &bytes.as_chunks().0[0])
            };
            for i in 0..4 {
                sums[i] = s.add(sums[i], s.mul(s.splat(h), weights[i]));
            }
        }
        for (acc, sum) in acc.as_chunks_mut().0.iter_mut().zip(sums) {
            *acc = s.to_floats(sum);
        }
    }
    for (i, acc) in rest.iter_mut().enumerate() {
        for (codes, &h) in w.codes().iter().zip(h) {
            *acc += h * float_at::<HALF>(codes, whole + i);
        }
    }
}

/// One float weight of a row.
#[inline(always)]
pub(super) fn float_at<const HALF: bool>(codes: &[u8], i: usize) -> f32 {
    if HALF {
        f16_to_f32(u16::from_le_bytes([codes[2 * i], codes[2 * i + 1]]))
    } else {
        f32::from_le_bytes(codes[4 * i..].as_chunks().0[0])
    }
}
