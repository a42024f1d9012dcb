//! A model of the same shape as GGUF, for timing other engines: plain random Q4_0 weights.
//!
//! It is no copy of the image: its gates are not sparse and its activation is SiLU, so it says how
//! fast another engine reads and multiplies the same number of bytes, and nothing else.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use half::f16;
use tessera_kernels::BLOCK;

use super::random::{Random, Role};
use crate::pack::{Output, PackError, Progress};
use crate::parallel;
use crate::source::Config;

/// Tensors begin at multiples of this.
const ALIGN_BYTES: u64 = 32;
/// A block of Q4_0: f16 scale, 32 codes.
const BLOCK_BYTES: usize = 18;
/// Blocks that a job makes.
const JOB_BLOCKS: u64 = 1 << 16;
/// Numbers of ggml's types.
const F32: u32 = 0;
const Q4_0: u32 = 2;
/// Numbers of GGUF's value types.
const U32_VALUE: u32 = 4;
const F32_VALUE: u32 = 6;
const TEXT_VALUE: u32 = 8;
/// Deviation of the weights.
const DEVIATION: f64 = 0.02;

/// One tensor.
struct Tensor {
    name: String,
    /// Columns first.
    dims: Vec<usize>,
    ty: u32,
    /// From the start of the data.
    offset: u64,
}

impl Tensor {
    fn bytes(&self) -> u64 {
        let weights: u64 = self.dims.iter().map(|dim| *dim as u64).product();
        match self.ty {
            F32 => weights * 4,
            _ => weights / BLOCK as u64 * BLOCK_BYTES as u64,
        }
    }
}

/// All tensors in the order of the file.
fn tensors(config: &Config) -> Vec<Tensor> {
    let (dim, ffn, vocab) = (config.dim, config.ffn_dim, config.vocab_size);
    let (q, kv) = (
        config.n_heads * config.head_dim,
        config.n_kv_heads * config.head_dim,
    );
    let mut all: Vec<(String, Vec<usize>, u32)> =
        vec![("token_embd.weight".into(), vec![dim, vocab], Q4_0)];
    for layer in 0..config.n_layers {
        let mut put = |name: &str, dims: &[usize], ty| {
            all.push((format!("blk.{layer}.{name}.weight"), dims.to_vec(), ty));
        };
        put("attn_norm", &[dim], F32);
        put("attn_q", &[dim, q], Q4_0);
        put("attn_k", &[dim, kv], Q4_0);
        put("attn_v", &[dim, kv], Q4_0);
        put("attn_output", &[q, dim], Q4_0);
        put("ffn_norm", &[dim], F32);
        if config.n_experts == 0 {
            put("ffn_gate", &[dim, ffn], Q4_0);
            put("ffn_up", &[dim, ffn], Q4_0);
            put("ffn_down", &[ffn, dim], Q4_0);
        } else {
            let experts = config.n_experts;
            put("ffn_gate_inp", &[dim, experts], F32);
            put("ffn_gate_exps", &[dim, ffn, experts], Q4_0);
            put("ffn_up_exps", &[dim, ffn, experts], Q4_0);
            put("ffn_down_exps", &[ffn, dim, experts], Q4_0);
        }
    }
    all.push(("output_norm.weight".into(), vec![dim], F32));
    all.push(("output.weight".into(), vec![dim, vocab], Q4_0));
    let mut end = 0;
    all.into_iter()
        .map(|(name, dims, ty)| {
            let offset = end;
            let tensor = Tensor {
                name,
                dims,
                ty,
                offset,
            };
            end = (offset + tensor.bytes()).next_multiple_of(ALIGN_BYTES);
            tensor
        })
        .collect()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Magic, metadata and list of tensors, padded.
fn header(config: &Config, tensors: &[Tensor]) -> Vec<u8> {
    let count = |value: usize| (U32_VALUE, (value as u32).to_le_bytes().to_vec());
    let float = |value: f32| (F32_VALUE, value.to_le_bytes().to_vec());
    let text = |value: &str| {
        let mut bytes = Vec::new();
        put_text(&mut bytes, value);
        (TEXT_VALUE, bytes)
    };
    let mut pairs = vec![
        ("general.architecture", text("llama")),
        ("general.name", text(&config.name)),
        ("general.file_type", count(2)),
        ("general.alignment", count(ALIGN_BYTES as usize)),
        ("llama.block_count", count(config.n_layers)),
        ("llama.context_length", count(config.seq_len)),
        ("llama.embedding_length", count(config.dim)),
        ("llama.feed_forward_length", count(config.ffn_dim)),
        ("llama.attention.head_count", count(config.n_heads)),
        ("llama.attention.head_count_kv", count(config.n_kv_heads)),
        (
            "llama.attention.layer_norm_rms_epsilon",
            float(config.rms_eps),
        ),
        ("llama.rope.dimension_count", count(config.head_dim)),
        (
            "llama.rope.freq_base",
            float(super::shapes::ROPE_BASE as f32),
        ),
        ("llama.vocab_size", count(config.vocab_size)),
        ("tokenizer.ggml.model", text("none")),
    ];
    if config.dim != config.n_heads * config.head_dim {
        pairs.push(("llama.attention.key_length", count(config.head_dim)));
        pairs.push(("llama.attention.value_length", count(config.head_dim)));
    }
    if config.n_experts > 0 {
        pairs.push(("llama.expert_count", count(config.n_experts)));
        pairs.push(("llama.expert_used_count", count(config.n_experts_used)));
    }
    let mut out = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, (ty, value)) in pairs {
        put_text(&mut out, key);
        out.extend(ty.to_le_bytes());
        out.extend(value);
    }
    for tensor in tensors {
        put_text(&mut out, &tensor.name);
        out.extend((tensor.dims.len() as u32).to_le_bytes());
        for dim in &tensor.dims {
            out.extend((*dim as u64).to_le_bytes());
        }
        out.extend(tensor.ty.to_le_bytes());
        out.extend(tensor.offset.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(ALIGN_BYTES as usize), 0);
    out
}

/// Blocks of tensor `index` from block `first` on.
fn fill_blocks(seed: u64, index: usize, first: u64, out: &mut [u8]) {
    let mut random = Random::new(seed, Role::Tensor, (index, 0), first as usize);
    random.fill(out);
    let scale = DEVIATION / super::design::CODE_SQUARE.sqrt();
    let scales: [[u8; 2]; 256] =
        std::array::from_fn(|i| f16::from_f64(scale * (0.5 + i as f64 / 255.0)).to_le_bytes());
    for block in out.chunks_exact_mut(BLOCK_BYTES) {
        let scale = scales[block[0] as usize];
        block[..2].copy_from_slice(&scale);
    }
}

fn floats(seed: u64, index: usize, tensor: &Tensor) -> Vec<u8> {
    let mut random = Random::new(seed, Role::Tensor, (index, 0), 0);
    let count = tensor.dims.iter().product();
    let value = |_| match tensor.dims.len() {
        1 => 1.0f32,
        _ => DEVIATION as f32 * random.normal(),
    };
    (0..count).map(value).flat_map(f32::to_le_bytes).collect()
}

/// Writes the file; returns its size.
///
/// # Errors
/// [`PackError`] if it cannot be written.
pub fn write(
    config: &Config,
    seed: u64,
    target: &Path,
    threads: usize,
    progress: Progress<'_>,
) -> Result<u64, PackError> {
    let tensors = tensors(config);
    let header = header(config, &tensors);
    let start = header.len() as u64;
    let end = tensors.last().map_or(0, |last| {
        (last.offset + last.bytes()).next_multiple_of(ALIGN_BYTES)
    });
    let all = start + end;
    let output = Output::create(target, all)?;
    output.write_at(0, &header)?;
    let mut jobs = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        let step = if tensor.ty == F32 {
            tensor.bytes()
        } else {
            JOB_BLOCKS * BLOCK_BYTES as u64
        };
        let starts = (0..tensor.bytes()).step_by(step as usize);
        jobs.extend(starts.map(|at| (index, at, step.min(tensor.bytes() - at))));
    }
    let done = AtomicU64::new(0);
    output.flush_behind(|flusher| {
        parallel::in_order(threads, jobs.len(), Vec::new, |out: &mut Vec<u8>, job| {
            let (index, at, bytes) = jobs[job];
            let tensor = &tensors[index];
            if tensor.ty == F32 {
                *out = floats(seed, index, tensor);
            } else {
                out.resize(bytes as usize, 0);
                fill_blocks(seed, index, at / BLOCK_BYTES as u64, out);
            }
            output.write_at(start + tensor.offset + at, out)?;
            flusher.written(bytes);
            let before = done.fetch_add(bytes, Ordering::Relaxed);
            progress(before + bytes, all);
            Ok::<(), PackError>(())
        })
    })?;
    progress(all, all);
    output.finish()?;
    Ok(all)
}
