//! Why a tokenizer was refused.

use std::fmt;

/// Why a tokenizer was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// A kind of tokenizer that is not known.
    Model {
        /// `tokenizer.ggml.model`.
        name: String,
    },
    /// A way to cut text into words that is not known; guessing would give other tokens.
    Pre {
        /// `tokenizer.ggml.pre`.
        name: String,
    },
    /// A key that this kind of tokenizer needs.
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A list that should have one element a token.
    Length {
        /// The key.
        key: &'static str,
        /// Its elements.
        have: usize,
        /// Tokens.
        need: usize,
    },
    /// Two tokens with the same text.
    Twice {
        /// The first one.
        first: usize,
        /// The second one.
        second: usize,
    },
    /// A merge that is not two tokens which make a third.
    Merge {
        /// Its place in the list.
        index: usize,
        /// Its text.
        text: String,
    },
    /// A `tokenizer.json` without what every tokenizer has.
    Folder {
        /// What it lacks.
        lacks: &'static str,
    },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model { name } => write!(
                f,
                "tokenizer of type {name} is not supported, only gpt2 and llama are: import the \
                 model without its tokenizer"
            ),
            Self::Pre { name } => write!(
                f,
                "pre-tokenizer {name} (tokenizer.ggml.pre) is not known, and another one would \
                 give other tokens: import the model without its tokenizer, or from its Hugging \
                 Face folder"
            ),
            Self::Missing { key } => write!(
                f,
                "{key} is missing, the tokens would be wrong without it: convert the model again, \
                 or import it without its tokenizer"
            ),
            Self::Length { key, have, need } => {
                write!(f, "{key} has {have} elements but there are {need} tokens")
            }
            Self::Twice { first, second } => {
                write!(f, "tokens {first} and {second} have the same text")
            }
            Self::Merge { index, text } => write!(
                f,
                "merge {index} ({text:?}) is not two tokens that make a third"
            ),
            Self::Folder { lacks } => write!(f, "tokenizer.json lacks {lacks}"),
        }
    }
}

impl std::error::Error for TokenizerError {}
