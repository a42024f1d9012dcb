//! Why no profile was written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::image_file::ImageError;
use crate::pack::PackError;

/// Why no profile was written, in a sentence that says what to do where something can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileError {
    /// The image cannot be read.
    Image(ImageError),
    /// The new image cannot be written.
    Output(PackError),
    /// The operating system refused to read or write a file.
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// A text or a list of tokens that cannot be used.
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The image has no tokenizer.
    NoTokenizer {
        /// The image.
        path: PathBuf,
    },
    /// The model cannot be run.
    Run(String),
    /// Another process is profiling to the same name.
    Busy {
        /// The file that holds its progress.
        path: PathBuf,
    },
    /// The file of the progress's name holds something else.
    NoJournal {
        /// The file.
        path: PathBuf,
    },
    /// The progress is that of a run with other arguments.
    OtherRun {
        /// The file that holds it.
        path: PathBuf,
        /// The argument that differs.
        what: String,
        /// Its value there.
        have: String,
        /// Its value now.
        want: String,
    },
    /// A number is out of range.
    OutOfRange {
        /// The option.
        what: &'static str,
        /// Its value.
        have: String,
        /// What it may be.
        range: &'static str,
    },
    /// The caller asked to stop.
    Stopped,
}

impl ProfileError {
    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: error.to_string(),
        }
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Output(error) => error.fmt(f),
            Self::Io { path, message } => write!(f, "{}: {message}", path.display()),
            Self::Text { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::NoTokenizer { path } => write!(
                f,
                "{} has no tokenizer, give the text as numbers with --token-ids FILE",
                path.display()
            ),
            Self::Run(message) => f.write_str(message),
            Self::Busy { path } => {
                write!(f, "{} is being written by another process", path.display())
            }
            Self::NoJournal { path } => write!(
                f,
                "{} is not the progress of a profile, move it away or choose another output",
                path.display()
            ),
            Self::OtherRun {
                path,
                what,
                have,
                want,
            } => write!(
                f,
                "{} is the progress of a run with another {what} ({have}, now {want}): give the \
                 same arguments to continue it, or remove it",
                path.display()
            ),
            Self::OutOfRange { what, have, range } => {
                write!(f, "{what} is {have}, it must be {range}")
            }
            Self::Stopped => {
                f.write_str("stopped; the same command continues where this one ended")
            }
        }
    }
}

impl std::error::Error for ProfileError {}

impl From<ImageError> for ProfileError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

impl From<PackError> for ProfileError {
    fn from(error: PackError) -> Self {
        Self::Output(error)
    }
}
