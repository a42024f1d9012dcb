//! `tessera logits`: reference output for tests.

use std::fs::File;
use std::io::{BufWriter, Write, stdout};

use anyhow::{Context, Result};

use super::start_and_load;
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
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let from = if args.all {
        0
    } else {
        tokens.len().saturating_sub(1)
    };
    session.append_each(tokens, from, &mut |_, logits| {
        rows.push(logits.iter().collect())
    })?;
    match &args.json {
        Some(path) if path.as_os_str() == "-" => write_json(&mut stdout().lock(), &rows),
        Some(path) => {
            let name = path.display();
            let file = File::create(path).with_context(|| format!("cannot create {name}"))?;
            let mut file = BufWriter::new(file);
            write_json(&mut file, &rows)?;
            file.flush().with_context(|| format!("cannot write {name}"))
        }
        None => print_best(&rows, from),
    }
}

fn write_json(to: &mut impl Write, rows: &[Vec<f32>]) -> Result<()> {
    serde_json::to_writer(&mut *to, &serde_json::json!({ "logits": rows }))?;
    Ok(writeln!(to)?)
}

/// The ten best tokens after each position.
fn print_best(rows: &[Vec<f32>], first: usize) -> Result<()> {
    let mut out = stdout().lock();
    for (index, row) in rows.iter().enumerate() {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let best: Vec<String> = order
            .iter()
            .take(10)
            .map(|&token| format!("{token}:{:.4}", row[token]))
            .collect();
        writeln!(out, "{}\t{}", first + index, best.join(" "))?;
    }
    Ok(())
}
