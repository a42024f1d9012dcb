//! The demonstration: `tessera` without arguments.
//!
//! Fetches a small real model, packs it, and lets it answer a question within less than half of
//! the memory that its file takes. Where it can't be fetched, a smaller one that the program
//! carries continues a text instead.

mod fetch;
mod offline;

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use layout_tool::pack::{PackOptions, pack};

use crate::commands::chat::Conversation;
use crate::engine::{EngineOptions, OpenImage};
use crate::environment::variable;
use crate::options::GenerateArgs;

const QUESTION: &str = "What is the capital of France, and what is it known for?";
/// Below half of the model file's 98,362,432 bytes.
const MEMORY_BYTES: u64 = 46 << 20;
const CONTEXT: usize = 512;
const TOKENS: usize = 120;

/// Runs the demonstration.
pub fn run() -> Result<()> {
    let cache = cache_folder()?;
    match fetch::smollm2(&cache) {
        Ok(model) => answer(&model, &cache),
        Err(error) => {
            eprintln!("{error:#}.\nSo a smaller model runs, which this program carries.");
            offline::run(&cache)
        }
    }
}

/// Lets SmolLM2 answer the question.
fn answer(model: &Path, cache: &Path) -> Result<()> {
    let image = pack_once(model, cache)?;
    announce(MEMORY_BYTES, "model file", fetch::FILE_BYTES);
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
    talk.say(QUESTION, &mut print)?;
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
    let folder = if let Some(folder) = variable("TESSERA_CACHE") {
        PathBuf::from(folder)
    } else if let Some(folder) = variable("XDG_CACHE_HOME") {
        Path::new(&folder).join("tessera")
    } else if let Some(home) = variable("HOME") {
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
    pack_to(model, &image)?;
    Ok(image)
}

/// Packs the model, with a progress bar.
fn pack_to(model: &Path, image: &Path) -> Result<()> {
    eprintln!("Packing {} for sequential flash access", model.display());
    let mut options = PackOptions::new(model, image);
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
    Ok(())
}

/// Says what the budget is beside a file.
fn announce(memory_bytes: u64, file: &str, file_bytes: u64) {
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    eprintln!(
        "Running it within {:.1} MiB, {:.0} % of the {file}'s {:.1} MiB.\n",
        mib(memory_bytes),
        100.0 * memory_bytes as f64 / file_bytes as f64,
        mib(file_bytes),
    );
}

/// Prints a piece of the model's text at once.
fn print(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
