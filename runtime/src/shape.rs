//! Hyper-parameters of a model, validated.

use tessera_kernels::{Activation, GROUP};

use crate::limits::{
    DIM_MAX, EXPERTS_MAX, EXPERTS_USED_MAX, FFN_DIM_MAX, HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX,
    SEQ_LEN_MAX, VOCAB_MAX,
};

/// Hyper-parameters of a decoder. All counts are elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Width of the residual stream.
    pub dim: usize,
    /// Neurons of a feed-forward layer (of one expert, in a mixture), a multiple of 32.
    pub ffn_dim: usize,
    /// Transformer blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key-value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head, even.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Longest context the model was trained for.
    pub seq_len: usize,
    /// Experts of each layer; 0 for a model without a router.
    pub n_experts: usize,
    /// Experts that one token uses.
    pub n_experts_used: usize,
    /// Positions a token attends to, its own included; 0 for all.
    pub sliding_window: usize,
    /// Activation of the gated feed-forward layers.
    pub activation: Activation,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// Factor on cosine and sine of the rotary embedding (yarn), else 1.
    pub attention_factor: f32,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// q and k are normalised per head.
    pub qk_norm: bool,
    /// The embedding is the lm_head's matrix.
    pub tied_embeddings: bool,
    /// The weights of the chosen experts are scaled to sum to 1.
    pub norm_topk_prob: bool,
    /// Keys and values are kept in f32 (reference images), else in f16.
    pub kv_f32: bool,
    /// Neurons of one bundle: 1, 2, 4, 8, 16 or 32.
    pub bundle_neurons: usize,
    /// Neurons of one cluster, a multiple of 32: the unit of the down sum's order.
    pub cluster_neurons: usize,
}

/// Why a shape was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ShapeError {
    /// A number is zero or above its limit.
    OutOfRange {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        have: usize,
        /// The largest allowed.
        max: usize,
    },
    /// A number is no multiple of another.
    NotMultiple {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        have: usize,
        /// What it should be a multiple of.
        of: usize,
    },
    /// A float is not finite, or not positive.
    BadFloat {
        /// Name of the number.
        what: &'static str,
    },
}

impl core::fmt::Display for ShapeError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::OutOfRange { what, have, max } => {
                write!(f, "{what} is {have}, it must be from 1 to {max}")
            }
            Self::NotMultiple { what, have, of } => {
                write!(f, "{what} is {have}, no multiple of {of}")
            }
            Self::BadFloat { what } => write!(f, "{what} is not a positive finite number"),
        }
    }
}

impl core::error::Error for ShapeError {}

impl Shape {
    /// Checks every number and every relation between them.
    pub fn validate(&self) -> Result<(), ShapeError> {
        let ranges = [
            ("dim", self.dim, DIM_MAX),
            ("ffn_dim", self.ffn_dim, FFN_DIM_MAX),
            ("n_layers", self.n_layers, LAYERS_MAX),
            ("n_heads", self.n_heads, HEADS_MAX),
            ("n_kv_heads", self.n_kv_heads, self.n_heads),
            ("head_dim", self.head_dim, HEAD_DIM_MAX),
            ("vocab_size", self.vocab_size, VOCAB_MAX),
            ("seq_len", self.seq_len, SEQ_LEN_MAX),
            ("n_experts", self.n_experts + 1, EXPERTS_MAX + 1),
            (
                "n_experts_used",
                self.n_experts_used + 1,
                EXPERTS_USED_MAX.min(self.n_experts) + 1,
            ),
            ("sliding_window", self.sliding_window + 1, SEQ_LEN_MAX + 1),
            ("bundle_neurons", self.bundle_neurons, GROUP),
            ("cluster_neurons", self.cluster_neurons, FFN_DIM_MAX),
        ];
        for (what, have, max) in ranges {
            if have == 0 || have > max {
                return Err(ShapeError::OutOfRange { what, have, max });
            }
        }
        if self.n_experts > 0 && self.n_experts_used == 0 {
            let max = EXPERTS_USED_MAX.min(self.n_experts);
            return Err(ShapeError::OutOfRange {
                what: "n_experts_used",
                have: 0,
                max,
            });
        }
        let multiples = [
            ("n_heads", self.n_heads, self.n_kv_heads),
            ("head_dim", self.head_dim, 2),
            ("ffn_dim", self.ffn_dim, GROUP),
            ("cluster_neurons", self.cluster_neurons, GROUP),
            ("32", GROUP, self.bundle_neurons),
        ];
        for (what, have, of) in multiples {
            if !have.is_multiple_of(of) {
                return Err(ShapeError::NotMultiple { what, have, of });
            }
        }
        for (what, value) in [
            ("rms_eps", self.rms_eps),
            ("attention_factor", self.attention_factor),
        ] {
            if !(value.is_finite() && value > 0.0) {
                return Err(ShapeError::BadFloat { what });
            }
        }
        Ok(())
    }

    /// Rows of the q matrix.
    pub const fn q_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Rows of the k matrix, and of the v matrix.
    pub const fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Feed-forward sections of a layer: its experts, or one.
    pub const fn n_ffns(&self) -> usize {
        if self.n_experts == 0 {
            1
        } else {
            self.n_experts
        }
    }

    /// Clusters of a feed-forward section; the last may be short.
    pub const fn n_clusters(&self) -> usize {
        self.ffn_dim.div_ceil(self.cluster_neurons)
    }

    /// Neurons of cluster `cluster`.
    pub fn cluster_len(&self, cluster: usize) -> usize {
        self.cluster_neurons
            .min(self.ffn_dim - cluster * self.cluster_neurons)
    }
}
