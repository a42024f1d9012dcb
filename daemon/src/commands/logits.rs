//! `tessera logits`: reference output for tests.

use std::fs::File;
use std::io::{self, BufWriter, Write, stdout};

use anyhow::{Context, Error, Result};

use super::{is_stdout, naming, start_and_load};
use crate::engine::OpenImage;
use crate::options::LogitsArgs;

/// Rows of logits that are computed at once with `--all`.
const ROWS: usize = 16;

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<()> {
    let model = OpenImage::open(&args.engine.image)?;
    let tokens = &args.tokens.0;
    let mut options = args.engine.options();
    options.context = options.context.or(Some(tokens.len().max(1)));
    options.logits_rows = if args.all { ROWS } else { 1 };
    let (mut session, _) = start_and_load(&model, &options)?;
    let from = if args.all {
        0
    } else {
        tokens.len().saturating_sub(1)
    };
    let name = args.json.as_ref().map(|path| path.display().to_string());
    let mut out: Box<dyn Write> = match &args.json {
        Some(path) if !is_stdout(path) => {
            let file =
                File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            Box::new(BufWriter::new(file))
        }
        _ => Box::new(BufWriter::new(stdout().lock())),
    };
    let mut row: Vec<f32> = Vec::with_capacity(session.image().shape().vocab_size);
    let mut written = Ok(());
    let mut index = 0;
    let appended = session.append_each(tokens, from, &mut |pos, logits| {
        if written.is_ok() {
            row.clear();
            row.extend(logits.iter());
            written = match args.json {
                Some(_) => write_row(&mut out, index, &row),
                None => write_best(&mut out, pos, &row),
            };
            index += 1;
        }
    });
    naming(&model.path, appended.map_err(Error::from))?;
    let end = if args.json.is_some() { "]}\n" } else { "" };
    written
        .and_then(|()| write!(out, "{end}"))
        .and_then(|()| out.flush())
        .with_context(|| format!("cannot write {}", name.as_deref().unwrap_or("the logits")))
}

/// One row of the JSON object; the first opens it.
fn write_row(out: &mut impl Write, index: usize, row: &[f32]) -> io::Result<()> {
    write!(out, "{}", if index == 0 { "{\"logits\":[" } else { "," })?;
    Ok(serde_json::to_writer(out, row)?)
}

/// The ten best tokens after one position.
fn write_best(out: &mut impl Write, pos: usize, row: &[f32]) -> io::Result<()> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let best = order.iter().take(10);
    let best: Vec<String> = best
        .map(|&token| format!("{token}:{:.4}", row[token]))
        .collect();
    writeln!(out, "{pos}\t{}", best.join(" "))
}
