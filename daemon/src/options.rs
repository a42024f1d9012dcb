//! Command line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use tessera_runtime::Mode as PlanMode;
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::Cuts;
use tessera_runtime::limits::COLD_READS_MAX;
use tessera_runtime::plan::Without;
use tessera_runtime::planner::ColdWish;

use crate::engine::{EngineOptions, Io, Kv};

/// Runs language models that are larger than the memory they may use.
///
/// Without a command: fetches a small model, packs it, and lets it answer a question within less
/// memory than its file takes; offline, continues a text with a smaller one of its own.
#[derive(Debug, Parser)]
#[command(name = "tessera", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a text.
    Run(RunArgs),
    /// Talk with a model.
    Chat(ChatArgs),
    /// Print the logits after given tokens.
    Logits(LogitsArgs),
    /// Measure how well a model predicts a text.
    Perplexity(PerplexityArgs),
    /// Measure speed.
    Bench(BenchArgs),
    /// Show how memory would be used, and predict how fast a model decodes with it.
    ///
    /// Nothing is run: the prediction follows from the image's head and a device profile.
    Plan(PlanArgs),
    /// Measure this device's flash, cores and memory, and write a profile for `plan`.
    ///
    /// Takes about a minute, and should have the device for itself. The test file has no name: it
    /// is gone when the command ends, however it ends.
    Probe(ProbeArgs),
}

/// Options of every command that runs a model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model, memory and cores")]
pub struct EngineArgs {
    /// The image, as written by `layout-tool pack`.
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,
    /// Memory for weights, KV cache, buffers and scratch together, e.g. 512M [default: all the
    /// model can use].
    #[arg(long, value_name = "BYTES", value_parser = layout_tool::size::parse)]
    pub memory: Option<u64>,
    /// Positions of the context [default: the model's, at most 4096].
    #[arg(long, value_name = "N")]
    pub ctx: Option<usize>,
    /// How keys and values are kept; images packed with f32 keep them in f32.
    #[arg(long, value_enum, default_value_t)]
    pub kv: Kv,
    /// Which neurons decoding computes; prompts are always computed whole.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cold: ColdArgs,
    /// The device, as written by `tessera probe` [default: $TESSERA_PROFILE, else what `probe`
    /// saved, else a cautious phone with UFS 3.1].
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Lanes: cores that compute, 1 to 16 [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub lanes: Option<u8>,
    /// How the image is read.
    #[arg(long, value_enum, default_value_t)]
    pub io: Io,
    /// Kernels: scalar, avx2, avxvnni, avx512vnni, neon, neondot, neoni8mm [default:
    /// $TESSERA_KERNELS, else the best].
    #[arg(long, value_name = "NAME")]
    pub kernels: Option<String>,
}

impl EngineArgs {
    /// As the engine wants them.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            memory_bytes: self.memory,
            least_memory: false,
            context: self.ctx,
            sequences: None,
            kv: self.kv,
            mode: self.mode.into(),
            cold: self.cold.wish(),
            profile: self.profile.clone(),
            batch_tokens: None,
            logits_rows: 1,
            lanes: self.lanes.map(usize::from),
            io: self.io,
            kernels: self.kernels.clone(),
        }
    }
}

/// Which neurons are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mode {
    /// All whose result is not zero: the same bits as the dense model.
    #[default]
    Exact,
    /// Those that the image's predictors name; the others are neither read nor computed.
    Predict,
    /// Those whose gate reaches the image's threshold, for models without zeros (SiLU, GELU).
    Threshold,
}

impl From<Mode> for PlanMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exact => PlanMode::Exact,
            Mode::Predict => PlanMode::Predict,
            Mode::Threshold => PlanMode::Threshold,
        }
    }
}

/// How neurons that are not always in memory are kept and read, in sparse modes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cold neurons (with --mode predict)")]
pub struct ColdArgs {
    /// Which neuron leaves the cache [default: frequency].
    #[arg(long, value_enum)]
    pub policy: Option<Policy>,
    /// Per cent of the memory for neurons that holds the hottest ones for good; the rest is cache.
    #[arg(long, value_name = "PCT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub hot: Option<u8>,
    /// Read gates first, and the rest of a neuron only where its gate is alive.
    #[arg(long, value_name = "YES", num_args = 0..=1, default_missing_value = "true")]
    pub two_phase: Option<bool>,
    /// Neurons that may lie between two that one read brings.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub gap: Option<u8>,
    /// Reads in flight up to which more are begun for the next layer on a guess; 0 for none
    /// [default: 48]
    #[arg(long, value_name = "READS")]
    pub speculate: Option<u8>,
    /// Leave out neurons that were not needed lately, and so are hardly in memory, where their
    /// scores are so low that all predicted neurons with such scores carried no more than this
    /// share of the activations' magnitude in calibration: 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
    /// 0.1 or 0.2 (others are rounded down). Fewer reads, other results.
    #[arg(long, value_name = "SHARE", value_parser = parse_loss)]
    pub absent_loss: Option<u16>,
    /// Reads in flight.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u8).range(1..=COLD_READS_MAX as i64)
    )]
    pub reads: Option<u8>,
}

/// Which neuron leaves the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The one that has not been used for longest.
    Lru,
    /// The one that is least often used.
    Frequency,
}

impl ColdArgs {
    /// As the planner wants them.
    pub fn wish(&self) -> ColdWish {
        ColdWish {
            policy: self.policy.map(|policy| match policy {
                Policy::Lru => PolicyKind::Lru,
                Policy::Frequency => PolicyKind::Frequency,
            }),
            hot_pct: self.hot.map(usize::from),
            two_phase: self.two_phase,
            gap: self.gap.map(usize::from),
            guesses: self.speculate.map(usize::from),
            reads: self.reads.map(usize::from),
            absent_loss_pml: self.absent_loss.unwrap_or(0),
            without: Without::default(),
        }
    }
}

/// A share of the magnitude that may be lost, in thousandths.
fn parse_loss(text: &str) -> Result<u16, String> {
    let share: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    let pml = share * 1000.0;
    let (least, most) = (Cuts::LOSSES_PML[0], Cuts::LOSS_PML_MAX);
    // As 0.02 is a little less than 20 thousandths.
    match (f64::from(least)..=f64::from(most)).contains(&pml) {
        true => Ok((pml + 1e-6) as u16),
        false => {
            let (least, most) = (share_of(least), share_of(most));
            Err(format!("{share} is not from {least} to {most}"))
        }
    }
}

/// Thousandths as a share.
pub fn share_of(pml: u16) -> f64 {
    f64::from(pml) / 1000.0
}

/// Token ids, comma separated.
fn parse_tokens(text: &str) -> Result<Tokens, String> {
    let ids = text.split(',').map(|id| {
        let id = id.trim();
        id.parse::<u32>()
            .map_err(|_| format!("{id:?} is no token id"))
    });
    Ok(Tokens(ids.collect::<Result<_, _>>()?))
}

/// A list of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(pub Vec<u32>);

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The text to continue.
    #[arg(long, value_name = "TEXT", group = "input")]
    pub prompt: Option<String>,
    /// A file with the text to continue.
    #[arg(long, value_name = "FILE", group = "input")]
    pub prompt_file: Option<PathBuf>,
    /// The token ids to continue, comma separated.
    #[arg(long, value_name = "IDS", group = "input", value_parser = parse_tokens)]
    pub tokens: Option<Tokens>,
    /// Treat markers such as <|im_start|> in the prompt as special tokens.
    #[arg(long)]
    pub special: bool,
    /// Write what was measured to a JSON file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Print the ids of the generated tokens, comma separated, instead of text.
    #[arg(long)]
    pub print_ids: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generate: GenerateArgs,
}

/// How tokens are chosen, and when to stop.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Choice of tokens")]
pub struct GenerateArgs {
    /// Most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_tokens: usize,
    /// Temperature; 0 always takes the most probable token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temp: f32,
    /// Keep the K most probable tokens; 0 keeps all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: usize,
    /// Keep the most probable tokens that together have probability P.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// Keep tokens with at least P times the best one's probability.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub min_p: f32,
    /// Keep the most typical tokens that together have probability P.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub typical: f32,
    /// Divide the logits of recent tokens by this.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtract this from a recent token's logit for each time it occurred.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub frequency_penalty: f32,
    /// Subtract this from a recent token's logit.
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub presence_penalty: f32,
    /// Tokens that count as recent.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub repeat_last: usize,
    /// Add BIAS to a token's logit; may be given several times.
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random draws.
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,
    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on after an end token.
    #[arg(long)]
    pub ignore_eos: bool,
    /// Give cached neurons back while the system is short of memory (with --mode predict).
    #[arg(long)]
    pub yield_memory: bool,
}

impl Default for GenerateArgs {
    /// What the command line gives without options.
    fn default() -> Self {
        GenerateArgs {
            max_tokens: 256,
            temp: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical: 1.0,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last: 64,
            logit_bias: Vec::new(),
            seed: 0,
            stop: Vec::new(),
            ignore_eos: false,
            yield_memory: false,
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("expected ID=BIAS")?;
    let id = id
        .trim()
        .parse()
        .map_err(|_| format!("{id:?} is no token id"))?;
    let bias = bias
        .trim()
        .parse()
        .map_err(|_| format!("{bias:?} is no number"))?;
    Ok((id, bias))
}

/// Arguments of `chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    /// What the model is told about itself.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Use a built-in template instead of the image's.
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Say this and leave after the answer.
    #[arg(long, value_name = "TEXT")]
    pub once: Option<String>,
    /// Write what was measured to a JSON file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generate: GenerateArgs,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The token ids, comma separated.
    #[arg(long, value_name = "IDS", value_parser = parse_tokens)]
    pub tokens: Tokens,
    /// After every token, not only the last.
    #[arg(long)]
    pub all: bool,
    /// Write them to a JSON file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
}

/// Arguments of `perplexity`.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// The text.
    #[arg(long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Chunks to measure [default: all].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// Print the result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Tokens of the prompt; 0 leaves prefill out.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 128)]
    pub prompt_tokens: usize,
    /// Tokens to decode; 0 leaves decode out.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    pub new_tokens: usize,
    /// Tokens of context before those that are decoded.
    #[arg(short = 'd', long, value_name = "N", default_value_t = 0)]
    pub depth: usize,
    /// Sequences that are decoded side by side.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Repetitions.
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3)]
    pub repeat: usize,
    /// Tokens decoded before measuring: a cold cache fills meanwhile.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub warmup: usize,
    /// Begin to measure at once.
    #[arg(long, conflicts_with = "warmup")]
    pub no_warmup: bool,
    /// Leave techniques out, to see what each is worth.
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub ablate: Vec<Ablation>,
    /// Run as another design does, with the same kernels and reads; it sets what it needs of
    /// --mode, --io, --hot, --policy and --ablate.
    #[arg(long, value_enum, conflicts_with_all = ["ablate", "mode", "io", "hot", "policy"])]
    pub baseline: Option<Baseline>,
    /// Print the result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The image, as written by `layout-tool pack`.
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,
    /// Memory for weights, KV cache, buffers and scratch together, e.g. 512M.
    #[arg(long, value_name = "BYTES", value_parser = layout_tool::size::parse)]
    pub memory: u64,
    /// The device, as written by `tessera probe` [default: $TESSERA_PROFILE, else what `probe`
    /// saved, else a cautious phone with UFS 3.1].
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Which neurons decoding computes.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cold: ColdArgs,
    /// Positions of the context [default: the model's, at most 4096]; the prediction is for its
    /// middle.
    #[arg(long, value_name = "N")]
    pub ctx: Option<usize>,
    /// How keys and values are kept; images packed with f32 keep them in f32.
    #[arg(long, value_enum, default_value_t)]
    pub kv: Kv,
    /// Lanes, 1 to 16 [default: all of the profile].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub lanes: Option<u8>,
    /// Print JSON with stable keys on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The folder whose flash is measured: where images will lie.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub dir: PathBuf,
    /// The profile to write [default: tessera/profile.toml in the user's configuration folder,
    /// which every command uses].
    #[arg(short, long, value_name = "PROFILE")]
    pub output: Option<PathBuf>,
    /// Take a quarter of the time; points are less certain.
    #[arg(long)]
    pub quick: bool,
    /// Time to take, about [default: 55; 14 with --quick].
    #[arg(long, value_name = "N", conflicts_with = "quick",
          value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub seconds: Option<u16>,
    /// Size of the test file, e.g. 4G [default: a quarter of the free space, at most 1G].
    #[arg(long, value_name = "BYTES", value_parser = layout_tool::size::parse)]
    pub size: Option<u64>,
    /// Print the profile as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// A technique that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Ablation {
    /// Gate, up and down of a neuron are read by one command each.
    Bundle,
    /// No neuron is kept from one token to the next.
    Cache,
    /// A matrix is begun only when all that is read of it has arrived.
    Pipeline,
    /// Nothing is read for a layer before its turn has come.
    Speculation,
}

/// A design to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Baseline {
    /// The dense model through the page cache, nothing kept by ourselves: llama.cpp's way.
    Mmap,
    /// Sparse, but without bundles, cache and pipeline.
    Naive,
    /// Sparse, with bundles and a cache of the least recently used, read before it is computed
    /// (LLM in a flash, 2023).
    Llmflash,
}

impl BenchArgs {
    /// As the engine wants them.
    pub fn options(&self) -> EngineOptions {
        let mut options = self.engine.options();
        let cold = &mut options.cold;
        for ablation in &self.ablate {
            match ablation {
                Ablation::Bundle => cold.without.bundles = true,
                Ablation::Cache => cold.without.cache = true,
                Ablation::Pipeline => cold.without.pipeline = true,
                Ablation::Speculation => cold.guesses = Some(0),
            }
        }
        let Some(baseline) = self.baseline else {
            return options;
        };
        (options.cold.hot_pct, options.cold.policy) = (Some(0), Some(PolicyKind::Lru));
        let (bundles, cache, pipeline) = match baseline {
            Baseline::Mmap => {
                options.io = Io::Cached;
                options.least_memory = true;
                return options;
            }
            Baseline::Naive => (true, true, true),
            Baseline::Llmflash => (false, false, true),
        };
        options.mode = PlanMode::Predict;
        options.cold.gap = options.cold.gap.or(Some(0));
        options.cold.two_phase = options.cold.two_phase.or(Some(false));
        options.cold.without = Without {
            bundles,
            cache,
            pipeline,
        };
        options
    }
}

#[cfg(test)]
mod tests {
    use super::{parse_loss, share_of};

    #[test]
    fn losses_are_thousandths() {
        for pml in [1, 2, 5, 10, 20, 50, 100, 200] {
            assert_eq!(parse_loss(&share_of(pml).to_string()), Ok(pml));
        }
        assert_eq!(parse_loss("0.0199"), Ok(19));
        for text in ["0", "0.0009", "0.21", "-1", "NaN", "inf", "x", ""] {
            assert!(parse_loss(text).is_err(), "{text}");
        }
    }
}
