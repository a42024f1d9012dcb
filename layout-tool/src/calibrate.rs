//! Command line of calibration: `profile`, and `pack --calibrate`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use layout_tool::pack::PackOptions;
use layout_tool::profile::{
    LOSS_DEFAULT, ProfileOptions, ProfileReport, RECALL_DEFAULT, Stage, TOKENS_DEFAULT, Text,
    profile,
};
use layout_tool::size;

use crate::progress::Bar;

/// Run a model over a text and write its image with neurons in order of their activity.
///
/// Hot neurons come first, then neighbours that fire together; statistics are added, and predictors
/// where ReLU makes the model sparse. Weights are moved, never rounded again. What was found so far
/// is kept in OUT.profile: the same command continues an interrupted run.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// The image.
    image: PathBuf,

    #[command(flatten)]
    source: TextArgs,

    /// The image to write.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,

    /// Tokens of the text that are used, at most. Nothing is fitted to the last fifth of them,
    /// which predictors are measured on.
    #[arg(long, value_name = "COUNT", default_value_t = TOKENS_DEFAULT)]
    tokens: usize,

    /// Share of the activations' magnitude that predictors must find.
    #[arg(long, value_name = "SHARE", default_value_t = RECALL_DEFAULT)]
    recall: f32,

    /// SiLU and GELU models: share of a token's feed-forward energy, in the mean over the text,
    /// that the neurons below a layer's threshold may carry.
    #[arg(long, value_name = "SHARE", default_value_t = LOSS_DEFAULT)]
    loss: f64,

    /// Fit predictors for SiLU and GELU models, too.
    #[arg(long)]
    predictors: bool,

    /// Write the active neurons of every token to FILE, for a simulator of caches.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Replace OUT if it exists.
    #[arg(short, long)]
    force: bool,

    /// Memory that the model is run in: bytes, or a number with K, M or G; by default half of what
    /// is free. The result does not depend on it.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,

    /// Threads; all of the machine's by default. The result does not depend on it.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Show progress even where standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct TextArgs {
    /// The calibration text.
    #[arg(long, value_name = "TEXT")]
    text: Option<PathBuf>,

    /// The calibration text as token ids, for an image without a tokenizer.
    #[arg(long, value_name = "FILE")]
    token_ids: Option<PathBuf>,
}

/// Runs `layout-tool profile`.
pub fn run(args: ProfileArgs) -> Result<ProfileReport, String> {
    let text = match (args.source.text, args.source.token_ids) {
        (Some(path), _) => Text::Plain(path),
        (None, Some(path)) => Text::Ids(path),
        (None, None) => return Err("give --text or --token-ids".into()),
    };
    let options = ProfileOptions {
        tokens: args.tokens,
        recall: args.recall,
        loss: args.loss,
        predictors: args.predictors,
        trace: args.trace,
        force: args.force,
        threads: args.threads.map(usize::from),
        memory_bytes: args.memory,
        ..ProfileOptions::new(args.image, text, args.output)
    };
    run_profile(&options, args.progress)
}

fn run_profile(options: &ProfileOptions, asked: bool) -> Result<ProfileReport, String> {
    let bars = [
        Bar::counting("finding thresholds", "tokens", asked),
        Bar::counting("watching neurons", "tokens", asked),
        Bar::counting("analysing", "sections", asked),
        Bar::new("writing", asked),
    ];
    let show = |stage: Stage, done, all| {
        let now = match stage {
            Stage::Thresholds => 0,
            Stage::Observing => 1,
            Stage::Analysing => 2,
            Stage::Writing => 3,
        };
        bars[..now].iter().for_each(Bar::clear);
        bars[now].set(done, all);
        true
    };
    let report = profile(options, &show);
    bars.iter().for_each(Bar::clear);
    let report = report.map_err(|error| error.to_string())?;
    for note in &report.notes {
        eprintln!("layout-tool: note: {note}");
    }
    Ok(report)
}

/// Where `pack --calibrate` puts the image before it is calibrated.
pub fn uncalibrated(target: &Path) -> PathBuf {
    let mut name = OsString::from(target);
    name.push(".uncalibrated");
    PathBuf::from(name)
}

/// Calibrates the image that was packed to [`uncalibrated`], and removes that. An interrupted run
/// packs again, which gives the same bytes, and continues.
pub fn after_pack(
    options: &PackOptions,
    text: &Path,
    asked: bool,
) -> Result<ProfileReport, String> {
    let packed = uncalibrated(&options.target);
    let options = ProfileOptions {
        force: options.force,
        threads: options.threads,
        ..ProfileOptions::new(&packed, Text::Plain(text.to_owned()), &options.target)
    };
    let report = run_profile(&options, asked);
    let removed = std::fs::remove_file(&packed);
    let report = report?;
    removed.map_err(|error| format!("{}: {error}", packed.display()))?;
    Ok(report)
}
