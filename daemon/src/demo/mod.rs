//! The demonstration: `tessera` without arguments.
//!
//! Fetches a small real model, packs it, and lets it answer a question within less than half of
//! the memory that its file takes.

mod fetch;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use layout_tool::pack::{PackOptions, pack};

use crate::commands::chat::Conversation;
use crate::engine::{EngineOptions, OpenImage};
use crate::options::GenerateArgs;

const QUESTION: &str = "What is the capital of France, and what is it known for?";
/// Below half of the model file's 98,362,432 bytes.
const MEMORY_BYTES: u64 = 46 << 20;
const CONTEXT: usize = 512;
const TOKENS: usize = 120;

/// Runs the demonstration.
pub fn run() -> Result<()> {
    let cache = cache_folder()?;
    let model = fetch::smollm2(&cache)?;
    let image = pack_once(&model, &cache)?;
    let file_bytes = fetch::FILE_BYTES;
    eprintln!(
        "Running it within {:.1} MiB, {:.0} % of the model file's {:.1} MiB.\n",
        MEMORY_BYTES as f64 / (1 << 20) as f64,
        100.0 * MEMORY_BYTES as f64 / file_bytes as f64,
        file_bytes as f64 / (1 << 20) as f64,
    );
    let opened = OpenImage::open(&image)?;
    let options = EngineOptions {
        memory_bytes: Some(MEMORY_BYTES),
        context: Some(CONTEXT),
        logits_rows: 1,
        ..EngineOptions::default()
    };
    let generate = GenerateArgs {
        max_tokens: TOKENS,
        ..GenerateArgs::default()
    };
    let mut talk = Conversation::start(&opened, &options, None, &generate)?;
    writeln!(stdout(), "> {QUESTION}\n")?;
    talk.say(QUESTION, &mut |text| {
        let mut out = stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    })?;
    writeln!(stdout(), "\n")?;
    eprintln!("{}; {}", talk.report.io, talk.report.lanes);
    talk.recorder.metrics(&talk.session, &talk.report).print();
    let program = std::env::current_exe().unwrap_or_else(|_| "tessera".into());
    eprintln!(
        "\nGo on with: {} chat --image {} --memory 46M --ctx 512",
        program.display(),
        image.display()
    );
    Ok(())
}

/// Where models and images are kept: `TESSERA_CACHE`, or the user's cache folder.
fn cache_folder() -> Result<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = if let Some(folder) = from("TESSERA_CACHE") {
        PathBuf::from(folder)
    } else if let Some(folder) = from("XDG_CACHE_HOME") {
        Path::new(&folder).join("tessera")
    } else if let Some(home) = from("HOME") {
        Path::new(&home).join(".cache/tessera")
    } else {
        bail!("no folder to keep the model in: set TESSERA_CACHE to one");
    };
    let name = folder.display();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make the folder {name}"))?;
    Ok(folder)
}

/// Packs the model, unless an image of it that this build reads is there.
fn pack_once(model: &Path, cache: &Path) -> Result<PathBuf> {
    let image = cache.join("smollm2-135m-instruct.image");
    if OpenImage::open(&image).is_ok() {
        eprintln!("The image is there: {}", image.display());
        return Ok(image);
    }
    eprintln!("Packing {} for sequential flash access", model.display());
    let mut options = PackOptions::new(model, &image);
    options.force = true;
    let bar = ProgressBar::new(0);
    let style = "packing {bar:32} {bytes}/{total_bytes} {bytes_per_sec}";
    bar.set_style(ProgressStyle::with_template(style)?);
    pack(&options, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })
    .map_err(|error| anyhow!("cannot pack {}: {error}", model.display()))?;
    bar.finish_and_clear();
    Ok(image)
}
