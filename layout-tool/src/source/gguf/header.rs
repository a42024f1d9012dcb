//! The head of a GGUF file: metadata, and where each tensor stands.

use std::collections::HashSet;
use std::io::Read;

use super::error::GgufError;
use super::reader::Reader;
use super::value::{Metadata, Value, ValueType};
use crate::source::index::Stored;
use crate::source::types::SourceType;

/// Largest `general.alignment` that is believed.
const ALIGNMENT_MAX: u64 = 1 << 30;

/// Alignment of tensors where the file states none.
const ALIGNMENT_DEFAULT: u64 = 32;

/// Everything in a GGUF file but the weights.
///
/// Having one proves that every tensor is inside the file and a whole number of blocks.
#[derive(Debug)]
pub struct Header {
    /// Version 2 or 3.
    pub version: u32,
    /// All keys.
    pub metadata: Metadata,
    /// All tensors with their names, in file order.
    pub tensors: Vec<(String, Stored)>,
}

/// Reads the head of a GGUF file of `len` bytes.
///
/// # Errors
/// The first thing that is wrong; nothing larger than the file is allocated on the way.
pub fn read_header(input: impl Read, len: u64) -> Result<Header, GgufError> {
    let mut reader = Reader::new(input, len);
    let version = read_version(&mut reader)?;
    let tensor_count = reader.u64()?;
    let value_count = reader.u64()?;
    // A value: length of the key, one byte of it, type, one byte of value.
    reader.check_count("metadata values", value_count, 8 + 1 + 4 + 1)?;

    let mut metadata = Metadata::default();
    for _ in 0..value_count {
        let key = reader.name()?;
        let value = read_value(&mut reader, &key)?;
        if metadata.values.contains_key(&key) {
            return Err(GgufError::KeyTwice { key });
        }
        metadata.values.insert(key, value);
    }

    // A tensor: length of the name, one byte of it, dimensions, one of them, type, offset.
    reader.check_count("tensors", tensor_count, 8 + 1 + 4 + 8 + 4 + 8)?;
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        let (name, tensor) = read_tensor(&mut reader)?;
        if !names.insert(name.clone()) {
            return Err(GgufError::TensorTwice { name });
        }
        tensors.push((name, tensor));
    }
    place(&mut tensors, alignment(&metadata)?, reader.at(), len)?;
    Ok(Header {
        version,
        metadata,
        tensors,
    })
}

fn read_version<R: Read>(reader: &mut Reader<R>) -> Result<u32, GgufError> {
    let found = reader.bytes()?;
    match &found {
        b"GGUF" => {}
        b"FUGG" => return Err(GgufError::BigEndian),
        _ => return Err(GgufError::Magic { found }),
    }
    match reader.u32()? {
        version @ 2..=3 => Ok(version),
        version if (1..=3).contains(&version.swap_bytes()) => Err(GgufError::BigEndian),
        version => Err(GgufError::Version { version }),
    }
}

fn read_value<R: Read>(reader: &mut Reader<R>, key: &str) -> Result<Value, GgufError> {
    let ty = read_type(reader, key)?;
    match ty {
        ValueType::Text => return Ok(Value::Text(reader.text()?)),
        ValueType::Array => return read_array(reader, key),
        _ => {}
    }
    let mut bytes = Vec::with_capacity(8);
    reader.append(ty.size_bytes() as u64, &mut bytes)?;
    if ty == ValueType::Bool && bytes[0] > 1 {
        return Err(GgufError::Flag {
            key: key.to_owned(),
            value: bytes[0],
        });
    }
    let mut scalar = [0; 8];
    scalar[..bytes.len()].copy_from_slice(&bytes);
    Ok(Value::Scalar(ty, scalar))
}

fn read_type<R: Read>(reader: &mut Reader<R>, key: &str) -> Result<ValueType, GgufError> {
    let id = reader.u32()?;
    ValueType::from_id(id).ok_or_else(|| GgufError::ValueType {
        key: key.to_owned(),
        id,
    })
}

fn read_array<R: Read>(reader: &mut Reader<R>, key: &str) -> Result<Value, GgufError> {
    let ty = read_type(reader, key)?;
    let count = reader.u64()?;
    match ty {
        ValueType::Array => Err(GgufError::Nested {
            key: key.to_owned(),
        }),
        ValueType::Text => {
            reader.check_count("texts", count, 8)?;
            Ok(Value::Texts(reader.texts(count)?))
        }
        _ => {
            let each_bytes = ty.size_bytes() as u64;
            reader.check_count("array elements", count, each_bytes)?;
            let mut bytes = Vec::new();
            reader.append(count * each_bytes, &mut bytes)?;
            Ok(Value::Array(ty, bytes))
        }
    }
}

/// A tensor whose `offset` is still relative to the start of the data.
fn read_tensor<R: Read>(reader: &mut Reader<R>) -> Result<(String, Stored), GgufError> {
    let name = reader.name()?;
    let count = reader.u32()?;
    if !(1..=4).contains(&count) {
        return Err(GgufError::Dimensions { name, count });
    }
    let mut dims = Vec::with_capacity(4);
    for _ in 0..count {
        dims.push(reader.u64()?);
    }
    let id = reader.u32()?;
    let offset = reader.u64()?;
    let Some(ty) = SourceType::from_ggml(id) else {
        return Err(GgufError::TensorType { name, id });
    };
    let cols = dims[0];
    if cols % ty.block_len() as u64 != 0 {
        return Err(GgufError::Row { name, cols, ty });
    }
    // GGUF states the fastest dimension first, we state it last.
    let shape: Option<Vec<usize>> = dims
        .iter()
        .rev()
        .map(|&dim| usize::try_from(dim).ok().filter(|&dim| dim > 0))
        .collect();
    let weights = shape.as_ref().and_then(|shape| {
        shape
            .iter()
            .try_fold(1usize, |all, &dim| all.checked_mul(dim))
    });
    let (Some(shape), Some(size_bytes)) = (shape, weights.and_then(|all| ty.row_bytes(all))) else {
        return Err(GgufError::Size { name, dims });
    };
    Ok((
        name,
        Stored {
            file: 0,
            offset,
            size_bytes: size_bytes as u64,
            ty,
            shape,
        },
    ))
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.unsigned("general.alignment")? {
        None => Ok(ALIGNMENT_DEFAULT),
        Some(alignment) if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX => {
            Ok(alignment)
        }
        Some(alignment) => Err(GgufError::Alignment { alignment }),
    }
}

/// Makes offsets count from the start of the file, and checks that each tensor is inside it.
fn place(
    tensors: &mut [(String, Stored)],
    alignment: u64,
    head_bytes: u64,
    len: u64,
) -> Result<(), GgufError> {
    let data_start = head_bytes.next_multiple_of(alignment);
    for (name, tensor) in tensors {
        let offset = tensor.offset;
        if offset % alignment != 0 {
            return Err(GgufError::Misaligned {
                name: name.clone(),
                offset,
                alignment,
            });
        }
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(tensor.size_bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= len => tensor.offset = start,
            (_, end) => {
                let end = end.unwrap_or(u64::MAX);
                return Err(GgufError::Outside {
                    name: name.clone(),
                    end,
                    len,
                });
            }
        }
    }
    Ok(())
}
