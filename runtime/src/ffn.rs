//! The second half of a layer: the gated feed-forward network, cluster by cluster.
//!
//! A cluster sums its neurons in index order, clusters are added in cluster order, whatever lane
//! computed them and wherever their weights came from.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::{Activations, GROUP, Kernels, NeuronRows, STRIP};

use crate::budget::Buffers;
use crate::cluster::{Clusters, are_apart};
use crate::format::FfnMap;
use crate::limits::{EXPERTS_MAX, FEW_TOKENS_MAX, JOBS_MAX};
use crate::partials::add_in_order;
use crate::product::Machine;
use crate::shape::Shape;
use crate::sparse::{self, Sparse};
use crate::stats::Stats;
use crate::weights::{Ready, Weights, WeightsError};
use crate::work::{Lanes, Work};

/// One feed-forward section and what it is run with.
struct Section<'a, 'b, C, K> {
    machine: &'a Machine<'a, C, K>,
    lanes: &'a Lanes<'b>,
    shape: &'a Shape,
    map: FfnMap,
    layer: usize,
    expert: usize,
}

/// Which neurons are computed.
pub enum Choice<'a, 'm> {
    /// All, but those that turn out to be zero.
    All,
    /// Those that the predictors name.
    Predicted(&'a mut Sparse<'m>),
    /// Those that reach the threshold of their section.
    Above(&'a [f32]),
}

impl<'m> Choice<'_, 'm> {
    fn reborrow(&mut self) -> Choice<'_, 'm> {
        match self {
            Choice::All => Choice::All,
            Choice::Predicted(sparse) => Choice::Predicted(sparse),
            Choice::Above(thresholds) => Choice::Above(thresholds),
        }
    }
}

/// Feed-forward network of one layer: `work.inputs` (normed, quantised) -> `work.sum`
/// (dim, tokens).
pub fn ffn<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    lanes: &Lanes<'_>,
    router: &[f32],
    work: &mut Work<'_>,
    choice: Choice<'_, '_>,
    layer: usize,
    tokens: usize,
) -> Result<(), WeightsError> {
    let shape = *weights.image.shape();
    if shape.n_experts > 0 {
        return mixture(machine, weights, lanes, router, work, choice, layer, tokens);
    }
    let section = Section {
        machine,
        lanes,
        shape: &shape,
        map: weights.image.ffn(layer, 0),
        layer,
        expert: 0,
    };
    let x = work.inputs.view(tokens, shape.dim);
    let sum = &mut work.sum[..shape.dim * tokens];
    section.run(weights, choice, &x, work.gate, work.up, work.partials, sum)
}

/// An expert that a token uses, and the weight of what it gives.
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Chosen {
    expert: u32,
    share: f32,
}

/// Floats that the choice of one token's experts takes.
pub const fn choice_floats(shape: &Shape) -> usize {
    shape.n_experts_used * size_of::<Chosen>() / size_of::<f32>()
}

/// The experts of each token of `x` (tokens, dim), in `room`: (tokens, experts used), those of a
/// token in ascending order.
#[inline(never)]
fn choose_experts<'r>(
    shape: &Shape,
    kernels: &Kernels,
    router: &[f32],
    x: &[f32],
    room: &'r mut [f32],
) -> &'r [Chosen] {
    let floats = x.len() / shape.dim * choice_floats(shape);
    let all: &mut [Chosen] = bytemuck::cast_slice_mut(&mut room[..floats]);
    let tokens = x.chunks_exact(shape.dim);
    for (x, chosen) in tokens.zip(all.chunks_exact_mut(shape.n_experts_used)) {
        choose(shape, kernels, router, x, chosen);
    }
    all
}

/// Softmax over all experts, the best of them (the lowest index of equals).
fn choose(shape: &Shape, kernels: &Kernels, router: &[f32], x: &[f32], chosen: &mut [Chosen]) {
    let mut scores = [0.0f32; EXPERTS_MAX];
    let scores = &mut scores[..shape.n_experts];
    for (score, row) in scores.iter_mut().zip(router.chunks_exact(x.len())) {
        *score = (kernels.dot)(row, x);
    }
    (kernels.softmax)(scores);
    for count in 0..chosen.len() {
        let (taken, free) = chosen.split_at_mut(count);
        let mut best = None;
        for (expert, &share) in (0..).zip(scores.iter()) {
            let is_taken = taken.iter().any(|other| other.expert == expert);
            if !is_taken && best.is_none_or(|best: Chosen| share > best.share) {
                best = Some(Chosen { expert, share });
            }
        }
        let nothing = Chosen {
            expert: 0,
            share: f32::NAN,
        };
        free[0] = best.unwrap_or(nothing);
    }
    if shape.norm_topk_prob {
        let sum = chosen.iter().fold(0.0, |sum, one| sum + one.share);
        chosen.iter_mut().for_each(|one| one.share /= sum);
    }
    chosen.sort_unstable_by_key(|one| one.expert);
}

#[inline(never)]
fn mixture<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    lanes: &Lanes<'_>,
    router: &[f32],
    work: &mut Work<'_>,
    mut choice: Choice<'_, '_>,
    layer: usize,
    tokens: usize,
) -> Result<(), WeightsError> {
    let shape = *weights.image.shape();
    let dim = shape.dim;
    let x = &work.inputs.x[..tokens * dim];
    let chosen = choose_experts(&shape, machine.kernels, router, x, work.qkv);
    let uses = |expert: usize| {
        let tokens = chosen.chunks_exact(shape.n_experts_used).enumerate();
        tokens.filter_map(move |(t, chosen)| {
            let mut of_token = chosen.iter();
            let one = of_token.find(|one| one.expert as usize == expert)?;
            Some((t, one.share))
        })
    };
    let mut needed = [false; EXPERTS_MAX];
    for one in chosen {
        needed[one.expert as usize] = true;
    }
    let experts = (0..shape.n_experts).filter(|&expert| needed[expert]);
    weights.stream.route(layer, experts.clone());
    work.sum[..dim * tokens].fill(0.0);
    for expert in experts {
        let mut gathered = work.gathered.take().expect("a buffer for experts");
        let mut count = 0;
        for (t, _) in uses(expert) {
            gathered.copy_row(count, &work.inputs, t, dim);
            if let Some(observer) = machine.observer {
                observer.routed(layer, expert, t);
            }
            count += 1;
        }
        let section = Section {
            machine,
            lanes,
            shape: &shape,
            map: weights.image.ffn(layer, expert),
            layer,
            expert,
        };
        let (partials, out) = work
            .partials
            .split_at_mut(work.partials.len() - dim * count);
        gathered.arrange(machine.cores, count, dim);
        let x = gathered.view(count, dim);
        let choice = choice.reborrow();
        let result = section.run(weights, choice, &x, work.gate, work.up, partials, out);
        // Back in its place before an error leaves: the session stays usable.
        work.gathered = Some(gathered);
        result?;
        let out = &work.partials[work.partials.len() - dim * count..];
        for (index, (t, share)) in uses(expert).enumerate() {
            for i in 0..dim {
                work.sum[i * tokens + t] += share * out[i * count + index];
            }
        }
    }
    Ok(())
}

/// Turns `sum` from (tokens, dim) to (dim, tokens); works in `room`.
fn turn(sum: &mut [f32], tokens: usize, room: &mut [f32]) {
    let room = &mut room[..sum.len()];
    room.copy_from_slice(sum);
    for (t, row) in room.chunks_exact(sum.len() / tokens).enumerate() {
        for (of_tokens, value) in sum.chunks_exact_mut(tokens).zip(row) {
            of_tokens[t] = *value;
        }
    }
}

impl<C: Cores, K: Clock> Section<'_, '_, C, K> {
    /// `sum` (dim, tokens) = the whole section on `x` (tokens, dim).
    fn run<'m, F: Flash<'m>>(
        &self,
        weights: &mut Weights<'m, F>,
        choice: Choice<'_, '_>,
        x: &Activations<'_>,
        gate: &mut [f32],
        up: &mut [f32],
        partials: &mut [f32],
        sum: &mut [f32],
    ) -> Result<(), WeightsError> {
        let (layer, expert) = (self.layer, self.expert);
        let threshold = match choice {
            Choice::All => 0.0,
            Choice::Above(thresholds) => thresholds[layer * self.shape.n_ffns() + expert],
            Choice::Predicted(sparse) => {
                let section = sparse::Section { layer, expert, x };
                return sparse.run(self.machine, weights, self.lanes, &section, partials, sum);
            }
        };
        sum.fill(0.0);
        let tokens = x.tokens();
        let few = tokens <= FEW_TOKENS_MAX && self.machine.observer.is_none();
        if let Some(observer) = self.machine.observer {
            observer.inputs(self.layer, self.expert, x.x);
        }
        let per_run = if few {
            (partials.len() / (self.shape.dim * tokens)).min(JOBS_MAX)
        } else {
            Buffers::run_neurons(self.shape) / self.shape.cluster_neurons
        };
        let mut cluster = 0;
        while cluster < self.shape.n_clusters() {
            let end = self.ready_clusters(weights, cluster, per_run)?;
            let ready = weights.ready();
            if few {
                self.few_tokens(&ready, threshold, cluster..end, x, partials, sum);
                drop(ready);
                self.count_neurons(&mut weights.stream.stats);
            } else {
                let first = cluster * self.shape.cluster_neurons;
                let neurons = first..(end * self.shape.cluster_neurons).min(self.map.neurons);
                let len = neurons.len() * tokens;
                self.hidden(&ready, neurons, x, &mut gate[..len], &mut up[..len]);
                self.down(&ready, cluster..end, tokens, &gate[..len], sum);
                drop(ready);
            }
            let end_neuron = (end * self.shape.cluster_neurons).min(self.map.neurons);
            weights.release_before(self.map.bundle_offset(end_neuron));
            cluster = end;
        }
        if few && are_apart(&self.map, tokens) {
            turn(sum, tokens, partials);
        }
        Ok(())
    }

    /// Clusters from `first` on that are ready, at most `count`: where they end.
    fn ready_clusters<'m, F: Flash<'m>>(
        &self,
        weights: &mut Weights<'m, F>,
        first: usize,
        count: usize,
    ) -> Result<usize, WeightsError> {
        let (cores, clock) = (self.machine.cores, self.machine.clock);
        let offset = |cluster: usize| self.map.bundle_offset(cluster * self.shape.cluster_neurons);
        let mut ready_to = weights.make_ready(offset(first), cores, clock)?;
        let mut end = first;
        while end < self.shape.n_clusters() && end - first < count {
            if offset(end) >= ready_to {
                match weights.ready_end(offset(end), cores, clock)? {
                    Some(to) => ready_to = to,
                    None => break,
                }
            }
            let bytes = self.map.run_bytes(self.shape.cluster_len(end));
            weights.count(offset(end), bytes as u64);
            end += 1;
        }
        Ok(end)
    }

    /// Each lane takes whole clusters; their partial sums, (dim, tokens) or as [`are_apart`] says,
    /// are added in order.
    #[inline(never)]
    fn few_tokens(
        &self,
        ready: &Ready<'_>,
        threshold: f32,
        clusters: core::ops::Range<usize>,
        x: &Activations<'_>,
        partials: &mut [f32],
        sum: &mut [f32],
    ) {
        let (shape, lanes) = (self.shape, self.lanes);
        let len = shape.dim * x.tokens();
        let partials = &mut partials[..clusters.len() * len];
        let n_lanes = self.machine.cores.lanes();
        let per_job = (clusters.len() / (16 * n_lanes)).max(1);
        let mut jobs: heapless::Vec<(usize, &mut [f32]), JOBS_MAX> = clusters
            .clone()
            .step_by(per_job)
            .zip(partials.chunks_mut(per_job * len))
            .collect();
        let run = Clusters {
            map: self.map,
            ready,
            kernels: self.machine.kernels,
            activation: shape.activation,
            x,
        };
        let first_neuron = |cluster: usize| cluster * shape.cluster_neurons;
        let is_here = |cluster: &usize| clusters.contains(cluster);
        self.machine
            .cores
            .for_each(&mut jobs, &|lane, (first, partials)| {
                let last = *first + partials.len() / len - 1;
                for (cluster, partial) in (*first..).zip(partials.chunks_exact_mut(len)) {
                    let start = first_neuron(cluster);
                    let neurons = start..start + shape.cluster_len(cluster);
                    // Lanes take pieces in turn, more or less.
                    let next = match cluster == last {
                        true => *first + per_job * n_lanes,
                        false => cluster + 1,
                    };
                    let next = Some(next).filter(is_here).map(first_neuron);
                    let lane = &mut lanes[lane].lock();
                    if threshold > 0.0 {
                        run.run_above(threshold, neurons, lane, partial);
                    } else {
                        run.run(neurons, next, lane, partial);
                    }
                }
            });
        drop(jobs);
        add_in_order(self.machine.cores, partials, sum);
    }

    /// Adds what lanes counted of thresholds.
    fn count_neurons(&self, stats: &mut Stats) {
        for lane in self.lanes {
            let mut lane = lane.lock();
            stats.active_neurons += core::mem::take(&mut lane.active);
            stats.all_neurons += core::mem::take(&mut lane.all);
        }
    }

    /// Many tokens, first half: hidden values of `neurons` (neurons, tokens), in `gate`.
    #[inline(never)]
    fn hidden(
        &self,
        ready: &Ready<'_>,
        neurons: core::ops::Range<usize>,
        x: &Activations<'_>,
        gate: &mut [f32],
        up: &mut [f32],
    ) {
        let tokens = x.tokens();
        let (first_neuron, observer) = (neurons.start, self.machine.observer);
        let per_job = (neurons.len() / GROUP).div_ceil(JOBS_MAX) * GROUP;
        let chunk = per_job * tokens;
        let mut jobs: heapless::Vec<_, JOBS_MAX> = gate
            .chunks_mut(chunk)
            .zip(up.chunks_mut(chunk))
            .enumerate()
            .collect();
        let (shape, kernels, lanes, map) = (self.shape, self.machine.kernels, self.lanes, self.map);
        let n_lanes = self.machine.cores.lanes();
        self.machine
            .cores
            .for_each(&mut jobs, &|lane, (index, (gate, up))| {
                let mut lane = lanes[lane].lock();
                let first = neurons.start + *index * per_job;
                let outs = gate
                    .chunks_exact_mut(GROUP * tokens)
                    .zip(up.chunks_exact_mut(GROUP * tokens));
                let groups = outs.len();
                for (index, (gate, up)) in outs.enumerate() {
                    let neuron = first + index * GROUP;
                    let group = ready.bundles(&map, neuron, GROUP);
                    let parts = group.reader.view(group.bytes);
                    let gate_rows = parts.gate.then(group.reader.up_codes(group.bytes));
                    (kernels.matmul)(&gate_rows, x, gate, lane.bytes);
                    // Lanes take pieces in turn, more or less.
                    let next = match index + 1 == groups {
                        true => first + per_job * n_lanes,
                        false => neuron + GROUP,
                    };
                    let mut up_rows = parts.up;
                    if neurons.contains(&next) {
                        let next = ready.bundles(&map, next, GROUP);
                        up_rows = up_rows.then(next.reader.firsts(next.bytes));
                    }
                    (kernels.matmul)(&up_rows, x, up, lane.bytes);
                    if observer.is_none() {
                        (kernels.gated)(shape.activation, gate, up);
                    }
                }
            });
        drop(jobs);
        if let Some(observer) = observer {
            let (layer, expert) = (self.layer, self.expert);
            observer.products(layer, expert, first_neuron, tokens, gate, up);
            (kernels.gated)(shape.activation, gate, up);
        }
    }

    /// Many tokens, second half: adds the clusters' down sums to `sum` (dim, tokens), each lane
    /// a strip of outputs.
    #[inline(never)]
    fn down(
        &self,
        ready: &Ready<'_>,
        clusters: core::ops::Range<usize>,
        tokens: usize,
        hidden: &[f32],
        sum: &mut [f32],
    ) {
        let (shape, kernels, lanes, map) = (self.shape, self.machine.kernels, self.lanes, self.map);
        let first_neuron = clusters.start * shape.cluster_neurons;
        let end_neuron = (clusters.end * shape.cluster_neurons).min(map.neurons);
        // Wide strips where tokens are few, so that rows are not looked up too often.
        let held = lanes[0].lock().floats.len() / tokens;
        let share = shape.dim / (2 * self.machine.cores.lanes());
        let strip_cols = (share.min(held) / STRIP * STRIP).max(STRIP);
        let mut strips = sum.chunks_mut(strip_cols * tokens).enumerate().peekable();
        while strips.peek().is_some() {
            let mut jobs: heapless::Vec<_, JOBS_MAX> = strips.by_ref().take(JOBS_MAX).collect();
            self.machine
                .cores
                .for_each(&mut jobs, &|lane, (strip, sum)| {
                    let mut lane = lanes[lane].lock();
                    let lane = &mut *lane;
                    let first_col = *strip * strip_cols;
                    let cols = first_col..first_col + sum.len() / tokens;
                    let partial = &mut lane.floats[..sum.len()];
                    for cluster in clusters.clone() {
                        partial.fill(0.0);
                        let first = cluster * shape.cluster_neurons;
                        for start in (first..first + shape.cluster_len(cluster)).step_by(GROUP) {
                            let group = ready.bundles(&map, start, GROUP);
                            let mut rows = NeuronRows::new(map.bundle.down, shape.dim);
                            rows.extend(&group.reader.view(group.bytes).down);
                            if start + GROUP < end_neuron {
                                let next = ready.bundles(&map, start + GROUP, GROUP);
                                rows.then(next.reader.down_strip(next.bytes, &cols));
                            }
                            let h = &hidden[(start - first_neuron) * tokens..][..GROUP * tokens];
                            let cols = cols.clone();
                            (kernels.down_group_many)(&rows, cols, tokens, h, partial, lane.bytes);
                        }
                        for (sum, partial) in sum.iter_mut().zip(partial.iter()) {
                            *sum += partial;
                        }
                    }
                });
        }
    }
}
