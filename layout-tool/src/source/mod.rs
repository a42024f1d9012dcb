//! Reading models: GGUF files and Hugging Face folders.
//!
//! [`open`] checks everything about a model but its weights: that its architecture is known, that
//! each tensor the architecture needs is there in the right shape and inside its file, and that no
//! other is. What cannot be computed exactly is refused by name, never guessed. Weights are then
//! read row by row with [`Tensor::read_rows`]; no file is mapped or held in memory.

#![forbid(unsafe_code)]

mod config;
mod dequantize;
mod error;
mod file;
pub mod gguf;
pub mod hf;
mod index;
mod rope;
mod super_block;
mod tokenizer;
mod types;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use file::SourceFile;
use index::Placed;

pub use config::Config;
pub use dequantize::dequantize;
pub use error::SourceError;
pub use index::{Role, Stored};
pub use rope::Rope;
pub use tokenizer::{TokenizerError, TokenizerFiles};
pub use types::SourceType;

/// What to read of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Take the tokenizer over; without, a model whose tokenizer is not supported can be used by
    /// token ids.
    pub tokenizer: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { tokenizer: true }
    }
}

/// A model to be packed.
#[derive(Debug)]
pub struct Model {
    /// What it is.
    pub config: Config,
    /// Its tokenizer, unless it has none.
    pub tokenizer: Option<TokenizerFiles>,
    /// What the user should know, one sentence each.
    pub notes: Vec<String>,
    files: Vec<SourceFile>,
    placed: HashMap<Role, Placed>,
}

/// Opens a `.gguf` file, the first file of a split set, or a folder.
///
/// # Errors
/// Whatever is wrong with the model, in one sentence.
pub fn open(path: &Path) -> Result<Model, SourceError> {
    open_with(path, Options::default())
}

/// The same with a choice of what to read.
///
/// # Errors
/// Whatever is wrong with the model, in one sentence.
pub fn open_with(path: &Path, options: Options) -> Result<Model, SourceError> {
    let metadata = std::fs::metadata(path).map_err(|error| SourceError::io(path, &error))?;
    if metadata.is_dir() {
        return hf::open(path, options);
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Err(SourceError::NotAModel {
            path: path.to_owned(),
            found: "a safetensors file alone does not say what model it is",
        }),
        _ => gguf::open(path, options),
    }
}

impl Model {
    /// The tensor with this role; `None` for roles that the model does not have.
    pub fn tensor(&self, role: Role) -> Option<Tensor<'_>> {
        let placed = self.placed.get(&role)?;
        let Placed { ty, rows, cols, .. } = *placed;
        Some(Tensor {
            ty,
            rows,
            cols,
            placed,
            file: &self.files[placed.file],
        })
    }
}

/// A matrix (rows, cols) = (outputs, inputs), one stored row after the other.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'m> {
    /// How weights are stored.
    pub ty: SourceType,
    /// Outputs; 1 for norms and biases.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    placed: &'m Placed,
    file: &'m SourceFile,
}

impl Tensor<'_> {
    /// Its name in the file.
    pub fn name(&self) -> &str {
        &self.placed.name
    }

    /// Bytes of one stored row.
    pub fn row_bytes(&self) -> usize {
        self.ty
            .row_bytes(self.cols)
            .expect("checked when the model was opened")
    }

    /// Replaces `out` by rows `start..start + count` as stored.
    ///
    /// Where the file has rows interleaved for its rope they are put in the order of Hugging Face
    /// models, so that pairs always are `i` and `i + head_dim / 2`.
    ///
    /// # Errors
    /// If the file can no longer be read.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn read_rows(
        &self,
        start: usize,
        count: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), SourceError> {
        assert!(
            start <= self.rows && count <= self.rows - start,
            "rows {start} + {count}"
        );
        let row_bytes = self.row_bytes();
        out.clear();
        out.resize(count * row_bytes, 0);
        match self.placed.interleaved {
            None => self.file.read_at(self.offset(start * row_bytes), out),
            // A bias is one row of as many elements as its matrix has rows.
            Some(head_dim) if self.rows == 1 => {
                let element_bytes = row_bytes / self.cols;
                let elements = count * self.cols;
                self.read_interleaved(head_dim, 0, elements, element_bytes, out)
            }
            Some(head_dim) => self.read_interleaved(head_dim, start, count, row_bytes, out),
        }
    }

    /// Replaces `out` by rows `start..start + count` as floats.
    ///
    /// # Errors
    /// If the file can no longer be read.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn read_f32(
        &self,
        start: usize,
        count: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), SourceError> {
        let mut bytes = Vec::new();
        self.read_rows(start, count, &mut bytes)?;
        out.clear();
        out.resize(count * self.cols, 0.0);
        dequantize(self.ty, &bytes, out);
        Ok(())
    }

    fn offset(&self, bytes: usize) -> u64 {
        self.placed.offset + bytes as u64
    }

    /// Units `start..start + count` of heads whose halves alternate in the file.
    ///
    /// Unit `i` of the first half of a head stands at `2 i` of it, of the second half at `2 i + 1`.
    fn read_interleaved(
        &self,
        head_dim: usize,
        start: usize,
        count: usize,
        unit_bytes: usize,
        out: &mut [u8],
    ) -> Result<(), SourceError> {
        let half = head_dim / 2;
        let mut head = vec![0; head_dim * unit_bytes];
        let mut loaded = None;
        for (unit, out) in (start..start + count).zip(out.chunks_exact_mut(unit_bytes)) {
            let (number, place) = (unit / head_dim, unit % head_dim);
            if loaded != Some(number) {
                self.file
                    .read_at(self.offset(number * head.len()), &mut head)?;
                loaded = Some(number);
            }
            let stored = place % half * 2 + place / half;
            out.copy_from_slice(&head[stored * unit_bytes..][..unit_bytes]);
        }
        Ok(())
    }
}

/// Reads the first row of every tensor. For fuzzing.
fn check_tensors(model: &Model) {
    let mut row = Vec::new();
    for role in model.placed.keys() {
        if let Some(tensor) = model.tensor(*role) {
            // A tensor of the file's whole size may be one row.
            let _ = tensor.read_f32(0, 1, &mut row);
        }
    }
}

/// Reads the first bytes of a tensor. For fuzzing.
fn check_stored(file: &SourceFile, stored: &Stored) {
    let mut bytes = vec![0; usize::try_from(stored.size_bytes).map_or(0, |size| size.min(64))];
    file.read_at(stored.offset, &mut bytes)
        .expect("the header was checked");
}
