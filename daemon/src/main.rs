//! The binary `tessera`: arguments and exit status only.

use std::process::ExitCode;

use clap::Parser;
use tessera::commands;
use tessera::options::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Logits(args)) => commands::logits::run(args),
        Some(Command::Bench(args)) => commands::bench::run(args),
        Some(Command::Run(args)) => commands::run::run(args),
        Some(Command::Chat(args)) => commands::chat::run(args),
        Some(Command::Perplexity(args)) => commands::perplexity::run(args),
        Some(Command::Plan(args)) => commands::plan::run(args),
        Some(Command::Probe(args)) => commands::probe::run(args),
        None => tessera::demo::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera: {error:#}");
            ExitCode::FAILURE
        }
    }
}
