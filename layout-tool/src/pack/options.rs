//! What the caller of the packer chooses.

use std::path::PathBuf;

use clap::ValueEnum;
use tessera_kernels::WeightType;

/// How the weights of all matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Weights {
    /// What loses least at about the source's size: 4-bit types stay 4-bit without loss, 5-bit
    /// types become q5 or q6, 6-bit types q6, 8-bit and float types q8.
    #[default]
    Auto,
    /// Four bits from any source: q4k or q4o where the source has minima, else q4. The lm_head gets
    /// six.
    Q4,
    /// The same with scale and minimum always, which loses less than q4.
    Q4o,
    /// Eight bits from any source.
    Q8,
    /// Half floats.
    F16,
    /// Floats, and keys and values in f32 too: the reference.
    F32,
}

/// How the weights of one matrix are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Choice {
    /// What follows from `--weights`.
    #[default]
    Auto,
    /// 4 bits around 8, one scale for 32 weights: 4.5 bits a weight.
    Q4,
    /// 4 bits with scale and minimum: 5 bits a weight.
    Q4o,
    /// 4 bits with scale and minimum in super-blocks of 256: 4.5 bits a weight.
    Q4k,
    /// 5 bits around 16: 5.5 bits a weight.
    Q5,
    /// 6 bits around 32: 6.5 bits a weight.
    Q6,
    /// 8 bits: 8.5 bits a weight.
    Q8,
    /// Half floats.
    F16,
    /// Floats.
    F32,
}

impl Choice {
    /// The type, unless it is left open.
    pub const fn weight_type(self) -> Option<WeightType> {
        match self {
            Self::Auto => None,
            Self::Q4 => Some(WeightType::Q4),
            Self::Q4o => Some(WeightType::Q4O),
            Self::Q4k => Some(WeightType::Q4K),
            Self::Q5 => Some(WeightType::Q5),
            Self::Q6 => Some(WeightType::Q6),
            Self::Q8 => Some(WeightType::Q8),
            Self::F16 => Some(WeightType::F16),
            Self::F32 => Some(WeightType::F32),
        }
    }
}

/// What to pack, where to, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackOptions {
    /// A `.gguf` file (the first of a split set) or a Hugging Face folder.
    pub source: PathBuf,
    /// The image to be written.
    pub target: PathBuf,
    /// Types of all weights.
    pub weights: Weights,
    /// Type of the down columns.
    pub down: Choice,
    /// Type of the output matrix, and of the embedding where the two are one.
    pub lm_head: Choice,
    /// Neurons of a bundle (1, 2, 4, 8, 16 or 32); `None` to let the packer decide.
    pub bundle_neurons: Option<usize>,
    /// Replace an image that exists.
    pub force: bool,
    /// Take the tokenizer over; without, the image works on token ids.
    pub tokenizer: bool,
    /// Threads; `None` for as many as the machine runs. The image does not depend on it.
    pub threads: Option<usize>,
}

impl PackOptions {
    /// The defaults for these files.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Self {
        PackOptions {
            source: source.into(),
            target: target.into(),
            weights: Weights::Auto,
            down: Choice::Auto,
            lm_head: Choice::Auto,
            bundle_neurons: None,
            force: false,
            tokenizer: true,
            threads: None,
        }
    }
}
