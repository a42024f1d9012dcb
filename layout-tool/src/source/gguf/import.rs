//! From GGUF metadata to a model's configuration.

use tessera_kernels::Activation;

use super::error::GgufError;
use super::names::Names;
use super::value::{Metadata, PerLayer};
use crate::source::config::{Config, activation};
use crate::source::dequantize::dequantize;
use crate::source::error::SourceError;
use crate::source::file::SourceFile;
use crate::source::index::{Index, Role, Stored, assign, has};
use crate::source::rope::{Rope, Scaling, Yarn, yarn_mscale};
use crate::source::{Model, Options, tokenizer};

/// Either kind of error; the file's path is added where it is known.
pub(in crate::source) enum ImportError {
    Bytes(GgufError),
    Source(SourceError),
}

impl From<GgufError> for ImportError {
    fn from(error: GgufError) -> Self {
        Self::Bytes(error)
    }
}

impl From<SourceError> for ImportError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// Keys of one architecture.
struct Keys<'m> {
    metadata: &'m Metadata,
    prefix: &'m str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A count, if the key is there; arrays of equal counts are counts.
    fn count(&self, key: &str) -> Result<Option<usize>, ImportError> {
        let name = self.name(key);
        match self.metadata.unsigned_each(&name)? {
            None => Ok(None),
            Some(PerLayer::Same(value)) => match usize::try_from(value) {
                Ok(value) => Ok(Some(value)),
                Err(_) => Err(SourceError::key(&name, value.to_string(), "a count").into()),
            },
            Some(PerLayer::Differ(each)) => {
                let mut have = format!("{:?}", &each[..each.len().min(8)]);
                have.truncate(80);
                Err(SourceError::key(&name, have, "the same for every layer").into())
            }
        }
    }

    fn need_count(&self, key: &str) -> Result<usize, ImportError> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ImportError> {
        Ok(self.metadata.float(&self.name(key))?)
    }

    fn missing(&self, key: &str) -> ImportError {
        SourceError::KeyMissing {
            key: self.name(key),
        }
        .into()
    }
}

/// The model with this metadata and these tensors.
pub(super) fn model(
    metadata: &Metadata,
    index: Index,
    files: Vec<SourceFile>,
    options: Options,
) -> Result<Model, ImportError> {
    let architecture = metadata
        .text("general.architecture")?
        .ok_or(SourceError::KeyMissing {
            key: "general.architecture".into(),
        })?;
    if !["llama", "qwen2", "qwen3"].contains(&architecture) {
        return Err(SourceError::Architecture {
            name: architecture.into(),
        }
        .into());
    }
    let naming = Names {
        interleaved: architecture == "llama",
    };
    let keys = Keys {
        metadata,
        prefix: architecture,
    };
    let mut config = shape(&keys, &index, &naming)?;
    config.check()?;
    config.rope = rope(&keys, &config, &index, &files)?;
    let placed = assign(&index, &naming, &config)?;
    check_vocabulary(&keys, &config)?;
    let tokenizer = tokenizer::gguf::import(metadata, options.tokenizer)?;
    config.bos_token = tokenizer.bos_token;
    config.eos_tokens = tokenizer.eos_tokens;
    config.add_bos = tokenizer.add_bos && config.bos_token.is_some();
    config.check_tokens()?;
    Ok(Model {
        config,
        tokenizer: tokenizer.files,
        notes: tokenizer.notes,
        files,
        placed,
    })
}

/// Everything of the configuration but rope and tokenizer.
fn shape(keys: &Keys<'_>, index: &Index, naming: &Names) -> Result<Config, ImportError> {
    let dim = keys.need_count("embedding_length")?;
    let n_heads = keys.need_count("attention.head_count")?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if n_heads > 0 && dim.is_multiple_of(n_heads) => dim / n_heads,
        None => {
            let (value, of) = (dim, n_heads);
            return Err(SourceError::NotMultiple {
                what: "embedding_length",
                value,
                of,
            }
            .into());
        }
    };
    same(keys, "attention.value_length", head_dim)?;
    same(keys, "rope.dimension_count", head_dim)?;
    refuse_unknown(keys)?;
    let n_experts = keys.count("expert_count")?.unwrap_or(0);
    let vocab_size = match index.get("token_embd.weight") {
        Some(Stored { shape, .. }) if shape.len() == 2 => shape[0],
        _ => keys.count("vocab_size")?.unwrap_or(1),
    };
    let eps = keys.float("attention.layer_norm_rms_epsilon")?;
    let activation = match keys.metadata.text(&keys.name("hidden_activation"))? {
        Some(name) => activation(name, false)?,
        None => Activation::Silu,
    };
    let architecture = if n_experts > 0 {
        "mixtral"
    } else {
        keys.prefix
    };
    Ok(Config {
        name: keys
            .metadata
            .text("general.name")?
            .unwrap_or(architecture)
            .to_owned(),
        architecture: architecture.to_owned(),
        dim,
        ffn_dim: keys.need_count("feed_forward_length")?,
        n_layers: keys.need_count("block_count")?,
        n_heads,
        n_kv_heads: keys.count("attention.head_count_kv")?.unwrap_or(n_heads),
        head_dim,
        vocab_size,
        seq_len: keys.need_count("context_length")?,
        n_experts,
        n_experts_used: keys.count("expert_used_count")?.unwrap_or(0),
        sliding_window: keys
            .count("attention.sliding_window")?
            .filter(|&window| window > 0),
        activation,
        rms_eps: eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))? as f32,
        tied_embeddings: !has(index, naming, Role::LmHead),
        qkv_bias: keys.prefix == "qwen2" || has(index, naming, Role::QBias(0)),
        qk_norm: keys.prefix == "qwen3",
        norm_topk_prob: n_experts > 0,
        rope: Rope::none(),
        bos_token: None,
        eos_tokens: Vec::new(),
        add_bos: false,
    })
}

/// Refuses a width that differs from the head's.
fn same(keys: &Keys<'_>, key: &str, head_dim: usize) -> Result<(), ImportError> {
    match keys.count(key)? {
        Some(value) if value != head_dim => {
            let need = "the width of a head";
            Err(SourceError::key(&keys.name(key), value.to_string(), need).into())
        }
        _ => Ok(()),
    }
}

/// Refuses keys that change the computation in ways the runtime doesn't know.
fn refuse_unknown(keys: &Keys<'_>) -> Result<(), ImportError> {
    for key in [
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention.clamp_kqv",
    ] {
        if keys.float(key)?.is_some_and(|value| value != 0.0) {
            return Err(SourceError::Unsupported {
                feature: keys.name(key),
            }
            .into());
        }
    }
    for key in [
        "logit_scale",
        "embedding_scale",
        "residual_scale",
        "attention.scale",
    ] {
        if keys
            .float(key)?
            .is_some_and(|value| value != 1.0 && value != 0.0)
        {
            return Err(SourceError::Unsupported {
                feature: keys.name(key),
            }
            .into());
        }
    }
    for key in [
        "expert_shared_count",
        "leading_dense_block_count",
        "nextn_predict_layers",
    ] {
        if keys.count(key)?.is_some_and(|value| value != 0) {
            return Err(SourceError::Unsupported {
                feature: keys.name(key),
            }
            .into());
        }
    }
    match keys.count("expert_gating_func")? {
        None | Some(0 | 1) => Ok(()),
        Some(_) => Err(SourceError::Unsupported {
            feature: keys.name("expert_gating_func"),
        }
        .into()),
    }
}

fn check_vocabulary(keys: &Keys<'_>, config: &Config) -> Result<(), ImportError> {
    let rows = config.vocab_size;
    let tokens = keys.metadata.texts_len("tokenizer.ggml.tokens")?;
    let stated = keys.count("vocab_size")?;
    let parts = [("the tokenizer", tokens), ("the configuration", stated)];
    for (what, have) in parts {
        if let Some(have) = have.filter(|&have| have != rows) {
            return Err(SourceError::Vocabulary { what, have, rows }.into());
        }
    }
    Ok(())
}

fn rope(
    keys: &Keys<'_>,
    config: &Config,
    index: &Index,
    files: &[SourceFile],
) -> Result<Rope, ImportError> {
    let base = positive(keys, "rope.freq_base", 10_000.0)?;
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        if index.contains_key(name) {
            return Err(SourceError::Rope {
                kind: "longrope".into(),
            }
            .into());
        }
    }
    let name = keys.name("rope.scaling.type");
    let stated = keys.metadata.text(&name)?;
    // Old files state a linear factor only.
    let old = keys
        .float("rope.scale_linear")?
        .map(|_| "rope.scale_linear");
    let factor_key = old.unwrap_or("rope.scaling.factor");
    let has_factor = keys.float(factor_key)?.is_some_and(|factor| factor != 0.0);
    let factor = if has_factor {
        positive(keys, factor_key, 1.0)?
    } else {
        1.0
    };
    let mut scaling = match stated.unwrap_or("linear") {
        "none" => Scaling::None,
        "linear" if factor == 1.0 => Scaling::None,
        "linear" => Scaling::Linear { factor },
        "yarn" => Scaling::Yarn(yarn(keys, config, factor)?),
        other => return Err(SourceError::Rope { kind: other.into() }.into()),
    };
    if let Some(stored) = index.get("rope_freqs.weight") {
        if scaling != Scaling::None {
            let kind = format!("{} with rope_freqs.weight", stated.unwrap_or("linear"));
            return Err(SourceError::Rope { kind }.into());
        }
        scaling = Scaling::Factors(factors(stored, config.head_dim / 2, files)?);
    }
    Ok(Rope::new(config.head_dim, base as f32, &scaling)?)
}

/// A number above 0, or the default.
fn positive(keys: &Keys<'_>, key: &str, default: f64) -> Result<f64, ImportError> {
    let value = keys.float(key)?.unwrap_or(default);
    if value.is_finite() && value > 0.0 && value <= f64::from(f32::MAX) {
        return Ok(value);
    }
    Err(SourceError::key(
        &keys.name(key),
        value.to_string(),
        "a finite number above 0",
    )
    .into())
}

fn yarn(keys: &Keys<'_>, config: &Config, factor: f64) -> Result<Yarn, ImportError> {
    let log_multiplier = keys.float("rope.scaling.yarn_log_multiplier")?;
    let ext_factor = keys.float("rope.scaling.yarn_ext_factor")?;
    if log_multiplier.is_some_and(|value| value != 0.0) || ext_factor.is_some_and(|e| e != 1.0) {
        return Err(SourceError::Rope {
            kind: "yarn with extra factors".into(),
        }
        .into());
    }
    let original_key = "rope.scaling.original_context_length";
    let original_len = keys.count(original_key)?.unwrap_or(config.seq_len);
    if original_len == 0 {
        return Err(SourceError::key(&keys.name(original_key), "0", "at least 1").into());
    }
    let attention = positive(keys, "rope.scaling.attn_factor", 1.0)?
        * positive(keys, "rope.scaling.yarn_attn_factor", 1.0)?;
    Ok(Yarn {
        factor,
        original_len: original_len as f64,
        beta_fast: positive(keys, "rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: positive(keys, "rope.scaling.yarn_beta_slow", 1.0)?,
        attention_factor: attention * yarn_mscale(factor, 1.0),
        truncate: true,
    })
}

/// The divisors in `rope_freqs.weight`.
fn factors(stored: &Stored, pairs: usize, files: &[SourceFile]) -> Result<Vec<f32>, SourceError> {
    let name = "rope_freqs.weight".to_owned();
    if stored.shape != [pairs] {
        let (have, need) = (stored.shape.clone(), vec![pairs]);
        return Err(SourceError::TensorShape { name, have, need });
    }
    if stored.ty.block_len() > 1 {
        return Err(SourceError::VectorQuantized {
            name,
            ty: stored.ty,
        });
    }
    let mut bytes = vec![0; pairs * stored.ty.block_bytes()];
    files[stored.file].read_at(stored.offset, &mut bytes)?;
    let mut factors = vec![0.0; pairs];
    dequantize(stored.ty, &bytes, &mut factors);
    match factors
        .iter()
        .find(|factor| !(factor.is_finite() && **factor > 0.0))
    {
        Some(bad) => Err(SourceError::key(
            &name,
            bad.to_string(),
            "finite numbers above 0",
        )),
        None => Ok(factors),
    }
}
