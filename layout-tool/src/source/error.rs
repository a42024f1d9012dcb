//! Why a model was refused.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::gguf::GgufError;
use super::hf::SafetensorsError;
use super::tokenizer::TokenizerError;
use super::types::SourceType;

/// Why a model was refused: what, where, both numbers, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceError {
    /// The operating system refused to open or read a file.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// Neither a GGUF file nor a folder with a model.
    NotAModel {
        /// The path given.
        path: PathBuf,
        /// What was found or missed there.
        found: &'static str,
    },
    /// A JSON file that cannot be parsed.
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// A file too large for what it is.
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest that is read.
        max: u64,
    },
    /// Bad bytes in a GGUF file.
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: GgufError,
    },
    /// Bad bytes in a safetensors file.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: SafetensorsError,
    },
    /// Files of a set that don't belong together.
    Split {
        /// The file.
        path: PathBuf,
        /// What is counted.
        what: &'static str,
        /// The number it states.
        have: u64,
        /// The number it should state.
        need: u64,
    },
    /// An index that leads nowhere.
    Index {
        /// The tensor or file in question.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An architecture that is not known.
    Architecture {
        /// Its name in the model.
        name: String,
    },
    /// A required key of the configuration is missing.
    KeyMissing {
        /// The key.
        key: String,
    },
    /// A key of the configuration has a value that cannot be used.
    Key {
        /// The key.
        key: String,
        /// Its value.
        have: String,
        /// What it must be.
        need: &'static str,
    },
    /// Something the model uses that the runtime cannot compute.
    Unsupported {
        /// The feature, by its name in the model.
        feature: String,
    },
    /// A rope variant that cannot be computed.
    Rope {
        /// Its name in the model.
        kind: String,
    },
    /// A number outside what any model has.
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The smallest allowed.
        min: usize,
        /// The largest allowed.
        max: usize,
    },
    /// A number that must be a multiple of another.
    NotMultiple {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it must be a multiple of.
        of: usize,
    },
    /// Two parts of the model disagree about the vocabulary.
    Vocabulary {
        /// The part, by name.
        what: &'static str,
        /// Tokens it has.
        have: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// A special token that the vocabulary lacks.
    TokenOutside {
        /// The token.
        token: u32,
        /// Tokens there are.
        vocab_size: usize,
    },
    /// A tensor that the architecture needs is missing.
    TensorMissing {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: String,
    },
    /// A tensor that the architecture has no use for.
    TensorUnexpected {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: String,
    },
    /// A tensor of another shape than the configuration says.
    TensorShape {
        /// The tensor.
        name: String,
        /// Its dimensions, the fastest last.
        have: Vec<usize>,
        /// The dimensions that follow from the configuration.
        need: Vec<usize>,
    },
    /// A norm or bias that is quantised.
    VectorQuantized {
        /// The tensor.
        name: String,
        /// Its type.
        ty: SourceType,
    },
    /// A tokenizer that cannot be taken over.
    Tokenizer(TokenizerError),
}

impl SourceError {
    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: io_message(error),
        }
    }

    pub(super) fn key(key: &str, have: impl Into<String>, need: &'static str) -> Self {
        Self::Key {
            key: key.to_owned(),
            have: have.into(),
            need,
        }
    }
}

/// What the operating system said; std's own words for a file that ended are no help.
pub(super) fn io_message(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the file became shorter while it was read".to_owned(),
        _ => error.to_string(),
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, message } => write!(f, "{}: {message}", path.display()),
            Self::NotAModel { path, found } => write!(
                f,
                "{}: {found}; give a .gguf file, or a folder with config.json and safetensors",
                path.display()
            ),
            Self::Json { path, message } => write!(f, "{}: {message}", path.display()),
            Self::FileTooLarge { path, bytes, max } => {
                write!(
                    f,
                    "{}: {bytes} bytes, more than the {max} allowed",
                    path.display()
                )
            }
            Self::Gguf { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Safetensors { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Split {
                path,
                what,
                have,
                need,
            } => write!(
                f,
                "{}: {what} is {have}, it must be {need} for this set of files; download the set \
                 again",
                path.display()
            ),
            Self::Index { name, problem } => {
                write!(
                    f,
                    "{name} in the safetensors index {problem}, download the model again"
                )
            }
            Self::Tokenizer(error) => error.fmt(f),
            _ => self.fmt_config(f),
        }
    }
}

impl SourceError {
    /// The variants about the configuration.
    fn fmt_config(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Architecture { name } => write!(
                f,
                "architecture {name} is not known, only llama, mistral, qwen2, qwen3, mixtral, \
                 bamboo, turbosparse-mistral and turbosparsemixtral are"
            ),
            Self::KeyMissing { key } => write!(f, "the configuration lacks {key}"),
            Self::Key { key, have, need } => write!(f, "{key} is {have}, it must be {need}"),
            Self::Unsupported { feature } => {
                write!(
                    f,
                    "the model uses {feature}, which the runtime cannot compute"
                )
            }
            Self::Rope { kind } => write!(
                f,
                "rope scaling of type {kind} is not supported, only none, linear, llama3 and yarn \
                 are"
            ),
            Self::OutOfRange {
                what,
                value,
                min,
                max,
            } => {
                write!(f, "{what} is {value}, it must be {min} to {max}")
            }
            Self::NotMultiple { what, value, of } => {
                write!(f, "{what} is {value}, it must be a multiple of {of}")
            }
            Self::Vocabulary { what, have, rows } => write!(
                f,
                "{what} has {have} tokens but the embedding has {rows} rows, convert the model \
                 again"
            ),
            Self::TokenOutside { token, vocab_size } => write!(
                f,
                "special token {token} is outside the vocabulary of {vocab_size} tokens"
            ),
            _ => self.fmt_tensor(f),
        }
    }

    /// The variants about a tensor.
    fn fmt_tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TensorMissing { name, architecture } => write!(
                f,
                "tensor {name} is missing, architecture {architecture} needs it: download or \
                 convert the model again"
            ),
            Self::TensorUnexpected { name, architecture } => write!(
                f,
                "tensor {name} has no place in architecture {architecture}, leaving it out would \
                 change the output"
            ),
            Self::TensorShape { name, have, need } => write!(
                f,
                "tensor {name} has shape {have:?} but the configuration needs {need:?}"
            ),
            Self::VectorQuantized { name, ty } => write!(
                f,
                "tensor {name} has type {}, norms and biases must be F32, F16 or BF16",
                ty.name()
            ),
            other => unreachable!("{other:?} is written above"),
        }
    }
}

impl std::error::Error for SourceError {}

impl From<TokenizerError> for SourceError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(error)
    }
}
