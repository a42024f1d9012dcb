//! Tokenizers and special tokens.

use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::build::*;
use super::sentence;
use crate::source::{Model, Options, SourceError, TokenizerError, gguf, open, open_with};

fn bpe(pre: &str) -> Gguf {
    let mut file = tiny("llama");
    add_bpe(&mut file, pre);
    file
}

fn spm() -> Gguf {
    let mut file = tiny("llama");
    add_spm(&mut file);
    file
}

fn model(file: &Gguf) -> Model {
    gguf::from_bytes(&file.bytes()).unwrap_or_else(|error| panic!("{error}"))
}

fn tokenizer(model: &Model) -> Tokenizer {
    model
        .tokenizer
        .as_ref()
        .unwrap()
        .tokenizer_json
        .parse()
        .unwrap()
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap().get_ids().to_vec()
}

fn error(file: &Gguf) -> TokenizerError {
    let error = gguf::from_bytes(&file.bytes()).unwrap_err();
    sentence(&error);
    match error {
        SourceError::Tokenizer(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn bpe_merges_and_finds_added_tokens() {
    for pre in [
        "gpt-2",
        "smollm",
        "qwen2",
        "llama-bpe",
        "default",
        "llama3",
        "deepseek-r1-qwen",
    ] {
        let model = model(&bpe(pre));
        let tokenizer = tokenizer(&model);
        assert_eq!(
            ids(&tokenizer, "ab a<|im_end|>b<u>"),
            [2, 3, 0, 4, 1, 5],
            "{pre}"
        );
        assert_eq!(tokenizer.decode(&[2, 3, 0], false).unwrap(), "ab a");
        assert_eq!(
            tokenizer.decode(&[2, 4], true).unwrap(),
            "ab",
            "control tokens are special"
        );
        assert_eq!(tokenizer.decode(&[2, 5], true).unwrap(), "ab<u>");
        assert_eq!(model.config.eos_tokens, [4]);
        let files = model.tokenizer.unwrap();
        assert_eq!(
            (files.eos_token.as_deref(), files.bos_token),
            (Some("<|im_end|>"), None)
        );
    }
}

#[test]
fn start_tokens_follow_the_file_or_the_family() {
    let add_bos = |file: &mut Gguf| {
        file.set("tokenizer.ggml.bos_token_id", u32(5));
        model(file).config.add_bos
    };
    assert!(!add_bos(&mut bpe("qwen2")));
    assert!(add_bos(&mut bpe("llama-bpe")));
    assert!(add_bos(
        bpe("qwen2").set("tokenizer.ggml.add_bos_token", flag(1))
    ));
    assert!(!add_bos(
        bpe("llama-bpe").set("tokenizer.ggml.add_bos_token", flag(0))
    ));
    assert!(
        !model(&bpe("llama-bpe")).config.add_bos,
        "there is no token to add"
    );
    assert!(model(&spm()).config.add_bos);
    let with_special = tokenizer(&model(&spm())).encode("a", true).unwrap();
    assert_eq!(with_special.get_ids(), [1, 5]);
}

#[test]
fn sentencepiece_merges_by_score() {
    let model_ = model(&spm());
    let with_prefix = tokenizer(&model_);
    assert_eq!(ids(&with_prefix, "a a"), [5, 5]);
    assert_eq!(ids(&with_prefix, "aa"), [5, 4]);
    assert_eq!(ids(&with_prefix, "</s>a"), [2, 5]);
    assert_eq!(
        ids(&with_prefix, "zz"),
        [3, 0],
        "unknown characters in a row are one token"
    );
    assert_eq!(with_prefix.decode(&[5, 5], true).unwrap(), "a a");
    let mut file = spm();
    file.set("tokenizer.ggml.add_space_prefix", flag(0));
    let without = tokenizer(&model(&file));
    assert_eq!(ids(&without, "a a"), [4, 5]);
    assert_eq!(without.decode(&[5, 5], true).unwrap(), " a a");
    assert_eq!(
        (model_.config.bos_token, model_.config.eos_tokens),
        (Some(1), vec![2])
    );
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let mut file = bpe("gpt-2");
    file.set("tokenizer.ggml.model", text("bert"));
    assert_eq!(
        error(&file),
        TokenizerError::Model {
            name: "bert".into()
        }
    );
    assert_eq!(
        error(&bpe("tekken")),
        TokenizerError::Pre {
            name: "tekken".into()
        }
    );
    let mut file = bpe("gpt-2");
    file.remove("tokenizer.ggml.pre");
    assert_eq!(
        error(&file),
        TokenizerError::Missing {
            key: "tokenizer.ggml.pre"
        }
    );
    // Without its tokenizer the model can be used.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bpe("tekken").bytes()).unwrap();
    let model = open_with(&path, Options { tokenizer: false }).unwrap();
    assert!(model.tokenizer.is_none());
    assert_eq!(model.config.eos_tokens, [4]);
}

#[test]
fn lists_fit_the_vocabulary() {
    let mut file = bpe("gpt-2");
    file.set("tokenizer.ggml.token_type", i32s(&[1]));
    let key = "tokenizer.ggml.token_type";
    assert_eq!(
        error(&file),
        TokenizerError::Length {
            key,
            have: 1,
            need: 6
        }
    );
    let mut file = spm();
    file.set("tokenizer.ggml.scores", f32s(&[0.0; 7]));
    let key = "tokenizer.ggml.scores";
    assert_eq!(
        error(&file),
        TokenizerError::Length {
            key,
            have: 7,
            need: 6
        }
    );
    file.remove(key);
    assert_eq!(error(&file), TokenizerError::Missing { key });
    file.set(key, array(0, 6, &[0; 6]));
    let wrong = gguf::from_bytes(&file.bytes()).unwrap_err();
    assert!(sentence(&wrong).contains("declared as u8"), "{wrong}");

    let mut file = bpe("gpt-2");
    file.set(
        "tokenizer.ggml.tokens",
        texts(&["a", "b", "ab", "c", "a", "e"]),
    );
    assert_eq!(
        error(&file),
        TokenizerError::Twice {
            first: 0,
            second: 4
        }
    );
    for merge in ["a c", "ab", "b a", "x y"] {
        let mut file = bpe("gpt-2");
        file.set("tokenizer.ggml.merges", texts(&["a b", merge]));
        assert_eq!(
            error(&file),
            TokenizerError::Merge {
                index: 1,
                text: merge.into()
            }
        );
    }
}

#[test]
fn vocabulary_and_embedding_agree() {
    let mut file = bpe("gpt-2");
    file.set("tokenizer.ggml.tokens", texts(&["a", "b"]));
    let refused = gguf::from_bytes(&file.bytes()).unwrap_err();
    let (what, have, rows) = ("the tokenizer", 2, 6);
    assert_eq!(refused, SourceError::Vocabulary { what, have, rows });
    sentence(&refused);
    let mut file = bpe("gpt-2");
    file.set("tokenizer.ggml.eos_token_id", u32(6));
    let refused = gguf::from_bytes(&file.bytes()).unwrap_err();
    assert_eq!(
        refused,
        SourceError::TokenOutside {
            token: 6,
            vocab_size: 6
        }
    );
    sentence(&refused);
    let mut file = bpe("gpt-2");
    file.set("tokenizer.ggml.bos_token_id", u32(u32::MAX));
    assert_eq!(model(&file).config.bos_token, None);
}

/// A folder whose tokenizer is the one made of a GGUF file.
fn folder(settings: &Value, generation: &Value) -> (tempfile::TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("llama");
    config["bos_token_id"] = json!(1);
    config["eos_token_id"] = json!(2);
    write_folder(folder.path(), &config, &tensors());
    let json = model(&spm()).tokenizer.unwrap().tokenizer_json;
    std::fs::write(folder.path().join("tokenizer.json"), &json).unwrap();
    let write = |name: &str, json: &Value| {
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    };
    write("tokenizer_config.json", settings);
    write("generation_config.json", generation);
    (folder, serde_json::from_str(&json).unwrap())
}

#[test]
fn folders_bring_their_tokenizer() {
    let settings = json!({
        "bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ messages }}",
    });
    let (folder, _) = folder(&settings, &json!({"eos_token_id": [2, 3]}));
    let model = open(folder.path()).unwrap();
    assert_eq!(
        (model.config.bos_token, model.config.eos_tokens),
        (Some(1), vec![2, 3])
    );
    assert!(model.config.add_bos, "the tokenizer's own template adds it");
    let files = model.tokenizer.unwrap();
    assert_eq!(files.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(files.bos_token.as_deref(), Some("<s>"));
    assert_eq!(files.eos_token.as_deref(), Some("</s>"));

    std::fs::write(folder.path().join("chat_template.jinja"), "{{ own }}").unwrap();
    let files = open(folder.path()).unwrap().tokenizer.unwrap();
    assert_eq!(files.chat_template.as_deref(), Some("{{ own }}"));
    let without = open_with(folder.path(), Options { tokenizer: false }).unwrap();
    assert!(without.tokenizer.is_none() && without.config.add_bos);
}

#[test]
fn templates_may_be_named_and_start_tokens_off() {
    let list = json!([
        {"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"},
    ]);
    let settings = json!({"add_bos_token": false, "chat_template": list});
    let (folder, _) = folder(&settings, &json!({}));
    let model = open(folder.path()).unwrap();
    assert!(!model.config.add_bos);
    assert_eq!(model.config.eos_tokens, [2]);
    assert_eq!(
        model.tokenizer.unwrap().chat_template.as_deref(),
        Some("yes")
    );
}

#[test]
fn folders_with_a_bad_tokenizer_are_refused() {
    let (folder, json) = folder(&json!({}), &json!({}));
    let refused = |change: fn(&mut Value)| {
        let mut json = json.clone();
        change(&mut json);
        std::fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        let error = open(folder.path()).unwrap_err();
        sentence(&error);
        error
    };
    let error = refused(|json| json["model"]["vocab"]["new"] = json!(6));
    let (what, have, rows) = ("the tokenizer", 7, 6);
    assert_eq!(error, SourceError::Vocabulary { what, have, rows });
    let lacks = "a number for each token";
    let error = refused(|json| json["model"]["vocab"]["new"] = json!("x"));
    assert_eq!(error, TokenizerError::Folder { lacks }.into());
    let error = refused(|json| json["model"]["vocab"] = json!(null));
    assert_eq!(
        error,
        TokenizerError::Folder {
            lacks: "model.vocab"
        }
        .into()
    );
    std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
    assert!(matches!(open(folder.path()), Err(SourceError::Json { .. })));
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    std::fs::write(
        folder.path().join("generation_config.json"),
        r#"{"eos_token_id":"x"}"#,
    )
    .unwrap();
    assert!(matches!(open(folder.path()), Err(SourceError::Key { .. })));
}
