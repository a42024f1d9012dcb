//! Command line arguments.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

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
}

/// Options of every command that runs a model.
#[derive(Debug, Clone, Args)]
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
    /// Lanes: cores that compute [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub lanes: Option<u8>,
    /// How the image is read.
    #[arg(long, value_enum, default_value_t)]
    pub io: Io,
    /// Kernels: scalar, avx2, avxvnni, avx512vnni, neon, neondot, neoni8mm [default: the best].
    #[arg(long, value_name = "NAME", env = "TESSERA_KERNELS")]
    pub kernels: Option<String>,
}

impl EngineArgs {
    /// As the engine wants them.
    pub fn options(&self) -> EngineOptions {
        EngineOptions {
            memory_bytes: self.memory,
            context: self.ctx,
            sequences: None,
            kv: self.kv,
            batch_tokens: None,
            logits_rows: 1,
            lanes: self.lanes.map(usize::from),
            io: self.io,
            kernels: self.kernels.clone(),
        }
    }
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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generate: GenerateArgs,
    /// Write what was measured to a JSON file.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Print the ids of the generated tokens, comma separated, instead of text.
    #[arg(long)]
    pub print_ids: bool,
}

/// How tokens are chosen, and when to stop.
#[derive(Debug, Clone, Args)]
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
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// What the model is told about itself.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Use a built-in template instead of the image's.
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Say this and leave after the answer.
    #[arg(long, value_name = "TEXT")]
    pub once: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub generate: GenerateArgs,
    /// Write what was measured to a JSON file.
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
}

/// Arguments of `logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// The token ids, comma separated.
    #[arg(long, value_name = "IDS", value_parser = parse_tokens)]
    pub tokens: Tokens,
    /// After every token, not only the last.
    #[arg(long)]
    pub all: bool,
    /// Write them to a JSON file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `perplexity`.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// The text.
    #[arg(long, value_name = "TEXT")]
    pub file: PathBuf,
    /// Chunks to measure [default: all].
    #[arg(long, value_name = "N")]
    pub chunks: Option<usize>,
    /// How neurons are chosen.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Print the result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Which neurons are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mode {
    /// All whose result is not zero.
    #[default]
    Exact,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: EngineArgs,
    /// Tokens of the prompt; 0 leaves prefill out.
    #[arg(short = 'p', long, value_name = "N", default_value_t = 128)]
    pub prompt_tokens: usize,
    /// Tokens to decode, from an empty context; 0 leaves decode out.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    pub new_tokens: usize,
    /// Sequences that are decoded side by side.
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    /// Repetitions.
    #[arg(short = 'r', long, value_name = "N", default_value_t = 3)]
    pub repeat: usize,
    /// Begin to measure at once.
    #[arg(long)]
    pub no_warmup: bool,
    /// How neurons are chosen.
    #[arg(long, value_enum, default_value_t)]
    pub mode: Mode,
    /// Print the result as JSON on standard output.
    #[arg(long)]
    pub json: bool,
}
