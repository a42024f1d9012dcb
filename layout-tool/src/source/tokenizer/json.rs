//! Writes a `tokenizer.json` whose model is byte-pair encoding.

use serde_json::{Value, json};

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    /// The kind with this number; normal for those that are not known, as in llama.cpp.
    pub fn from_id(id: u64) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Texts of all tokens with their kinds.
pub(super) struct Vocabulary<'v> {
    pub texts: &'v [&'v str],
    pub kinds: &'v [TokenKind],
}

/// The parts of a `tokenizer.json` that differ between models.
pub(super) struct Parts {
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
    /// Fields of `model` but for vocabulary and merges.
    pub model: Value,
}

/// The whole file. `bos` is put before a text by those who encode with special tokens.
pub(super) fn write(
    vocabulary: &Vocabulary<'_>,
    merges: &[(&str, &str)],
    bos: Option<u32>,
    parts: &Parts,
) -> String {
    let head = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary),
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor(vocabulary, bos),
        "decoder": parts.decoder,
    });
    // The large lists are written as text: as `Value`s they would take ten times the memory.
    let mut out = head.to_string();
    out.pop();
    out.push_str(",\"model\":");
    out.push_str(&parts.model.to_string());
    out.pop();
    out.push_str(",\"vocab\":");
    push_vocabulary(&mut out, vocabulary.texts);
    out.push_str(",\"merges\":");
    push_merges(&mut out, merges);
    out.push_str("}}");
    out
}

fn push_merges(out: &mut String, merges: &[(&str, &str)]) {
    out.push('[');
    for (index, (left, right)) in merges.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push('[');
        push_text(out, left);
        out.push(',');
        push_text(out, right);
        out.push(']');
    }
    out.push(']');
}

fn push_vocabulary(out: &mut String, texts: &[&str]) {
    out.push('{');
    for (id, text) in texts.iter().enumerate() {
        if id > 0 {
            out.push(',');
        }
        push_text(out, text);
        out.push(':');
        out.push_str(&id.to_string());
    }
    out.push('}');
}

/// A JSON string.
fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0'..='\x1F' => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// Tokens that are found in a text before anything else is done with it.
fn added_tokens(vocabulary: &Vocabulary<'_>) -> Value {
    let tokens = vocabulary.texts.iter().zip(vocabulary.kinds).enumerate();
    let added = tokens.filter_map(|(id, (text, kind))| {
        let special = match kind {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => return None,
        };
        if text.is_empty() {
            return None;
        }
        Some(json!({
            "id": id,
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": special,
        }))
    });
    Value::Array(added.collect())
}

fn post_processor(vocabulary: &Vocabulary<'_>, bos: Option<u32>) -> Value {
    let text = bos.and_then(|bos| vocabulary.texts.get(bos as usize));
    let (Some(bos), Some(text)) = (bos, text) else {
        return Value::Null;
    };
    let special = json!({"SpecialToken": {"id": text, "type_id": 0}});
    let first = json!({"Sequence": {"id": "A", "type_id": 0}});
    let second = json!({"Sequence": {"id": "B", "type_id": 1}});
    json!({
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {*text: {"id": text, "ids": [bos], "tokens": [text]}},
    })
}
