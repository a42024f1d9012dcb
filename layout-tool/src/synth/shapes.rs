//! The shapes that have names.

use tessera_kernels::Activation;

use crate::source::{Config, Rope};

/// Positions that models of these shapes are made for.
const SEQ_LEN: usize = 4096;
/// Base of the rotary frequencies.
pub const ROPE_BASE: f64 = 10_000.0;

/// A shape with a name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Named {
    /// What it is called.
    pub name: &'static str,
    n_layers: usize,
    dim: usize,
    ffn_dim: usize,
    heads: [usize; 3],
    vocab_size: usize,
    experts: [usize; 2],
    activation: Activation,
    /// Neurons of a cluster: many where few are alive.
    pub cluster_neurons: usize,
    /// Share of the neurons that are active for a token, unless another is asked for.
    pub share: f64,
}

const MISTRAL: Named = Named {
    name: "mistral-7b",
    n_layers: 32,
    dim: 4096,
    ffn_dim: 14336,
    heads: [32, 8, 128],
    vocab_size: 32000,
    experts: [0, 0],
    activation: Activation::Relu,
    cluster_neurons: 512,
    share: 0.1,
};

const TINY: Named = Named {
    name: "tiny",
    n_layers: 4,
    dim: 256,
    ffn_dim: 768,
    heads: [4, 2, 64],
    vocab_size: 1024,
    cluster_neurons: 96,
    ..MISTRAL
};

/// All of them. Shares are those of PowerInfer-2's models: a tenth, 15 % within an expert.
pub const SHAPES: [Named; 7] = [
    MISTRAL,
    Named {
        name: "bamboo-7b",
        activation: Activation::ReluBoth,
        ..MISTRAL
    },
    Named {
        name: "llama-13b",
        n_layers: 40,
        dim: 5120,
        ffn_dim: 13824,
        heads: [40, 40, 128],
        ..MISTRAL
    },
    Named {
        name: "turbosparse-mixtral-47b",
        experts: [8, 2],
        activation: Activation::ReluBoth,
        share: 0.15,
        ..MISTRAL
    },
    TINY,
    Named {
        name: "tiny-moe",
        ffn_dim: 512,
        experts: [4, 2],
        activation: Activation::ReluBoth,
        cluster_neurons: 64,
        ..TINY
    },
    Named {
        name: "small",
        n_layers: 10,
        dim: 1024,
        ffn_dim: 4096,
        heads: [16, 4, 64],
        vocab_size: 16000,
        activation: Activation::ReluBoth,
        cluster_neurons: 256,
        ..MISTRAL
    },
];

/// The shape of this name.
pub fn named(name: &str) -> Option<Named> {
    SHAPES.into_iter().find(|shape| shape.name == name)
}

impl Named {
    /// The model's configuration, with its own number of layers or another.
    pub fn config(&self, n_layers: Option<usize>) -> Config {
        let [n_heads, n_kv_heads, head_dim] = self.heads;
        let freq = |i: usize| ROPE_BASE.powf(-2.0 * i as f64 / head_dim as f64) as f32;
        Config {
            name: format!("synthetic {}", self.name),
            architecture: "llama".into(),
            dim: self.dim,
            ffn_dim: self.ffn_dim,
            n_layers: n_layers.unwrap_or(self.n_layers),
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: self.vocab_size,
            seq_len: SEQ_LEN,
            n_experts: self.experts[0],
            n_experts_used: self.experts[1],
            sliding_window: None,
            activation: self.activation,
            rms_eps: 1e-5,
            tied_embeddings: false,
            qkv_bias: false,
            qk_norm: false,
            norm_topk_prob: true,
            rope: Rope {
                inv_freq: (0..head_dim / 2).map(freq).collect(),
                attention_factor: 1.0,
                kind: "none".into(),
            },
            bos_token: None,
            eos_tokens: Vec::new(),
            add_bos: false,
        }
    }
}
