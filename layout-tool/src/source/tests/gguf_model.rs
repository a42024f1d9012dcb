//! GGUF models: what is read of them, and what is refused.

use tessera_kernels::Activation;

use super::build::*;
use super::{floats, sentence};
use crate::source::{Model, Role, SourceError, SourceType, gguf};

fn open(file: &Gguf) -> Model {
    gguf::from_bytes(&file.bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn error(file: &Gguf) -> SourceError {
    let error = gguf::from_bytes(&file.bytes()).unwrap_err();
    sentence(&error);
    error
}

/// What the tiny llama is refused for after a change.
fn changed(change: impl FnOnce(&mut Gguf)) -> SourceError {
    let mut file = tiny("llama");
    change(&mut file);
    error(&file)
}

#[test]
fn the_configuration_is_read() {
    let model = open(&tiny("llama"));
    let config = &model.config;
    assert_eq!((config.dim, config.ffn_dim, config.n_layers), (8, 4, 1));
    assert_eq!(
        (config.n_heads, config.n_kv_heads, config.head_dim),
        (2, 1, 4)
    );
    assert_eq!((config.vocab_size, config.seq_len), (6, 16));
    assert_eq!(
        (config.architecture.as_str(), config.name.as_str()),
        ("llama", "llama")
    );
    assert_eq!(
        (config.activation, config.sliding_window),
        (Activation::Silu, None)
    );
    assert!(config.tied_embeddings && !config.qkv_bias && !config.qk_norm);
    assert!(model.tokenizer.is_none() && model.notes.len() == 1);
    assert!(model.tensor(Role::LmHead).is_none() && model.tensor(Role::Q(1)).is_none());
    assert_eq!(
        model.tensor(Role::Embedding).unwrap().name(),
        "token_embd.weight"
    );

    let mut file = tiny("llama");
    file.set("general.name", text("tiny"))
        .set("llama.attention.sliding_window", u32(4))
        .set("llama.hidden_activation", text("relu"))
        .set("llama.attention.head_count_kv", i32s(&[1]));
    file.add("output.weight", &[DIM, VOCAB], 900.0);
    let model = open(&file);
    assert_eq!(
        (model.config.name.as_str(), model.config.sliding_window),
        ("tiny", Some(4))
    );
    assert_eq!(model.config.activation, Activation::Relu);
    assert!(!model.config.tied_embeddings);
    assert_eq!(floats(&model, Role::LmHead)[0], 900.0);
}

#[test]
fn llama_rows_are_put_in_order() {
    let mut file = tiny("llama");
    file.add("blk.0.attn_q.bias", &[DIM], 10.0)
        .add("blk.0.attn_k.bias", &[KV_DIM], 20.0)
        .add("blk.0.attn_v.bias", &[KV_DIM], 30.0);
    let model = open(&file);
    assert!(model.config.qkv_bias);
    // Stored rows 0 1 2 3 of a head are its pairs' 0a 0b 1a 1b.
    let firsts = |role| {
        floats(&model, role)
            .chunks(8)
            .map(|row| row[0])
            .collect::<Vec<_>>()
    };
    let row = |first: f32, row: usize| first + row as f32 * 8.0;
    assert_eq!(
        firsts(Role::Q(0)),
        [0, 2, 1, 3, 4, 6, 5, 7].map(|r| row(100.0, r))
    );
    assert_eq!(firsts(Role::K(0)), [0, 2, 1, 3].map(|r| row(200.0, r)));
    assert_eq!(firsts(Role::V(0)), [0, 1, 2, 3].map(|r| row(300.0, r)));
    assert_eq!(
        floats(&model, Role::QBias(0)),
        [10., 12., 11., 13., 14., 16., 15., 17.]
    );
    assert_eq!(floats(&model, Role::KBias(0)), [20., 22., 21., 23.]);
    assert_eq!(floats(&model, Role::VBias(0)), [30., 31., 32., 33.]);
    let q = model.tensor(Role::Q(0)).unwrap();
    assert_eq!(
        (q.rows, q.cols, q.row_bytes(), q.ty),
        (8, 8, 32, SourceType::F32)
    );
}

#[test]
fn qwen_rows_are_in_order_already() {
    let model = open(&tiny("qwen2"));
    assert!(model.config.qkv_bias && !model.config.qk_norm);
    assert_eq!(floats(&model, Role::Q(0))[8..10], [108.0, 109.0]);
    assert_eq!(floats(&model, Role::QBias(0))[..3], [10.0, 11.0, 12.0]);
    let model = open(&tiny("qwen3"));
    assert!(model.config.qk_norm && !model.config.qkv_bias);
    assert_eq!(floats(&model, Role::KNorm(0)), [20.0, 21.0, 22.0, 23.0]);
}

#[test]
fn experts_lie_in_one_tensor_or_in_many() {
    for old in [false, true] {
        let model = open(&tiny_experts(old));
        let config = &model.config;
        assert_eq!(
            (config.architecture.as_str(), config.norm_topk_prob),
            ("mixtral", true)
        );
        assert_eq!((config.n_experts, config.n_experts_used), (2, 1));
        assert_eq!(floats(&model, Role::Gate(0, 0))[0], 500.0);
        assert_eq!(floats(&model, Role::Gate(0, 1))[0], 532.0);
        assert_eq!(floats(&model, Role::Down(0, 1))[31], 763.0);
        let (router, down) = (
            model.tensor(Role::Router(0)),
            model.tensor(Role::Down(0, 1)),
        );
        assert_eq!(
            router.map(|tensor| (tensor.rows, tensor.cols)),
            Some((2, 8))
        );
        assert_eq!(down.map(|tensor| (tensor.rows, tensor.cols)), Some((8, 4)));
        assert!(model.tensor(Role::Gate(0, 2)).is_none());
    }
}

#[test]
fn unknown_architectures_and_features_are_named() {
    let mut file = tiny("llama");
    file.set("general.architecture", text("mamba"));
    assert_eq!(
        error(&file),
        SourceError::Architecture {
            name: "mamba".into()
        }
    );
    let keys = [
        ("final_logit_softcapping", f32(30.0)),
        ("attention.clamp_kqv", f32(8.0)),
        ("logit_scale", f32(0.5)),
        ("expert_shared_count", u32(1)),
        ("expert_gating_func", u32(2)),
    ];
    for (key, value) in keys {
        let feature = format!("llama.{key}");
        let error = changed(|file| {
            file.set(&feature, value);
        });
        assert_eq!(error, SourceError::Unsupported { feature });
    }
    let error = changed(|file| {
        file.set("llama.hidden_activation", text("tanh"));
    });
    assert!(matches!(error, SourceError::Key { .. }), "{error}");
}

#[test]
fn keys_are_there_and_make_sense() {
    let needed = [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ];
    for key in needed {
        let error = changed(|file| {
            file.remove(key);
        });
        assert_eq!(error, SourceError::KeyMissing { key: key.into() });
    }
    let with = |key: &str, value| {
        changed(|file| {
            file.set(&format!("llama.{key}"), value);
        })
    };
    assert!(matches!(
        with("block_count", u32(0)),
        SourceError::OutOfRange { value: 0, .. }
    ));
    assert!(matches!(
        with("block_count", u32(u32::MAX)),
        SourceError::OutOfRange { .. }
    ));
    assert!(matches!(
        with("attention.head_count", u32(0)),
        SourceError::NotMultiple { .. }
    ));
    assert!(matches!(
        with("attention.head_count", u32(3)),
        SourceError::NotMultiple { .. }
    ));
    assert!(matches!(
        with("attention.head_count_kv", u32(3)),
        SourceError::NotMultiple { .. }
    ));
    assert!(matches!(
        with("attention.key_length", u32(5)),
        SourceError::NotMultiple { .. }
    ));
    assert!(matches!(
        with("attention.value_length", u32(2)),
        SourceError::Key { .. }
    ));
    assert!(matches!(
        with("rope.dimension_count", u32(2)),
        SourceError::Key { .. }
    ));
    assert!(matches!(
        with("feed_forward_length", i32s(&[4, 8])),
        SourceError::Key { .. }
    ));
    assert!(matches!(
        with("expert_used_count", u32(1)),
        SourceError::OutOfRange { .. }
    ));
    assert!(matches!(
        with("expert_count", u32(1 << 20)),
        SourceError::OutOfRange { .. }
    ));
    let eps = "attention.layer_norm_rms_epsilon";
    assert!(matches!(with(eps, f32(f32::NAN)), SourceError::Key { .. }));
    assert!(matches!(with(eps, u32(1)), SourceError::Gguf { .. }));
    assert!(matches!(
        with("vocab_size", u32(7)),
        SourceError::Vocabulary {
            have: 7,
            rows: 6,
            ..
        }
    ));
}

#[test]
fn tensors_are_those_of_the_architecture() {
    let mut file = tiny("llama");
    file.tensors
        .retain(|tensor| tensor.name != "blk.0.ffn_up.weight");
    let missing = error(&file);
    let (name, architecture) = ("blk.0.ffn_up.weight".to_owned(), "llama".to_owned());
    assert_eq!(missing, SourceError::TensorMissing { name, architecture });

    for name in [
        "blk.0.attn_output.bias",
        "blk.1.attn_q.weight",
        "output.bias",
        "blk.0.ffn_up.1.weight",
    ] {
        let error = changed(|file| {
            file.add(name, &[DIM], 0.0);
        });
        let (name, architecture) = (name.to_owned(), "llama".to_owned());
        assert_eq!(error, SourceError::TensorUnexpected { name, architecture });
    }
    // Biases come all three or not at all.
    let error = changed(|file| {
        file.add("blk.0.attn_q.bias", &[DIM], 0.0);
    });
    assert!(
        matches!(error, SourceError::TensorMissing { .. }),
        "{error}"
    );

    let name = "blk.0.ffn_down.weight".to_owned();
    let error = changed(|file| file.tensor(&name).dims = vec![8, 4]);
    assert_eq!(
        error,
        SourceError::TensorShape {
            name,
            have: vec![4, 8],
            need: vec![8, 4]
        }
    );
    let error = changed(|file| file.tensor("token_embd.weight").dims = vec![6, 8]);
    assert!(matches!(error, SourceError::TensorShape { .. }), "{error}");
}

#[test]
fn norms_are_not_quantised() {
    let mut file = tiny("llama");
    let wide = 32u64;
    file.set("llama.embedding_length", u32(32))
        .set("llama.attention.key_length", u32(4));
    for tensor in &mut file.tensors {
        let cols = |dim: &mut u64| *dim = if *dim == DIM { wide } else { *dim };
        tensor.dims.iter_mut().for_each(cols);
        if tensor.name.contains("attn_q") {
            tensor.dims = vec![wide, DIM];
        }
        if tensor.name.contains("attn_output") {
            tensor.dims = vec![DIM, wide];
        }
        tensor.data = vec![0; tensor.dims.iter().product::<u64>() as usize * 4];
    }
    assert!(gguf::from_bytes(&file.bytes()).is_ok());
    file.tensor("output_norm.weight").ty = 8;
    let (name, ty) = ("output_norm.weight".to_owned(), SourceType::Q8_0);
    assert_eq!(error(&file), SourceError::VectorQuantized { name, ty });
}
