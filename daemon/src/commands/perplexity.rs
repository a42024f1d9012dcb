//! `tessera perplexity`: how well a model predicts a text.
//!
//! The rule is that of llama.cpp's perplexity tool: the text is cut into chunks of `ctx` tokens, a
//! chunk begins with the start token where the vocabulary wants one, and the tokens of its second
//! half are scored.

use std::io::{Write, stdout};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::{naming, start_and_load};
use layout_tool::regular::read_text;

use crate::engine::{LinuxSession, OpenImage};
use crate::options::PerplexityArgs;
use crate::vocabulary::Vocabulary;
use tessera_runtime::Mode;

/// Context that is used unless another is asked for.
const CONTEXT_DEFAULT: usize = 512;
/// Rows of logits that are computed at once.
const ROWS: usize = 32;

/// Longest text that is read.
const TEXT_BYTES_MAX: u64 = 1 << 30;
/// Bytes that one token stands for, with much to spare.
const BYTES_PER_TOKEN: usize = 16;

/// Runs the command.
pub fn run(args: &PerplexityArgs) -> Result<()> {
    let model = OpenImage::open(&args.engine.image)?;
    ensure!(
        args.chunks != Some(0),
        "no chunk is to be measured: --chunks 0"
    );
    let mut options = args.engine.options();
    let context = options.context.unwrap_or(CONTEXT_DEFAULT);
    ensure!(
        context >= 4,
        "a context of {context} is too short to be cut in two halves"
    );
    let (ids, bos) = text_ids(&model, args, context)?;
    options.context = Some(context);
    options.logits_rows = ROWS;
    if options.mode == Mode::Predict && options.cold.absent_loss_pml > 0 {
        // What is left out depends on the passes before, which have one token in decoding.
        (options.batch_tokens, options.logits_rows) = (Some(1), 1);
    }
    let have = ids.len() / context;
    let chunks = args.chunks.map_or(have, |chunks| chunks.min(have));
    ensure!(
        chunks > 0,
        "the text has {} tokens, one chunk needs {context}",
        ids.len()
    );
    let (mut session, _) = start_and_load(&model, &options)?;
    session.prompt_as_decoded(options.mode != Mode::Exact);
    let bar = ProgressBar::new(chunks as u64);
    bar.set_style(ProgressStyle::with_template(
        "{bar:32} {pos}/{len} chunks, {msg} {eta}",
    )?);
    let (mut sum, mut count) = (0.0, 0);
    for chunk in ids.chunks_exact(context).take(chunks) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = bos {
            chunk[0] = bos;
        }
        sum += naming(&model.path, score(&mut session, &chunk))?;
        count += context - context / 2 - 1;
        bar.set_message(format!("perplexity {:.4}", f64::exp(sum / count as f64)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let perplexity = f64::exp(sum / count as f64);
    if args.json {
        let result =
            serde_json::json!({ "perplexity": perplexity, "tokens": count, "chunks": chunks });
        writeln!(stdout(), "{result}")?;
    } else {
        writeln!(
            stdout(),
            "perplexity {perplexity:.4} over {count} tokens of {chunks} chunks"
        )?;
    }
    Ok(())
}

/// Ids of the text, or of as much of it as the chunks need; and the token that begins a chunk.
fn text_ids(
    model: &OpenImage,
    args: &PerplexityArgs,
    context: usize,
) -> Result<(Vec<u32>, Option<u32>)> {
    let vocabulary = Vocabulary::required(model, "perplexity")?;
    let name = args.file.display();
    let text =
        read_text(&args.file, TEXT_BYTES_MAX).with_context(|| format!("cannot read {name}"))?;
    let need = args
        .chunks
        .map_or(usize::MAX, |chunks| chunks.saturating_mul(context));
    let encode = |text: &str| vocabulary.tokenizer.encode(text, false, vocabulary.add_bos);
    // A word's ids do not depend on what comes a line later, so the front of the text is enough.
    let enough = need.saturating_mul(BYTES_PER_TOKEN);
    let cut = text
        .get(enough..)
        .and_then(|rest| rest.find('\n'))
        .map(|at| enough + at + 1);
    let front = cut.map(|cut| encode(&text[..cut])).transpose()?;
    let ids = match front {
        Some(ids) if ids.len() > need => ids,
        _ => encode(&text)?,
    };
    let bos = model
        .image
        .superblock()
        .bos_token
        .filter(|_| vocabulary.add_bos);
    Ok((ids, bos))
}

/// Sum of the negative log probabilities of the second half's tokens.
fn score(session: &mut LinuxSession, chunk: &[u32]) -> Result<f64> {
    let first = chunk.len() / 2;
    let mut sum = 0.0;
    session.truncate(0);
    // Of the last token nobody knows what followed.
    session.append_each(&chunk[..chunk.len() - 1], first, &mut |pos, logits| {
        let next = chunk[pos + 1] as usize;
        let top = logits.iter().fold(f32::NEG_INFINITY, f32::max);
        let mass: f64 = logits
            .iter()
            .map(|logit| f64::from((logit - top).exp()))
            .sum();
        let own = logits.iter().nth(next).unwrap_or(f32::NEG_INFINITY);
        sum += mass.ln() - f64::from(own - top);
    })?;
    Ok(sum)
}
