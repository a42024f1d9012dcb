//! Synthetic tokenizers of the two families, each compared with the `tokenizers` crate's own.

use super::*;
use serde_json::{Value, json};

fn byte_characters() -> Vec<String> {
    let printable = |byte: &u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = (0x100..).filter_map(char::from_u32);
    let character = |byte: u8| {
        if printable(&byte) {
            char::from(byte)
        } else {
            others.next().unwrap_or(' ')
        }
    };
    (0..=255).map(character).map(String::from).collect()
}

/// A vocabulary: `first` tokens, then what `merges` make, in this order.
fn vocab_of(first: Vec<String>, merges: &[&str]) -> Value {
    let merged = merges.iter().map(|merge| merge.replace(' ', ""));
    let texts = first.into_iter().chain(merged);
    let ids = texts.enumerate().map(|(id, text)| (text, json!(id)));
    Value::Object(ids.collect())
}

fn added(id: u32, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

const BYTE_MERGES: [&str; 14] = [
    "h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d", "a a", "aa a",
    "Ã ©", "ð Ł", "ðŁ ĺ",
];

/// A byte-level tokenizer, like GPT-2's, Llama 3's and Qwen's.
pub(in crate::text) fn byte_level_json() -> String {
    json!({
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0,
            "direction": "Right"},
        "padding": null,
        "added_tokens": [
            added(270, "<|im_start|>", true), added(271, "<|im_end|>", true),
            added(272, "<tool_call>", false), added(273, "<|endoftext|>", true),
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab_of(byte_characters(), &BYTE_MERGES), "merges": BYTE_MERGES},
    })
    .to_string()
}

/// A SentencePiece tokenizer, like Llama 2's: no pre-tokenizer, bytes for unknown characters.
fn sentence_piece_json() -> String {
    let merges = [
        "h e",
        "l l",
        "he ll",
        "hell o",
        "▁ hello",
        "▁ w",
        "▁ ▁",
        "▁▁ ▁▁",
        "a a",
        "aa aa",
    ];
    let mut first: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    first.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    first.extend("▁helowrdaé".chars().map(String::from));
    json!({
        "version": "1.0",
        "added_tokens": [added(0, "<unk>", true), added(1, "<s>", true), added(2, "</s>", true)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab_of(first, &merges), "merges": merges},
    })
    .to_string()
}

fn tokenizer(json: &str) -> Tokenizer {
    Tokenizer::from_json(json.as_bytes()).unwrap()
}

const TEXTS: [&str; 16] = [
    "",
    " ",
    "hello world",
    "hello  hello\n\nhello world ",
    "aaaaaaaaaaa aaaa",
    "Café déjà vu — 123 😊",
    "Cafe\u{301}",
    "<s>G",
    "\r\n\r\n \t a",
    "<|im_start|>user\nhello<|im_end|>",
    "a<tool_call>b</tool_call>",
    "   ",
    "3 33 333 3333",
    "😊😊",
    "w\u{0}\u{7f}\u{ad}w",
    "▁hello <0x41>",
];

#[test]
fn ids_are_those_of_the_tokenizers_crate() {
    for json in [byte_level_json(), sentence_piece_json()] {
        let tokenizer = tokenizer(&json);
        let mut reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        reference.with_truncation(None).unwrap();
        for text in TEXTS {
            for parse_special in [true, false] {
                reference.set_encode_special_tokens(!parse_special);
                let want = reference.encode(text, false).unwrap();
                let got = tokenizer.encode(text, parse_special, false).unwrap();
                assert_eq!(got, want.get_ids(), "{text:?} {parse_special}");
            }
        }
        for id in 0..tokenizer.id_end() + 2 {
            assert_eq!(
                tokenizer.text(id).map(str::to_string),
                reference.id_to_token(id)
            );
        }
    }
}

#[test]
fn bytes_of_the_ids_are_the_text() {
    let (byte_level, pieces) = (byte_level_json(), sentence_piece_json());
    for (json, prefix) in [(&byte_level, ""), (&pieces, " ")] {
        let tokenizer = tokenizer(json);
        let table = tokenizer.token_bytes();
        assert_eq!(table.id_end(), tokenizer.id_end());
        for text in TEXTS {
            let ids = tokenizer.encode(text, false, false).unwrap();
            let bytes: Vec<u8> = ids
                .iter()
                .flat_map(|&id| table.bytes(id))
                .copied()
                .collect();
            let mut want =
                text.replace("e\u{301}", if prefix.is_empty() { "é" } else { "e\u{301}" });
            if !text.is_empty() {
                want.insert_str(0, prefix);
            }
            if !prefix.is_empty() {
                want = want.replace('▁', " ");
            }
            assert_eq!(String::from_utf8_lossy(&bytes), want);
        }
    }
}

#[test]
fn markup_in_text_is_text() {
    let tokenizer = tokenizer(&byte_level_json());
    let text = "<|im_start|>a<tool_call><|im_end|>";
    let parsed = tokenizer.encode(text, true, false).unwrap();
    assert_eq!(parsed, [270, u32::from(b'a'), 272, 271]);
    let plain = tokenizer.encode(text, false, false).unwrap();
    assert!(plain.contains(&272), "user-defined tokens match everywhere");
    assert!(!plain.contains(&270) && !plain.contains(&271));
    assert_eq!(plain.len(), "<|im_start|>a<|im_end|>".len() + 1);
    let table = tokenizer.token_bytes();
    let controls: Vec<u32> = (0..table.id_end())
        .filter(|&id| table.is_control(id))
        .collect();
    assert_eq!(controls, [270, 271, 273]);
    assert_eq!(tokenizer.end_ids(), [271, 273]);
}

#[test]
fn guarded_markup_in_messages_is_text_too() {
    for json in [byte_level_json(), sentence_piece_json()] {
        let tokenizer = tokenizer(&json);
        for message in [
            "x<|im_end|>",
            "</s><s>",
            "<|im_<|im_end|>end|>",
            "plain",
            "a</s",
        ] {
            let rendered = format!("<s><|im_start|>{}<|im_end|></s>", tokenizer.guard(message));
            let got = tokenizer.encode_rendered(&rendered, false).unwrap();
            let middle = tokenizer.encode(message, false, false).unwrap();
            let edge = |text| tokenizer.encode(text, true, false).unwrap();
            if json == byte_level_json() {
                let want = [edge("<s><|im_start|>"), middle, edge("<|im_end|></s>")].concat();
                assert_eq!(got, want, "{message}");
            } else {
                // The markup that only the other vocabulary has is text here.
                assert_eq!(got.iter().filter(|&&id| id == 1).count(), 1, "{message}");
                assert_eq!(got.iter().filter(|&&id| id == 2).count(), 1, "{message}");
            }
        }
        // Elsewhere the mark is a character like any other.
        let text = "a\u{FDD0}b";
        let ids = tokenizer.encode(text, true, false).unwrap();
        let table = tokenizer.token_bytes();
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| table.bytes(id))
            .copied()
            .collect();
        assert!(String::from_utf8(bytes).unwrap().ends_with(text));
    }
}

#[test]
fn the_start_token_comes_once() {
    let tokenizer = tokenizer(&sentence_piece_json());
    assert_eq!(
        tokenizer.encode("a", false, true),
        Err(TokenizerError::NoStartToken)
    );
    let tokenizer = tokenizer.with_bos(Some(1));
    let hello = tokenizer.encode("hello", false, false).unwrap();
    let begun = [&[1], &hello[..]].concat();
    assert_eq!(tokenizer.encode("hello", false, true).unwrap(), begun);
    assert_eq!(tokenizer.encode("<s>hello", true, true).unwrap(), begun);
    assert_eq!(tokenizer.encode("<s><s>", true, true).unwrap(), [1, 1]);
    assert_eq!(tokenizer.encode("", false, true).unwrap(), [1]);
}

fn error_of(json: &str) -> String {
    Tokenizer::from_json(json.as_bytes())
        .err()
        .unwrap()
        .to_string()
}

#[test]
fn what_is_not_known_is_refused() {
    let json = byte_level_json();
    for (from, to, want) in [
        ("\"NFC\"", "\"NFX\"", "the tokenizer can't be read: "),
        (
            "\"type\":\"ByteLevel\",\"use",
            "\"type\":\"Bytes\",\"use",
            "the tokenizer can't be read: ",
        ),
        ("\"BPE\"", "\"Magic\"", "the tokenizer can't be read: "),
        (
            "\"id\":270",
            "\"id\":5",
            "added token \"<|im_start|>\": its id 5 is another token's",
        ),
        (
            "\"id\":270",
            "\"id\":271",
            "added token \"<|im_end|>\": its id 271 is another token's",
        ),
        (
            "\"id\":270",
            "\"id\":9999999",
            "added token \"<|im_start|>\": its id 9999999 is",
        ),
        (
            "\"h e\"",
            "\"h  e\"",
            "the tokenizer can't be read: merges: merge 0: \"h  e\" is not two tokens",
        ),
        (
            "\"h e\"",
            "\"h €\"",
            "the tokenizer can't be read: merges: merge 0: no token \"€\"",
        ),
        (
            "\"h e\"",
            "[\"h\"]",
            "the tokenizer can't be read: merges: merge 0: not two tokens",
        ),
        (
            "\"h e\"",
            "7",
            "the tokenizer can't be read: merges: invalid type: integer `7`",
        ),
        (
            "\"a\":97",
            "\"a\":96",
            "the tokenizer can't be read: id 97 of",
        ),
        (
            "\"unk_token\":null",
            "\"unk_token\":\"€\"",
            "the tokenizer can't be read: no token \"€\"",
        ),
    ] {
        let broken = json.replace(from, to);
        assert_ne!(broken, json, "{from}");
        let error = error_of(&broken);
        let id_taken = want.ends_with("id 97 of") && error.contains("is used or too large");
        assert!(error.starts_with(want) || id_taken, "{to}: {error}");
    }
    for cut in (0..json.len())
        .filter(|&cut| json.is_char_boundary(cut))
        .step_by(7)
    {
        error_of(&json[..cut]);
    }
}

#[test]
fn a_character_without_a_token_is_an_error() {
    let json = byte_level_json().replace("\"ByteLevel\"", "\"Whitespace\"");
    let json = json
        .replace(",\"use_regex\":true", "")
        .replace(",\"trim_offsets\":true", "");
    let json = json.replace("\"add_prefix_space\":false,", "");
    let mut file: Value = serde_json::from_str(&json).unwrap();
    file["pre_tokenizer"] = json!({"type": "Whitespace"});
    file["decoder"] = Value::Null;
    let tokenizer = tokenizer(&file.to_string());
    let error = tokenizer.encode("a 你", false, false).unwrap_err();
    assert_eq!(error, TokenizerError::UnknownCharacter('你'));
    assert_eq!(error.to_string(), "the vocabulary has no token for '你'");
}

#[test]
fn other_models_go_through_the_crate() {
    let file = json!({
        "added_tokens": [added(3, "<s>", true)],
        "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
            "split": true},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
            "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["▁a", -1.0], ["b", -2.0]]},
    });
    let tokenizer = tokenizer(&file.to_string());
    assert_eq!(tokenizer.encode("ab<s>", true, false).unwrap(), [1, 2, 3]);
    assert_eq!(
        (tokenizer.text(1), tokenizer.text(9), tokenizer.id_end()),
        (Some("▁a"), None, 4)
    );
    assert_eq!(tokenizer.token_bytes().bytes(1), b" a");
}

#[test]
fn windows_change_nothing() {
    let mut state = 1u32;
    let mut below = |bound: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % bound
    };
    let parts = [
        "hello",
        " world",
        "\n",
        "\n",
        ".",
        " ",
        "\r\n",
        "é",
        "😊",
        "<|im_end|>",
        "33",
        "x",
    ];
    let (byte_level, pieces) = (byte_level_json(), sentence_piece_json());
    let prefixed = byte_level.replace("\"add_prefix_space\":false", "\"add_prefix_space\":true");
    assert_ne!(prefixed, byte_level);
    for json in [byte_level, pieces, prefixed] {
        let tokenizer = tokenizer(&json);
        for round in 0..200 {
            let text: String = (0..400).map(|_| parts[below(12) as usize]).collect();
            let markup = [Markup::Text, Markup::Parsed, Markup::Guarded][round % 3];
            let (mut whole, mut windows) = (Vec::new(), Vec::new());
            tokenizer.encode_window(&text, markup, &mut whole).unwrap();
            tokenizer
                .encode_windows(&text, markup, &mut windows)
                .unwrap();
            assert_eq!(windows, whole, "{text:?}");
        }
    }
}
