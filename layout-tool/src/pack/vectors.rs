//! The sections that are whole in memory: f32 vectors and texts.

use tessera_runtime::format::VectorsLayout;
use tessera_runtime::shape::Shape;

use super::convert::check_weights;
use super::error::PackError;
use super::layout::Blobs;
use super::types::tensor;
use crate::source::{Model, Role};

/// Reads everything of `model` that is no matrix of weights.
///
/// # Errors
/// If it cannot be read or is not finite.
pub fn blobs(model: &Model, shape: &Shape) -> Result<Blobs, PackError> {
    let vectors = vectors(model, shape)?
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let files = model.tokenizer.as_ref();
    let tokenizer = files.map(|files| files.tokenizer_json.as_bytes().to_vec());
    let chat_template = files.and_then(|files| files.chat_template.as_deref());
    let chat_template = chat_template.filter(|text| !text.is_empty());
    Ok(Blobs {
        vectors,
        tokenizer,
        chat_template: chat_template.map(|text| text.into()),
    })
}

/// The vectors section of the image of `model`, in the order of [`VectorsLayout`].
///
/// # Errors
/// If it cannot be read or is not finite.
pub fn vectors(model: &Model, shape: &Shape) -> Result<Vec<f32>, PackError> {
    let layout = VectorsLayout::new(shape);
    let mut out = vec![0.0; layout.len()];
    out[layout.inv_freq()].copy_from_slice(&model.config.rope.inv_freq);
    let mut floats = Vec::new();
    let mut put = |role: Role, place: std::ops::Range<usize>| -> Result<(), PackError> {
        let tensor = tensor(model, role);
        tensor.read_f32(0, tensor.rows, &mut floats)?;
        check_weights(&tensor, 0, tessera_kernels::WeightType::F32, &floats)?;
        out[place].copy_from_slice(&floats);
        Ok(())
    };
    put(Role::OutputNorm, layout.output_norm())?;
    for layer in 0..shape.n_layers {
        put(Role::AttnNorm(layer), layout.attn_norm(layer))?;
        put(Role::FfnNorm(layer), layout.ffn_norm(layer))?;
        if shape.qkv_bias {
            let all = layout.qkv_bias(layer);
            let k = all.start + shape.q_dim();
            let v = k + shape.kv_dim();
            put(Role::QBias(layer), all.start..k)?;
            put(Role::KBias(layer), k..v)?;
            put(Role::VBias(layer), v..all.end)?;
        }
        if shape.qk_norm {
            let (q, k) = layout.qk_norm(layer);
            put(Role::QNorm(layer), q)?;
            put(Role::KNorm(layer), k)?;
        }
        if shape.n_experts > 0 {
            put(Role::Router(layer), layout.router(layer))?;
        }
    }
    Ok(out)
}
