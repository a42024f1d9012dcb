//! `tessera run`: continue a text.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{is_stdout, naming, start_and_load};
use layout_tool::regular::read_text;

use crate::engine::{CONTEXT_DEFAULT, OpenImage};
use crate::generate::{Generator, check_fits};
use crate::metrics::{Metrics, Recorder};
use crate::options::RunArgs;
use crate::vocabulary::Vocabulary;

/// Longest prompt file that is read: many times the longest context.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    let model = OpenImage::open(&args.engine.image)?;
    let (prompt, vocabulary) = prompt_ids(&model, args)?;
    ensure!(
        !prompt.is_empty(),
        "the prompt is empty: there is nothing to continue"
    );
    let bytes = vocabulary
        .as_ref()
        .map(|vocabulary| vocabulary.tokenizer.token_bytes());
    let end_ids = Vocabulary::end_ids(&model, vocabulary.as_ref());
    // Only the table of bytes is needed from here on.
    drop(vocabulary);
    let (mut session, report) = start_and_load(&model, &args.engine.options())?;
    check_fits(&session, &prompt)?;
    let vocab_size = session.image().shape().vocab_size;
    let mut generator = Generator::new(&args.generate, vocab_size, session.seq_len(), end_ids);
    let room = args.generate.max_tokens.min(session.seq_len());
    let mut recorder = Recorder::with_capacity(room);
    let mut out = stdout().lock();
    let finish = generator.run(
        &mut session,
        &prompt,
        bytes.as_ref(),
        &mut recorder,
        &mut |text| {
            if !args.print_ids {
                out.write_all(text.as_bytes())?;
                out.flush()?;
            }
            Ok(())
        },
    );
    if finish.is_err() && !args.print_ids && !generator.output.is_empty() {
        // What went wrong has a line of its own.
        writeln!(out)?;
    }
    let finish = naming(&model.path, finish)?;
    if args.print_ids || bytes.is_none() {
        let ids: Vec<String> = generator.output.iter().map(u32::to_string).collect();
        write!(out, "{}", ids.join(","))?;
    }
    writeln!(out)?;
    let mut metrics = recorder.metrics(&session, &report);
    metrics.logits_digest = Some(format!("{:016x}", generator.digest.value()));
    eprintln!(
        "[{} tokens, ended by: {}{}]",
        generator.output.len(),
        finish.reason(),
        speeds(&metrics)
    );
    if let Some(yielding) = &generator.yielding {
        let (now, most) = yielding.given_bytes();
        eprintln!("[memory given back: {most} bytes at most, {now} at the end]");
    }
    write_stats(args.stats.as_deref(), &metrics)
}

/// What was measured of speed, for the line after the text.
fn speeds(metrics: &Metrics) -> String {
    let of = |name: &str, rate: Option<f64>| {
        rate.map_or(String::new(), |rate| format!("; {name} {rate:.1} tokens/s"))
    };
    of("prompt", metrics.prefill_tokens_per_s) + &of("decode", metrics.decode_tokens_per_s)
}

/// Writes what was measured to the file of `--stats`; `-` is standard output.
pub fn write_stats(path: Option<&Path>, metrics: &Metrics) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(metrics)? + "\n";
    if is_stdout(path) {
        return Ok(stdout().write_all(text.as_bytes())?);
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn prompt_ids(model: &OpenImage, args: &RunArgs) -> Result<(Vec<u32>, Option<Vocabulary>)> {
    let vocabulary = Vocabulary::of(model)?;
    if let Some(tokens) = &args.tokens {
        return Ok((tokens.0.clone(), vocabulary));
    }
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path, PROMPT_BYTES_MAX)
            .with_context(|| format!("cannot read {}", path.display()))?,
        (None, None) => bail!("one of --prompt, --prompt-file or --tokens is needed"),
    };
    let Some(vocabulary) = vocabulary else {
        bail!("the image has no tokenizer: give token ids with --tokens");
    };
    // Before the work and the memory of tokenizing what cannot fit.
    let context = model.image.shape().seq_len;
    let context = args.engine.ctx.unwrap_or(CONTEXT_DEFAULT).min(context);
    let longest = vocabulary.tokenizer.longest_text();
    if text.len() > context.saturating_mul(longest) {
        bail!(
            "the text has {} bytes, a context of {context} tokens holds no more than {}: give a \
             shorter one or a larger --ctx",
            text.len(),
            context.saturating_mul(longest)
        );
    }
    let ids = vocabulary
        .tokenizer
        .encode(&text, args.special, vocabulary.add_bos)?;
    Ok((ids, Some(vocabulary)))
}
