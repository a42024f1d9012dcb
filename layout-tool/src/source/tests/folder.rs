//! Hugging Face folders: what is read of them, and what is refused.

use serde_json::{Value, json};
use tempfile::TempDir;
use tessera_kernels::Activation;

use super::build::*;
use super::{floats, sentence};
use crate::source::{Config, Model, Role, SourceError, open};

fn folder(config: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), config, &tensors());
    folder
}

fn error(folder: &TempDir) -> SourceError {
    let error = open(folder.path()).unwrap_err();
    sentence(&error);
    error
}

/// The tiny model of a type with some keys changed; null removes one.
fn with(model_type: &str, keys: &[(&str, Value)]) -> Result<Config, SourceError> {
    let mut config = config(model_type);
    for (key, value) in keys {
        config[key] = value.clone();
    }
    let result = open(folder(&config).path()).map(|model| model.config);
    result.inspect_err(|error| {
        sentence(error);
    })
}

#[test]
fn the_model_is_read() {
    let folder = folder(&config("llama"));
    let model: Model = open(folder.path()).unwrap();
    let config = &model.config;
    assert_eq!((config.dim, config.ffn_dim, config.n_layers), (8, 4, 1));
    assert_eq!(
        (config.n_heads, config.n_kv_heads, config.head_dim),
        (2, 1, 4)
    );
    assert!(!config.tied_embeddings && !config.qkv_bias && !config.norm_topk_prob);
    assert_eq!(
        config.name,
        folder.path().file_name().unwrap().to_str().unwrap()
    );
    assert_eq!(floats(&model, Role::Q(0))[8..10], [108.0, 109.0]);
    assert_eq!(floats(&model, Role::LmHead)[0], 50.0);
    assert!(model.tokenizer.is_none() && model.notes[0].contains("tokenizer.json"));
}

#[test]
fn the_model_type_and_hidden_act_decide_the_activation() {
    let act = |model_type, act: &str| {
        with(model_type, &[("hidden_act", json!(act))]).map(|config| config.activation)
    };
    assert_eq!(act("llama", "silu"), Ok(Activation::Silu));
    assert_eq!(act("mistral", "relu"), Ok(Activation::Relu));
    assert_eq!(act("llama", "gelu_pytorch_tanh"), Ok(Activation::GeluTanh));
    assert_eq!(act("llama", "gelu_new"), Ok(Activation::GeluTanh));
    assert_eq!(act("bamboo", "relu"), Ok(Activation::ReluBoth));
    assert_eq!(act("turbosparse-mistral", "relu"), Ok(Activation::ReluBoth));
    assert!(matches!(
        act("bamboo", "silu"),
        Err(SourceError::Key { .. })
    ));
    for name in ["gelu", "fatrelu", "relu2"] {
        let error = act("llama", name).unwrap_err();
        assert!(sentence(&error).contains(name));
    }
}

#[test]
fn experts_are_read_in_mixtral_and_its_relatives() {
    for (model_type, activation) in [
        ("mixtral", Activation::Silu),
        ("turbosparsemixtral", Activation::ReluBoth),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(model_type);
        config["num_local_experts"] = json!(2);
        config["num_experts_per_tok"] = json!(1);
        if activation == Activation::ReluBoth {
            config["hidden_act"] = json!("relu");
        }
        let mut tensors = tensors();
        tensors.retain(|(name, ..)| !name.contains("mlp"));
        let moe = "model.layers.0.block_sparse_moe";
        tensors.push((format!("{moe}.gate.weight"), vec![2, 8], 1.0));
        for expert in 0..2 {
            for (part, shape) in [("w1", [4, 8]), ("w2", [8, 4]), ("w3", [4, 8])] {
                let first = if part == "w2" { 700.0 } else { 500.0 } + expert as f32;
                let name = format!("{moe}.experts.{expert}.{part}.weight");
                tensors.push((name, shape.to_vec(), first));
            }
        }
        write_folder(folder.path(), &config, &tensors);
        let model = open(folder.path()).unwrap();
        assert_eq!(
            (model.config.activation, model.config.n_experts),
            (activation, 2)
        );
        assert_eq!(floats(&model, Role::Down(0, 1))[0], 701.0);
        assert_eq!(model.tensor(Role::Router(0)).unwrap().rows, 2);
    }
    assert!(matches!(
        with("mixtral", &[]),
        Err(SourceError::KeyMissing { .. })
    ));
}

#[test]
fn heads_are_tied_untied_or_missing() {
    let open_with = |tied: bool, drop_head: bool| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config("llama");
        config["tie_word_embeddings"] = json!(tied);
        let mut tensors = tensors();
        tensors.retain(|(name, ..)| !(drop_head && name == "lm_head.weight"));
        write_folder(folder.path(), &config, &tensors);
        open(folder.path()).unwrap()
    };
    assert!(!open_with(false, false).config.tied_embeddings);
    // Files with both weights are tied if the configuration says so.
    let both = open_with(true, false);
    assert!(both.config.tied_embeddings && both.tensor(Role::LmHead).is_none());
    assert!(open_with(true, true).config.tied_embeddings);
    let missing = open_with(false, true);
    assert!(missing.config.tied_embeddings && missing.notes[0].contains("lm_head"));
}

#[test]
fn windows_are_those_of_transformers() {
    let window = |model_type, keys: &[(&str, Value)]| {
        with(model_type, keys).map(|config| config.sliding_window)
    };
    let four = ("sliding_window", json!(4));
    let types = |kinds: Value| ("layer_types", kinds);
    assert_eq!(window("mistral", std::slice::from_ref(&four)), Ok(Some(4)));
    assert_eq!(
        window("mistral", &[("sliding_window", Value::Null)]),
        Ok(None)
    );
    assert_eq!(window("llama", std::slice::from_ref(&four)), Ok(None));
    let full = types(json!(["full_attention"]));
    assert_eq!(window("mistral", &[four.clone(), full]), Ok(None));
    let sliding = types(json!(["sliding_attention"]));
    assert_eq!(window("mistral", &[four.clone(), sliding]), Ok(Some(4)));
    let other = types(json!(["linear_attention"]));
    assert!(matches!(
        window("mistral", &[four, other]),
        Err(SourceError::Unsupported { .. })
    ));
}

#[test]
fn qwen_layers_slide_all_or_none() {
    let qwen = |name: &str, from: Value| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config("qwen2");
        config["sliding_window"] = json!(4);
        config["use_sliding_window"] = json!(name == "on");
        config["max_window_layers"] = from;
        config["num_hidden_layers"] = json!(1);
        let mut tensors = tensors();
        for (part, rows) in [("q", 8), ("k", 4), ("v", 4)] {
            tensors.push((
                format!("model.layers.0.self_attn.{part}_proj.bias"),
                vec![rows],
                0.0,
            ));
        }
        write_folder(folder.path(), &config, &tensors);
        open(folder.path()).map(|model| (model.config.qkv_bias, model.config.sliding_window))
    };
    assert_eq!(qwen("off", json!(0)), Ok((true, None)));
    assert_eq!(qwen("on", json!(1)), Ok((true, None)));
    assert_eq!(qwen("on", json!(0)), Ok((true, Some(4))));
}

#[test]
fn what_the_runtime_cannot_compute_is_named() {
    let unsupported = |key: &str, value: Value| match with("llama", &[(key, value)]) {
        Err(SourceError::Unsupported { feature }) => feature,
        other => panic!("{other:?}"),
    };
    let gptq = unsupported("quantization_config", json!({"quant_method": "gptq"}));
    assert!(gptq.contains("gptq"), "{gptq}");
    assert_eq!(unsupported("mlp_bias", json!(true)), "mlp_bias");
    assert_eq!(
        unsupported("partial_rotary_factor", json!(0.5)),
        "partial_rotary_factor"
    );
    let error = with("gemma3", &[]).unwrap_err();
    assert_eq!(
        error,
        SourceError::Architecture {
            name: "gemma3".into()
        }
    );
    let mixed = with(
        "qwen3",
        &[
            ("use_sliding_window", json!(true)),
            ("sliding_window", json!(4)),
            ("max_window_layers", json!(1)),
            ("num_hidden_layers", json!(2)),
        ],
    );
    assert!(matches!(mixed, Err(SourceError::Unsupported { .. })));
}

#[test]
fn keys_are_there_and_of_their_type() {
    let needed = [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
    ];
    for key in needed {
        let error = with("llama", &[(key, Value::Null)]).unwrap_err();
        assert_eq!(error, SourceError::KeyMissing { key: key.into() });
    }
    let bad = [
        ("model_type", json!(3)),
        ("hidden_size", json!("8")),
        ("hidden_size", json!(-8)),
        ("head_dim", json!(4.5)),
        ("rms_norm_eps", json!("small")),
        ("rope_theta", json!(0)),
        ("tie_word_embeddings", json!("yes")),
        ("layer_types", json!("full_attention")),
    ];
    for (key, value) in bad {
        let error = with("llama", &[(key, value)]).unwrap_err();
        assert!(
            matches!(&error, SourceError::Key { key: have, .. } if have == key),
            "{error}"
        );
    }
    let error = with("llama", &[("vocab_size", json!(7))]).unwrap_err();
    assert!(matches!(error, SourceError::TensorShape { .. }), "{error}");
    let error = with("llama", &[("num_attention_heads", json!(3))]).unwrap_err();
    assert!(matches!(error, SourceError::NotMultiple { .. }), "{error}");
}

#[test]
fn folders_without_a_model_say_what_they_lack() {
    let empty = tempfile::tempdir().unwrap();
    let not = |folder: &TempDir| match error(folder) {
        SourceError::NotAModel { found, .. } => found,
        other => panic!("{other}"),
    };
    assert!(not(&empty).contains("config.json"));
    std::fs::write(
        empty.path().join("config.json"),
        config("llama").to_string(),
    )
    .unwrap();
    assert!(not(&empty).contains("model.safetensors"));
    std::fs::write(empty.path().join("pytorch_model.bin"), b"PK").unwrap();
    assert!(not(&empty).contains("PyTorch"));
    let alone = empty.path().join("model.safetensors");
    std::fs::write(&alone, b"").unwrap();
    assert!(matches!(open(&alone), Err(SourceError::NotAModel { .. })));
    std::fs::write(empty.path().join("config.json"), b"{").unwrap();
    assert!(matches!(error(&empty), SourceError::Json { .. }));
    std::fs::write(empty.path().join("config.json"), [0xFF]).unwrap();
    assert!(matches!(error(&empty), SourceError::Io { .. }));
    assert!(matches!(
        open(&empty.path().join("none")),
        Err(SourceError::Io { .. })
    ));
    // A sparse file takes no room.
    let large = std::fs::File::create(empty.path().join("config.json")).unwrap();
    large.set_len((256 << 20) + 1).unwrap();
    assert!(matches!(error(&empty), SourceError::FileTooLarge { .. }));
}

/// The tiny model in two weight files, with the map of its index.
fn sharded() -> (TempDir, Value) {
    let folder = folder(&config("llama"));
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let all = tensors();
    let mut map = json!({});
    for (number, part) in [&all[..4], &all[4..]].iter().enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", number + 1);
        std::fs::write(folder.path().join(&file), safetensors(part)).unwrap();
        part.iter().for_each(|(name, ..)| map[name] = json!(file));
    }
    (folder, map)
}

fn write_index(folder: &TempDir, index: &Value) {
    let path = folder.path().join("model.safetensors.index.json");
    std::fs::write(path, index.to_string()).unwrap();
}

#[test]
fn weights_may_be_in_several_files() {
    let (folder, map) = sharded();
    write_index(&folder, &json!({"weight_map": map}));
    let model = open(folder.path()).unwrap();
    assert_eq!(floats(&model, Role::Down(0, 0))[0], 700.0);
    assert_eq!(floats(&model, Role::Embedding)[1], 1.0);
}

#[test]
fn an_index_leads_to_its_tensors_and_nowhere_else() {
    let (folder, map) = sharded();
    let with = |name: &str, file: Value| {
        let mut map = map.clone();
        map[name] = file;
        write_index(&folder, &json!({"weight_map": map}));
        error(&folder)
    };
    let first = json!("model-00001-of-00002.safetensors");
    assert!(matches!(
        with("not.there", first),
        SourceError::Index { .. }
    ));
    for file in ["../x", "/etc/passwd", "a/b", "", ".."] {
        assert!(
            matches!(
                with("model.norm.weight", json!(file)),
                SourceError::Index { .. }
            ),
            "{file}"
        );
    }
    assert!(matches!(
        with("model.norm.weight", json!(1)),
        SourceError::Index { .. }
    ));
    assert!(matches!(
        with("model.norm.weight", json!("none")),
        SourceError::Io { .. }
    ));
    write_index(&folder, &json!({}));
    assert!(matches!(error(&folder), SourceError::Index { .. }));
}
