//! Small models as files, whose every weight is known.

use std::path::{Path, PathBuf};

use layout_tool::pack::{PackError, PackOptions, PackReport, pack};
use layout_tool::source::SourceType;
use serde_json::{Map, Value, json};

/// A folder that goes when the test ends.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Packs without progress.
pub fn packed(options: &PackOptions) -> Result<PackReport, PackError> {
    pack(options, &|_, _| {})
}

/// The weight at a row and a column of the tensor of this name.
pub type Weight = fn(&str, usize, usize) -> f32;

/// What a small model looks like.
#[derive(Clone)]
pub struct Spec {
    pub model_type: &'static str,
    pub activation: &'static str,
    pub dim: usize,
    pub ffn_dim: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub n_experts: usize,
    pub tied: bool,
    /// Called for each weight.
    pub weight: Weight,
}

pub const SPEC: Spec = Spec {
    model_type: "llama",
    activation: "silu",
    dim: 64,
    ffn_dim: 96,
    n_layers: 2,
    n_heads: 4,
    n_kv_heads: 2,
    head_dim: 32,
    vocab: 100,
    n_experts: 0,
    tied: false,
    weight: noise,
};

/// Something like a normal deviate that depends on name, row and column only.
pub fn noise(name: &str, row: usize, col: usize) -> f32 {
    let mut state = 0xcbf2_9ce4_8422_2325u64;
    let mut mix = |byte: u64| state = (state ^ byte).wrapping_mul(0x0100_0000_01b3);
    name.bytes().for_each(|byte| mix(u64::from(byte)));
    (0..4).for_each(|i| mix(row as u64 >> (8 * i) & 255));
    (0..4).for_each(|i| mix(col as u64 >> (8 * i) & 255));
    let mut sum = 0.0;
    for _ in 0..4 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        sum += (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
    }
    sum
}

impl Spec {
    /// Names and shapes of all tensors, as Hugging Face folders name them.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Spec {
            dim,
            ffn_dim,
            n_experts,
            ..
        } = *self;
        let (q_dim, kv_dim) = (
            self.n_heads * self.head_dim,
            self.n_kv_heads * self.head_dim,
        );
        let mut all = vec![(
            "model.embed_tokens.weight".to_owned(),
            vec![self.vocab, dim],
        )];
        for layer in 0..self.n_layers {
            let mut put = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            };
            put("input_layernorm.weight", &[dim]);
            put("self_attn.q_proj.weight", &[q_dim, dim]);
            put("self_attn.k_proj.weight", &[kv_dim, dim]);
            put("self_attn.v_proj.weight", &[kv_dim, dim]);
            put("self_attn.o_proj.weight", &[dim, q_dim]);
            if self.model_type == "qwen2" {
                put("self_attn.q_proj.bias", &[q_dim]);
                put("self_attn.k_proj.bias", &[kv_dim]);
                put("self_attn.v_proj.bias", &[kv_dim]);
            }
            if self.model_type == "qwen3" {
                put("self_attn.q_norm.weight", &[self.head_dim]);
                put("self_attn.k_norm.weight", &[self.head_dim]);
            }
            put("post_attention_layernorm.weight", &[dim]);
            if n_experts == 0 {
                put("mlp.gate_proj.weight", &[ffn_dim, dim]);
                put("mlp.up_proj.weight", &[ffn_dim, dim]);
                put("mlp.down_proj.weight", &[dim, ffn_dim]);
            } else {
                put("block_sparse_moe.gate.weight", &[n_experts, dim]);
            }
            for expert in 0..n_experts {
                let part = |name: &str| format!("block_sparse_moe.experts.{expert}.{name}.weight");
                put(&part("w1"), &[ffn_dim, dim]);
                put(&part("w3"), &[ffn_dim, dim]);
                put(&part("w2"), &[dim, ffn_dim]);
            }
        }
        all.push(("model.norm.weight".into(), vec![dim]));
        if !self.tied {
            all.push(("lm_head.weight".into(), vec![self.vocab, dim]));
        }
        all
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "model_type": self.model_type,
            "hidden_act": self.activation,
            "hidden_size": self.dim,
            "intermediate_size": self.ffn_dim,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": [2, 3],
        });
        if self.n_experts > 0 {
            config["num_local_experts"] = self.n_experts.into();
            config["num_experts_per_tok"] = 2.into();
        }
        config
    }

    /// Writes the model as a folder with f32 weights.
    pub fn write(&self, folder: &Path) -> PathBuf {
        self.write_as(folder, "F32", |weight| weight.to_le_bytes().to_vec())
    }

    /// Writes the model as a folder with weights of another type.
    pub fn write_as(&self, folder: &Path, dtype: &str, bytes: impl Fn(f32) -> Vec<u8>) -> PathBuf {
        let folder = folder.join("model");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), self.config().to_string()).unwrap();
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape) in self.tensors() {
            let (start, cols) = (data.len(), shape[shape.len() - 1]);
            for index in 0..shape.iter().product::<usize>() {
                data.extend(bytes((self.weight)(&name, index / cols, index % cols)));
            }
            let offsets = [start, data.len()];
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
            header.insert(name, entry);
        }
        let header = Value::Object(header).to_string();
        let bytes = [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &data,
        ]
        .concat();
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
        folder
    }
}

/// Where the half floats of a stored block are.
fn halves(ty: SourceType) -> &'static [usize] {
    match ty {
        SourceType::Q4_1 | SourceType::Q5_1 | SourceType::Q4K | SourceType::Q5K => &[0, 2],
        SourceType::Q2K => &[80, 82],
        SourceType::Q3K => &[108],
        SourceType::Q6K => &[208],
        SourceType::F32 | SourceType::F16 | SourceType::Bf16 => &[],
        _ => &[0],
    }
}

/// Random stored weights: any codes, modest scales.
fn stored(ty: SourceType, weights: usize, state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u32
    };
    let unit = |bits: u32| bits as i32 as f32 / 2_147_483_648.0;
    if ty.block_len() == 1 {
        let values = (0..weights).map(|_| unit(next()));
        return match ty {
            SourceType::F32 => values.flat_map(f32::to_le_bytes).collect(),
            SourceType::F16 => values
                .flat_map(|x| half::f16::from_f32(x).to_le_bytes())
                .collect(),
            _ => values
                .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
                .collect(),
        };
    }
    let count = weights / ty.block_len() * ty.block_bytes();
    let mut bytes: Vec<u8> = (0..count).map(|_| next() as u8).collect();
    if ty == SourceType::Q8_0 {
        bytes
            .iter_mut()
            .filter(|byte| **byte == 0x80)
            .for_each(|byte| *byte = 0x81);
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for at in halves(ty) {
            let value = half::f16::from_f32(0.01 + 0.01 * unit(next()).abs());
            block[*at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Numbers of ggml's types.
fn ggml(ty: SourceType) -> u32 {
    (0..64)
        .find(|id| SourceType::from_ggml(*id) == Some(ty))
        .unwrap()
}

/// Writes a GGUF file of one layer, dim 256, ffn_dim 512, all of whose matrices are of type `ty`.
pub fn write_gguf(path: &Path, ty: SourceType) {
    const DIM: usize = 256;
    let text = |value: &str| [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat();
    let counts = [
        ("context_length", 64),
        ("embedding_length", DIM as u32),
        ("block_count", 1),
        ("feed_forward_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    let mut keys = [
        text("general.architecture"),
        8u32.to_le_bytes().to_vec(),
        text("llama"),
    ]
    .concat();
    for (key, value) in counts {
        keys.extend(text(&format!("llama.{key}")));
        keys.extend([4u32.to_le_bytes(), value.to_le_bytes()].concat());
    }
    keys.extend(text("llama.attention.layer_norm_rms_epsilon"));
    keys.extend([6u32.to_le_bytes(), 1e-5f32.to_le_bytes()].concat());
    let tensors = [
        ("token_embd.weight", vec![DIM, 40]),
        ("output_norm.weight", vec![DIM]),
        ("blk.0.attn_norm.weight", vec![DIM]),
        ("blk.0.attn_q.weight", vec![DIM, 256]),
        ("blk.0.attn_k.weight", vec![DIM, 128]),
        ("blk.0.attn_v.weight", vec![DIM, 128]),
        ("blk.0.attn_output.weight", vec![256, DIM]),
        ("blk.0.ffn_norm.weight", vec![DIM]),
        ("blk.0.ffn_gate.weight", vec![DIM, 512]),
        ("blk.0.ffn_up.weight", vec![DIM, 512]),
        ("blk.0.ffn_down.weight", vec![512, DIM]),
    ];
    let (mut infos, mut data, mut state) = (Vec::new(), Vec::new(), 0x1234_5678_9abc_def1u64);
    for (name, dims) in &tensors {
        let ty = if dims.len() == 1 { SourceType::F32 } else { ty };
        infos.extend(text(name));
        infos.extend((dims.len() as u32).to_le_bytes());
        dims.iter()
            .for_each(|dim| infos.extend((*dim as u64).to_le_bytes()));
        infos.extend(ggml(ty).to_le_bytes());
        infos.extend((data.len() as u64).to_le_bytes());
        data.extend(stored(ty, dims.iter().product(), &mut state));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    let (n_tensors, n_keys) = (tensors.len() as u64, counts.len() as u64 + 2);
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &n_tensors.to_le_bytes()].concat();
    file.extend([&n_keys.to_le_bytes()[..], &keys, &infos].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}
