//! config.json: the keys of the architectures that are known.

use serde_json::Value;

use crate::source::config::{Config, activation};
use crate::source::error::SourceError;
use crate::source::rope::{Rope, Scaling, Yarn, yarn_mscale};

/// Names of model types, our own first.
const ARCHITECTURES: [(&str, &[&str]); 8] = [
    ("llama", &["llama"]),
    ("mistral", &["mistral"]),
    ("qwen2", &["qwen2"]),
    ("qwen3", &["qwen3"]),
    ("mixtral", &["mixtral"]),
    ("bamboo", &["bamboo"]),
    (
        "turbosparse-mistral",
        &[
            "turbosparse-mistral",
            "turbosparse_mistral",
            "turbosparsemistral",
        ],
    ),
    (
        "turbosparsemixtral",
        &[
            "turbosparsemixtral",
            "turbosparse-mixtral",
            "turbosparse_mixtral",
        ],
    ),
];

/// The value of a key, unless it is missing or null.
fn get<'j>(json: &'j Value, key: &str) -> Option<&'j Value> {
    json.get(key).filter(|value| !value.is_null())
}

fn bad(key: &str, value: &Value, need: &'static str) -> SourceError {
    let mut have = value.to_string();
    if have.len() > 80 {
        have = have.chars().take(80).collect();
    }
    SourceError::key(key, have, need)
}

fn count(json: &Value, key: &str) -> Result<Option<usize>, SourceError> {
    let Some(value) = get(json, key) else {
        return Ok(None);
    };
    match value.as_u64().and_then(|count| usize::try_from(count).ok()) {
        Some(count) => Ok(Some(count)),
        None => Err(bad(key, value, "a count")),
    }
}

fn need_count(json: &Value, key: &str) -> Result<usize, SourceError> {
    count(json, key)?.ok_or_else(|| SourceError::KeyMissing {
        key: key.to_owned(),
    })
}

fn number(json: &Value, key: &str) -> Result<Option<f64>, SourceError> {
    match get(json, key) {
        None => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(bad(key, value, "a number")),
        },
    }
}

/// A finite number above 0 that a float32 can hold.
fn positive(json: &Value, key: &str) -> Result<Option<f64>, SourceError> {
    match number(json, key)? {
        None => Ok(None),
        Some(number) if number > 0.0 && number <= f64::from(f32::MAX) => Ok(Some(number)),
        Some(number) => Err(SourceError::key(
            key,
            number.to_string(),
            "a finite number above 0",
        )),
    }
}

fn text<'j>(json: &'j Value, key: &str) -> Result<Option<&'j str>, SourceError> {
    match get(json, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(value) => Err(bad(key, value, "a string")),
    }
}

fn flag(json: &Value, key: &str) -> Result<Option<bool>, SourceError> {
    match get(json, key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(value) => Err(bad(key, value, "true or false")),
    }
}

/// Everything of the configuration but rope and tokens.
pub(super) fn read(json: &Value) -> Result<Config, SourceError> {
    let architecture = architecture(json)?;
    refuse_unknown(json)?;
    let dim = need_count(json, "hidden_size")?;
    let n_heads = need_count(json, "num_attention_heads")?;
    let head_dim = match count(json, "head_dim")? {
        Some(head_dim) => head_dim,
        None if n_heads > 0 && dim.is_multiple_of(n_heads) => dim / n_heads,
        None => {
            return Err(SourceError::NotMultiple {
                what: "hidden_size",
                value: dim,
                of: n_heads,
            });
        }
    };
    let is_sparse = architecture.ends_with("mixtral");
    let on_both = architecture == "bamboo" || architecture.starts_with("turbosparse");
    let hidden_act = text(json, "hidden_act")?.unwrap_or(if on_both { "relu" } else { "silu" });
    let (n_experts, n_experts_used) = if is_sparse {
        (
            need_count(json, "num_local_experts")?,
            need_count(json, "num_experts_per_tok")?,
        )
    } else {
        (0, 0)
    };
    if is_sparse && n_experts == 0 {
        return Err(SourceError::key("num_local_experts", "0", "at least 1"));
    }
    let eps = number(json, "rms_norm_eps")?.ok_or_else(|| SourceError::KeyMissing {
        key: "rms_norm_eps".to_owned(),
    })?;
    Ok(Config {
        // `_name_or_path` is some folder of whoever saved the model.
        name: String::new(),
        architecture: architecture.to_owned(),
        dim,
        ffn_dim: need_count(json, "intermediate_size")?,
        n_layers: need_count(json, "num_hidden_layers")?,
        n_heads,
        n_kv_heads: count(json, "num_key_value_heads")?.unwrap_or(n_heads),
        head_dim,
        vocab_size: need_count(json, "vocab_size")?,
        seq_len: need_count(json, "max_position_embeddings")?,
        n_experts,
        n_experts_used,
        sliding_window: sliding_window(json, architecture)?,
        activation: activation(hidden_act, on_both)?,
        rms_eps: eps as f32,
        tied_embeddings: flag(json, "tie_word_embeddings")?.unwrap_or(false),
        qkv_bias: architecture == "qwen2",
        qk_norm: architecture == "qwen3",
        norm_topk_prob: is_sparse,
        rope: Rope::none(),
        bos_token: None,
        eos_tokens: Vec::new(),
        add_bos: false,
    })
}

/// Our name of the architecture.
fn architecture(json: &Value) -> Result<&'static str, SourceError> {
    let Some(name) = text(json, "model_type")? else {
        return Err(SourceError::KeyMissing {
            key: "model_type".to_owned(),
        });
    };
    let lower = name.to_lowercase();
    let known = ARCHITECTURES
        .iter()
        .find(|(_, names)| names.contains(&lower.as_str()));
    match known {
        Some((architecture, _)) => Ok(architecture),
        None => Err(SourceError::Architecture {
            name: name.to_owned(),
        }),
    }
}

/// Refuses keys that change the computation in ways the runtime doesn't know.
fn refuse_unknown(json: &Value) -> Result<(), SourceError> {
    let unsupported = |feature: String| Err(SourceError::Unsupported { feature });
    if let Some(quantization) = get(json, "quantization_config") {
        let method = quantization
            .get("quant_method")
            .and_then(Value::as_str)
            .unwrap_or("unknown");
        return unsupported(format!(
            "quantization_config of method {method} (take the model in its original type)"
        ));
    }
    for (holder, key) in [
        (Some(json), "partial_rotary_factor"),
        (rope_key(json), "partial_rotary_factor"),
    ] {
        let factor = holder.map_or(Ok(None), |holder| number(holder, key))?;
        if factor.is_some_and(|factor| factor != 1.0) {
            return unsupported(key.to_owned());
        }
    }
    for key in ["mlp_bias", "use_mrope"] {
        if flag(json, key)? == Some(true) {
            return unsupported(key.to_owned());
        }
    }
    Ok(())
}

/// The window that every layer has; layers that differ are refused.
fn sliding_window(json: &Value, architecture: &str) -> Result<Option<usize>, SourceError> {
    let window = count(json, "sliding_window")?;
    let layers = need_count(json, "num_hidden_layers")?;
    let mixed = || {
        Err(SourceError::Unsupported {
            feature: "a sliding window in some layers only".to_owned(),
        })
    };
    if let Some(types) = get(json, "layer_types") {
        let types = types
            .as_array()
            .ok_or_else(|| bad("layer_types", types, "a list"))?;
        let sliding = types.iter().filter(|ty| *ty == "sliding_attention").count();
        let full = types.iter().filter(|ty| *ty == "full_attention").count();
        return match (sliding, full) {
            (_, full) if full == types.len() => Ok(None),
            (sliding, _) if sliding == types.len() => Ok(window),
            _ => mixed(),
        };
    }
    match architecture {
        "qwen2" | "qwen3" => {
            if flag(json, "use_sliding_window")? != Some(true) {
                return Ok(None);
            }
            // `transformers` lets the layers from this one on slide.
            match count(json, "max_window_layers")? {
                Some(first) if first >= layers => Ok(None),
                Some(0) | None => Ok(window),
                Some(_) => mixed(),
            }
        }
        // `transformers` ignores the key for llama.
        "llama" => Ok(None),
        _ => Ok(window),
    }
}

/// The object with the rope parameters: `rope_parameters` since transformers 5, or `rope_scaling`.
fn rope_key(json: &Value) -> Option<&Value> {
    get(json, "rope_parameters").or_else(|| get(json, "rope_scaling"))
}

/// Frequencies of rotary positions.
pub(super) fn rope(json: &Value, config: &Config) -> Result<Rope, SourceError> {
    let default = if config.architecture.ends_with("mixtral") {
        1e6
    } else {
        1e4
    };
    let inside = rope_key(json).map_or(Ok(None), |rope| positive(rope, "rope_theta"))?;
    let base = inside.or(positive(json, "rope_theta")?).unwrap_or(default);
    let scaling = match rope_key(json) {
        None => Scaling::None,
        Some(rope) => scaling(rope, config)?,
    };
    Rope::new(config.head_dim, base as f32, &scaling)
}

fn scaling(rope: &Value, config: &Config) -> Result<Scaling, SourceError> {
    if !rope.is_object() {
        return Err(bad("rope_scaling", rope, "an object"));
    }
    if get(rope, "mrope_section").is_some() {
        return Err(SourceError::Rope {
            kind: "mrope".to_owned(),
        });
    }
    let kind = text(rope, "rope_type")?.or(text(rope, "type")?);
    let Some(kind) = kind else {
        return Err(SourceError::KeyMissing {
            key: "rope_scaling.rope_type".to_owned(),
        });
    };
    let need = |key: &str| {
        positive(rope, key)?.ok_or_else(|| SourceError::KeyMissing {
            key: format!("rope_scaling.{key}"),
        })
    };
    match kind {
        "default" | "none" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear {
            factor: need("factor")?,
        }),
        "llama3" => {
            let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
            if low >= high {
                let have = high.to_string();
                return Err(SourceError::key(
                    "high_freq_factor",
                    have,
                    "above low_freq_factor",
                ));
            }
            let original_len = need("original_max_position_embeddings")?;
            Ok(Scaling::Llama3 {
                factor: need("factor")?,
                low,
                high,
                original_len,
            })
        }
        "yarn" => Ok(Scaling::Yarn(yarn(rope, config, need("factor")?)?)),
        other => Err(SourceError::Rope {
            kind: other.to_owned(),
        }),
    }
}

fn yarn(rope: &Value, config: &Config, factor: f64) -> Result<Yarn, SourceError> {
    let original = positive(rope, "original_max_position_embeddings")?;
    let (all, each) = (number(rope, "mscale_all_dim")?, number(rope, "mscale")?);
    let computed = match (each.filter(|m| *m != 0.0), all.filter(|m| *m != 0.0)) {
        (Some(each), Some(all)) => yarn_mscale(factor, each) / yarn_mscale(factor, all),
        _ => yarn_mscale(factor, 1.0),
    };
    Ok(Yarn {
        factor,
        original_len: original.unwrap_or(config.seq_len as f64),
        beta_fast: positive(rope, "beta_fast")?.unwrap_or(32.0),
        beta_slow: positive(rope, "beta_slow")?.unwrap_or(1.0),
        attention_factor: number(rope, "attention_factor")?.unwrap_or(computed),
        truncate: flag(rope, "truncate")?.unwrap_or(true),
    })
}
