//! The commands.

pub mod bench;
pub mod chat;
pub mod logits;
pub mod perplexity;
pub mod plan;
pub mod probe;
pub mod run;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::engine::{EngineOptions, EngineReport, LinuxSession, OpenImage, start};

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
