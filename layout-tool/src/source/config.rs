//! Hyper-parameters of a source model, checked for sense.

use tessera_kernels::Activation;

use super::error::SourceError;
use super::rope::Rope;

/// Largest `dim`, `ffn_dim`, `n_heads`, `n_kv_heads` that is believed.
const DIM_MAX: usize = 1 << 20;
/// Largest `n_layers` and `n_experts` that is believed.
const COUNT_MAX: usize = 1 << 12;
/// Largest `head_dim` that is believed.
const HEAD_DIM_MAX: usize = 1 << 12;
/// Largest `vocab_size` that is believed.
const VOCAB_MAX: usize = 1 << 24;
/// Largest `seq_len` that is believed.
const SEQ_LEN_MAX: usize = 1 << 30;

/// What a model is, apart from its weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name for reports, from the file or the folder.
    pub name: String,
    /// `llama`, `mistral`, `qwen2`, `qwen3`, `mixtral`, `bamboo`, `turbosparse-mistral` or
    /// `turbosparsemixtral`; GGUF calls Mistral models `llama`, and so do we for those.
    pub architecture: String,
    /// Width of the residual stream.
    pub dim: usize,
    /// Neurons of a layer, or of each expert.
    pub ffn_dim: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Positions the model was made for.
    pub seq_len: usize,
    /// Experts of a layer; 0 for a dense model.
    pub n_experts: usize,
    /// Experts that serve a token; 0 for a dense model.
    pub n_experts_used: usize,
    /// Positions a token may look back, itself counted; `None` without a limit.
    pub sliding_window: Option<usize>,
    /// What follows gate and up.
    pub activation: Activation,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// The embedding also is the output projection.
    pub tied_embeddings: bool,
    /// Query, key and value have biases.
    pub qkv_bias: bool,
    /// Query and key heads are normed before rope.
    pub qk_norm: bool,
    /// The weights of the experts used are scaled to sum 1.
    pub norm_topk_prob: bool,
    /// Rotary positions.
    pub rope: Rope,
    /// Token that starts a text.
    pub bos_token: Option<u32>,
    /// Tokens that end a text.
    pub eos_tokens: Vec<u32>,
    /// A prompt begins with `bos_token`; the tokenizer file need not add it by itself.
    pub add_bos: bool,
}

impl Config {
    /// Refuses shapes that no model can have, before anything is computed from them.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        let limits = [
            ("dim", self.dim, DIM_MAX),
            ("ffn_dim", self.ffn_dim, DIM_MAX),
            ("n_layers", self.n_layers, COUNT_MAX),
            ("n_heads", self.n_heads, DIM_MAX),
            ("n_kv_heads", self.n_kv_heads, DIM_MAX),
            ("head_dim", self.head_dim, HEAD_DIM_MAX),
            ("vocab_size", self.vocab_size, VOCAB_MAX),
            ("seq_len", self.seq_len, SEQ_LEN_MAX),
            (
                "sliding_window",
                self.sliding_window.unwrap_or(1),
                SEQ_LEN_MAX,
            ),
        ];
        for (what, value, max) in limits {
            if value == 0 || value > max {
                return Err(SourceError::OutOfRange {
                    what,
                    value,
                    min: 1,
                    max,
                });
            }
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(SourceError::NotMultiple {
                what: "head_dim",
                value: self.head_dim,
                of: 2,
            });
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let (value, of) = (self.n_heads, self.n_kv_heads);
            return Err(SourceError::NotMultiple {
                what: "n_heads",
                value,
                of,
            });
        }
        self.check_experts()?;
        if !(self.rms_eps.is_finite() && self.rms_eps >= 0.0) {
            let have = self.rms_eps.to_string();
            return Err(SourceError::key(
                "rms_norm_eps",
                have,
                "a finite number from 0 on",
            ));
        }
        Ok(())
    }

    fn check_experts(&self) -> Result<(), SourceError> {
        let (what, value) = ("n_experts", self.n_experts);
        if value > COUNT_MAX {
            return Err(SourceError::OutOfRange {
                what,
                value,
                min: 0,
                max: COUNT_MAX,
            });
        }
        let used = self.n_experts_used;
        let min = usize::from(value > 0);
        if used < min || used > value {
            let what = "n_experts_used";
            return Err(SourceError::OutOfRange {
                what,
                value: used,
                min,
                max: value,
            });
        }
        Ok(())
    }

    /// Refuses special tokens past the vocabulary.
    pub(super) fn check_tokens(&self) -> Result<(), SourceError> {
        match self
            .bos_token
            .iter()
            .chain(&self.eos_tokens)
            .find(|t| **t as usize >= self.vocab_size)
        {
            Some(token) => Err(SourceError::TokenOutside {
                token: *token,
                vocab_size: self.vocab_size,
            }),
            None => Ok(()),
        }
    }
}

/// The activation that a Hugging Face `hidden_act` names.
pub(super) fn activation(name: &str, on_both: bool) -> Result<Activation, SourceError> {
    match (name, on_both) {
        ("relu" | "drelu", true) => Ok(Activation::ReluBoth),
        ("silu" | "swish", false) => Ok(Activation::Silu),
        ("gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh", false) => Ok(Activation::GeluTanh),
        ("relu", false) => Ok(Activation::Relu),
        _ => {
            let need = if on_both {
                "relu for this architecture"
            } else {
                "silu, gelu_pytorch_tanh, gelu_new or relu"
            };
            Err(SourceError::key("hidden_act", name, need))
        }
    }
}
