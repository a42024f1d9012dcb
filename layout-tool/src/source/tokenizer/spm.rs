//! SentencePiece BPE ("llama"): merges follow from the scores of the vocabulary.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::json::{Parts, TokenKind, Vocabulary, write};

/// Longest token, in bytes, that can be the result of merges. SentencePiece's own limit is 16
/// characters by default.
const PIECE_BYTES_MAX: usize = 256;

/// SentencePiece's mark for a space.
const SPACE: &str = "\u{2581}";

/// The `tokenizer.json` for these tokens and scores.
pub(super) fn tokenizer_json(
    vocabulary: &Vocabulary<'_>,
    ids: &HashMap<&str, usize>,
    scores: &[f32],
    bos: Option<u32>,
    space_prefix: bool,
) -> String {
    let merges = merges(vocabulary, ids, scores);
    let (normalizer, decoder) = spaces(has_space_mark(vocabulary), space_prefix);
    let unknown = vocabulary
        .kinds
        .iter()
        .position(|kind| *kind == TokenKind::Unknown);
    let parts = Parts {
        normalizer,
        pre_tokenizer: Value::Null,
        decoder,
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|id| vocabulary.texts[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
        }),
    };
    write(vocabulary, &merges, bos, &parts)
}

/// True if any token holds SentencePiece's mark for a space.
fn has_space_mark(vocabulary: &Vocabulary<'_>) -> bool {
    let mut tokens = vocabulary.texts.iter().zip(vocabulary.kinds);
    tokens.any(|(text, kind)| *kind == TokenKind::Normal && text.contains(SPACE))
}

/// Normalizer and decoder. A vocabulary without the mark (one of bytes only) takes spaces as bytes,
/// where llama.cpp would write the three bytes of the mark, and not read them as a space again.
fn spaces(marked: bool, prefix: bool) -> (Value, Value) {
    let mut decoders = vec![json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if !marked {
        return (
            Value::Null,
            json!({"type": "Sequence", "decoders": decoders}),
        );
    }
    let space = json!({"String": " "});
    let mark = json!({"type": "Replace", "pattern": space, "content": SPACE});
    let unmark = json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "});
    decoders.insert(0, unmark);
    if !prefix {
        return (mark, json!({"type": "Sequence", "decoders": decoders}));
    }
    decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    let first = json!({"type": "Prepend", "prepend": SPACE});
    let normalizer = json!({"type": "Sequence", "normalizers": [first, mark]});
    (
        normalizer,
        json!({"type": "Sequence", "decoders": decoders}),
    )
}

/// Every way to make a token from two others, the best score first.
///
/// Within one score the order is that of `transformers`' conversion of SentencePiece models: the
/// longer left part first.
fn merges<'v>(
    vocabulary: &Vocabulary<'v>,
    ids: &HashMap<&str, usize>,
    scores: &[f32],
) -> Vec<(&'v str, &'v str)> {
    let is_piece = |id: usize| {
        matches!(
            vocabulary.kinds[id],
            TokenKind::Normal | TokenKind::UserDefined
        )
    };
    let find = |text: &str| ids.get(text).copied().filter(|&id| is_piece(id));
    let mut found = Vec::new();
    for (id, text) in vocabulary.texts.iter().enumerate() {
        if !is_piece(id) || text.len() > PIECE_BYTES_MAX {
            continue;
        }
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if find(left).is_some() && find(right).is_some() {
                found.push((scores[id], left, right));
            }
        }
    }
    found.sort_by(|a, b| {
        let length = |text: &str| text.chars().count();
        b.0.total_cmp(&a.0)
            .then_with(|| length(b.1).cmp(&length(a.1)))
    });
    found
        .into_iter()
        .map(|(_, left, right)| (left, right))
        .collect()
}

#[test]
fn better_scores_merge_first() {
    let texts = ["a", "b", "ab", "ba", "aba"];
    let kinds = [TokenKind::Normal; 5];
    let ids: HashMap<&str, usize> = texts.iter().copied().zip(0..).collect();
    let vocabulary = Vocabulary {
        texts: &texts,
        kinds: &kinds,
    };
    let found = merges(&vocabulary, &ids, &[0.0, 0.0, -2.0, -1.0, -3.0]);
    assert_eq!(found, [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]);
}
