//! `tessera perplexity`: how well a model predicts a text.
//!
//! The rule is that of llama.cpp's perplexity tool: the text is cut into chunks of `ctx` tokens, a
//! chunk begins with the start token where the vocabulary wants one, and the tokens of its second
//! half are scored.

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use super::start_and_load;
use crate::engine::{LinuxSession, OpenImage};
use crate::options::PerplexityArgs;
use crate::vocabulary::Vocabulary;

/// Context that is used unless another is asked for.
const CONTEXT_DEFAULT: usize = 512;
/// Rows of logits that are computed at once.
const ROWS: usize = 32;

/// Runs the command.
pub fn run(args: &PerplexityArgs) -> Result<()> {
    let model = OpenImage::open(&args.engine.image)?;
    let (ids, bos) = text_ids(&model, args)?;
    let mut options = args.engine.options();
    let context = options.context.unwrap_or(CONTEXT_DEFAULT);
    ensure!(
        context >= 4,
        "a context of {context} is too short to be cut in two halves"
    );
    options.context = Some(context);
    options.logits_rows = ROWS;
    let have = ids.len() / context;
    let chunks = args.chunks.map_or(have, |chunks| chunks.min(have));
    ensure!(
        chunks > 0,
        "the text has {} tokens, one chunk needs {context}",
        ids.len()
    );
    let (mut session, _) = start_and_load(&model, &options)?;
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
        sum += score(&mut session, &chunk)?;
        count += context - context / 2 - 1;
        bar.set_message(format!("perplexity {:.4}", f64::exp(sum / count as f64)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let perplexity = f64::exp(sum / count as f64);
    if args.json {
        let result =
            serde_json::json!({ "perplexity": perplexity, "tokens": count, "chunks": chunks });
        println!("{result}");
    } else {
        println!("perplexity {perplexity:.4} over {count} tokens of {chunks} chunks");
    }
    Ok(())
}

fn text_ids(model: &OpenImage, args: &PerplexityArgs) -> Result<(Vec<u32>, Option<u32>)> {
    let vocabulary = Vocabulary::required(model, "perplexity")?;
    let name = args.file.display();
    let text =
        std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    let ids = vocabulary
        .tokenizer
        .encode(&text, false, vocabulary.add_bos)?;
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
