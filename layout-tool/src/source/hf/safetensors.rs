//! The head of a safetensors file.

use std::collections::HashSet;
use std::fmt;

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::source::error::SourceError;
use crate::source::file::SourceFile;
use crate::source::index::{Index, Stored};
use crate::source::types::SourceType;

/// Largest head that is read; the `safetensors` crate has the same limit.
const HEAD_BYTES_MAX: u64 = 100_000_000;

/// Why the bytes are no safetensors file that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SafetensorsError {
    /// The file ends before its head does.
    HeadTruncated {
        /// Bytes the head needs, its length field included.
        need: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// The head is larger than any real one.
    HeadTooLarge {
        /// Its stated length.
        bytes: u64,
    },
    /// The head is not what it must be.
    Head {
        /// What the parser said.
        message: String,
    },
    /// Two tensors have the same name.
    TensorTwice {
        /// The tensor.
        name: String,
    },
    /// A tensor of a type that cannot be read.
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        ty: String,
    },
    /// Data and head don't have the same size.
    DataLength {
        /// Bytes of data that the head announces.
        need: u64,
        /// Bytes of data there are.
        have: u64,
    },
}

impl fmt::Display for SafetensorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeadTruncated { need, len } => write!(
                f,
                "cut short: the head needs {need} bytes but the file has {len}, download or copy \
                 the file again"
            ),
            Self::HeadTooLarge { bytes } => write!(
                f,
                "no safetensors file: its head would be {bytes} bytes, more than {HEAD_BYTES_MAX}"
            ),
            Self::Head { message } => write!(f, "the head is damaged: {message}"),
            Self::TensorTwice { name } => write!(f, "tensor {name} occurs twice"),
            Self::TensorType { name, ty } => write!(
                f,
                "tensor {name} has type {ty}, only F32, F16 and BF16 can be read: save the model \
                 in one of them"
            ),
            Self::DataLength { need, have } => write!(
                f,
                "holds {have} bytes of weights instead of {need}, download or copy the file again"
            ),
        }
    }
}

impl std::error::Error for SafetensorsError {}

/// Where each tensor of file number `number` is.
pub(super) fn read_index(file: &SourceFile, number: usize) -> Result<Index, SourceError> {
    let wrap = |error| SourceError::Safetensors {
        path: file.path().to_owned(),
        error,
    };
    let len = file.len();
    if len < 8 {
        return Err(wrap(SafetensorsError::HeadTruncated { need: 8, len }));
    }
    let mut bytes = [0; 8];
    file.read_at(0, &mut bytes)?;
    let head_bytes = u64::from_le_bytes(bytes);
    if head_bytes > HEAD_BYTES_MAX {
        return Err(wrap(SafetensorsError::HeadTooLarge { bytes: head_bytes }));
    }
    let data_start = 8 + head_bytes;
    if data_start > len {
        return Err(wrap(SafetensorsError::HeadTruncated {
            need: data_start,
            len,
        }));
    }
    let mut head = vec![0; head_bytes as usize];
    file.read_at(8, &mut head)?;
    parse(&head, number, data_start, len).map_err(wrap)
}

/// The tensors of a head whose data begins at `data_start` of a file of `len` bytes.
fn parse(head: &[u8], file: usize, data_start: u64, len: u64) -> Result<Index, SafetensorsError> {
    let damaged = |error: serde_json::Error| SafetensorsError::Head {
        message: error.to_string(),
    };
    let names: Names = serde_json::from_slice(head).map_err(damaged)?;
    if let Some(name) = names.twice {
        return Err(SafetensorsError::TensorTwice { name });
    }
    // This checks that tensors follow each other without gap or overlap, and have their shape's
    // size.
    let metadata: Metadata = serde_json::from_slice(head).map_err(damaged)?;
    let mut index = Index::new();
    let mut need = 0;
    for (name, info) in metadata.tensors() {
        let ty = match info.dtype {
            Dtype::F32 => SourceType::F32,
            Dtype::F16 => SourceType::F16,
            Dtype::BF16 => SourceType::Bf16,
            other => {
                return Err(SafetensorsError::TensorType {
                    name,
                    ty: format!("{other:?}"),
                });
            }
        };
        let (start, end) = info.data_offsets;
        need = need.max(end as u64);
        let stored = Stored {
            file,
            offset: data_start.saturating_add(start as u64),
            size_bytes: (end - start) as u64,
            ty,
            shape: info.shape.clone(),
        };
        index.insert(name, stored);
    }
    let have = len - data_start;
    if have != need {
        return Err(SafetensorsError::DataLength { need, have });
    }
    Ok(index)
}

/// The first key of a JSON object that occurs twice: parsers silently keep the last.
struct Names {
    twice: Option<String>,
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = Names;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a tensor under each name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
        let mut seen = HashSet::new();
        let mut twice = None;
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if !seen.insert(name.clone()) {
                twice.get_or_insert(name);
            }
        }
        Ok(Names { twice })
    }
}
