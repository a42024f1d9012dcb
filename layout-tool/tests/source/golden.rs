//! The golden models: what a folder and its GGUF file give is the same.

use std::path::Path;

use layout_tool::source::{Config, Model, Role, Tensor, open};
use tessera_kernels::Activation;

use crate::shared;

const WITH_GGUF: [&str; 5] = [
    "llama-silu-tied",
    "qwen2-silu",
    "mixtral-silu",
    "llama-rope-llama3",
    "llama-rope-linear",
];

fn roles(config: &Config) -> Vec<Role> {
    let mut roles = vec![Role::Embedding, Role::OutputNorm, Role::LmHead];
    for l in 0..config.n_layers {
        roles.extend([Role::AttnNorm(l), Role::FfnNorm(l)]);
        roles.extend([Role::Q(l), Role::K(l), Role::V(l), Role::O(l)]);
        roles.extend([Role::QBias(l), Role::KBias(l), Role::VBias(l)]);
        roles.extend([Role::QNorm(l), Role::KNorm(l), Role::Router(l)]);
        for e in 0..config.n_experts.max(1) {
            roles.extend([Role::Gate(l, e), Role::Up(l, e), Role::Down(l, e)]);
        }
    }
    roles
}

fn floats(tensor: &Tensor<'_>, start: usize, count: usize) -> Vec<f32> {
    let mut out = Vec::new();
    tensor.read_f32(start, count, &mut out).unwrap();
    out
}

/// Largest difference of any weight, relative to the largest weight of its tensor.
fn difference(left: &Model, right: &Model) -> f32 {
    let mut worst = 0.0f32;
    for role in roles(&left.config) {
        let (Some(a), Some(b)) = (left.tensor(role), right.tensor(role)) else {
            assert!(
                left.tensor(role).is_none() && right.tensor(role).is_none(),
                "{role:?}"
            );
            continue;
        };
        assert_eq!((a.rows, a.cols), (b.rows, b.cols), "{role:?}");
        let (a, b) = (floats(&a, 0, a.rows), floats(&b, 0, b.rows));
        let top = a.iter().fold(0.0f32, |top, x| top.max(x.abs()));
        for (a, b) in a.iter().zip(&b) {
            worst = worst.max((a - b).abs() / top);
        }
    }
    worst
}

#[test]
fn gguf_and_folder_hold_the_same_model() {
    let Some(golden) = shared("golden") else {
        return;
    };
    for name in WITH_GGUF {
        let folder = open(&golden.join(name)).unwrap();
        for (file, allowed) in [
            ("f32", 0.0),
            ("f16", 0.0005),
            ("q8_0", 0.005),
            ("q4_0", 0.126),
        ] {
            let gguf = open(&golden.join(name).join(format!("model-{file}.gguf"))).unwrap();
            let worst = difference(&folder, &gguf);
            assert!(worst <= allowed, "{name} {file}: {worst}");
            same_config(&folder.config, &gguf.config, name);
        }
    }
}

fn same_config(folder: &Config, gguf: &Config, name: &str) {
    let mut gguf = gguf.clone();
    // A GGUF file has divisors of the frequencies instead of llama3's parameters.
    for (a, b) in folder.rope.inv_freq.iter().zip(&gguf.rope.inv_freq) {
        assert!((a - b).abs() <= 2e-7 * a, "{name}: {a} is not {b}");
    }
    gguf.rope = folder.rope.clone();
    gguf.name = folder.name.clone();
    assert_eq!(*folder, gguf, "{name}");
}

#[test]
fn parts_of_a_permuted_matrix_are_parts_of_the_whole() {
    let Some(golden) = shared("golden") else {
        return;
    };
    let gguf = open(&golden.join("llama-silu-tied/model-q4_0.gguf")).unwrap();
    let q = gguf.tensor(Role::Q(1)).unwrap();
    let mut whole = Vec::new();
    q.read_rows(0, q.rows, &mut whole).unwrap();
    for (start, count) in [(0, 1), (3, 2), (15, 2), (16, 16), (7, 50), (63, 1), (64, 0)] {
        let mut part = Vec::new();
        q.read_rows(start, count, &mut part).unwrap();
        let bytes = q.row_bytes();
        assert_eq!(
            part,
            whole[start * bytes..(start + count) * bytes],
            "{start} + {count}"
        );
    }
}

#[test]
fn frequencies_are_those_of_the_reference() {
    let Some(golden) = shared("golden") else {
        return;
    };
    for name in [
        "llama-silu-tied",
        "llama-rope-llama3",
        "llama-rope-linear",
        "mistral-relu",
    ] {
        let text = std::fs::read_to_string(golden.join(name).join("golden.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let model = open(&golden.join(name)).unwrap();
        let Some(want) = json["rope_inv_freq"].as_array() else {
            continue;
        };
        assert_eq!(model.config.rope.inv_freq.len(), want.len());
        for (have, want) in model.config.rope.inv_freq.iter().zip(want) {
            let want = want.as_f64().unwrap() as f32;
            let apart = have.to_bits().abs_diff(want.to_bits());
            assert!(apart <= 1, "{name}: {have} is not {want}");
        }
    }
}

#[test]
fn configurations_say_what_the_models_are() {
    let Some(golden) = shared("golden") else {
        return;
    };
    let config = |name: &str| open(&golden.join(name)).unwrap().config;

    let drelu = config("drelu");
    assert_eq!(
        (drelu.architecture.as_str(), drelu.activation),
        ("bamboo", Activation::ReluBoth)
    );
    assert_eq!(config("llama-relu").activation, Activation::Relu);
    assert_eq!(config("llama-silu-tied").activation, Activation::Silu);
    assert!(config("llama-silu-tied").tied_embeddings);

    let mistral = config("mistral-relu");
    assert_eq!((mistral.sliding_window, mistral.n_experts), (Some(32), 0));
    let mixtral = config("mixtral-relu");
    assert_eq!(
        (mixtral.n_experts, mixtral.n_experts_used, mixtral.ffn_dim),
        (8, 2, 128)
    );
    assert!(mixtral.norm_topk_prob);
    let qwen = config("qwen2-silu");
    assert!(qwen.qkv_bias && !qwen.qk_norm);
    assert_eq!((qwen.bos_token, qwen.eos_tokens), (Some(1), vec![2]));
}

#[test]
fn real_models_open_quickly_and_whole() {
    let files = [
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ];
    for name in files {
        let Some(path) = crate::in_folder("TESSERA_MODELS", name) else {
            return;
        };
        let model = open(Path::new(&path)).unwrap();
        let config = &model.config;
        let qwen = config.architecture == "qwen2";
        assert_eq!(config.tied_embeddings, !qwen);
        assert_eq!(
            config.eos_tokens,
            if qwen {
                vec![151_645, 151_643]
            } else {
                vec![2, 0]
            }
        );
        assert!(!config.add_bos && model.tokenizer.unwrap().chat_template.is_some());
    }
}
