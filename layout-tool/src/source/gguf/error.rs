//! What can be wrong with the bytes of a GGUF file.

use std::fmt;

use super::value::ValueType;
use crate::source::types::{SourceType, ggml_type_name};

/// Why the bytes are no GGUF file that can be used. Each variant says where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GgufError {
    /// The file does not begin with `GGUF`.
    Magic {
        /// The four bytes it begins with.
        found: [u8; 4],
    },
    /// Numbers are stored with the most significant byte first.
    BigEndian,
    /// A version other than 2 and 3.
    Version {
        /// The version the file states.
        version: u32,
    },
    /// The file ends before what it announces.
    Truncated {
        /// Byte offset of what is cut short.
        at: u64,
        /// Bytes it needs.
        need: u64,
        /// Bytes left.
        left: u64,
    },
    /// Reading stopped though the file should go on.
    Read {
        /// Byte offset of the read.
        at: u64,
        /// What the operating system said.
        message: String,
    },
    /// A count that the rest of the file cannot hold.
    Count {
        /// What is counted.
        what: &'static str,
        /// The count stated.
        count: u64,
        /// The largest that could be true.
        max: u64,
    },
    /// A key or tensor name that is empty, over long or not UTF-8.
    Name {
        /// Byte offset of the name.
        at: u64,
    },
    /// Two values have the same key.
    KeyTwice {
        /// The key.
        key: String,
    },
    /// A value of no known type.
    ValueType {
        /// The key.
        key: String,
        /// The type number.
        id: u32,
    },
    /// A truth value that is neither 0 nor 1.
    Flag {
        /// The key.
        key: String,
        /// The byte stored.
        value: u8,
    },
    /// An array whose elements are arrays.
    Nested {
        /// The key.
        key: String,
    },
    /// A value of another type than the key has.
    KeyType {
        /// The key.
        key: String,
        /// The type stored.
        have: ValueType,
        /// The type or types needed.
        need: &'static str,
    },
    /// A text that is not UTF-8.
    Text {
        /// The key.
        key: String,
        /// The element, for an array.
        index: usize,
    },
    /// `general.alignment` is no power of two, or too large.
    Alignment {
        /// The value stored.
        alignment: u64,
    },
    /// Two tensors have the same name.
    TensorTwice {
        /// The tensor.
        name: String,
    },
    /// A tensor of no or more than four dimensions.
    Dimensions {
        /// The tensor.
        name: String,
        /// The number of dimensions.
        count: u32,
    },
    /// A tensor with a dimension of 0, or with more weights than fit any file.
    Size {
        /// The tensor.
        name: String,
        /// Its dimensions.
        dims: Vec<u64>,
    },
    /// A tensor whose type cannot be read.
    TensorType {
        /// The tensor.
        name: String,
        /// The type number.
        id: u32,
    },
    /// A quantised tensor whose rows are no whole number of blocks.
    Row {
        /// The tensor.
        name: String,
        /// Weights in a row.
        cols: u64,
        /// Its type.
        ty: SourceType,
    },
    /// A tensor that does not begin at a multiple of the alignment.
    Misaligned {
        /// The tensor.
        name: String,
        /// Its offset in the data.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A tensor that ends after the file.
    Outside {
        /// The tensor.
        name: String,
        /// Byte offset of its end in the file.
        end: u64,
        /// Bytes of the file.
        len: u64,
    },
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic { found } => magic(f, *found),
            Self::BigEndian => write!(
                f,
                "big-endian GGUF file: its numbers are byte-swapped, convert the model again with \
                 little-endian output"
            ),
            Self::Version { version } => write!(
                f,
                "GGUF version {version}, only 2 and 3 can be read: convert the model again"
            ),
            Self::Truncated { at, need, left } => write!(
                f,
                "cut short: {need} bytes are needed at offset {at} but {left} are left, download \
                 or copy the file again"
            ),
            Self::Read { at, message } => write!(f, "cannot read at offset {at}: {message}"),
            Self::Count { what, count, max } => write!(
                f,
                "announces {count} {what} but has room for {max} at most, the file is damaged"
            ),
            Self::Name { at } => write!(
                f,
                "the name at offset {at} is empty, too long or not UTF-8, the file is damaged"
            ),
            _ => self.fmt_key(f),
        }
    }
}

impl GgufError {
    /// The variants that name a key.
    fn fmt_key(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeyTwice { key } => write!(f, "key {key} occurs twice"),
            Self::ValueType { key, id } => {
                write!(f, "key {key} has value type {id}, only 0 to 12 are known")
            }
            Self::Flag { key, value } => {
                write!(
                    f,
                    "key {key} is a truth value of {value}, only 0 and 1 are allowed"
                )
            }
            Self::Nested { key } => write!(f, "key {key} is an array of arrays"),
            Self::KeyType { key, have, need } => {
                write!(
                    f,
                    "key {key} is declared as {}, it must be {need}",
                    have.name()
                )
            }
            Self::Text { key, index } => write!(f, "text {index} of key {key} is not UTF-8"),
            Self::Alignment { alignment } => {
                write!(
                    f,
                    "general.alignment is {alignment}, it must be a power of two to 2^30"
                )
            }
            _ => self.fmt_tensor(f),
        }
    }

    /// The variants that name a tensor.
    fn fmt_tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TensorTwice { name } => write!(f, "tensor {name} occurs twice"),
            Self::Dimensions { name, count } => {
                write!(
                    f,
                    "tensor {name} has {count} dimensions, it must have 1 to 4"
                )
            }
            Self::Size { name, dims } => write!(
                f,
                "tensor {name} has dimensions {dims:?}: none may be 0, and their product must fit \
                 the file"
            ),
            Self::TensorType { name, id } => write!(
                f,
                "tensor {name} has type {} ({id}), only {} can be read: quantise the model again \
                 to one of them, for example Q4_K or Q8_0",
                ggml_type_name(*id),
                SourceType::list()
            ),
            Self::Row { name, cols, ty } => write!(
                f,
                "tensor {name} has rows of {cols} weights, type {} needs a multiple of {}",
                ty.name(),
                ty.block_len()
            ),
            Self::Misaligned {
                name,
                offset,
                alignment,
            } => write!(
                f,
                "tensor {name} begins at offset {offset}, no multiple of the alignment {alignment}"
            ),
            Self::Outside { name, end, len } => write!(
                f,
                "tensor {name} ends at byte {end} but the file has {len} bytes, download or copy \
                 the file again"
            ),
            other => unreachable!("{other:?} is written above"),
        }
    }
}

/// What a file with another magic number may be.
fn magic(f: &mut fmt::Formatter<'_>, found: [u8; 4]) -> fmt::Result {
    let hint = match &found {
        b"lmgg" | b"ggml" | b"fmgg" | b"ggmf" | b"tjgg" | b"ggjt" => {
            "an old ggml file, convert the model again to GGUF"
        }
        b"PK\x03\x04" => "a PyTorch or zip file, convert the model to safetensors or GGUF",
        b"PWRI" | b"IRWP" => "a PowerInfer file, use the Hugging Face folder it was made from",
        b"vers" => "a Git LFS pointer, download the file itself",
        _ => "no model file that is known",
    };
    write!(
        f,
        "begins with {:?} instead of \"GGUF\": {hint}",
        String::from_utf8_lossy(&found)
    )
}

impl std::error::Error for GgufError {}
