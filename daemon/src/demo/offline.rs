//! The demonstration without a network: a model that the program carries.

use std::io::{Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};

use super::{announce, pack_to, print};
use crate::commands::start_and_load;
use crate::engine::{EngineOptions, Kv, OpenImage};
use crate::generate::Generator;
use crate::metrics::Recorder;
use crate::options::GenerateArgs;
use crate::vocabulary::Vocabulary;

/// Four million weights, most in 4 bits, trained on Jane Austen's novels: see `layout-tool/model`.
const MODEL: &[u8] = include_bytes!("../../../layout-tool/model/austen.gguf");
const FILE_NAME: &str = "austen.gguf";
const PROMPT: &str = "Elizabeth had never been";
/// Little more than buffers for reading ahead, keys and values, and the logits take.
const MEMORY_BYTES: u64 = 2 << 20;
const CONTEXT: usize = 256;
const TOKENS: usize = 200;

/// Lets the model continue a text.
pub fn run(cache: &Path) -> Result<()> {
    let model = cache.join(FILE_NAME);
    std::fs::write(&model, MODEL).with_context(|| format!("cannot write {}", model.display()))?;
    let image = cache.join("austen.image");
    pack_to(&model, &image)?;
    let opened = OpenImage::open(&image)?;
    announce(MEMORY_BYTES, "image", opened.image.superblock().image_bytes);
    let vocabulary = Vocabulary::required(&opened, "the demonstration")?;
    let prompt = vocabulary
        .tokenizer
        .encode(PROMPT, false, vocabulary.add_bos)?;
    let options = EngineOptions {
        memory_bytes: Some(MEMORY_BYTES),
        context: Some(CONTEXT),
        kv: Kv::Q8,
        logits_rows: 1,
        ..EngineOptions::default()
    };
    let (mut session, report) = start_and_load(&opened, &options)?;
    // A model so small repeats itself where it always takes the most probable token.
    let generate = GenerateArgs {
        max_tokens: TOKENS,
        temp: 0.6,
        top_p: 0.9,
        seed: 1,
        ..GenerateArgs::default()
    };
    let end_ids = Vocabulary::end_ids(&opened, Some(&vocabulary));
    let vocab_size = session.image().shape().vocab_size;
    let mut generator = Generator::new(&generate, vocab_size, session.seq_len(), end_ids);
    let mut recorder = Recorder::with_capacity(TOKENS);
    print(PROMPT)?;
    let bytes = vocabulary.tokenizer.token_bytes();
    let mut emit = |text: &str| print(text);
    generator.run(
        &mut session,
        &prompt,
        Some(&bytes),
        &mut recorder,
        &mut emit,
    )?;
    writeln!(stdout(), "\n")?;
    eprintln!("{}; {}", report.io, report.lanes);
    recorder.metrics(&session, &report).print();
    let program = std::env::current_exe().unwrap_or_else(|_| "tessera".into());
    eprintln!(
        "\nGo on with: {} run --image {} --temp 0.6 --prompt \"The next morning\"",
        program.display(),
        image.display()
    );
    Ok(())
}
