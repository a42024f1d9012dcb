//! Byte-level BPE ("gpt2"): how each family cuts text into words.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::error::TokenizerError;
use super::json::{Parts, Vocabulary, write};

/// Words of Llama 3 and Qwen 2, where `DIGITS` is how many digits make one.
const WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// GPT-2's words.
const WORDS_GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// How a family cuts text into words.
pub(super) struct Pre {
    normalizer: Value,
    pre_tokenizer: Value,
    /// Words that are tokens are taken whole, whatever the merges say.
    ignore_merges: bool,
    /// A start token is added where the file says nothing about it.
    pub add_bos: bool,
}

/// The family with this `tokenizer.ggml.pre`.
///
/// The same names mean the same as in llama.cpp; where its splitting is an approximation of the
/// model's own, the model's own is used.
pub(super) fn pre(name: &str) -> Result<Pre, TokenizerError> {
    let plain = |steps: Vec<Value>| Pre {
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": steps}),
        ignore_merges: false,
        add_bos: false,
    };
    match name {
        "gpt-2" => Ok(plain(vec![split(WORDS_GPT2), bytes()])),
        "smollm" => Ok(plain(vec![
            json!({"type": "Digits", "individual_digits": true}),
            split(WORDS_GPT2),
            bytes(),
        ])),
        "default" => Ok(plain(vec![
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(WORDS_GPT2),
            split(r"\p{N}+"),
            split("[0-9][0-9][0-9]"),
            bytes(),
        ])),
        "qwen2" | "deepseek-r1-qwen" => Ok(Pre {
            normalizer: json!({"type": "NFC"}),
            ..plain(vec![split(&WORDS.replace("DIGITS", r"\p{N}")), bytes()])
        }),
        "llama-bpe" | "llama3" | "llama-v3" => Ok(Pre {
            ignore_merges: true,
            add_bos: true,
            ..plain(vec![
                split(&WORDS.replace("DIGITS", r"\p{N}{1,3}")),
                bytes(),
            ])
        }),
        _ => Err(TokenizerError::Pre {
            name: name.to_owned(),
        }),
    }
}

/// Matches and what is between them become words.
fn split(pattern: &str) -> Value {
    json!({
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": false,
    })
}

/// Bytes become characters that can be printed.
fn bytes() -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": false,
    })
}

/// The `tokenizer.json` for these tokens and merges ("left right").
pub(super) fn tokenizer_json(
    vocabulary: &Vocabulary<'_>,
    ids: &HashMap<&str, usize>,
    merges: &[&str],
    bos: Option<u32>,
    pre: &Pre,
) -> Result<String, TokenizerError> {
    let mut pairs = Vec::with_capacity(merges.len());
    let mut whole = String::new();
    for (index, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            whole.clear();
            whole.push_str(left);
            whole.push_str(right);
            [left, right, whole.as_str()]
                .iter()
                .all(|text| ids.contains_key(text))
        });
        match pair {
            Some(pair) => pairs.push(pair),
            None => {
                return Err(TokenizerError::Merge {
                    index,
                    text: (*merge).to_owned(),
                });
            }
        }
    }
    let parts = Parts {
        normalizer: pre.normalizer.clone(),
        pre_tokenizer: pre.pre_tokenizer.clone(),
        decoder: json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        }),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": pre.ignore_merges,
        }),
    };
    Ok(write(vocabulary, &pairs, bos, &parts))
}
