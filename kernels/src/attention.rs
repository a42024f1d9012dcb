//! What `attend` takes and leaves: queries, segments of the cache, states.

use core::ops::Range;

use crate::kv::{HEAD_DIM_MAX, KvRows};
use crate::math;

/// Positions of a segment. Segments begin at multiples of this, whoever asks.
pub const SEGMENT: usize = 128;
/// Queries that are worked on together.
pub(crate) const ROWS_AT_ONCE: usize = 4;
/// Floats of a state besides its sums: the maximum, the mass, and padding.
const EXTRA: usize = 8;

/// Keys and values of one segment of one head.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Elements of a key and of a value, a multiple of 8.
    pub dim: usize,
    /// Position of the first, a multiple of [`SEGMENT`].
    pub start: usize,
    /// Positions, a multiple of [`crate::kv::KV_ALIGN`], at most [`SEGMENT`].
    pub count: usize,
    /// (count, dim), in blocks.
    pub keys: KvRows<'a>,
    /// (count, dim).
    pub values: KvRows<'a>,
}

/// Queries of consecutive positions, of the heads that share keys and values.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// (tokens, group, dim).
    pub q: &'a [f32],
    /// Heads.
    pub group: usize,
    /// Position of the first token.
    pub pos: usize,
    /// Positions a token sees, its own included; 0 for all.
    pub window: usize,
    /// What products are multiplied by.
    pub scale: f32,
}

impl Queries<'_> {
    /// What row `row` (token times head) sees of a segment.
    pub(crate) fn span(&self, row: usize, start: usize, count: usize) -> Range<usize> {
        let end = self.pos + row / self.group + 1;
        let begin = match self.window {
            0 => 0,
            window => end.saturating_sub(window),
        };
        let (begin, end) = (begin.saturating_sub(start), end.saturating_sub(start));
        begin.min(end.min(count))..end.min(count)
    }
}

/// Floats of the state of one query.
pub const fn state_len(dim: usize) -> usize {
    dim + EXTRA
}

/// Floats that `attend` works in.
pub const fn scratch_len(dim: usize) -> usize {
    // Scores, sums, and codes of the queries.
    ROWS_AT_ONCE * (SEGMENT + dim + dim / 4)
}

/// States of queries that have seen nothing.
///
/// # Panics
/// If `states` are not whole ones of [`state_len`]`(dim)`.
pub fn clear(dim: usize, states: &mut [f32]) {
    assert!(
        states.len().is_multiple_of(state_len(dim)),
        "{} floats",
        states.len()
    );
    for state in states.chunks_exact_mut(state_len(dim)) {
        state.fill(0.0);
        state[dim] = f32::NEG_INFINITY;
    }
}

/// Adds to `state` what another part of the positions gave, as the crate docs define it.
///
/// # Panics
/// If one of both is not [`state_len`]`(dim)` long.
pub fn merge(dim: usize, state: &mut [f32], part: &[f32]) {
    assert_eq!((state.len(), part.len()), (state_len(dim), state_len(dim)));
    let (part, norm) = part.split_at(dim);
    merge_sums(state, part, norm[0], norm[1]);
}

/// The same, `sums` (dim,) standing apart from their maximum and mass.
#[inline(always)]
pub(crate) fn merge_sums(state: &mut [f32], sums: &[f32], max: f32, mass: f32) {
    if mass == 0.0 {
        return;
    }
    let (acc, norm) = state.split_at_mut(sums.len());
    let top = if norm[0] < max { max } else { norm[0] };
    let (a, b) = (math::exp(norm[0] - top), math::exp(max - top));
    for (acc, sum) in acc.iter_mut().zip(sums) {
        *acc = *acc * a + *sum * b;
    }
    (norm[0], norm[1]) = (top, norm[1] * a + mass * b);
}

/// The weighted mean of the values: of their `dim` elements the first ones, as many as `out` has;
/// the others fill a head up ([`kv_dim`](crate::kv::kv_dim)).
///
/// # Panics
/// If `state` is not [`state_len`]`(dim)` long, or `out` is longer than `dim`.
pub fn finish(dim: usize, state: &[f32], out: &mut [f32]) {
    assert_eq!(state.len(), state_len(dim));
    assert!(out.len() <= dim, "{} of {dim} elements", out.len());
    let inverse = 1.0 / state[dim + 1];
    for (out, acc) in out.iter_mut().zip(&state[..dim]) {
        *out = *acc * inverse;
    }
}

const _: () = assert!(HEAD_DIM_MAX.is_multiple_of(8));
