//! Who works on which segment of the KV cache.
//!
//! The kernels define a query's result by its segments in order, whoever computes them. So a pass
//! of many tokens is cut by tokens, each piece walking all its segments; one of few tokens is cut
//! by segments, whose states are merged afterwards.

use tessera_hal::Cores;
use tessera_kernels::Kernels;
use tessera_kernels::attention::{Queries, SEGMENT, clear, merge, state_len};
use tessera_kernels::kv::kv_dim;
use tessera_kernels::math::sqrt;

use crate::kv::{KvCache, Place};
use crate::limits::{ATTEND_UNITS_MAX, JOBS_MAX};
use crate::model::Pass;
use crate::product::Machine;
use crate::shape::Shape;
use crate::work::Lanes;

/// Tokens that share a walk over the segments.
const TILE_TOKENS: usize = 16;
/// Fewer items (a token and a kv head) than this for each lane are cut by segments.
const ITEMS_PER_LANE: usize = 8;

/// Attention of one layer in one pass. Items are numbered (kv heads, tokens).
pub struct Attend<'a, 'm> {
    /// The model.
    pub shape: &'a Shape,
    /// Tokens.
    pub pass: Pass<'a>,
    /// Layer.
    pub layer: usize,
    /// The cache, the pass's own keys and values included.
    pub kv: &'a KvCache<'m>,
    /// Queries (kv heads, tokens, group, dim).
    pub q: &'a [f32],
}

/// One segment of one item.
#[derive(Clone, Copy)]
struct Unit {
    item: usize,
    start: usize,
}

impl Attend<'_, '_> {
    /// Fills `states` (kv heads, tokens, group, state); `parts` holds those of
    /// [`ATTEND_UNITS_MAX`] units.
    pub fn run<C: Cores, K>(
        &self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        states: &mut [f32],
        parts: &mut [f32],
    ) {
        let items = self.shape.n_kv_heads * self.pass.places.len();
        let states = &mut states[..items * self.item_len()];
        clear(kv_dim(self.shape.head_dim), states);
        let n_lanes = machine.cores.lanes();
        if n_lanes > 1 && items < ITEMS_PER_LANE * n_lanes {
            self.by_segments(machine, lanes, states, parts);
        } else {
            self.by_tokens(machine, lanes, states);
        }
    }

    /// The state of one token and head.
    pub fn state<'s>(&self, states: &'s [f32], token: usize, head: usize) -> &'s [f32] {
        let group = self.group();
        let item = head / group * self.pass.places.len() + token;
        let len = state_len(kv_dim(self.shape.head_dim));
        &states[(item * group + head % group) * len..][..len]
    }

    fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    /// Floats of the states of one item.
    fn item_len(&self) -> usize {
        self.group() * state_len(kv_dim(self.shape.head_dim))
    }

    /// Starts of the segments that the `count` tokens from `item` on see any of.
    fn starts(&self, item: usize, count: usize) -> impl Iterator<Item = usize> + use<> {
        let pos = self.pass.places[item % self.pass.places.len()].pos as usize;
        let begin = match self.shape.sliding_window {
            0 => 0,
            window => (pos + 1).saturating_sub(window),
        };
        (begin / SEGMENT * SEGMENT..pos + count).step_by(SEGMENT)
    }

    /// How many tokens from `item` on, at most `count`, follow each other in one sequence.
    fn consecutive(&self, item: usize, count: usize) -> usize {
        let first = item % self.pass.places.len();
        let places = &self.pass.places[first..];
        let follow = |pair: &&[Place]| {
            pair[0].sequence == pair[1].sequence && pair[0].pos + 1 == pair[1].pos
        };
        let run = 1 + places.windows(2).take_while(follow).take(count).count();
        run.min(count).min(TILE_TOKENS)
    }

    /// Adds one segment to the states of `count` tokens from `item` on.
    fn attend(
        &self,
        kernels: &Kernels,
        unit: Unit,
        count: usize,
        states: &mut [f32],
        work: &mut [f32],
    ) {
        let (group, dim) = (self.group(), kv_dim(self.shape.head_dim));
        let tokens = self.pass.places.len();
        let place = self.pass.places[unit.item % tokens];
        let head = unit.item / tokens;
        let segment = self
            .kv
            .segment(self.layer, head, place.sequence, unit.start);
        let queries = Queries {
            q: &self.q[unit.item * group * dim..][..count * group * dim],
            group,
            pos: place.pos as usize,
            window: self.shape.sliding_window,
            scale: 1.0 / sqrt(self.shape.head_dim as f32),
        };
        (kernels.attend)(&segment, &queries, states, work);
    }

    fn by_tokens<C: Cores, K>(
        &self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        states: &mut [f32],
    ) {
        let (len, kernels) = (self.item_len(), machine.kernels);
        let per_job = (states.len() / len).div_ceil(JOBS_MAX);
        let mut jobs: heapless::Vec<_, JOBS_MAX> =
            states.chunks_mut(per_job * len).enumerate().collect();
        // Later tokens see more positions: the long pieces go first.
        jobs.reverse();
        machine.cores.for_each(&mut jobs, &|lane, (index, states)| {
            let mut lane = lanes[lane].lock();
            let (mut item, mut states) = (*index * per_job, &mut **states);
            while !states.is_empty() {
                let count = self.consecutive(item, states.len() / len);
                let (mine, rest) = states.split_at_mut(count * len);
                for start in self.starts(item, count) {
                    self.attend(kernels, Unit { item, start }, count, mine, lane.floats);
                }
                (item, states) = (item + count, rest);
            }
        });
    }

    fn by_segments<C: Cores, K>(
        &self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        states: &mut [f32],
        parts: &mut [f32],
    ) {
        let items = states.len() / self.item_len();
        let mut all = (0..items)
            .flat_map(|item| self.starts(item, 1).map(move |start| Unit { item, start }))
            .peekable();
        while all.peek().is_some() {
            let units: heapless::Vec<Unit, ATTEND_UNITS_MAX> =
                all.by_ref().take(ATTEND_UNITS_MAX).collect();
            self.round(machine, lanes, &units, states, parts);
        }
    }

    /// Computes some units side by side, then merges them in order.
    fn round<C: Cores, K>(
        &self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        units: &[Unit],
        states: &mut [f32],
        parts: &mut [f32],
    ) {
        let (len, dim) = (self.item_len(), kv_dim(self.shape.head_dim));
        let kernels = machine.kernels;
        let per_job = units.len().div_ceil(JOBS_MAX);
        let parts = &mut parts[..units.len() * len];
        let mut jobs: heapless::Vec<_, JOBS_MAX> = units
            .chunks(per_job)
            .zip(parts.chunks_mut(per_job * len))
            .collect();
        machine.cores.for_each(&mut jobs, &|lane, (units, parts)| {
            let mut lane = lanes[lane].lock();
            clear(dim, parts);
            for (unit, part) in units.iter().zip(parts.chunks_exact_mut(len)) {
                self.attend(kernels, *unit, 1, part, lane.floats);
            }
        });
        drop(jobs);
        for (unit, part) in units.iter().zip(parts.chunks_exact(len)) {
            let item = states[unit.item * len..][..len].chunks_exact_mut(state_len(dim));
            for (state, part) in item.zip(part.chunks_exact(state_len(dim))) {
                merge(dim, state, part);
            }
        }
    }
}
