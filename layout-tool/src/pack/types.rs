//! Which weight type each matrix of an image gets.

use tessera_kernels::WeightType;

use super::convert::check_width;
use super::down::choose_type;
use super::error::PackError;
use super::options::{PackOptions, Weights};
use crate::parallel::in_order;
use crate::source::{Model, Role, SourceType, Tensor};

/// Weight types of all matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Types {
    /// Of the embedding, where it is a matrix of its own.
    pub embedding: WeightType,
    /// Of the lm_head.
    pub lm_head: WeightType,
    /// Of q, k, v and o of each layer.
    pub attention: Vec<[WeightType; 4]>,
    /// Of gate, up and down of each layer's experts, layer by layer.
    pub ffn: Vec<[WeightType; 3]>,
}

/// The type of a matrix whose weights are stored as `from`.
pub const fn weight_type(from: SourceType, weights: Weights) -> WeightType {
    use SourceType as S;
    match weights {
        Weights::Auto => match from {
            S::Q4_0 => WeightType::Q4,
            S::Q4K => WeightType::Q4K,
            S::Q4_1 | S::Q2K | S::Q3K => WeightType::Q4O,
            S::Q5_0 => WeightType::Q5,
            S::Q5_1 | S::Q5K | S::Q6K | S::Iq4Nl => WeightType::Q6,
            S::Q8_0 | S::F16 | S::Bf16 | S::F32 => WeightType::Q8,
        },
        Weights::Q4 => match from {
            S::Q4K => WeightType::Q4K,
            S::Q4_1 | S::Q2K => WeightType::Q4O,
            _ => WeightType::Q4,
        },
        Weights::Q4o => WeightType::Q4O,
        Weights::Q8 => WeightType::Q8,
        Weights::F16 => WeightType::F16,
        Weights::F32 => WeightType::F32,
    }
}

/// The tensor with a role that every checked model has.
pub fn tensor(model: &Model, role: Role) -> Tensor<'_> {
    model
        .tensor(role)
        .unwrap_or_else(|| panic!("{role:?} was checked when the model was opened"))
}

/// The tensor that becomes the lm_head.
pub fn lm_head(model: &Model) -> Tensor<'_> {
    let role = if model.config.tied_embeddings {
        Role::Embedding
    } else {
        Role::LmHead
    };
    tensor(model, role)
}

/// q, k, v and o of a layer.
pub fn attention(model: &Model, layer: usize) -> [Tensor<'_>; 4] {
    [
        Role::Q(layer),
        Role::K(layer),
        Role::V(layer),
        Role::O(layer),
    ]
    .map(|role| tensor(model, role))
}

/// Gate, up and down of a layer's expert.
pub fn ffn(model: &Model, layer: usize, expert: usize) -> [Tensor<'_>; 3] {
    [
        Role::Gate(layer, expert),
        Role::Up(layer, expert),
        Role::Down(layer, expert),
    ]
    .map(|role| tensor(model, role))
}

/// Chooses all types, and refuses widths that they cannot hold.
///
/// # Errors
/// [`PackError::Width`], and what reading the sample of down columns may meet.
pub fn choose(model: &Model, options: &PackOptions, threads: usize) -> Result<Types, PackError> {
    let config = &model.config;
    let plain = |tensor: &Tensor<'_>| -> Result<WeightType, PackError> {
        let ty = weight_type(tensor.ty, options.weights);
        check_width(tensor, ty, tensor.cols)?;
        Ok(ty)
    };
    let head = lm_head(model);
    let lm_head = options.lm_head.weight_type();
    let lm_head = lm_head.unwrap_or(head_type(head.ty, options.weights));
    check_width(&head, lm_head, head.cols)?;
    let embedding = if config.tied_embeddings {
        lm_head
    } else {
        plain(&tensor(model, Role::Embedding))?
    };
    let mut attention_types = Vec::with_capacity(config.n_layers);
    for layer in 0..config.n_layers {
        let [q, k, v, o] = attention(model, layer);
        attention_types.push([plain(&q)?, plain(&k)?, plain(&v)?, plain(&o)?]);
    }
    let n_ffns = config.n_experts.max(1);
    // One at a time a thread: each holds a band of floats.
    let ffn = in_order(
        threads,
        config.n_layers * n_ffns,
        || (),
        |(), index| {
            let [gate, up, down] = ffn(model, index / n_ffns, index % n_ffns);
            let ty = down_type(&down, options)?;
            check_width(&down, ty, down.rows)?;
            Ok::<_, PackError>([plain(&gate)?, plain(&up)?, ty])
        },
    )?;
    Ok(Types {
        embedding,
        lm_head,
        attention: attention_types,
        ffn,
    })
}

/// The type of the lm_head. Four bits are too few for it: of the 4-bit packings of SmolLM2-135M the
/// one with a wider lm_head has a perplexity of 34.4 instead of 37.4.
fn head_type(from: SourceType, weights: Weights) -> WeightType {
    match weights {
        Weights::Q4 | Weights::Q4o => WeightType::Q6,
        weights => weight_type(from, weights),
    }
}

fn down_type(down: &Tensor<'_>, options: &PackOptions) -> Result<WeightType, PackError> {
    if let Some(ty) = options.down.weight_type() {
        return Ok(ty);
    }
    match options.weights {
        Weights::Auto => {
            check_width(down, WeightType::Q8, down.rows)?;
            choose_type(down)
        }
        Weights::Q4 => Ok(WeightType::Q4O),
        weights => Ok(weight_type(down.ty, weights)),
    }
}
