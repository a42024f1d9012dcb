//! Why no image was written.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tessera_kernels::WeightType;
use tessera_runtime::shape::ShapeError;

use crate::size;
use crate::source::SourceError;

/// Why no image was written, in a sentence that says what to do where something can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackError {
    /// The model cannot be read.
    Source(SourceError),
    /// The model has a shape that no image can have.
    Shape(ShapeError),
    /// There is a file of the image's name.
    Exists {
        /// The name.
        path: PathBuf,
    },
    /// There is something of the image's name that is no file.
    NotAFile {
        /// The name.
        path: PathBuf,
    },
    /// The image would replace the model that it is made from.
    OverSource {
        /// The name.
        path: PathBuf,
    },
    /// Another process is packing to the same name.
    Busy {
        /// The temporary file.
        path: PathBuf,
    },
    /// The disk has no room for the image.
    DiskFull {
        /// The temporary file.
        path: PathBuf,
        /// Size of the image.
        need_bytes: u64,
    },
    /// The operating system refused to create or write a file.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// Rows that are no whole number of blocks.
    Width {
        /// Name of the tensor.
        tensor: String,
        /// Length of a row of the image.
        cols: usize,
        /// The type wanted.
        ty: WeightType,
    },
    /// A weight is infinite or not a number.
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Row of the tensor.
        row: usize,
    },
    /// A weight is too large for a half float.
    TooLarge {
        /// Name of the tensor.
        tensor: String,
        /// Row of the tensor.
        row: usize,
    },
}

impl PackError {
    pub(crate) fn io(path: &Path, error: &io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            message: error.to_string(),
        }
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Shape(error) => write!(f, "the model does not fit the image format: {error}"),
            Self::Exists { path } => {
                write!(f, "{} exists, give another name or --force", path.display())
            }
            Self::NotAFile { path } => {
                write!(
                    f,
                    "{} is not a regular file, give another name",
                    path.display()
                )
            }
            Self::OverSource { path } => write!(
                f,
                "{} is the model itself, give the image another name",
                path.display()
            ),
            Self::Busy { path } => {
                write!(f, "{} is being written by another process", path.display())
            }
            Self::DiskFull { path, need_bytes } => write!(
                f,
                "no space left for {}: the image takes {} ({need_bytes} bytes)",
                path.display(),
                size::text(*need_bytes)
            ),
            Self::Io { path, message } => write!(f, "{}: {message}", path.display()),
            Self::Width { tensor, cols, ty } => write!(
                f,
                "rows of {tensor} have {cols} weights, no multiple of {} as {} needs, choose \
                 another type for them (f16 holds any)",
                ty.cols_multiple(),
                ty.name()
            ),
            Self::NotFinite { tensor, row } => {
                write!(
                    f,
                    "row {row} of tensor {tensor} holds a weight that is no finite number"
                )
            }
            Self::TooLarge { tensor, row } => write!(
                f,
                "row {row} of tensor {tensor} holds a weight beyond the range of f16, use \
                 --weights f32"
            ),
        }
    }
}

impl std::error::Error for PackError {}

impl From<SourceError> for PackError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<ShapeError> for PackError {
    fn from(error: ShapeError) -> Self {
        Self::Shape(error)
    }
}
