//! The commands.

pub mod bench;
pub mod chat;
pub mod logits;
pub mod perplexity;
pub mod plan;
pub mod probe;
pub mod run;

use std::path::Path;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tessera_runtime::SessionError;

use crate::engine::{EngineOptions, EngineReport, LinuxSession, OpenImage, start};

/// True for `-`, where a file is asked for.
fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Names the image in errors of its weights, which know their place in it and not its name.
pub fn naming<T>(image: &Path, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error.downcast_ref() {
        Some(SessionError::Weights(_)) => error.context(image.display().to_string()),
        _ => error,
    })
}

/// Starts a session and loads its weights, with a progress bar.
pub fn start_and_load(
    model: &OpenImage,
    options: &EngineOptions,
) -> Result<(LinuxSession, EngineReport)> {
    let (mut session, report) = start(model, options)?;
    let bar = ProgressBar::new(0);
    let style = "loading {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(style)?);
    session
        .load(&mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        })
        .with_context(|| model.path.display().to_string())?;
    bar.finish_and_clear();
    Ok((session, report))
}
