//! Down columns: a source matrix turned so that each neuron's column is a row.
//!
//! A source stores down (dim, ffn_dim), a row for each output, and cuts its quantisation blocks
//! along the neurons. A bundle needs one neuron's column, so blocks are cut anew along the outputs:
//! weights are made floats, turned, and rounded again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tessera_kernels::{BLOCK, Loss, WeightType};

use super::convert::{Quantizer, check_weights};
use super::error::PackError;
use crate::source::{Tensor, dequantize};

/// Neurons that are turned at once; source blocks divide it.
pub const STRIP_NEURONS: usize = 256;

/// Largest relative RMS error of a layer's down columns that `--down auto` accepts, for a residual
/// stream of `dim` elements.
///
/// Measured on SmolLM2-135M (Q4_1) and Qwen2.5-Coder-1.5B (Q4_K_M), layer by layer: q4 8.2 to
/// 9.8 %, q4o 7.0 to 8.1 %, q5 4.0 to 4.6 %, q6 2.0 to 2.4 %, q8 0.5 to 0.7 %. The sources' own
/// 4-bit rounding costs about 7 %. What that does to perplexity depends on how much redundancy a
/// model has: q5 instead of q6 adds 2.2 % to the narrow one's, 0.13 % to the other's.
pub const fn down_error_max(dim: usize) -> f64 {
    if dim < 1024 { 0.025 } else { 0.045 }
}

/// Types that `--down auto` tries, the smallest first.
const CANDIDATES: [WeightType; 3] = [WeightType::Q4O, WeightType::Q5, WeightType::Q6];
/// The type that `--down auto` takes where those lose too much.
const LARGEST: WeightType = WeightType::Q8;

/// Bands of 32 outputs, at least, on which the type is chosen.
const SAMPLE_BANDS: usize = 8;

/// Root of the mean squared error, relative to that of the weights.
pub fn relative_error(loss: Loss) -> f64 {
    if loss.total == 0.0 {
        0.0
    } else {
        (loss.error / loss.total).sqrt()
    }
}

/// A stored matrix that several jobs need at about the same time: read once, then dropped.
#[derive(Debug)]
pub struct Shared {
    bytes: Mutex<Option<Arc<Vec<u8>>>>,
    users: AtomicUsize,
}

impl Shared {
    /// A matrix that will be used `users` times.
    pub fn new(users: usize) -> Self {
        Shared {
            bytes: Mutex::new(None),
            users: AtomicUsize::new(users),
        }
    }

    /// Calls `work` with the stored bytes of all of `tensor`.
    ///
    /// # Errors
    /// Those of reading and of `work`.
    pub fn with<T>(
        &self,
        tensor: &Tensor<'_>,
        work: impl FnOnce(&[u8]) -> Result<T, PackError>,
    ) -> Result<T, PackError> {
        let lock = || self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = {
            let mut held = lock();
            match &*held {
                Some(bytes) => Arc::clone(bytes),
                None => {
                    let mut bytes = Vec::new();
                    tensor.read_rows(0, tensor.rows, &mut bytes)?;
                    Arc::clone(held.insert(Arc::new(bytes)))
                }
            }
        };
        let result = work(&bytes);
        drop(bytes);
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            *lock() = None;
        }
        result
    }
}

/// Writes columns `start..start + count` of the stored matrix (rows, cols) of `tensor` to `out`
/// (count, rows). `start` and `start + count` are ends of blocks.
///
/// # Errors
/// If a weight is not finite, or too large for type `ty`.
pub fn turn(
    tensor: &Tensor<'_>,
    stored: &[u8],
    (start, count): (usize, usize),
    ty: WeightType,
    out: &mut Vec<f32>,
) -> Result<(), PackError> {
    /// Rows whose floats stay in the first cache while they are turned.
    const ROWS: usize = 16;
    let dim = tensor.rows;
    let bytes = |cols: usize| tensor.ty.row_bytes(cols).unwrap_or(0);
    let (row_bytes, at, piece) = (tensor.row_bytes(), bytes(start), bytes(count));
    let mut floats = vec![0.0; ROWS * count];
    out.clear();
    out.resize(count * dim, 0.0);
    for first in (0..dim).step_by(ROWS) {
        let rows = ROWS.min(dim - first);
        for row in 0..rows {
            let stored = &stored[(first + row) * row_bytes + at..][..piece];
            let floats = &mut floats[row * count..][..count];
            dequantize(tensor.ty, stored, floats);
            check_weights(tensor, first + row, ty, floats)?;
        }
        for neuron in 0..count {
            let out = &mut out[neuron * dim + first..][..rows];
            for (row, out) in out.iter_mut().enumerate() {
                *out = floats[row * count + neuron];
            }
        }
    }
    Ok(())
}

/// The smallest type whose error stays within [`down_error_max`] on a sample of the matrix.
///
/// The sample is some bands of 32 outputs, evenly spread, over all neurons. A block of the image is
/// one neuron's share of a band, so errors of the sample are errors of the image.
///
/// # Errors
/// If the matrix cannot be read.
pub fn choose_type(tensor: &Tensor<'_>) -> Result<WeightType, PackError> {
    for ty in CANDIDATES {
        if relative_error(sample_loss(tensor, ty)?) <= down_error_max(tensor.rows) {
            return Ok(ty);
        }
    }
    Ok(LARGEST)
}

/// The loss of type `ty` on the sample, or on the part of it that shows that it is too large.
fn sample_loss(tensor: &Tensor<'_>, ty: WeightType) -> Result<Loss, PackError> {
    let bands = tensor.rows / BLOCK;
    let step = (bands / SAMPLE_BANDS).max(1);
    let mut loss = Loss::default();
    let (mut stored, mut floats) = (Vec::new(), Vec::new());
    let mut blocks = vec![0.0; BLOCK * tensor.cols];
    let mut codes = vec![0; ty.code_bytes(BLOCK) * tensor.cols];
    let mut scales = vec![0; ty.scale_bytes(BLOCK) * tensor.cols];
    let mut quantizer = Quantizer::default();
    for first in (0..bands * BLOCK).step_by(step * BLOCK) {
        tensor.read_rows(first, BLOCK, &mut stored)?;
        floats.resize(BLOCK * tensor.cols, 0.0);
        dequantize(tensor.ty, &stored, &mut floats);
        for (row, floats) in floats.chunks_exact(tensor.cols).enumerate() {
            check_weights(tensor, first + row, ty, floats)?;
        }
        for (neuron, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
            for (output, weight) in block.iter_mut().enumerate() {
                *weight = floats[output * tensor.cols + neuron];
            }
        }
        loss = loss + quantizer.rows(ty, BLOCK, &blocks, &mut codes, &mut scales);
        if relative_error(loss) > 2.0 * down_error_max(tensor.rows) {
            break;
        }
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Model, Role, open};

    /// A model of one layer whose down matrix (64, 64) has weights `weight(output, neuron)`.
    fn model(folder: &std::path::Path, weight: impl Fn(usize, usize) -> f32) -> Model {
        let (dim, ffn_dim) = (64, 64);
        let config = serde_json::json!({
            "model_type": "llama", "hidden_act": "silu", "hidden_size": dim,
            "intermediate_size": ffn_dim, "num_hidden_layers": 1, "num_attention_heads": 1,
            "num_key_value_heads": 1, "vocab_size": 2, "max_position_embeddings": 8,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        });
        std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![2, dim])];
        shapes.push(("model.norm.weight".into(), vec![dim]));
        for name in ["input_layernorm", "post_attention_layernorm"] {
            shapes.push((layer(name), vec![dim]));
        }
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            shapes.push((layer(&format!("self_attn.{name}")), vec![dim, dim]));
        }
        for name in ["gate_proj", "up_proj", "down_proj"] {
            shapes.push((layer(&format!("mlp.{name}")), vec![dim, dim]));
        }
        let mut header = serde_json::Map::new();
        let mut data: Vec<u8> = Vec::new();
        for (name, shape) in shapes {
            let start = data.len();
            for index in 0..shape.iter().product::<usize>() {
                let down = name.contains("down_proj");
                let value = if down {
                    weight(index / ffn_dim, index % ffn_dim)
                } else {
                    0.5
                };
                data.extend(value.to_le_bytes());
            }
            let offsets = [start, data.len()];
            let entry =
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
            header.insert(name, entry);
        }
        let header = serde_json::Value::Object(header).to_string();
        let bytes = [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &data,
        ]
        .concat();
        std::fs::write(folder.join("model.safetensors"), bytes).expect("written");
        open(folder).expect("a model")
    }

    #[test]
    fn columns_become_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let model = model(folder.path(), |output, neuron| {
            (output * 1000 + neuron) as f32
        });
        let down = model.tensor(Role::Down(0, 0)).expect("a tensor");
        let shared = Shared::new(2);
        let mut out = Vec::new();
        for (start, count) in [(0, 48), (48, 16)] {
            let turned = shared.with(&down, |stored| {
                turn(&down, stored, (start, count), WeightType::F32, &mut out)
            });
            assert_eq!(turned, Ok(()));
            assert_eq!(out.len(), count * 64);
            for (index, weight) in out.iter().enumerate() {
                assert_eq!(*weight, (index % 64 * 1000 + start + index / 64) as f32);
            }
        }
        assert!(
            shared.bytes.lock().expect("not poisoned").is_none(),
            "kept after the last use"
        );
    }

    #[test]
    fn the_smallest_type_that_loses_little_is_taken() {
        let choose = |weight: &dyn Fn(usize, usize) -> f32| {
            let folder = tempfile::tempdir().expect("a folder");
            let model = model(folder.path(), weight);
            choose_type(&model.tensor(Role::Down(0, 0)).expect("a tensor"))
        };
        assert_eq!(choose(&|_, _| 0.0), Ok(WeightType::Q4O));
        assert_eq!(
            choose(&|output, _| (output % 16) as f32),
            Ok(WeightType::Q4O)
        );
        assert_eq!(
            choose(&|output, _| (output % 61) as f32 - 30.0),
            Ok(WeightType::Q6)
        );
        // One large weight a block leaves the others to two codes.
        let spiky = |output: usize, neuron: usize| match output % 32 {
            0 => 4.0,
            _ => ((output * 7 + neuron * 3) % 5) as f32 * 0.1 - 0.2,
        };
        assert_eq!(choose(&spiky), Ok(WeightType::Q8));
        let error = choose(&|output, _| if output == 3 { f32::NAN } else { 0.0 }).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("down_proj.weight holds a weight that is no finite")
        );
    }
}
