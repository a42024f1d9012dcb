//! The planner's view of an image that runs with a cold segment.

use super::dense::{attention_demand, weights};
use super::{Demand, Layout, NeuronChoice, SparseModel, Split};
use crate::format::Image;
use crate::plan::Plan;

/// Fork-joins of a layer's attention for one token: q, k and v; attention; output projection.
const ATTENTION_JOINS: f64 = 3.0;
/// Fork-joins of a section: first layer of its predictor; its clusters.
const SECTION_JOINS: f64 = 2.0;

/// `image` as `plan` runs it at position `pos`, as far as the head tells: what is known of the
/// neurons' use comes with [`SparseModel::add`] or [`SparseModel::add_unknown`]. `precision` is
/// the share of predicted neurons that are active. `None` if the plan has no cold segment.
pub fn sparse_model(
    image: &Image<'_>,
    plan: &Plan,
    pos: usize,
    precision: f64,
) -> Option<SparseModel> {
    let (shape, sparse) = (image.shape(), plan.sizes.sparse?);
    let bundle = image.ffn(0, 0).bundle;
    let used = shape.n_layers * shape.n_experts_used.max(1);
    let layout = Layout {
        choice: NeuronChoice::Predicted,
        sections: (shape.n_layers * shape.n_ffns()) as u32,
        sections_used: used as u32,
        bundles: (shape.ffn_dim / bundle.neurons) as u32,
        bundle_neurons: bundle.neurons as u32,
        first_bytes: bundle.first_bytes() as u32,
        bundle_bytes: bundle.bytes() as u32,
        kept_bytes: bundle.packed_bytes() as u32,
        depth_max: sparse.cold.n_reads as u32,
        policy: sparse.cold.policy,
        run_max: sparse.cold.run_bundles as u32,
        row_multiply_adds: shape.dim as u32,
        alive_share: precision,
    };
    let split = split_of(image, plan)?;
    let mut model = SparseModel::new(layout, rest_demand(image, plan), 0);
    model.attention = attention_demand(shape, &plan.sizes, pos);
    model.section = section_demand(image, plan);
    let neurons_bytes = model.memory_bytes(&split).unwrap_or(0);
    let total_bytes = plan.budget.total_bytes().unwrap_or(usize::MAX) as u64;
    model.fixed_bytes = total_bytes.saturating_sub(neurons_bytes);
    Some(model)
}

/// How `plan` splits the memory for neurons, and how it reads; `None` without a cold segment. The
/// slots belong to all sections together: of each it is their mean.
pub fn split_of(image: &Image<'_>, plan: &Plan) -> Option<Split> {
    let (shape, sparse) = (image.shape(), plan.sizes.sparse?);
    let bundle_neurons = image.ffn(0, 0).bundle.neurons;
    let hot = (sparse.hot_clusters * shape.cluster_neurons).min(shape.ffn_dim);
    let (prefix, bundles) = (hot / bundle_neurons, shape.ffn_dim / bundle_neurons);
    let slots = sparse.cold.n_slots / (shape.n_layers * shape.n_ffns());
    Some(Split {
        prefix_bundles: prefix as u32,
        cache_bundles: slots.min(bundles - prefix) as u32,
        two_phase: sparse.cold.two_phase,
        gap_bundles: sparse.cold.gap as u32,
    })
}

/// Matrices of attention, first layers of predictors, and the logits: none of their work overlaps
/// with reads of neurons, which begin when a section's predictor has spoken.
fn rest_demand(image: &Image<'_>, plan: &Plan) -> Demand {
    let shape = image.shape();
    let (mut resident_bytes, mut streamed_bytes, mut streamed_reads) = (0.0, 0.0, 0.0);
    plan.for_each_chunk(image, |chunk| {
        if chunk.is_ffn() {
            return;
        }
        if chunk.resident().is_some() {
            resident_bytes += f64::from(chunk.bytes);
        } else {
            streamed_bytes += f64::from(chunk.bytes);
            streamed_reads += 1.0;
        }
    });
    let layers = shape.n_layers as f64;
    let attention = |layer| image.attention(layer).iter().map(weights).sum::<f64>();
    let products: f64 = (0..shape.n_layers).map(attention).sum();
    let first = predictor_bytes(image, plan) * first_share(image);
    Demand {
        flash_sequential_bytes: streamed_bytes,
        flash_sequential_reads: streamed_reads,
        dram_bytes: resident_bytes + 2.0 * streamed_bytes + first,
        multiply_adds: products + weights(&image.lm_head()) + first,
        joins: layers * ATTENTION_JOINS + 1.0,
        serial_floats: 8.0 * layers * shape.dim as f64,
        ..Demand::default()
    }
}

/// Second layers of predictors, and the sums of clusters.
fn section_demand(image: &Image<'_>, plan: &Plan) -> Demand {
    let shape = image.shape();
    let sections = (shape.n_layers * shape.n_experts_used.max(1)) as f64;
    let second = predictor_bytes(image, plan) * (1.0 - first_share(image));
    Demand {
        dram_bytes: second,
        multiply_adds: second,
        joins: sections * SECTION_JOINS,
        serial_floats: sections * (shape.n_clusters() * shape.dim) as f64,
        ..Demand::default()
    }
}

/// Bytes of the predictors that one token uses; about as many multiply-adds, at 8 bits a weight.
fn predictor_bytes(image: &Image<'_>, plan: &Plan) -> f64 {
    let shape = image.shape();
    let all = plan.sizes.sparse.map_or(0, |sparse| sparse.predictor_bytes) as f64;
    match shape.n_experts {
        0 => all,
        count => all * shape.n_experts_used as f64 / count as f64,
    }
}

/// Share of a predictor that its first layer (rank, dim) has beside the second (neurons, rank).
fn first_share(image: &Image<'_>) -> f64 {
    let shape = image.shape();
    shape.dim as f64 / (shape.dim + shape.ffn_dim) as f64
}
