//! Synthetic models with prescribed activations, as large as real ones.
//!
//! Experiments with models larger than memory need such models, and random weights are no
//! substitute: their neurons have neither hot nor cold, and no token has anything to do with the
//! one before. `synth` writes models whose every weight is chosen so that
//!
//! - a prescribed share of the neurons is active for a token, with a power law over neurons, so
//!   that a few are nearly always active and most rarely are;
//! - successive tokens share about two thirds of their active neurons;
//! - neurons are in the order of their frequency, and each section has the predictor and the
//!   statistics that follow.
//!
//! How is described in `design`, which file by file reads: `shapes` has names for sizes,
//! `random` numbers for rows, `normal` thresholds for probabilities, `window` attention,
//! `rows` weights, `predictor` and `statistics` what is measured, `image` and `gguf`
//! files. Rows are made straight as 4-bit codes and scales, each from the seed and its own place
//! alone: an image is written at the speed of the disk, in a few dozen megabytes of memory, and
//! does not depend on the number of threads.
//!
//! What such a model is good for: timing, planning, caching, exactness. What it is not: it says
//! nothing about the quality of text, and its layers are more alike than those of a real model,
//! since the residual stream changes by a few percent only from the first layer to the last. The
//! first tokens of a context are special as well: attention has few of them to average, so that
//! more neurons are active, 2.3 times as many for the very first, 1.2 times for the sixth and 1.02
//! times for the twelfth.

mod design;
mod gguf;
mod image;
mod normal;
mod predictor;
mod random;
mod report;
mod rows;
mod shapes;
mod statistics;
mod window;

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

pub use report::SynthReport;

use crate::pack::{PackError, Progress, check_target};
use crate::parallel;
use design::Design;

/// Least and largest share of active neurons that a model can be made with.
const SHARES: std::ops::RangeInclusive<f64> = 0.01..=0.5;
/// Most layers of a model.
const LAYERS_MAX: usize = 1024;

/// What to make.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthOptions {
    /// Name of the shape.
    pub shape: String,
    /// The image to be written, or a GGUF file if its name ends in `.gguf`.
    pub target: PathBuf,
    /// Where all random numbers come from.
    pub seed: u64,
    /// Share of the neurons that are active for a token; `None` for the shape's own.
    pub activation_share: Option<f64>,
    /// Layers; `None` for as many as the shape has.
    pub layers: Option<usize>,
    /// Replace a file that exists.
    pub force: bool,
    /// Threads; `None` for as many as the machine runs. The file does not depend on it.
    pub threads: Option<usize>,
}

impl SynthOptions {
    /// The defaults for this shape and file.
    pub fn new(shape: impl Into<String>, target: impl Into<PathBuf>) -> Self {
        SynthOptions {
            shape: shape.into(),
            target: target.into(),
            seed: 1,
            activation_share: None,
            layers: None,
            force: false,
            threads: None,
        }
    }
}

/// Why nothing was made.
#[derive(Debug, Clone, PartialEq)]
pub enum SynthError {
    /// No shape has this name.
    Shape {
        /// The name.
        name: String,
    },
    /// No model can have this share of active neurons.
    Share {
        /// The share.
        share: f64,
    },
    /// No model can have so many layers.
    Layers {
        /// Their number.
        layers: usize,
    },
    /// The file could not be written.
    Write(PackError),
}

impl fmt::Display for SynthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { name } => {
                write!(
                    f,
                    "no shape is called {name}, choose one of {}",
                    shape_names()
                )
            }
            Self::Share { share } => write!(
                f,
                "an activation share of {share} cannot be made, it must be from {} to {}",
                SHARES.start(),
                SHARES.end()
            ),
            Self::Layers { layers } => {
                write!(
                    f,
                    "{layers} layers cannot be made, it must be from 1 to {LAYERS_MAX}"
                )
            }
            Self::Write(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SynthError {}

impl From<PackError> for SynthError {
    fn from(error: PackError) -> Self {
        Self::Write(error)
    }
}

/// All names of shapes, for messages.
pub fn shape_names() -> String {
    shapes::SHAPES.map(|shape| shape.name).join(", ")
}

/// Makes a model. The file appears under its name when it is complete and on disk.
///
/// # Errors
/// [`SynthError`]; then there is no file, and one that existed is untouched.
pub fn synth(options: &SynthOptions, progress: Progress<'_>) -> Result<SynthReport, SynthError> {
    let start = Instant::now();
    let shape = shapes::named(&options.shape).ok_or_else(|| SynthError::Shape {
        name: options.shape.clone(),
    })?;
    let share = options.activation_share.unwrap_or(shape.share);
    if !SHARES.contains(&share) {
        return Err(SynthError::Share { share });
    }
    if let Some(layers) = options.layers.filter(|n| !(1..=LAYERS_MAX).contains(n)) {
        return Err(SynthError::Layers { layers });
    }
    check_target(None, &options.target, options.force)?;
    let threads = options.threads.unwrap_or_else(parallel::threads).max(1);
    let config = shape.config(options.layers);
    let target = &options.target;
    if target
        .extension()
        .is_some_and(|extension| extension == "gguf")
    {
        let bytes = gguf::write(&config, options.seed, target, threads, progress)?;
        return Ok(SynthReport::of_gguf(&config.name, bytes, start.elapsed()));
    }
    let design = Design::new(config, options.seed, share);
    let written = image::write(&design, shape.cluster_neurons, target, threads, progress)?;
    Ok(SynthReport::of_image(&written, share, start.elapsed()))
}
