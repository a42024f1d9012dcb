//! What an image says about text: tokenizer, start and end tokens, chat template.

use anyhow::{Context, Result, anyhow};
use tessera_runtime::format::SectionKind;

use crate::engine::OpenImage;
use crate::text::Tokenizer;

/// Text to ids, for one image.
pub struct Vocabulary {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Whether a text begins with the start token.
    pub add_bos: bool,
}

impl Vocabulary {
    /// The image's vocabulary, if it has a tokenizer.
    pub fn of(model: &OpenImage) -> Result<Option<Self>> {
        let Some(json) = model.blob(SectionKind::Tokenizer)? else {
            return Ok(None);
        };
        let superblock = model.image.superblock();
        let tokenizer = Tokenizer::from_json(&json)
            .map_err(|error| anyhow!("the tokenizer of {}: {error}", model.path.display()))?
            .with_bos(superblock.bos_token);
        let add_bos = superblock.add_bos && superblock.bos_token.is_some();
        Ok(Some(Vocabulary { tokenizer, add_bos }))
    }

    /// The image's vocabulary.
    ///
    /// # Errors
    /// An image without a tokenizer; `what` says for what it is needed.
    pub fn required(model: &OpenImage, what: &str) -> Result<Self> {
        Self::of(model)?.with_context(|| {
            format!(
                "{} has no tokenizer, which {what} needs",
                model.path.display()
            )
        })
    }

    /// The tokens that end a text: those the image names, and those whose names say so.
    pub fn end_ids(model: &OpenImage, vocabulary: Option<&Vocabulary>) -> Vec<u32> {
        let mut ids = model.image.superblock().eos_tokens().to_vec();
        ids.extend(
            vocabulary
                .iter()
                .flat_map(|vocabulary| vocabulary.tokenizer.end_ids()),
        );
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The image's chat template, if it has one.
    pub fn template(model: &OpenImage) -> Result<Option<String>> {
        let Some(bytes) = model.blob(SectionKind::ChatTemplate)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes)
            .map_err(|_| anyhow!("the chat template of {} is no UTF-8", model.path.display()))?;
        Ok(Some(text))
    }
}
