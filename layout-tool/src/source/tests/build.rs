//! Small models, made in memory.

use std::path::Path;

use serde_json::{Value, json};

/// A tensor of a GGUF file in the making.
#[derive(Clone)]
pub struct Made {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: u32,
    pub data: Vec<u8>,
    /// Stated instead of where the data really are.
    pub offset: Option<u64>,
}

/// A GGUF file in the making. Everything in it may be wrong.
#[derive(Clone, Default)]
pub struct Gguf {
    pub values: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Made>,
}

pub fn u32(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn i32(value: i32) -> Vec<u8> {
    [5u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn f32(value: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn flag(value: u8) -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &[value]].concat()
}

pub fn text(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &counted(value.as_bytes())].concat()
}

/// An array: element type, count, and the elements' bytes.
pub fn array(ty: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [
        &9u32.to_le_bytes()[..],
        &ty.to_le_bytes(),
        &count.to_le_bytes(),
        elements,
    ]
    .concat()
}

pub fn texts(values: &[&str]) -> Vec<u8> {
    let elements: Vec<u8> = values
        .iter()
        .flat_map(|value| counted(value.as_bytes()))
        .collect();
    array(8, values.len() as u64, &elements)
}

pub fn i32s(values: &[i32]) -> Vec<u8> {
    let elements: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    array(5, values.len() as u64, &elements)
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    array(6, values.len() as u64, &le_bytes(values))
}

pub fn counted(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

pub fn le_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

impl Gguf {
    /// Adds a value, or replaces it.
    pub fn set(&mut self, key: &str, value: Vec<u8>) -> &mut Self {
        match self.values.iter_mut().find(|(other, _)| other == key) {
            Some((_, old)) => *old = value,
            None => self.values.push((key.to_owned(), value)),
        }
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.values.retain(|(other, _)| other != key);
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut Made {
        self.tensors
            .iter_mut()
            .find(|tensor| tensor.name == name)
            .unwrap()
    }

    /// Adds an F32 tensor whose weights count up from `first`. Dimensions: the fastest first.
    pub fn add(&mut self, name: &str, dims: &[u64], first: f32) -> &mut Self {
        let count: u64 = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|i| first + i as f32).collect();
        let (name, dims, data) = (name.to_owned(), dims.to_vec(), le_bytes(&values));
        self.tensors.push(Made {
            name,
            dims,
            ty: 0,
            data,
            offset: None,
        });
        self
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for (key, value) in &self.values {
            out.extend(counted(key.as_bytes()));
            out.extend(value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            out.extend(counted(tensor.name.as_bytes()));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor
                .dims
                .iter()
                .for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset = (offset + tensor.data.len() as u64).next_multiple_of(32);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&tensor.data);
        }
        out
    }
}

/// Dimensions of the tiny models: two query heads of four share a key head.
pub const DIM: u64 = 8;
pub const KV_DIM: u64 = 4;
pub const FFN_DIM: u64 = 4;
pub const VOCAB: u64 = 6;

/// A one-layer GGUF model without tokenizer; `architecture` is llama, qwen2 or qwen3.
pub fn tiny(architecture: &str) -> Gguf {
    let mut gguf = Gguf::default();
    let key = |key: &str| format!("{architecture}.{key}");
    gguf.set("general.architecture", text(architecture))
        .set(&key("block_count"), u32(1))
        .set(&key("context_length"), u32(16))
        .set(&key("embedding_length"), u32(DIM as u32))
        .set(&key("feed_forward_length"), u32(FFN_DIM as u32))
        .set(&key("attention.head_count"), u32(2))
        .set(&key("attention.head_count_kv"), u32(1))
        .set(&key("attention.layer_norm_rms_epsilon"), f32(1e-5));
    gguf.add("token_embd.weight", &[DIM, VOCAB], 0.0)
        .add("output_norm.weight", &[DIM], 1.0)
        .add("blk.0.attn_norm.weight", &[DIM], 2.0)
        .add("blk.0.attn_q.weight", &[DIM, DIM], 100.0)
        .add("blk.0.attn_k.weight", &[DIM, KV_DIM], 200.0)
        .add("blk.0.attn_v.weight", &[DIM, KV_DIM], 300.0)
        .add("blk.0.attn_output.weight", &[DIM, DIM], 400.0)
        .add("blk.0.ffn_norm.weight", &[DIM], 3.0)
        .add("blk.0.ffn_gate.weight", &[DIM, FFN_DIM], 500.0)
        .add("blk.0.ffn_up.weight", &[DIM, FFN_DIM], 600.0)
        .add("blk.0.ffn_down.weight", &[FFN_DIM, DIM], 700.0);
    if architecture == "qwen2" {
        gguf.add("blk.0.attn_q.bias", &[DIM], 10.0)
            .add("blk.0.attn_k.bias", &[KV_DIM], 20.0)
            .add("blk.0.attn_v.bias", &[KV_DIM], 30.0);
    }
    if architecture == "qwen3" {
        gguf.add("blk.0.attn_q_norm.weight", &[DIM / 2], 10.0).add(
            "blk.0.attn_k_norm.weight",
            &[DIM / 2],
            20.0,
        );
    }
    gguf
}

/// A tiny model with two experts, in one tensor each or (old files) a tensor an expert.
pub fn tiny_experts(old: bool) -> Gguf {
    let mut gguf = tiny("llama");
    gguf.tensors
        .retain(|tensor| !tensor.name.contains("ffn_") || tensor.name.contains("norm"));
    gguf.set("llama.expert_count", u32(2))
        .set("llama.expert_used_count", u32(1));
    gguf.add("blk.0.ffn_gate_inp.weight", &[DIM, 2], 1.0);
    for (part, first) in [("gate", 500.0), ("up", 600.0), ("down", 700.0)] {
        let (cols, rows) = if part == "down" {
            (FFN_DIM, DIM)
        } else {
            (DIM, FFN_DIM)
        };
        if old {
            gguf.add(&format!("blk.0.ffn_{part}.0.weight"), &[cols, rows], first);
            let second = first + (cols * rows) as f32;
            gguf.add(&format!("blk.0.ffn_{part}.1.weight"), &[cols, rows], second);
        } else {
            gguf.add(
                &format!("blk.0.ffn_{part}_exps.weight"),
                &[cols, rows, 2],
                first,
            );
        }
    }
    gguf
}

/// A byte-level BPE tokenizer of six tokens.
pub fn add_bpe(gguf: &mut Gguf, pre: &str) {
    gguf.set("tokenizer.ggml.model", text("gpt2"))
        .set("tokenizer.ggml.pre", text(pre))
        .set(
            "tokenizer.ggml.tokens",
            texts(&["a", "b", "ab", "\u{120}", "<|im_end|>", "<u>"]),
        )
        .set("tokenizer.ggml.token_type", i32s(&[1, 1, 1, 1, 3, 4]))
        .set("tokenizer.ggml.merges", texts(&["a b"]))
        .set("tokenizer.ggml.eos_token_id", u32(4));
}

/// A SentencePiece tokenizer of six tokens.
pub fn add_spm(gguf: &mut Gguf) {
    gguf.set("tokenizer.ggml.model", text("llama"))
        .set(
            "tokenizer.ggml.tokens",
            texts(&["<unk>", "<s>", "</s>", "\u{2581}", "a", "\u{2581}a"]),
        )
        .set("tokenizer.ggml.token_type", i32s(&[2, 3, 3, 1, 1, 1]))
        .set(
            "tokenizer.ggml.scores",
            f32s(&[0.0, 0.0, 0.0, -2.0, -3.0, -1.0]),
        )
        .set("tokenizer.ggml.bos_token_id", u32(1))
        .set("tokenizer.ggml.eos_token_id", u32(2));
}

/// A safetensors file with F32 tensors whose weights count up. Dimensions: the fastest last.
pub fn safetensors(tensors: &[(String, Vec<usize>, f32)]) -> Vec<u8> {
    let mut head = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, shape, first) in tensors {
        let start = data.len();
        let count: usize = shape.iter().product();
        data.extend((0..count).flat_map(|i| (first + i as f32).to_le_bytes()));
        let offsets = [start, data.len()];
        head.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}),
        );
    }
    with_head(&Value::Object(head).to_string(), &data)
}

/// A safetensors file with this head.
pub fn with_head(head: &str, data: &[u8]) -> Vec<u8> {
    [
        &(head.len() as u64).to_le_bytes()[..],
        head.as_bytes(),
        data,
    ]
    .concat()
}

/// config.json of the tiny model.
pub fn config(model_type: &str) -> Value {
    json!({
        "model_type": model_type,
        "hidden_size": DIM,
        "intermediate_size": FFN_DIM,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
    })
}

/// Tensors of the tiny model under their Hugging Face names.
pub fn tensors() -> Vec<(String, Vec<usize>, f32)> {
    let (dim, kv_dim, ffn_dim) = (DIM as usize, KV_DIM as usize, FFN_DIM as usize);
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    vec![
        (
            "model.embed_tokens.weight".into(),
            vec![VOCAB as usize, dim],
            0.0,
        ),
        ("model.norm.weight".into(), vec![dim], 1.0),
        ("lm_head.weight".into(), vec![VOCAB as usize, dim], 50.0),
        (layer("input_layernorm"), vec![dim], 2.0),
        (layer("self_attn.q_proj"), vec![dim, dim], 100.0),
        (layer("self_attn.k_proj"), vec![kv_dim, dim], 200.0),
        (layer("self_attn.v_proj"), vec![kv_dim, dim], 300.0),
        (layer("self_attn.o_proj"), vec![dim, dim], 400.0),
        (layer("post_attention_layernorm"), vec![dim], 3.0),
        (layer("mlp.gate_proj"), vec![ffn_dim, dim], 500.0),
        (layer("mlp.up_proj"), vec![ffn_dim, dim], 600.0),
        (layer("mlp.down_proj"), vec![dim, ffn_dim], 700.0),
    ]
}

/// A folder with the tiny model.
pub fn write_folder(folder: &Path, config: &Value, tensors: &[(String, Vec<usize>, f32)]) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), safetensors(tensors)).unwrap();
}
