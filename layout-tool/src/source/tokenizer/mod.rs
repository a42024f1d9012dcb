//! Tokenizers, as the `tokenizer.json` of the Hugging Face `tokenizers` library.
//!
//! A folder brings that file; from a GGUF file's vocabulary it is written anew.

mod bpe;
mod error;
pub(super) mod folder;
pub(super) mod gguf;
mod json;
mod spm;

pub use error::TokenizerError;

/// What turns text into tokens and conversations into text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// The whole `tokenizer.json`. Encode without its special tokens: whether a prompt begins with
    /// one is `Config::add_bos`.
    pub tokenizer_json: String,
    /// Jinja template of a conversation.
    pub chat_template: Option<String>,
    /// Text of the token that starts a text; templates use it.
    pub bos_token: Option<String>,
    /// Text of the token that ends a text; templates use it.
    pub eos_token: Option<String>,
}
