//! The section of f32 vectors: everything small that is always resident.

use core::ops::Range;

use crate::shape::Shape;

/// Where each vector stands in the vectors section, in f32 elements.
///
/// Order: rotary inverse frequencies (head_dim / 2), output norm (dim); then for each layer:
/// attention norm (dim), ffn norm (dim), biases of q (q_dim), k and v (kv_dim) where the model has
/// them, q norm and k norm (head_dim) where it has them, router (n_experts, dim) in a mixture.
#[derive(Debug, Clone, Copy)]
pub struct VectorsLayout {
    dim: usize,
    q_dim: usize,
    kv_dim: usize,
    head_dim: usize,
    bias: bool,
    qk_norm: bool,
    n_experts: usize,
    n_layers: usize,
}

impl VectorsLayout {
    /// Layout of a model's vectors.
    pub const fn new(shape: &Shape) -> Self {
        VectorsLayout {
            dim: shape.dim,
            q_dim: shape.q_dim(),
            kv_dim: shape.kv_dim(),
            head_dim: shape.head_dim,
            bias: shape.qkv_bias,
            qk_norm: shape.qk_norm,
            n_experts: shape.n_experts,
            n_layers: shape.n_layers,
        }
    }

    /// Inverse frequencies of the rotary embedding.
    pub fn inv_freq(&self) -> Range<usize> {
        0..self.head_dim / 2
    }

    /// Weight of the norm before the lm_head.
    pub fn output_norm(&self) -> Range<usize> {
        self.head_dim / 2..self.head_dim / 2 + self.dim
    }

    fn biases_len(&self) -> usize {
        if self.bias {
            self.q_dim + 2 * self.kv_dim
        } else {
            0
        }
    }

    fn qk_norms_len(&self) -> usize {
        if self.qk_norm { 2 * self.head_dim } else { 0 }
    }

    fn layer_len(&self) -> usize {
        2 * self.dim + self.biases_len() + self.qk_norms_len() + self.n_experts * self.dim
    }

    fn layer_at(&self, layer: usize) -> usize {
        self.output_norm().end + layer * self.layer_len()
    }

    /// Elements of the whole section.
    pub fn len(&self) -> usize {
        self.layer_at(self.n_layers)
    }

    /// Never true: a model has norms.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Weight of the norm before attention.
    pub fn attn_norm(&self, layer: usize) -> Range<usize> {
        let at = self.layer_at(layer);
        at..at + self.dim
    }

    /// Weight of the norm before the feed-forward network.
    pub fn ffn_norm(&self, layer: usize) -> Range<usize> {
        let at = self.layer_at(layer) + self.dim;
        at..at + self.dim
    }

    /// Biases of q, k and v, one after the other; empty where the model has none.
    pub fn qkv_bias(&self, layer: usize) -> Range<usize> {
        let at = self.layer_at(layer) + 2 * self.dim;
        at..at + self.biases_len()
    }

    /// Weights of the norms of q and of k; empty where the model has none.
    pub fn qk_norm(&self, layer: usize) -> (Range<usize>, Range<usize>) {
        let at = self.qkv_bias(layer).end;
        let len = self.qk_norms_len() / 2;
        (at..at + len, at + len..at + 2 * len)
    }

    /// Router (n_experts, dim); empty where the model has none.
    pub fn router(&self, layer: usize) -> Range<usize> {
        let at = self.qk_norm(layer).1.end;
        at..at + self.n_experts * self.dim
    }
}
