//! Sums of weighted values, for attention.

use core::ops::Range;

use bytemuck::must_cast_ref;

use crate::arch::simd::Simd8;
use crate::attention::SEGMENT;

/// Elements that are widened to floats, eight at a time.
pub(super) trait Element: Copy {
    fn widen<S: Simd8>(s: S, eight: &[Self; 8]) -> S::F;
}

impl Element for f32 {
    #[inline(always)]
    fn widen<S: Simd8>(s: S, eight: &[f32; 8]) -> S::F {
        s.floats(eight)
    }
}

impl Element for u16 {
    #[inline(always)]
    fn widen<S: Simd8>(s: S, eight: &[u16; 8]) -> S::F {
        s.halves(must_cast_ref(eight))
    }
}

impl Element for i8 {
    #[inline(always)]
    fn widen<S: Simd8>(s: S, eight: &[i8; 8]) -> S::F {
        s.small(eight)
    }
}

/// `sums[r] += weights[r][p] * values[p]` for `p` in order, for `R` rows of weights (R, SEGMENT).
#[inline(always)]
pub(super) fn sum_values<S: Simd8, E: Element, const R: usize>(
    s: S,
    values: &[E],
    dim: usize,
    range: Range<usize>,
    weights: &[f32],
    sums: &mut [f32],
) {
    /// Positions whose values stay in the first cache while all their elements are used.
    const RUN: usize = 32;
    let mut begin = range.start;
    while begin < range.end {
        let run = begin..range.end.min(begin + RUN);
        let mut at = 0;
        while at < dim {
            let left = dim - at;
            at += if R == 1 && left >= 64 {
                sum_columns::<S, E, R, 8>(s, values, dim, at, run.clone(), weights, sums)
            } else if R > 1 && left >= 16 {
                sum_columns::<S, E, R, 2>(s, values, dim, at, run.clone(), weights, sums)
            } else {
                sum_columns::<S, E, R, 1>(s, values, dim, at, run.clone(), weights, sums)
            };
        }
        begin = run.end;
    }
}

/// The same for `8 * D` elements from `at` on; returns how many.
#[inline(always)]
pub(super) fn sum_columns<S: Simd8, E: Element, const R: usize, const D: usize>(
    s: S,
    values: &[E],
    dim: usize,
    at: usize,
    run: Range<usize>,
    weights: &[f32],
    sums: &mut [f32],
) -> usize {
    let mut acc = [[s.splat(0.0); D]; R];
    for r in 0..R {
        for d in 0..D {
            acc[r][d] = s.floats_at(sums, r * dim + at + 8 * d);
        }
    }
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &weights[r * SEGMENT..][run.clone()];
    }
    for (i, p) in run.enumerate() {
        let value = &values[p * dim + at..][..8 * D].as_chunks::<8>().0[..D];
        let mut v = [s.splat(0.0); D];
        for d in 0..D {
            v[d] = E::widen(s, &value[d]);
        }
        for r in 0..R {
            let weight = s.splat(rows[r][i]);
            for d in 0..D {
                acc[r][d] = s.add(acc[r][d], s.mul(weight, v[d]));
            }
        }
    }
    for r in 0..R {
        for d in 0..D {
            s.store_at(acc[r][d], sums, r * dim + at + 8 * d);
        }
    }
    8 * D
}
