//! Plans with a cold segment: what stays, what has slots.

use super::{Draft, Plan, STREAM_SLOTS_MIN};
use crate::chunk::{Cut, for_each_chunk};
use crate::format::{Image, SectionKind};
use crate::limits::{COLD_READS_MAX, COLD_RUN_MAX, FEW_TOKENS_MAX};
use crate::sparse::{ColdSizes, SparseSizes, predictor_sizes};

/// Bytes of a read of cold bundles, unless one bundle is larger: beyond it a longer read is no
/// cheaper than two.
const COLD_READ_BYTES: usize = 64 << 10;

/// Bytes that the first `clusters` clusters of all feed-forward sections take in memory.
pub fn prefix_bytes(image: &Image<'_>, clusters: usize) -> u64 {
    let shape = image.shape();
    let neurons = clusters
        .saturating_mul(shape.cluster_neurons)
        .min(shape.ffn_dim);
    sections(image)
        .map(|(layer, expert)| image.ffn(layer, expert).bundle)
        .map(|bundle| bundle.packed_reader().run_bytes(neurons) as u64)
        .sum()
}

/// Bytes that all feed-forward sections take in memory.
pub fn ffn_bytes(image: &Image<'_>) -> u64 {
    prefix_bytes(image, usize::MAX)
}

/// Layer and expert of every feed-forward section.
pub fn sections<'a>(image: &'a Image<'_>) -> impl Iterator<Item = (usize, usize)> + use<'a> {
    let (layers, experts) = (image.shape().n_layers, image.shape().n_ffns());
    (0..layers).flat_map(move |layer| (0..experts).map(move |expert| (layer, expert)))
}

/// True if every feed-forward section has statistics.
pub fn has_statistics(image: &Image<'_>) -> bool {
    let find = |(layer, expert)| image.find_of(SectionKind::Statistics, layer, expert);
    sections(image).all(|section| find(section).is_some())
}

impl Draft<'_> {
    /// How the image is cut into chunks.
    pub(super) fn cut(&self, hot_clusters: usize) -> Cut {
        Cut {
            chunk_bytes: self.chunk_bytes,
            hot_clusters,
        }
    }

    /// Chunks of the image.
    pub(super) fn count_chunks(&self, hot_clusters: usize) -> usize {
        let mut count = 0;
        for_each_chunk(self.image, self.cut(hot_clusters), |_| count += 1);
        count
    }

    fn cluster_bundles(&self) -> usize {
        let shape = self.image.shape();
        shape.cluster_neurons.min(shape.ffn_dim) / shape.bundle_neurons
    }

    /// The fewest slots with which no cluster waits for itself; twice, so that reads of one go on
    /// while another is computed.
    pub(super) fn slots_min(&self) -> usize {
        2 * self.cluster_bundles()
    }

    /// Sizes of sparse passes of up to `batch` tokens. `None` where the image has no predictors.
    pub(super) fn sparse_sizes(
        &self,
        batch: usize,
        hot_clusters: usize,
        n_slots: usize,
    ) -> Option<SparseSizes> {
        let (image, shape, options) = (self.image, self.image.shape(), self.options.cold);
        let (predictor_bytes, rank) = predictor_sizes(image)?;
        let bundles = || sections(image).map(|(layer, expert)| image.ffn(layer, expert).bundle);
        let bundle_bytes = bundles().map(|bundle| bundle.bytes()).max()?;
        let slot_bytes = bundles().map(|bundle| bundle.packed_bytes()).max()?;
        // Without bundles a neuron takes two commands at once.
        let reads_min = 1 + usize::from(options.without.bundles);
        let n_reads = options.reads.clamp(reads_min, COLD_READS_MAX);
        let guesses = match options.without.cache || options.without.pipeline {
            // Nobody knows which expert the next layer will use.
            false if shape.n_experts == 0 => options.guesses.min(n_reads - 1),
            _ => 0,
        };
        let run = (COLD_READ_BYTES / bundle_bytes).clamp(1, COLD_RUN_MAX);
        Some(SparseSizes {
            tokens: batch.min(FEW_TOKENS_MAX),
            hot_clusters,
            predictor_bytes,
            rank,
            absent_loss_pml: options.absent_loss_pml,
            cold: ColdSizes {
                n_bundles: shape.n_layers * shape.n_ffns() * shape.ffn_dim / shape.bundle_neurons,
                n_slots,
                slots_least: self.slots_min(),
                slot_bytes,
                policy: options.policy,
                n_reads,
                guesses,
                read_bytes: run * bundle_bytes,
                run_bundles: run,
                gap: options.gap,
                two_phase: options.two_phase || options.without.bundles,
                without: options.without,
            },
        })
    }

    /// The plan that keeps most in memory: first all that every token needs, then the hottest
    /// neurons and slots for the others.
    pub(super) fn largest_sparse(&self, batch_max: usize, logits_rows: usize) -> Option<Plan> {
        let memory_bytes = self.options.memory_bytes;
        let all_clusters = self.image.shape().n_clusters();
        let plan = |batch, n_slots, resident, hot, cold| {
            let sparse = self.sparse_sizes(batch, hot, cold);
            self.plan_with(batch, logits_rows, n_slots, resident, sparse)
        };
        let whole = plan(
            batch_max,
            STREAM_SLOTS_MIN,
            self.kept_bytes,
            all_clusters,
            0,
        );
        if whole.fits(memory_bytes) {
            return Some(whole);
        }
        let fitting = |n_slots| {
            let (batch, empty) = self.largest_batch(batch_max, logits_rows, n_slots);
            empty.fits(memory_bytes).then_some((n_slots, batch, empty))
        };
        let (n_slots, batch, empty) =
            fitting(self.stream_slots()).or_else(|| fitting(STREAM_SLOTS_MIN))?;
        let left = (memory_bytes - empty.total_bytes()) as u64;
        let fixed = self.kept_bytes - ffn_bytes(self.image);
        let Some(left) = left.checked_sub(fixed) else {
            return Some(plan(batch, n_slots, left / 64 * 64, 0, self.slots_min()));
        };
        let for_hot = left / 100 * self.options.cold.hot_pct.min(100) as u64;
        let hot = (0..all_clusters)
            .rev()
            .find(|&clusters| prefix_bytes(self.image, clusters) <= for_hot)
            .unwrap_or(0);
        let resident = fixed + prefix_bytes(self.image, hot);
        let with = |cold| plan(batch, n_slots, resident, hot, cold);
        Some(with(self.most_slots(memory_bytes, hot, with)))
    }

    /// The most slots with which `with(slots)` fits.
    fn most_slots(&self, memory_bytes: usize, hot: usize, with: impl Fn(usize) -> Plan) -> usize {
        let shape = self.image.shape();
        let hot_neurons = hot * shape.cluster_neurons;
        let cold_neurons = shape.ffn_dim - hot_neurons.min(shape.ffn_dim);
        let cold_bundles = shape.n_layers * shape.n_ffns() * cold_neurons / shape.bundle_neurons;
        let least = self.slots_min();
        let (mut low, mut high) = (least, cold_bundles.max(least));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if with(middle).fits(memory_bytes) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}
