//! Synthetic models: their bytes, their activations, and what is refused.

mod activations;
mod command;
mod files;
#[path = "../../../runtime/tests/support/launch.rs"]
mod launch;
mod reference;

use std::path::Path;

use layout_tool::synth::{SynthOptions, SynthReport, synth};

/// Makes a model without progress.
pub fn made(options: &SynthOptions) -> SynthReport {
    synth(options, &|_, _| {}).unwrap()
}

/// An image of a shape, as bytes.
pub fn image(folder: &Path, shape: &str) -> Vec<u8> {
    let path = folder.join(shape);
    made(&SynthOptions::new(shape, &path));
    std::fs::read(path).unwrap()
}
