//! The demand of plans that compute every neuron: resident weights and a sequential stream.

use tessera_kernels::kv::kv_dim;

use super::Demand;
use crate::budget::Sizes;
use crate::format::{Image, MatrixMap};
use crate::plan::Plan;
use crate::profile::DeviceProfile;
use crate::shape::Shape;

/// Fork-joins of a layer for one token: q, k and v; attention; output projection; feed-forward.
const JOINS_PER_LAYER: f64 = 4.0;

/// Weights of a matrix.
pub(super) fn weights(map: &MatrixMap) -> f64 {
    map.rows as f64 * map.tile.cols as f64
}

/// Positions that a token at `pos` attends to.
fn attended_positions(shape: &Shape, pos: usize) -> usize {
    match shape.sliding_window {
        0 => pos + 1,
        window => window.min(pos + 1),
    }
}

/// What the keys and values of a context ask of a token at position `pos`: a phase of its own.
pub fn attention_demand(shape: &Shape, sizes: &Sizes, pos: usize) -> Demand {
    let seen = (shape.n_layers * attended_positions(shape, pos)) as f64;
    let row_bytes = kv_dim(shape.head_dim) * sizes.kv.element_bytes() + sizes.kv.scale_bytes();
    Demand {
        dram_bytes: 2.0 * seen * (shape.n_kv_heads * row_bytes) as f64,
        attention_multiply_adds: 2.0 * seen * (shape.n_heads * shape.head_dim) as f64,
        ..Demand::default()
    }
}

/// What a token asks for when `image` runs by `plan`, but for [`attention_demand`].
///
/// Weights that are not resident are read in chunks, each once; of a mixture, the share of the
/// experts that a token uses. Lanes read what comes from flash twice: to check it, and to compute
/// with it. The embedding's row is a read that nothing overlaps.
pub fn dense_demand(image: &Image<'_>, plan: &Plan, profile: &DeviceProfile) -> Demand {
    let (shape, sizes) = (image.shape(), &plan.sizes);
    let expert_share = match shape.n_experts {
        0 => 1.0,
        count => shape.n_experts_used as f64 / count as f64,
    };
    let (mut resident_bytes, mut streamed_bytes, mut streamed_reads) = (0.0, 0.0, 0.0);
    plan.for_each_chunk(image, |chunk| {
        let share = chunk.expert().map_or(1.0, |_| expert_share);
        let bytes = share * f64::from(chunk.bytes);
        if chunk.resident().is_some() {
            resident_bytes += bytes;
        } else {
            streamed_bytes += bytes;
            streamed_reads += share;
        }
    });
    let ffn = (shape.n_ffns() as f64 * expert_share) * (3 * shape.ffn_dim * shape.dim) as f64;
    let attention = |layer| image.attention(layer).iter().map(weights).sum::<f64>();
    let products: f64 = (0..shape.n_layers)
        .map(|layer| attention(layer) + ffn)
        .sum();
    let layers = shape.n_layers as f64;
    let read_bytes = streamed_bytes / f64::max(streamed_reads, 1.0);
    // A tied embedding is the lm_head, of which only a part may have to be read.
    let embedded = match shape.tied_embeddings {
        true => streamed_bytes / (streamed_bytes + resident_bytes),
        false => 1.0,
    };
    let clusters = shape.n_clusters() as f64 * f64::max(shape.n_experts_used as f64, 1.0);
    Demand {
        flash_sequential_bytes: streamed_bytes,
        flash_sequential_reads: streamed_reads,
        flash_random_reads: embedded,
        flash_random_bytes: embedded * sizes.embed_bytes as f64,
        flash_depth: 1.0,
        flash_range_bytes: (image.embedding().n_tiles() * sizes.embed_bytes) as f64,
        flash_waits: embedded,
        dram_bytes: resident_bytes + 2.0 * streamed_bytes,
        dram_scattered_bytes: 0.0,
        multiply_adds: products + weights(&image.lm_head()),
        attention_multiply_adds: 0.0,
        reads_cpu_ns: streamed_reads * profile.flash.cpu_ns(read_bytes)
            + embedded * profile.flash.cpu_ns(sizes.embed_bytes as f64),
        joins: layers * JOINS_PER_LAYER + 1.0,
        serial_floats: layers * (clusters + 8.0) * shape.dim as f64,
    }
}
