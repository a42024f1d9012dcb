//! Command line of the layout tool: arguments, progress and exit codes only.
#![forbid(unsafe_code)]

mod calibrate;
mod progress;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use layout_tool::budget::BudgetOptions;
use layout_tool::inspect::inspect;
use layout_tool::pack::{Choice, PackOptions, Weights, check_target, pack};
use layout_tool::simulate::start::Starts;
use layout_tool::simulate::trace::Trace;
use layout_tool::simulate::{POLICIES, score};
use layout_tool::size;
use layout_tool::synth::{SynthOptions, synth};
use layout_tool::verify::{compare, verify};
use tessera_runtime::cache::PolicyKind;

/// Packs language models into Tessera images, shows what is in an image, and checks images.
///
/// Exit status: 0 done, 1 refused or failed with one sentence on standard error, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Pack(PackArgs),
    Synth(SynthArgs),
    Inspect(InspectArgs),
    Verify(VerifyArgs),
    Profile(calibrate::ProfileArgs),
    Simulate(SimulateArgs),
}

/// Write the image of a model.
///
/// The image appears under its name only when it is complete and on disk; until then it is
/// IMAGE.partial. The same source and options always give the same bytes.
#[derive(Debug, Args)]
struct PackArgs {
    /// A .gguf file (of a split model: its first part), or a Hugging Face folder.
    source: PathBuf,

    /// The image to write.
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,

    /// How weights are stored.
    #[arg(long, value_enum, default_value_t)]
    weights: Weights,

    /// How down columns are stored: auto, q4, q4k, q4o, q5, q6, q8, f16 or f32. auto measures each
    /// layer and takes the smallest of q4o, q5, q6 and q8 whose relative RMS error is within 4.5 %
    /// (2.5 % for models less than 1024 wide); with another --weights than auto it takes that type
    /// (q4o for q4).
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "TYPE",
        hide_possible_values = true
    )]
    down: Choice,

    /// How the output matrix (where it is tied: also the embedding) is stored: auto (as --weights
    /// says), q4, q4k, q4o, q5, q6, q8, f16 or f32.
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "TYPE",
        hide_possible_values = true
    )]
    lm_head: Choice,

    /// Neurons that are read together: auto, 1, 2, 4, 8, 16 or 32.
    #[arg(long, default_value = "auto", value_name = "COUNT", value_parser = bundle)]
    bundle: Bundle,

    /// Run the model over a text and order its neurons by their activity, with statistics and
    /// predictors: as `profile` does with its defaults.
    #[arg(long, value_name = "TEXT")]
    calibrate: Option<PathBuf>,

    /// Leave the tokenizer out: the image then works on token ids.
    #[arg(long)]
    no_tokenizer: bool,

    /// Replace IMAGE if it exists.
    #[arg(short, long)]
    force: bool,

    /// Threads; all of the machine's by default. The image does not depend on it.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Show progress even where standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

/// Write a synthetic model with prescribed activations, of the size of a real one.
///
/// An image has ReLU gates that are active for the share of tokens that was asked for, with hot
/// neurons and cold ones, predictors and statistics. A GGUF file of the same shape has plain random
/// weights in Q4_0, for timing other engines. Neither has a tokenizer: they work on token ids.
#[derive(Debug, Args)]
struct SynthArgs {
    /// Which one: mistral-7b, bamboo-7b, llama-13b, turbosparse-mixtral-47b, small (about 100 MB),
    /// tiny or tiny-moe.
    #[arg(value_name = "SHAPE")]
    shape: String,

    /// The image to write; a GGUF file if the name ends in .gguf.
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,

    /// Another seed gives another model with the same statistics.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Share of the neurons that are active for a token: 0.01 to 0.5. By default the shape's: 0.1,
    /// or 0.15 of an expert of turbosparse-mixtral-47b.
    #[arg(long, value_name = "SHARE")]
    activation_share: Option<f64>,

    /// Fewer layers than the shape has, or more.
    #[arg(long, value_name = "COUNT")]
    layers: Option<usize>,

    /// Replace IMAGE if it exists.
    #[arg(short, long)]
    force: bool,

    /// Threads; all of the machine's by default. The file does not depend on it.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Show progress even where standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

/// Show what is in an image, and how it would use so much memory.
///
/// Only its first bytes, predictors and statistics are read; use verify to check all of it.
#[derive(Debug, Args)]
struct InspectArgs {
    /// The image.
    image: PathBuf,

    /// Print JSON with stable keys.
    #[arg(long)]
    json: bool,

    /// Add the budget of running the image in so much memory: bytes, or a number with K, M or G.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,

    /// Positions of the context of the budget; by default the model's, at most 4096.
    #[arg(long, value_name = "COUNT", requires = "memory")]
    ctx: Option<usize>,

    /// Lanes of the budget; by default the cores of this machine.
    #[arg(long, value_name = "COUNT", requires = "memory")]
    lanes: Option<usize>,
}

/// Read a whole image and check every checksum.
///
/// Damaged places are named by section, layer and tile or bundle, and the exit status is 1.
#[derive(Debug, Args)]
struct VerifyArgs {
    /// The image.
    image: PathBuf,

    /// The model that it was made from: compares every weight, too.
    #[arg(long, value_name = "SOURCE")]
    against: Option<PathBuf>,

    /// Threads; all of the machine's by default.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Show progress even where standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

/// Score the policies of the cold cache on a trace, beside Belady's optimum, for many sizes.
///
/// The first half of the trace's tokens is learned from, the second half is scored.
#[derive(Debug, Args)]
struct SimulateArgs {
    /// A trace of active neurons.
    trace: PathBuf,

    /// Score this policy only: lru or frequency.
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    policy: Option<PolicyKind>,

    /// Share of each section's neurons, hottest first, that is always in memory: 0 to 1.
    #[arg(long, value_name = "SHARE", default_value = "0", value_parser = share)]
    prefix: f64,

    /// Tokens of a pass: what any of them uses is asked for once.
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u8).range(1..=8))]
    batch: u8,

    /// Instead: score the first passes after a start, by what the cache begins with.
    #[arg(long, value_name = "PASSES", conflicts_with_all = ["policy", "json"])]
    start: Option<usize>,

    /// Print JSON with stable keys.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
struct Bundle(Option<usize>);

fn bundle(text: &str) -> Result<Bundle, String> {
    match text {
        "auto" => Ok(Bundle(None)),
        "1" | "2" | "4" | "8" | "16" | "32" => Ok(Bundle(text.parse().ok())),
        _ => Err("it must be auto, 1, 2, 4, 8, 16 or 32".into()),
    }
}

fn policy(text: &str) -> Result<PolicyKind, String> {
    let named = POLICIES.iter().find(|(_, name)| *name == text);
    named
        .map(|&(kind, _)| kind)
        .ok_or_else(|| "it must be lru or frequency".into())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text
        .parse()
        .ok()
        .filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be a number from 0 to 1".into())
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Pack(args) => run_pack(args),
        Command::Synth(args) => run_synth(args),
        Command::Inspect(args) => run_inspect(&args),
        Command::Verify(args) => run_verify(&args),
        Command::Profile(args) => calibrate::run(args).and_then(|report| print(&report)),
        Command::Simulate(args) => run_simulate(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("layout-tool: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run_pack(args: PackArgs) -> Result<(), String> {
    let mut options = PackOptions {
        source: args.source,
        target: args.output,
        weights: args.weights,
        down: args.down,
        lm_head: args.lm_head,
        bundle_neurons: args.bundle.0,
        force: args.force,
        tokenizer: !args.no_tokenizer,
        threads: args.threads.map(usize::from),
    };
    let target = options.target.clone();
    if args.calibrate.is_some() {
        check_target(Some(&options.source), &target, options.force).map_err(|e| e.to_string())?;
        // What an interrupted run left there is packed over.
        (options.target, options.force) = (calibrate::uncalibrated(&target), true);
    }
    let bar = progress::Bar::new("packing", args.progress);
    let report = pack(&options, &|done, all| bar.set(done, all));
    bar.clear();
    let report = report.map_err(|error| error.to_string())?;
    for note in &report.notes {
        eprintln!("layout-tool: note: {note}");
    }
    print(&report)?;
    let Some(text) = &args.calibrate else {
        return Ok(());
    };
    options = PackOptions {
        target,
        force: args.force,
        ..options
    };
    print(&calibrate::after_pack(&options, text, args.progress)?)
}

fn run_synth(args: SynthArgs) -> Result<(), String> {
    let options = SynthOptions {
        shape: args.shape,
        target: args.output,
        seed: args.seed,
        activation_share: args.activation_share,
        layers: args.layers,
        force: args.force,
        threads: args.threads.map(usize::from),
    };
    let bar = progress::Bar::new("writing", args.progress);
    let report = synth(&options, &|done, all| bar.set(done, all));
    bar.clear();
    print(&report.map_err(|error| error.to_string())?)
}

fn run_inspect(args: &InspectArgs) -> Result<(), String> {
    let budget = args.memory.map(|memory_bytes| BudgetOptions {
        memory_bytes,
        context: args.ctx,
        lanes: args.lanes,
    });
    let inspection = inspect(&args.image, budget).map_err(|error| error.to_string())?;
    if args.json {
        print(&format!("{:#}", inspection.json()))
    } else {
        print(&inspection)
    }
}

fn run_verify(args: &VerifyArgs) -> Result<(), String> {
    let threads = args.threads.map(usize::from);
    let bar = progress::Bar::new("reading", args.progress);
    let report = verify(&args.image, threads, &|done, all| bar.set(done, all));
    bar.clear();
    let report = report.map_err(|error| error.to_string())?;
    if !report.damages.is_empty() {
        return Err(report.to_string());
    }
    print(&report)?;
    let Some(source) = &args.against else {
        return Ok(());
    };
    let bar = progress::Bar::new("comparing", args.progress);
    let comparison = compare(&args.image, source, threads, &|done, all| {
        bar.set(done, all)
    });
    bar.clear();
    let comparison = comparison.map_err(|error| error.to_string())?;
    print(&comparison)?;
    if comparison.mismatches.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} is not the image of {}",
        args.image.display(),
        source.display()
    ))
}

fn run_simulate(args: &SimulateArgs) -> Result<(), String> {
    let policies = match args.policy {
        Some(policy) => vec![policy],
        None => POLICIES.map(|(kind, _)| kind).to_vec(),
    };
    let trace = Trace::open(&args.trace, args.prefix).map_err(|error| error.to_string())?;
    let trace = trace.joined(usize::from(args.batch));
    if trace.tokens() < 2 {
        return Err(format!(
            "{}: {} passes of {} tokens; the first half is learned from and the second scored, so \
             2 are the least",
            args.trace.display(),
            trace.tokens(),
            args.batch
        ));
    }
    if let Some(passes) = args.start {
        return print(&Starts::of(&trace, passes));
    }
    let simulation = score(&trace, &policies);
    if args.json {
        print(&format!("{:#}", simulation.json()))
    } else {
        print(&simulation)
    }
}

/// Writes `text` and a line end to standard output; a reader that has gone is no error.
fn print(text: &impl Display) -> Result<(), String> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("standard output: {error}"))
        }
        _ => Ok(()),
    }
}
