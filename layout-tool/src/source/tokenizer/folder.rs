//! The tokenizer of a Hugging Face folder.

use std::path::Path;

use serde_json::Value;

use super::TokenizerFiles;
use super::error::TokenizerError;
use super::gguf::Import;
use crate::source::error::SourceError;
use crate::source::file::{read_json, read_text};

/// Reads the tokenizer files beside `config`; with `files`, the tokenizer itself too.
pub(in crate::source) fn import(
    folder: &Path,
    config: &Value,
    vocab_size: usize,
    files: bool,
) -> Result<Import, SourceError> {
    let settings = read_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let generation = read_json(&folder.join("generation_config.json"))?.unwrap_or_default();
    let path = folder.join("tokenizer.json");
    let json = read_text(&path)?;
    let tokenizer: Option<Value> = match &json {
        None => None,
        Some(text) => Some(
            serde_json::from_str(text).map_err(|error| SourceError::Json {
                path: path.clone(),
                message: error.to_string(),
            })?,
        ),
    };
    let bos_text = special(&settings, "bos_token");
    let eos_text = special(&settings, "eos_token");
    let find = |text: &Option<String>| {
        text.as_ref()
            .and_then(|text| tokenizer.as_ref().and_then(|json| id_of(json, text)))
    };
    let mut eos_tokens = ids(&generation, "eos_token_id")?;
    if eos_tokens.is_empty() {
        eos_tokens = ids(config, "eos_token_id")?;
    }
    if eos_tokens.is_empty() {
        eos_tokens.extend(find(&eos_text));
    }
    let bos_token = ids(config, "bos_token_id")?
        .first()
        .copied()
        .or_else(|| find(&bos_text));
    let add_bos = match settings.get("add_bos_token").and_then(Value::as_bool) {
        Some(add_bos) => add_bos,
        None => tokenizer
            .as_ref()
            .is_some_and(|json| adds_token(json, bos_token)),
    };
    let mut import = Import {
        bos_token,
        eos_tokens,
        add_bos,
        ..Import::default()
    };
    match (json, &tokenizer) {
        (Some(tokenizer_json), Some(value)) if files => {
            check_vocabulary(value, vocab_size)?;
            let chat_template = chat_template(folder, &settings)?;
            import.files = Some(TokenizerFiles {
                tokenizer_json,
                chat_template,
                bos_token: bos_text,
                eos_token: eos_text,
            });
        }
        (None, _) => {
            import
                .notes
                .push("there is no tokenizer.json, the model works on token ids".into());
        }
        _ => {}
    }
    Ok(import)
}

/// Text of a special token, which is a string or an object that holds it.
fn special(settings: &Value, key: &str) -> Option<String> {
    let value = settings.get(key)?;
    let text = value
        .as_str()
        .or_else(|| value.get("content").and_then(Value::as_str))?;
    Some(text.to_owned())
}

/// A token id, or a list of them.
fn ids(json: &Value, key: &str) -> Result<Vec<u32>, SourceError> {
    let Some(value) = json.get(key).filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let list = value
        .as_array()
        .map_or(std::slice::from_ref(value), Vec::as_slice);
    let all = list
        .iter()
        .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
    let all: Option<Vec<u32>> = all.collect();
    all.ok_or_else(|| {
        let have: String = value.to_string().chars().take(80).collect();
        SourceError::key(key, have, "a token id or a list of them")
    })
}

/// Id of the token with this text.
fn id_of(tokenizer: &Value, text: &str) -> Option<u32> {
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    let in_added = added
        .and_then(|all| all.iter().find(|token| token["content"] == text))
        .and_then(|token| token["id"].as_u64());
    let id = in_added.or_else(|| tokenizer["model"]["vocab"].get(text)?.as_u64())?;
    u32::try_from(id).ok()
}

/// True if the tokenizer's own template begins with this token.
fn adds_token(tokenizer: &Value, token: Option<u32>) -> bool {
    let Some(token) = token else {
        return false;
    };
    let processor = &tokenizer["post_processor"];
    let nested = processor["processors"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    std::iter::once(processor).chain(nested).any(|processor| {
        let first = &processor["single"][0]["SpecialToken"]["id"];
        let ids = first
            .as_str()
            .map(|name| &processor["special_tokens"][name]["ids"]);
        ids.is_some_and(|ids| ids[0] == token)
    })
}

/// Refuses a tokenizer that knows tokens which the embedding lacks.
fn check_vocabulary(tokenizer: &Value, rows: usize) -> Result<(), SourceError> {
    let vocab = &tokenizer["model"]["vocab"];
    let ids: Vec<Option<u64>> = match vocab {
        Value::Object(map) => map.values().map(Value::as_u64).collect(),
        Value::Array(list) => (0..list.len() as u64).map(Some).collect(),
        _ => {
            return Err(TokenizerError::Folder {
                lacks: "model.vocab",
            }
            .into());
        }
    };
    let added = tokenizer["added_tokens"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let all = ids
        .into_iter()
        .chain(added.iter().map(|token| token["id"].as_u64()));
    let mut have = 0;
    for id in all {
        match id.and_then(|id| usize::try_from(id).ok()) {
            Some(id) => have = have.max(id.saturating_add(1)),
            None => {
                return Err(TokenizerError::Folder {
                    lacks: "a number for each token",
                }
                .into());
            }
        }
    }
    if have > rows {
        return Err(SourceError::Vocabulary {
            what: "the tokenizer",
            have,
            rows,
        });
    }
    Ok(())
}

/// The template in a file of its own, or in tokenizer_config.json: a string, or a list of named
/// ones of which `default` is taken.
fn chat_template(folder: &Path, settings: &Value) -> Result<Option<String>, SourceError> {
    if let Some(template) = read_text(&folder.join("chat_template.jinja"))? {
        return Ok(Some(template));
    }
    let template = &settings["chat_template"];
    let named = template
        .as_array()
        .and_then(|all| all.iter().find(|one| one["name"] == "default"));
    let text = template
        .as_str()
        .or_else(|| named.and_then(|one| one["template"].as_str()));
    Ok(text.map(str::to_owned))
}
