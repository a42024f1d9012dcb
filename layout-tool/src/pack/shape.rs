//! The shape of an image: what the model says, and how its neurons are bundled.

use tessera_kernels::{Activation, GROUP, WeightType};
use tessera_runtime::format::BundleLayout;
use tessera_runtime::shape::Shape;

use super::error::PackError;
use super::options::{PackOptions, Weights};
use super::types::Types;
use crate::source::Config;

/// Least bytes of a cluster: what flash reads at full speed.
const CLUSTER_BYTES_MIN: usize = 256 << 10;
/// Clusters of a layer, at least, so that lanes have work to share.
const CLUSTERS_MIN: usize = 8;
/// Clusters of a layer, at most, unless they are larger than [`CLUSTER_BYTES_MAX`]: each has a
/// partial sum, and so many are shared out at once.
const CLUSTERS_MAX: usize = 32;
/// Bytes of a cluster that more neurons do not make larger: what arrives from flash at once shall
/// be a small part of the memory.
const CLUSTER_BYTES_MAX: usize = 4 << 20;
/// Most of a bundle that may be padding where bundles are read one by one.
const WASTE_PCT_MAX: usize = 7;

/// What `config` says of the shape of an image; bundles and clusters are of one group.
pub fn model_shape(config: &Config) -> Shape {
    Shape {
        dim: config.dim,
        ffn_dim: config.ffn_dim.next_multiple_of(GROUP),
        n_layers: config.n_layers,
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        vocab_size: config.vocab_size,
        seq_len: config.seq_len,
        n_experts: config.n_experts,
        n_experts_used: config.n_experts_used,
        sliding_window: config.sliding_window.unwrap_or(0),
        activation: config.activation,
        rms_eps: config.rms_eps,
        attention_factor: config.rope.attention_factor,
        qkv_bias: config.qkv_bias,
        qk_norm: config.qk_norm,
        tied_embeddings: config.tied_embeddings,
        norm_topk_prob: config.norm_topk_prob,
        kv_f32: false,
        bundle_neurons: GROUP,
        cluster_neurons: GROUP,
    }
}

/// The shape of the image of a model.
///
/// # Errors
/// [`PackError::Shape`].
pub fn shape(config: &Config, types: &Types, options: &PackOptions) -> Result<Shape, PackError> {
    let mut shape = Shape {
        kv_f32: options.weights == Weights::F32,
        ..model_shape(config)
    };
    shape.validate()?;
    let bundle = options.bundle_neurons;
    shape.bundle_neurons = bundle.unwrap_or_else(|| bundle_neurons(&shape, &types.ffn));
    shape.cluster_neurons = cluster_neurons(&shape, &types.ffn);
    shape.validate()?;
    Ok(shape)
}

/// A bundle of `neurons` neurons whose gate, up and down have these types.
pub fn bundle_layout(dim: usize, neurons: usize, types: [WeightType; 3]) -> BundleLayout {
    let [gate, up, down] = types;
    BundleLayout {
        dim,
        neurons,
        gate,
        up,
        down,
    }
}

/// Neurons of a bundle. Where every neuron is computed, bundles are only ever read in clusters:
/// the largest wastes least. Where few are alive it is the smallest that wastes little.
fn bundle_neurons(shape: &Shape, ffn: &[[WeightType; 3]]) -> usize {
    if !matches!(shape.activation, Activation::Relu | Activation::ReluBoth) {
        return GROUP;
    }
    let wastes_little = |neurons: &usize| {
        let layouts = ffn
            .iter()
            .map(|types| bundle_layout(shape.dim, *neurons, *types));
        let (weights, all) = layouts.fold((0, 0), |(weights, all), layout| {
            (weights + layout.weight_bytes(), all + layout.bytes())
        });
        (all - weights) * 100 <= all * WASTE_PCT_MAX
    };
    [1, 2, 4, 8, 16]
        .into_iter()
        .find(wastes_little)
        .unwrap_or(GROUP)
}

/// Neurons of a cluster: [`CLUSTER_BYTES_MIN`] bytes and more, until a layer has [`CLUSTERS_MAX`],
/// unless that leaves too few clusters.
fn cluster_neurons(shape: &Shape, ffn: &[[WeightType; 3]]) -> usize {
    let neurons = shape.bundle_neurons;
    let group_bytes = |types: &[WeightType; 3]| {
        bundle_layout(shape.dim, neurons, *types).bytes() * (GROUP / neurons)
    };
    let least = ffn.iter().map(group_bytes).min().unwrap_or(1);
    let fewest = shape.ffn_dim.div_ceil(CLUSTERS_MAX).div_ceil(GROUP);
    let groups = fewest.min(CLUSTER_BYTES_MAX / least);
    let wanted = groups.max(CLUSTER_BYTES_MIN.div_ceil(least)) * GROUP;
    let most = (shape.ffn_dim / CLUSTERS_MIN / GROUP * GROUP).max(GROUP);
    wanted.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use WeightType::{F32, Q4, Q4O, Q6};

    fn with(dim: usize, ffn_dim: usize, activation: Activation) -> Shape {
        Shape {
            dim,
            ffn_dim,
            n_layers: 1,
            n_heads: 1,
            n_kv_heads: 1,
            head_dim: 64,
            vocab_size: 256,
            seq_len: 512,
            n_experts: 0,
            n_experts_used: 0,
            sliding_window: 0,
            activation,
            rms_eps: 1e-5,
            attention_factor: 1.0,
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            norm_topk_prob: false,
            kv_f32: false,
            bundle_neurons: GROUP,
            cluster_neurons: GROUP,
        }
    }

    #[test]
    fn sparse_models_get_small_bundles_where_they_waste_little() {
        let bundle =
            |dim, activation, types| bundle_neurons(&with(dim, 1024, activation), &[types]);
        let relu = Activation::Relu;
        // 4-bit rows of 4,096: one neuron fills 84 % of two pages, four fill 96 % of seven.
        assert_eq!(bundle(4096, relu, [Q4, Q4, Q4]), 4);
        assert_eq!(bundle(4096, Activation::ReluBoth, [F32, F32, F32]), 2);
        assert_eq!(bundle(4096, Activation::Silu, [F32, F32, F32]), GROUP);
        // Rows of 64 never fill pages well.
        assert_eq!(bundle(64, relu, [Q4, Q4, Q4]), GROUP);
    }

    #[test]
    fn clusters_are_large_reads_and_enough_of_them() {
        let cluster =
            |dim, ffn_dim, types| cluster_neurons(&with(dim, ffn_dim, Activation::Silu), &[types]);
        assert_eq!(cluster(576, 1536, [Q4O, Q4O, Q6]), 192); // SmolLM2-135M: 8 clusters
        assert_eq!(cluster(1536, 8960, [Q4O, Q4O, Q6]), 288); // Qwen2.5-1.5B: 32 clusters
        assert_eq!(cluster(4096, 14336, [Q4; 3]), 448); // Mistral-7B: 3 MiB
        assert_eq!(cluster(64, 192, [Q4, Q4, Q4]), GROUP);
        // Those of 4 MiB and more are as small as can be.
        assert_eq!(cluster(8192, 28672, [F32, F32, F32]), GROUP);
    }
}
