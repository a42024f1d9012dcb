//! Text to token ids and back: the tokenizer, chat templates, and text as it streams out.
//!
//! - [`Tokenizer`]: text to ids; it stays small (a few MB for 150,000 tokens), so that a
//!   conversation can keep it.
//! - [`TokenBytes`]: ids to bytes, all that printing needs once the tokenizer is dropped.
//! - [`ChatTemplate`]: messages to the text that a model was trained on.
//! - [`TextStream`]: bytes as they are generated to text that can be printed, and stop strings.

mod bpe;
mod guard;
mod python;
mod stop;
mod stream;
mod template;
mod token_bytes;
mod tokenizer;
mod utf8;
mod vocab;

pub use stop::{StopError, StopFilter};
pub use stream::{Piece, TextStream};
pub use template::{BUILTIN_TEMPLATES, ChatTemplate, Message, RenderOptions, TemplateError};
pub use token_bytes::TokenBytes;
pub use tokenizer::{Tokenizer, TokenizerError};
pub use utf8::Utf8Stream;
