//! Metadata of a GGUF file: typed values under unique keys.

use std::collections::HashMap;

use super::error::GgufError;

/// How a metadata value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned byte.
    U8 = 0,
    /// Signed byte.
    I8 = 1,
    /// Unsigned 16 bits.
    U16 = 2,
    /// Signed 16 bits.
    I16 = 3,
    /// Unsigned 32 bits.
    U32 = 4,
    /// Signed 32 bits.
    I32 = 5,
    /// 32-bit float.
    F32 = 6,
    /// Truth value, one byte.
    Bool = 7,
    /// Length and bytes.
    Text = 8,
    /// Element type, count and elements.
    Array = 9,
    /// Unsigned 64 bits.
    U64 = 10,
    /// Signed 64 bits.
    I64 = 11,
    /// 64-bit float.
    F64 = 12,
}

impl ValueType {
    /// Every type, in the order of their numbers.
    const ALL: [ValueType; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Text,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    /// The name used in error messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Text => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value of fixed size; 0 for texts and arrays.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text | Self::Array => 0,
        }
    }
}

/// Many texts in one piece of memory: vocabularies have hundreds of thousands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts {
    pub(super) bytes: Vec<u8>,
    pub(super) ends: Vec<usize>,
}

impl Texts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of text `index`.
    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number or truth value, its bytes at the front.
    Scalar(ValueType, [u8; 8]),
    /// A text, perhaps not UTF-8.
    Text(Vec<u8>),
    /// Elements of fixed size, as stored.
    Array(ValueType, Vec<u8>),
    /// An array of texts.
    Texts(Texts),
}

impl Value {
    fn ty(&self) -> ValueType {
        match self {
            Self::Scalar(ty, _) => *ty,
            Self::Text(_) => ValueType::Text,
            Self::Array(..) | Self::Texts(_) => ValueType::Array,
        }
    }

    /// The type to name in an error: of the elements, for an array of numbers.
    fn element_type(&self) -> ValueType {
        match self {
            Self::Array(ty, _) => *ty,
            Self::Texts(_) => ValueType::Text,
            other => other.ty(),
        }
    }
}

/// The number in `bytes`, if it is an integer type and not negative.
fn unsigned(ty: ValueType, b: &[u8]) -> Option<u64> {
    Some(match (ty, b) {
        (ValueType::U8, [a, ..]) => u64::from(*a),
        (ValueType::I8, [a, ..]) => u64::try_from(*a as i8).ok()?,
        (ValueType::U16, [a, b, ..]) => u64::from(u16::from_le_bytes([*a, *b])),
        (ValueType::I16, [a, b, ..]) => u64::try_from(i16::from_le_bytes([*a, *b])).ok()?,
        (ValueType::U32, _) => u64::from(u32::from_le_bytes(*b.first_chunk()?)),
        (ValueType::I32, _) => u64::try_from(i32::from_le_bytes(*b.first_chunk()?)).ok()?,
        (ValueType::U64, _) => u64::from_le_bytes(*b.first_chunk()?),
        (ValueType::I64, _) => u64::try_from(i64::from_le_bytes(*b.first_chunk()?)).ok()?,
        _ => return None,
    })
}

/// A number that is stated once, or for each layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PerLayer {
    /// The same for all layers.
    Same(u64),
    /// One a layer, not all the same; or none at all.
    Differ(Vec<u64>),
}

/// Every key of a file with its value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    pub(super) values: HashMap<String, Value>,
}

impl Metadata {
    /// True if the key is there, whatever its type.
    pub fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    fn wrong<T>(&self, key: &str, value: &Value, need: &'static str) -> Result<T, GgufError> {
        Err(GgufError::KeyType {
            key: key.to_owned(),
            have: value.element_type(),
            need,
        })
    }

    /// A text, or `None` if the key is missing.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Text(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(GgufError::Text {
                    key: key.to_owned(),
                    index: 0,
                }),
            },
            Some(other) => self.wrong(key, other, "a string"),
        }
    }

    /// A number that is not negative, of any integer type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => match value {
                Value::Scalar(ty, bytes) => match unsigned(*ty, bytes) {
                    Some(number) => Ok(Some(number)),
                    None => self.wrong(key, value, "an integer that is not negative"),
                },
                _ => self.wrong(key, value, "an integer that is not negative"),
            },
        }
    }

    /// A number for all layers, or an array with one for each.
    pub fn unsigned_each(&self, key: &str) -> Result<Option<PerLayer>, GgufError> {
        let Some(Value::Array(..)) = self.values.get(key) else {
            return Ok(self.unsigned(key)?.map(PerLayer::Same));
        };
        let all = self.unsigned_array(key)?.unwrap_or_default();
        Ok(match all.first() {
            Some(&first) if all.iter().all(|&value| value == first) => Some(PerLayer::Same(first)),
            _ => Some(PerLayer::Differ(all)),
        })
    }

    /// An array of integers none of which is negative.
    pub fn unsigned_array(&self, key: &str) -> Result<Option<Vec<u64>>, GgufError> {
        let need = "an array of integers that are not negative";
        match self.values.get(key) {
            None => Ok(None),
            Some(value) => match value {
                Value::Array(ty, bytes) if ty.size_bytes() > 0 => {
                    let all = bytes
                        .chunks_exact(ty.size_bytes())
                        .map(|b| unsigned(*ty, b));
                    match all.collect() {
                        Some(all) => Ok(Some(all)),
                        None => self.wrong(key, value, need),
                    }
                }
                _ => self.wrong(key, value, need),
            },
        }
    }

    /// A float of either size.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Scalar(ValueType::F32, [a, b, c, d, ..])) => {
                Ok(Some(f64::from(f32::from_le_bytes([*a, *b, *c, *d]))))
            }
            Some(Value::Scalar(ValueType::F64, bytes)) => Ok(Some(f64::from_le_bytes(*bytes))),
            Some(other) => self.wrong(key, other, "a float"),
        }
    }

    /// A truth value.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Scalar(ValueType::Bool, bytes)) => Ok(Some(bytes[0] == 1)),
            Some(other) => self.wrong(key, other, "a bool"),
        }
    }

    /// An array of 32-bit floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(ValueType::F32, bytes)) => Ok(Some(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect(),
            )),
            Some(other) => self.wrong(key, other, "an array of f32"),
        }
    }

    /// An array of texts, each checked to be UTF-8.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        let texts = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::Texts(texts)) => texts,
            Some(other) => return self.wrong(key, other, "an array of strings"),
        };
        let mut all = Vec::with_capacity(texts.len());
        for index in 0..texts.len() {
            match std::str::from_utf8(texts.get(index)) {
                Ok(text) => all.push(text),
                Err(_) => {
                    return Err(GgufError::Text {
                        key: key.to_owned(),
                        index,
                    });
                }
            }
        }
        Ok(Some(all))
    }

    /// Length of an array of texts, without looking at them.
    pub fn texts_len(&self, key: &str) -> Result<Option<usize>, GgufError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts.len())),
            Some(other) => self.wrong(key, other, "an array of strings"),
        }
    }
}
