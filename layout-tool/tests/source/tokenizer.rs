//! Token ids against llama.cpp's test vectors.

use std::path::Path;

use layout_tool::source::open;
use tokenizers::Tokenizer;

use crate::{in_folder, shared};

/// Texts and ids of `NAME.inp` and `NAME.out`.
fn vectors(folder: &Path, name: &str) -> Vec<(String, Vec<u32>)> {
    let read = |ending: &str| std::fs::read_to_string(folder.join(format!("{name}.{ending}")));
    let (texts, ids) = (read("inp").unwrap(), read("out").unwrap());
    let mut texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    assert_eq!(
        texts.pop(),
        Some(""),
        "each text is followed by the separator"
    );
    let ids: Vec<&str> = ids.lines().collect();
    assert_eq!(texts.len(), ids.len());
    let numbers = |line: &str| {
        line.split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect()
    };
    texts
        .iter()
        .zip(ids)
        .map(|(text, line)| ((*text).to_owned(), numbers(line)))
        .collect()
}

fn check(model: &Path, vectors_name: &str) {
    let Some(folder) = shared("data/tokenizer") else {
        return;
    };
    let model = open(model).unwrap();
    let tokenizer: Tokenizer = model.tokenizer.unwrap().tokenizer_json.parse().unwrap();
    let all = vectors(&folder, vectors_name);
    assert!(all.len() > 40);
    let mut wrong = Vec::new();
    for (text, want) in &all {
        let encoding = tokenizer.encode(text.as_str(), false).unwrap();
        if encoding.get_ids() != want {
            wrong.push(format!(
                "{text:?}: {:?} is not {want:?}",
                encoding.get_ids()
            ));
        }
        let back = tokenizer.decode(encoding.get_ids(), false).unwrap();
        assert_eq!(back, *text);
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
}

#[test]
fn smollm2_ids() {
    let name = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if let Some(model) = in_folder("TESSERA_MODELS", name) {
        check(&model, "smollm2");
    }
}

#[test]
fn qwen2_ids() {
    let name = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf";
    if let Some(model) = in_folder("TESSERA_MODELS", name) {
        check(&model, "ggml-vocab-qwen2.gguf");
    }
}

#[test]
fn gpt2_llama2_and_llama3_ids() {
    for name in ["gpt-2", "llama-spm", "llama-bpe"] {
        if let Some(model) = in_folder("TESSERA_VOCABULARIES", &format!("{name}.gguf")) {
            check(&model, &format!("ggml-vocab-{name}.gguf"));
        }
    }
}

#[test]
fn golden_models_have_bytes_for_tokens() {
    let Some(golden) = shared("golden") else {
        return;
    };
    let model = open(&golden.join("qwen2-silu/model-f32.gguf")).unwrap();
    let tokenizer: Tokenizer = model.tokenizer.unwrap().tokenizer_json.parse().unwrap();
    let text = " a  b\u{e9}\u{1f60a}\n\u{2581}";
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(tokenizer.encode(text, false).unwrap().get_ids(), ids);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
}
