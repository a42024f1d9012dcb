//! Text to token ids.

mod file;
#[cfg(test)]
mod tests;
mod window;

use super::bpe::{UnknownCharacter, Work};
use super::guard::{self, Unguard};
use super::token_bytes::{Entry, Spelling, TokenBytes};
use super::vocab::VOCAB_MAX;
use file::{File, FileToken, Model};
use std::collections::BTreeMap;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizer as _, PreTokenizerWrapper,
};

/// Why there is no tokenizer, or why a text has no ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// The JSON is not a tokenizer that is known here.
    Json(String),
    /// An added token's id is another token's, or too large.
    AddedToken {
        /// The id that it asks for.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A text is to begin with the start token, and the model has none.
    NoStartToken,
    /// The vocabulary has no token for this character.
    UnknownCharacter(char),
    /// The normalizer, the pre-tokenizer or the model refused the text.
    Text(String),
}

impl std::fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Json(reason) => write!(f, "the tokenizer can't be read: {reason}"),
            Self::AddedToken { id, text } => {
                write!(
                    f,
                    "added token {text:?}: its id {id} is another token's or too large"
                )
            }
            Self::NoStartToken => f.write_str("the model has no start token"),
            Self::UnknownCharacter(character) => {
                write!(f, "the vocabulary has no token for {character:?}")
            }
            Self::Text(reason) => write!(f, "the text can't be tokenized: {reason}"),
        }
    }
}

impl std::error::Error for TokenizerError {}

/// What markup of control tokens in a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Markup {
    /// Text like any other.
    Text,
    /// Those tokens.
    Parsed,
    /// Those tokens, but text where it is guarded.
    Guarded,
}

/// Turns text into token ids. Built from the text of a `tokenizer.json`; BPE models are kept in
/// tables of about 6 MB for 150,000 tokens.
pub struct Tokenizer {
    model: Model,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    spelling: Spelling,
    added: BTreeMap<u32, AddedToken>,
    /// Finds added tokens, control tokens among them.
    with_controls: AddedVocabulary,
    /// Finds added tokens that are not control tokens.
    without_controls: AddedVocabulary,
    bos: Option<u32>,
}

/// Names of tokens that end a turn or a text, in the vocabularies in use.
const END_NAMES: [&str; 14] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<|return|>",
    "<|call|>",
    "</s>",
    "<EOT>",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
];

impl Tokenizer {
    /// Reads a `tokenizer.json`. There is no start token until [`Tokenizer::with_bos`].
    ///
    /// # Errors
    ///
    /// A part of it that is malformed or of an unknown kind.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let file = File::read(json)?;
        let mut tokenizer = Tokenizer {
            model: file.model,
            normalizer: file.normalizer,
            pre_tokenizer: file.pre_tokenizer,
            spelling: file.spelling,
            added: BTreeMap::new(),
            with_controls: AddedVocabulary::new(),
            without_controls: AddedVocabulary::new(),
            bos: None,
        };
        tokenizer.add(file.added_tokens)?;
        Ok(tokenizer)
    }

    /// Sets the token that texts may begin with.
    pub fn with_bos(mut self, bos: Option<u32>) -> Self {
        self.bos = bos;
        self
    }

    fn add(&mut self, tokens: Vec<FileToken>) -> Result<(), TokenizerError> {
        for FileToken { id, mut token } in tokens {
            let model_text = self.model.text(id);
            let taken = model_text.is_some_and(|text| text != token.content);
            if taken || id as usize >= VOCAB_MAX || self.added.contains_key(&id) {
                return Err(TokenizerError::AddedToken {
                    id,
                    text: token.content,
                });
            }
            // Control tokens are found in the text as it was given, where guards still are.
            token.normalized &= !token.special;
            self.added.insert(id, token);
        }
        let ids = self
            .added
            .iter()
            .map(|(&id, token)| (token.content.clone(), id));
        let names = WordLevel::builder()
            .vocab(ids.collect())
            .build()
            .map_err(text_error)?;
        let (all, normalizer) = (self.added.values().cloned(), self.normalizer.as_ref());
        let all: Vec<AddedToken> = all.collect();
        self.with_controls.add_tokens(&all, &names, normalizer);
        let plain: Vec<AddedToken> = all.into_iter().filter(|token| !token.special).collect();
        self.without_controls.add_tokens(&plain, &names, normalizer);
        Ok(())
    }

    /// The ids of `text`. Markup of control tokens becomes those tokens if `parse_special`,
    /// otherwise it is text like any other. With `add_bos` the ids begin with the start token,
    /// once: not if the text itself began with it.
    ///
    /// # Errors
    ///
    /// `add_bos` where the model has no start token; a character that can't be expressed.
    pub fn encode(
        &self,
        text: &str,
        parse_special: bool,
        add_bos: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let markup = if parse_special {
            Markup::Parsed
        } else {
            Markup::Text
        };
        self.encode_as(text, markup, add_bos)
    }

    /// The ids of a rendered template: its own control tokens count, those in messages that went
    /// through [`Tokenizer::guard`] are text.
    ///
    /// # Errors
    ///
    /// As [`Tokenizer::encode`].
    pub fn encode_rendered(&self, text: &str, add_bos: bool) -> Result<Vec<u32>, TokenizerError> {
        self.encode_as(text, Markup::Guarded, add_bos)
    }

    /// A message's text, marked so that [`Tokenizer::encode_rendered`] takes no part of it for a
    /// control token.
    pub fn guard(&self, text: &str) -> String {
        let controls = self.added.values().filter(|token| token.special);
        guard::guard(text, controls.map(|token| &*token.content))
    }

    fn encode_as(
        &self,
        text: &str,
        markup: Markup,
        add_bos: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        if add_bos {
            ids.push(self.bos.ok_or(TokenizerError::NoStartToken)?);
        }
        self.encode_windows(text, markup, &mut ids)?;
        if add_bos && ids.len() > 1 && ids[0] == ids[1] {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Appends the ids of one part of a text.
    fn encode_window(
        &self,
        text: &str,
        markup: Markup,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let added = match markup {
            Markup::Text => &self.without_controls,
            Markup::Parsed | Markup::Guarded => &self.with_controls,
        };
        let guarded = markup == Markup::Guarded;
        let normalizer = Unguard {
            inner: self.normalizer.as_ref(),
            guarded,
        };
        let mut pieces = added.extract_and_normalize(Some(&normalizer), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer
                .pre_tokenize(&mut pieces)
                .map_err(text_error)?;
        }
        let mut work = Work::default();
        for (text, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte)
        {
            match (tokens, &self.model) {
                (Some(tokens), _) => ids.extend(tokens.iter().map(|token| token.id)),
                (None, Model::Bpe(bpe)) => bpe.encode_word(text, &mut work, ids).map_err(
                    |UnknownCharacter(character)| TokenizerError::UnknownCharacter(character),
                )?,
                (None, Model::Other(model, _)) => {
                    let tokens = model.tokenize(text).map_err(text_error)?;
                    ids.extend(tokens.iter().map(|token| token.id));
                }
            }
        }
        Ok(())
    }

    /// Ids are below this. The model may have more logits than that.
    pub fn id_end(&self) -> u32 {
        let added_end = self.added.keys().next_back().map_or(0, |id| id + 1);
        added_end.max(self.model.id_end())
    }

    /// Bytes of the longest token as the vocabulary spells it: no token is more bytes of a text.
    pub fn longest_text(&self) -> usize {
        let lens = (0..self.id_end()).filter_map(|id| Some(self.text(id)?.len()));
        lens.max().unwrap_or(1)
    }

    /// The text of a token as the vocabulary spells it, such as `<|im_end|>`.
    pub fn text(&self, id: u32) -> Option<&str> {
        let added = self.added.get(&id).map(|token| &*token.content);
        added.or_else(|| self.model.text(id))
    }

    /// What each token prints as. It outlives the tokenizer.
    pub fn token_bytes(&self) -> TokenBytes {
        let entry = |id| {
            let added = self.added.get(&id);
            Entry {
                text: self.text(id).unwrap_or(""),
                added: added.is_some(),
                control: added.is_some_and(|token| token.special),
            }
        };
        TokenBytes::new(self.spelling, (0..self.id_end()).map(entry))
    }

    /// The tokens whose names are known to end a turn or a text, in order: many models name one
    /// in their metadata and end their turns with another.
    pub fn end_ids(&self) -> Vec<u32> {
        let named = |token: &AddedToken| END_NAMES.contains(&&*token.content);
        self.added
            .iter()
            .filter(|(_, token)| named(token))
            .map(|(&id, _)| id)
            .collect()
    }
}

fn text_error(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Text(error.to_string())
}
