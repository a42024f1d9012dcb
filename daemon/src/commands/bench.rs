//! `tessera bench`: speed of prefill and decode.

use std::io::{Write, stdout};

use anyhow::{Result, ensure};
use tessera_runtime::digest::Digest;
use tessera_runtime::limits::SEQUENCES_MAX;

use super::{naming, start_and_load};
use crate::engine::{LinuxSession, OpenImage};
use crate::metrics::Recorder;
use crate::options::BenchArgs;

/// Most repetitions.
const REPEAT_MAX: usize = 1000;

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    ensure!(args.repeat > 0, "at least one repetition is needed");
    ensure!(
        args.repeat <= REPEAT_MAX,
        "{} repetitions were asked for, at most {REPEAT_MAX} are made",
        args.repeat
    );
    ensure!(
        args.prompt_tokens > 0 || args.new_tokens > 0,
        "nothing to measure: -p 0 -n 0"
    );
    ensure!(
        (1..=SEQUENCES_MAX).contains(&args.batch),
        "{} sequences were asked for, 1 to {SEQUENCES_MAX} can be",
        args.batch
    );
    let model = OpenImage::open(&args.engine.image)?;
    let mut options = args.options();
    let warmup = if args.no_warmup { 0 } else { args.warmup };
    let longest = args
        .prompt_tokens
        .max(args.depth + args.new_tokens.max(warmup));
    options.context = options.context.or(Some(longest));
    options.batch_tokens = Some(args.prompt_tokens.max(args.depth).max(1));
    options.sequences = Some(args.batch);
    let (mut session, report) = start_and_load(&model, &options)?;
    ensure!(
        longest <= session.seq_len(),
        "{longest} tokens do not fit the context of {} (--ctx gives more)",
        session.seq_len()
    );
    let (recorder, digest) = naming(&model.path, measure(&mut session, args))?;
    let mut metrics = recorder.metrics(&session, &report);
    metrics.logits_digest = Some(format!("{:016x}", digest.value()));
    if args.json {
        writeln!(stdout(), "{}", serde_json::to_string(&metrics)?)?;
    } else {
        eprintln!("{}", report.io);
        metrics.print();
    }
    Ok(())
}

/// Ids that are the same on every machine and spread over the vocabulary.
fn ids(count: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = 0x2545_f491u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % vocab_size as u32
    };
    (0..count).map(next).collect()
}

fn measure(session: &mut LinuxSession, args: &BenchArgs) -> Result<(Recorder, Digest)> {
    let vocab_size = session.image().shape().vocab_size;
    let prompt = ids(args.prompt_tokens, vocab_size);
    let context = ids(args.depth, vocab_size);
    // Every repetition has tokens of its own, so that a cache meets none twice by design.
    let tokens = ids(args.warmup + args.new_tokens * args.repeat, vocab_size);
    let (warmup, tokens) = tokens.split_at(args.warmup);
    let mut recorder = Recorder::with_capacity(args.new_tokens * args.repeat);
    recorder.batch = args.batch;
    let mut digest = Digest::default();
    if !args.no_warmup {
        if args.prompt_tokens > 0 {
            session.append(&prompt)?;
        }
        fill_contexts(session, args.batch, &context)?;
        for &token in warmup {
            session.append(&[token])?;
        }
    }
    let mut steps: Vec<(usize, u32)> = (0..args.batch).map(|sequence| (sequence, 0)).collect();
    for repetition in 0..args.repeat {
        let tokens = &tokens[repetition * args.new_tokens..][..args.new_tokens];
        if args.prompt_tokens > 0 {
            session.truncate(0);
            let begun_ns = session.now_ns();
            digest.add(session.append(&prompt)?);
            recorder
                .prefills
                .push((prompt.len(), session.now_ns() - begun_ns));
        }
        if args.new_tokens > 0 {
            fill_contexts(session, args.batch, &context)?;
        }
        for (index, &token) in tokens.iter().enumerate() {
            let (begun_ns, before) = (session.now_ns(), session.stats());
            if args.batch == 1 {
                digest.add(session.append(&[token])?);
            } else {
                for (sequence, step) in steps.iter_mut().enumerate() {
                    step.1 = tokens[(index + sequence) % args.new_tokens];
                }
                session.decode(&steps, &mut |_, logits| {
                    for logit in logits.iter() {
                        digest.add(&[logit]);
                    }
                })?;
            }
            let ns = session.now_ns() - begun_ns;
            recorder.token(ns, session.stats().since(&before));
        }
    }
    Ok((recorder, digest))
}

/// Gives each sequence the context from which it is decoded, and selects the first.
fn fill_contexts(session: &mut LinuxSession, sequences: usize, context: &[u32]) -> Result<()> {
    for sequence in (0..sequences).rev() {
        session.select(sequence)?;
        if session.pos() > 0 && session.pos() >= context.len() && !context.is_empty() {
            // What follows the context is forgotten; the context itself is still there.
            session.truncate(context.len());
            continue;
        }
        session.truncate(0);
        if !context.is_empty() {
            session.append(context)?;
        }
    }
    Ok(())
}
