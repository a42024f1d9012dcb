//! Reads a `tokenizer.json`.

use super::TokenizerError;
use crate::text::bpe::Bpe;
use crate::text::token_bytes::Spelling;
use crate::text::vocab::VOCAB_MAX;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use tokenizers::{AddedToken, Model as _, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// The parts that encoding needs. Truncation, padding and the post-processor are left out: the
/// caller says whether a text begins with the start token.
pub(super) struct File {
    pub added_tokens: Vec<FileToken>,
    pub normalizer: Option<NormalizerWrapper>,
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    pub spelling: Spelling,
    pub model: Model,
}

#[derive(Deserialize)]
pub(super) struct FileToken {
    pub id: u32,
    #[serde(flatten)]
    pub token: AddedToken,
}

#[derive(Deserialize)]
struct RawFile<'j> {
    #[serde(default)]
    added_tokens: Vec<FileToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<Value>,
    decoder: Option<Value>,
    #[serde(borrow)]
    model: &'j RawValue,
}

impl File {
    pub(super) fn read(json: &[u8]) -> Result<Self, TokenizerError> {
        let raw: RawFile<'_> = serde_json::from_slice(json).map_err(json_error)?;
        let model = Model::read(raw.model.get())?;
        let parts = [&raw.decoder, &raw.pre_tokenizer];
        let any_is = |name| parts.iter().any(|part| has_type(part.as_ref(), name));
        let byte_tokens = matches!(&model, Model::Bpe(bpe) if bpe.has_byte_tokens());
        let spelling = if any_is("ByteLevel") {
            Spelling::ByteLevel
        } else if byte_tokens || any_is("Metaspace") {
            Spelling::SentencePiece
        } else {
            Spelling::Plain
        };
        let pre_tokenizer = raw.pre_tokenizer.map(PreTokenizerWrapper::deserialize);
        Ok(File {
            added_tokens: raw.added_tokens,
            normalizer: raw.normalizer,
            pre_tokenizer: pre_tokenizer.transpose().map_err(json_error)?,
            spelling,
            model,
        })
    }
}

/// What turns a word into ids.
pub(super) enum Model {
    Bpe(Bpe),
    /// Any other model, as the `tokenizers` crate has it, and its vocabulary by id.
    Other(Box<ModelWrapper>, HashMap<u32, String>),
}

/// What tells one model from another.
#[derive(Deserialize)]
struct ModelKind {
    /// Old files have none: those are BPE.
    #[serde(rename = "type")]
    kind: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

impl Model {
    fn read(json: &str) -> Result<Self, TokenizerError> {
        let kind: ModelKind = serde_json::from_str(json).map_err(json_error)?;
        let has_affix = [&kind.continuing_subword_prefix, &kind.end_of_word_suffix]
            .into_iter()
            .flatten()
            .any(|affix| !affix.is_empty());
        if kind.kind.as_deref().unwrap_or("BPE") == "BPE" && !has_affix {
            return Ok(Model::Bpe(Bpe::from_json(json).map_err(json_error)?));
        }
        let model: Box<ModelWrapper> = serde_json::from_str(json).map_err(json_error)?;
        let ids = model.get_vocab().into_iter();
        let texts: HashMap<u32, String> = ids.map(|(text, id)| (id, text)).collect();
        match texts.iter().find(|entry| *entry.0 as usize >= VOCAB_MAX) {
            Some((id, text)) => {
                let reason = format!("id {id} of {text:?} is too large");
                Err(TokenizerError::Json(reason))
            }
            None => Ok(Model::Other(model, texts)),
        }
    }

    /// A token's text; `None` where there is no such token.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        match self {
            Model::Bpe(bpe) => bpe.vocab().text(id),
            Model::Other(_, texts) => texts.get(&id).map(String::as_str),
        }
    }

    /// Ids are below this.
    pub(super) fn id_end(&self) -> u32 {
        match self {
            Model::Bpe(bpe) => bpe.vocab().id_end(),
            Model::Other(_, texts) => texts.keys().max().map_or(0, |id| id + 1),
        }
    }
}

/// Whether this part of a `tokenizer.json` is of this type, or has such a part.
fn has_type(part: Option<&Value>, name: &str) -> bool {
    match part {
        Some(Value::Object(fields)) => {
            fields.get("type").is_some_and(|kind| kind == name)
                || fields.values().any(|value| has_type(Some(value), name))
        }
        Some(Value::Array(parts)) => parts.iter().any(|part| has_type(Some(part), name)),
        _ => false,
    }
}

fn json_error(error: serde_json::Error) -> TokenizerError {
    TokenizerError::Json(error.to_string())
}
