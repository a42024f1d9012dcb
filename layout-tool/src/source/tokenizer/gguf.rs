//! The tokenizer in a GGUF file's metadata.

use std::collections::HashMap;

use super::error::TokenizerError;
use super::json::{TokenKind, Vocabulary};
use super::{TokenizerFiles, bpe, spm};
use crate::source::error::SourceError;
use crate::source::gguf::{GgufError, Metadata};

/// Control tokens that end a turn whatever the keys say, as llama.cpp has them.
const END_TEXTS: [&str; 9] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<EOT>",
    "_<EOT>",
];

/// What the metadata says about tokens.
#[derive(Debug, Default)]
pub(in crate::source) struct Import {
    pub files: Option<TokenizerFiles>,
    pub bos_token: Option<u32>,
    pub eos_tokens: Vec<u32>,
    pub add_bos: bool,
    pub notes: Vec<String>,
}

/// Reads the tokenizer keys; with `files`, the tokenizer itself too.
pub(in crate::source) fn import(
    metadata: &Metadata,
    files: bool,
) -> Result<Import, crate::source::gguf::ImportError> {
    let model = metadata.text("tokenizer.ggml.model")?;
    let texts = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let kinds = kinds(metadata, texts.len())?;
    let mut import = Import {
        bos_token: token(metadata, "bos")?,
        eos_tokens: eos_tokens(metadata, &texts, &kinds)?,
        add_bos: metadata
            .flag("tokenizer.ggml.add_bos_token")?
            .unwrap_or(model == Some("llama")),
        ..Import::default()
    };
    let pre = match (model, metadata.text("tokenizer.ggml.pre")?) {
        (Some("gpt2"), Some(name)) if files => Some(bpe::pre(name)?),
        _ => None,
    };
    if let (Some(pre), false) = (&pre, metadata.has("tokenizer.ggml.add_bos_token")) {
        import.add_bos = pre.add_bos;
    }
    if !files {
        return Ok(import);
    }
    let Some(model) = model.filter(|model| *model != "none" && !texts.is_empty()) else {
        import
            .notes
            .push("the file has no tokenizer, the model works on token ids".to_owned());
        return Ok(import);
    };
    let ids = ids(&texts)?;
    let vocabulary = Vocabulary {
        texts: &texts,
        kinds: &kinds,
    };
    let bos = import.bos_token.filter(|_| import.add_bos);
    let tokenizer_json = match model {
        "gpt2" => {
            let pre = pre.ok_or(TokenizerError::Missing {
                key: "tokenizer.ggml.pre",
            })?;
            let key = "tokenizer.ggml.merges";
            let merges = metadata
                .texts(key)?
                .ok_or(TokenizerError::Missing { key })?;
            bpe::tokenizer_json(&vocabulary, &ids, &merges, bos, &pre)?
        }
        "llama" => {
            let scores = scores(metadata, texts.len())?;
            let prefix = metadata
                .flag("tokenizer.ggml.add_space_prefix")?
                .unwrap_or(true);
            spm::tokenizer_json(&vocabulary, &ids, &scores, bos, prefix)
        }
        name => {
            return Err(TokenizerError::Model {
                name: name.to_owned(),
            }
            .into());
        }
    };
    let text = |id: Option<u32>| {
        id.and_then(|id| texts.get(id as usize))
            .map(|t| (*t).to_owned())
    };
    import.files = Some(TokenizerFiles {
        tokenizer_json,
        chat_template: metadata.text("tokenizer.chat_template")?.map(str::to_owned),
        bos_token: text(import.bos_token),
        eos_token: text(token(metadata, "eos")?),
    });
    Ok(import)
}

/// The id under `tokenizer.ggml.NAME_token_id`.
fn token(metadata: &Metadata, name: &str) -> Result<Option<u32>, GgufError> {
    // An id that is none (some files have -1 as u32) is no token.
    let id = metadata.unsigned(&format!("tokenizer.ggml.{name}_token_id"))?;
    Ok(id
        .and_then(|id| u32::try_from(id).ok())
        .filter(|&id| id != u32::MAX))
}

fn eos_tokens(
    metadata: &Metadata,
    texts: &[&str],
    kinds: &[TokenKind],
) -> Result<Vec<u32>, GgufError> {
    let mut all = Vec::new();
    for name in ["eos", "eot", "eom"] {
        all.extend(token(metadata, name)?);
    }
    for (id, (text, kind)) in texts.iter().zip(kinds).enumerate() {
        if *kind == TokenKind::Control && END_TEXTS.contains(text) {
            all.extend(u32::try_from(id));
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|id| seen.insert(*id));
    Ok(all)
}

fn kinds(
    metadata: &Metadata,
    need: usize,
) -> Result<Vec<TokenKind>, crate::source::gguf::ImportError> {
    let key = "tokenizer.ggml.token_type";
    let Some(all) = metadata.unsigned_array(key)? else {
        return Ok(vec![TokenKind::Normal; need]);
    };
    if all.len() != need {
        return Err(TokenizerError::Length {
            key,
            have: all.len(),
            need,
        }
        .into());
    }
    Ok(all.into_iter().map(TokenKind::from_id).collect())
}

fn scores(metadata: &Metadata, need: usize) -> Result<Vec<f32>, crate::source::gguf::ImportError> {
    let key = "tokenizer.ggml.scores";
    let scores = metadata
        .floats(key)?
        .ok_or(TokenizerError::Missing { key })?;
    if scores.len() != need {
        return Err(TokenizerError::Length {
            key,
            have: scores.len(),
            need,
        }
        .into());
    }
    Ok(scores)
}

fn ids<'t>(texts: &[&'t str]) -> Result<HashMap<&'t str, usize>, TokenizerError> {
    let mut ids = HashMap::with_capacity(texts.len());
    for (second, text) in texts.iter().enumerate() {
        if let Some(first) = ids.insert(*text, second) {
            return Err(TokenizerError::Twice { first, second });
        }
    }
    Ok(ids)
}

impl From<TokenizerError> for crate::source::gguf::ImportError {
    fn from(error: TokenizerError) -> Self {
        SourceError::from(error).into()
    }
}
