//! Attention over one segment of the cache, up to four queries at a time: a key or a value is
//! loaded and widened once for all of them.

use core::ops::Range;

use super::attend_values::{Element, sum_columns, sum_values};
use super::float::to_q8;
use super::gated::{exp, select_less};
use crate::arch::simd::{Q8, Simd8, correction};
use crate::attention::{Queries, ROWS_AT_ONCE, SEGMENT, Segment, merge_sums, state_len};
use crate::check;
use crate::kv::{KEY_BLOCK, KvRows};

/// See [`crate::Kernels::attend`].
#[inline(always)]
pub(crate) fn attend<S: Simd8>(
    s: S,
    segment: &Segment<'_>,
    queries: &Queries<'_>,
    states: &mut [f32],
    work: &mut [f32],
) {
    check::attend(segment, queries, states, work);
    let rows = queries.q.len() / segment.dim;
    let mut first = 0;
    while first < rows {
        let states = &mut states[first * state_len(segment.dim)..];
        first += match rows - first {
            3 | 6 | 9 => some::<S, 3>(s, segment, queries, first, states, work),
            1 | 2 => some::<S, 1>(s, segment, queries, first, states, work),
            _ => some::<S, ROWS_AT_ONCE>(s, segment, queries, first, states, work),
        };
    }
}

/// What `R` queries work in.
struct Tile<'a, const R: usize> {
    /// Queries (dim,).
    q: [&'a [f32]; R],
    /// What each sees.
    seen: [Range<usize>; R],
    /// Scores, then weights (R, SEGMENT).
    weights: &'a mut [f32],
    /// Sums of weighted values (R, dim).
    sums: &'a mut [f32],
    /// Codes of the queries (R, dim).
    codes: &'a mut [i8],
}

/// `R` queries from row `first` on; returns `R`.
#[inline(always)]
fn some<S: Simd8, const R: usize>(
    s: S,
    segment: &Segment<'_>,
    queries: &Queries<'_>,
    first: usize,
    states: &mut [f32],
    work: &mut [f32],
) -> usize {
    let dim = segment.dim;
    let (weights, rest) = work.split_at_mut(R * SEGMENT);
    let (sums, rest) = rest.split_at_mut(R * dim);
    let codes = &mut bytemuck::cast_slice_mut::<f32, i8>(rest)[..R * dim];
    let mut tile = Tile::<R> {
        q: [&[]; R],
        seen: [const { 0..0 }; R],
        weights,
        sums,
        codes,
    };
    // Of all rows: from the first to the last position seen, and those that each one sees.
    let (mut all, mut shared) = (segment.count..0, 0..segment.count);
    for r in 0..R {
        let seen = queries.span(first + r, segment.start, segment.count);
        tile.q[r] = &queries.q[(first + r) * dim..][..dim];
        if !seen.is_empty() {
            all = all.start.min(seen.start)..all.end.max(seen.end);
        }
        shared = shared.start.max(seen.start)..shared.end.min(seen.end);
        tile.seen[r] = seen;
    }
    if all.start >= all.end {
        return R;
    }
    tile.sums.fill(0.0);
    tile.scores(s, segment, queries.scale, all);
    let mut norms = [(0.0, 0.0); R];
    for r in 0..R {
        let weights = &mut tile.weights[r * SEGMENT..][..SEGMENT];
        norms[r] = soften(s, weights, tile.seen[r].clone());
    }
    match segment.values {
        KvRows::F32(values) => tile.values(s, values, dim, shared),
        KvRows::F16(values) => tile.values(s, values, dim, shared),
        KvRows::Q8(values, scales) => {
            for r in 0..R {
                for p in tile.seen[r].clone() {
                    tile.weights[r * SEGMENT + p] *= scales[p];
                }
            }
            tile.values(s, values, dim, shared);
        }
    }
    for (r, state) in states.chunks_exact_mut(state_len(dim)).take(R).enumerate() {
        let (max, mass) = norms[r];
        merge_sums(state, &tile.sums[r * dim..][..dim], max, mass);
    }
    R
}

impl<const R: usize> Tile<'_, R> {
    /// Products of all positions `all`, whole blocks of them.
    #[inline(always)]
    fn scores<S: Simd8>(&mut self, s: S, segment: &Segment<'_>, scale: f32, all: Range<usize>) {
        match segment.keys {
            KvRows::F32(keys) => self.float_scores(s, keys, segment.dim, scale, all),
            KvRows::F16(keys) => self.float_scores(s, keys, segment.dim, scale, all),
            KvRows::Q8(keys, scales) => {
                let dim = segment.dim;
                let (mut scale_of, mut sum_of) = ([0.0; R], [0; R]);
                for r in 0..R {
                    let codes = &mut self.codes[r * dim..][..dim];
                    scale_of[r] = to_q8(s, self.q[r], codes) * scale;
                    for code in codes {
                        sum_of[r] += i32::from(*code);
                    }
                }
                let keys = bytemuck::cast_slice::<i8, u8>(keys);
                let first = all.start / KEY_BLOCK / 2 * 2;
                for at in (first..all.end.div_ceil(KEY_BLOCK)).step_by(2) {
                    let dots = self.code_blocks(s, keys, dim, at);
                    for b in 0..2 {
                        let scales = s.floats_at(scales, (at + b) * KEY_BLOCK);
                        for r in 0..R {
                            let offset = correction::<S, Q8>(s, s.splat_w(sum_of[r]));
                            let dot = s.to_f(s.add_w(dots[b][r], offset));
                            let score = s.mul(dot, s.mul(scales, s.splat(scale_of[r])));
                            let place = r * SEGMENT + (at + b) * KEY_BLOCK;
                            s.store_at(score, self.weights, place);
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn float_scores<S: Simd8, E: Element>(
        &mut self,
        s: S,
        keys: &[E],
        dim: usize,
        scale: f32,
        all: Range<usize>,
    ) {
        // The fewer queries, the more blocks, so that enough sums are under way.
        let blocks = if R == 1 { 4 } else { 2 };
        let mut at = all.start / KEY_BLOCK / blocks * blocks;
        while at * KEY_BLOCK < all.end {
            if R == 1 {
                self.float_blocks::<S, E, 4>(s, keys, dim, scale, at);
            } else {
                self.float_blocks::<S, E, 2>(s, keys, dim, scale, at);
            }
            at += blocks;
        }
    }

    /// Scores of `B` blocks from block `at` on.
    #[inline(always)]
    fn float_blocks<S: Simd8, E: Element, const B: usize>(
        &mut self,
        s: S,
        keys: &[E],
        dim: usize,
        scale: f32,
        at: usize,
    ) {
        let len = dim * KEY_BLOCK;
        let mut blocks: [&[[E; 8]]; B] = [&[]; B];
        for b in 0..B {
            blocks[b] = &keys[(at + b) * len..][..len].as_chunks().0[..dim];
        }
        let mut q = self.q;
        for r in 0..R {
            q[r] = &q[r][..dim];
        }
        let mut sums = [[s.splat(0.0); R]; B];
        for i in 0..dim {
            let mut k = [s.splat(0.0); B];
            for b in 0..B {
                k[b] = E::widen(s, &blocks[b][i]);
            }
            for r in 0..R {
                let q = s.splat(q[r][i]);
                for b in 0..B {
                    sums[b][r] = s.add(sums[b][r], s.mul(q, k[b]));
                }
            }
        }
        for b in 0..B {
            for r in 0..R {
                let score = s.mul(sums[b][r], s.splat(scale));
                s.store_at(score, self.weights, r * SEGMENT + (at + b) * KEY_BLOCK);
            }
        }
    }

    /// Products of codes of two blocks from block `at` on, before the correction.
    #[inline(always)]
    fn code_blocks<S: Simd8>(&self, s: S, keys: &[u8], dim: usize, at: usize) -> [[S::W; R]; 2] {
        let len = dim * KEY_BLOCK;
        let first: &[[u8; 64]] = &keys[at * len..][..len].as_chunks().0[..dim / 8];
        let second: &[[u8; 64]] = &keys[(at + 1) * len..][..len].as_chunks().0[..dim / 8];
        let mut q: [&[[u8; 4]]; R] = [&[]; R];
        for r in 0..R {
            let codes = &self.codes[r * dim..][..dim];
            q[r] = &bytemuck::cast_slice::<i8, u8>(codes).as_chunks().0[..dim / 4];
        }
        let mut sums = [[s.splat_w(0); R]; 2];
        let mut begin = 0;
        while begin < dim / 8 {
            let end = (begin + 4).min(dim / 8);
            let mut accs = [[s.zero_acc(); R]; 2];
            for i in begin..end {
                let k = [s.pair::<Q8>(&first[i]), s.pair::<Q8>(&second[i])];
                for r in 0..R {
                    let a = [s.splat4(&q[r][2 * i]), s.splat4(&q[r][2 * i + 1])];
                    for b in 0..2 {
                        accs[b][r] = s.dot2::<Q8>(accs[b][r], k[b], a);
                    }
                }
            }
            for b in 0..2 {
                for r in 0..R {
                    sums[b][r] = s.add_w(sums[b][r], s.done::<Q8>(accs[b][r]));
                }
            }
            begin = end;
        }
        sums
    }

    /// Adds the weighted values: each row's own positions before and after the `shared` ones.
    #[inline(always)]
    fn values<S: Simd8, E: Element>(
        &mut self,
        s: S,
        values: &[E],
        dim: usize,
        shared: Range<usize>,
    ) {
        let shared = shared.start.min(shared.end)..shared.end;
        for before in [true, false] {
            for r in 0..R {
                let seen = &self.seen[r];
                let own = if before {
                    seen.start..shared.start.clamp(seen.start, seen.end)
                } else {
                    shared.end.clamp(seen.start, seen.end)..seen.end
                };
                if R > 1 && !own.is_empty() {
                    let weights = &self.weights[r * SEGMENT..][..SEGMENT];
                    let sums = &mut self.sums[r * dim..][..dim];
                    // A few positions at the borders.
                    for at in (0..dim).step_by(8) {
                        let own = own.clone();
                        sum_columns::<S, E, 1, 1>(s, values, dim, at, own, weights, sums);
                    }
                }
            }
            if before {
                sum_values::<S, E, R>(s, values, dim, shared.clone(), self.weights, self.sums);
            }
        }
    }
}

/// Scores to weights, in place: their maximum and their mass.
#[inline(always)]
fn soften<S: Simd8>(s: S, weights: &mut [f32], seen: Range<usize>) -> (f32, f32) {
    if seen.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    let (begin, end) = (seen.start / 8 * 8, seen.end.next_multiple_of(8));
    weights[begin..seen.start].fill(f32::NEG_INFINITY);
    weights[seen.end..end].fill(f32::NEG_INFINITY);
    let eights = weights[begin..end].as_chunks_mut::<8>().0;
    let mut max = s.splat(f32::NEG_INFINITY);
    for eight in eights.iter() {
        let x = s.floats(eight);
        max = select_less(s, x, max, [max, x]);
    }
    let mut top = f32::NEG_INFINITY;
    for x in s.to_floats(max) {
        top = if top < x { x } else { top };
    }
    let top = top + 0.0;
    let mut mass = s.splat(0.0);
    for eight in eights {
        let weight = exp(s, s.sub(s.floats(eight), s.splat(top)));
        mass = s.add(mass, weight);
        *eight = s.to_floats(weight);
    }
    (top, s.tree(mass))
}
