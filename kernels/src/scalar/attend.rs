//! Attention over one segment of the cache.

use core::ops::Range;

use super::{to_q8, tree};
use crate::attention::{Queries, SEGMENT, Segment, merge_sums, state_len};
use crate::check;
use crate::kv::{HEAD_DIM_MAX, KvRows, key_place};
use crate::math;

pub(super) fn attend(
    segment: &Segment<'_>,
    queries: &Queries<'_>,
    states: &mut [f32],
    work: &mut [f32],
) {
    check::attend(segment, queries, states, work);
    let &Segment {
        dim, start, count, ..
    } = segment;
    let rows = queries.q.chunks_exact(dim);
    let states = states.chunks_exact_mut(state_len(dim));
    let (weights, sums) = work.split_at_mut(SEGMENT);
    let sums = &mut sums[..dim];
    for (row, (q, state)) in rows.zip(states).enumerate() {
        let seen = queries.span(row, start, count);
        if seen.is_empty() {
            continue;
        }
        weights.fill(0.0);
        scores(segment, q, queries.scale, seen.clone(), weights);
        let (max, mass) = soften(&mut weights[..count], seen.clone());
        sum_values(segment, seen, weights, sums);
        merge_sums(state, sums, max, mass);
    }
}

/// `s_p` of the positions `seen`.
fn scores(segment: &Segment<'_>, q: &[f32], scale: f32, seen: Range<usize>, out: &mut [f32]) {
    let dim = segment.dim;
    let mut codes = [0; HEAD_DIM_MAX];
    let codes = &mut codes[..dim];
    let q_scale = to_q8(q, codes) * scale;
    for p in seen {
        let place = |i| key_place(segment.keys.ty(), dim, p, i);
        out[p] = match segment.keys {
            KvRows::F32(keys) => product(q, |i| keys[place(i)]) * scale,
            KvRows::F16(keys) => product(q, |i| math::f16_to_f32(keys[place(i)])) * scale,
            KvRows::Q8(keys, scales) => {
                let products = codes.iter().enumerate();
                let dot: i32 = products
                    .map(|(i, &c)| i32::from(c) * i32::from(keys[place(i)]))
                    .sum();
                dot as f32 * (scales[p] * q_scale)
            }
        };
    }
}

fn product(q: &[f32], key: impl Fn(usize) -> f32) -> f32 {
    let mut sum = 0.0;
    for (i, q) in q.iter().enumerate() {
        sum += q * key(i);
    }
    sum
}

/// Scores to weights, in place: their maximum `m` and their mass `l`.
fn soften(weights: &mut [f32], seen: Range<usize>) -> (f32, f32) {
    let max = weights[seen.clone()]
        .iter()
        .fold(f32::NEG_INFINITY, |max, &x| if max < x { x } else { max });
    let max = max + 0.0;
    let mut mass = [0.0; 8];
    for p in seen {
        weights[p] = math::exp(weights[p] - max);
        mass[p % 8] += weights[p];
    }
    (max, tree(mass))
}

/// `o_i`.
fn sum_values(segment: &Segment<'_>, seen: Range<usize>, weights: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    for p in seen {
        let at = p * segment.dim;
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum += match segment.values {
                KvRows::F32(values) => weights[p] * values[at + i],
                KvRows::F16(values) => weights[p] * math::f16_to_f32(values[at + i]),
                KvRows::Q8(codes, scales) => (weights[p] * scales[p]) * f32::from(codes[at + i]),
            };
        }
    }
}
