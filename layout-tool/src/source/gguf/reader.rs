//! Sequential reads that know how many bytes are left: nothing is allocated for what isn't there.

use std::io::Read;

use super::error::GgufError;
use super::value::Texts;
use crate::source::error::io_message;

/// Longest key or tensor name, from the GGUF specification.
const NAME_BYTES_MAX: u64 = 65_535;

/// A reader over `len` bytes.
pub(super) struct Reader<R> {
    inner: R,
    at: u64,
    len: u64,
}

impl<R: Read> Reader<R> {
    /// Reads from the start of `inner`, which holds `len` bytes.
    pub fn new(inner: R, len: u64) -> Self {
        Reader { inner, at: 0, len }
    }

    /// Byte offset of the next read.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.len - self.at
    }

    /// Fills `out`.
    fn fill(&mut self, out: &mut [u8]) -> Result<(), GgufError> {
        let (at, need) = (self.at, out.len() as u64);
        if need > self.left() {
            return Err(GgufError::Truncated {
                at,
                need,
                left: self.left(),
            });
        }
        match self.inner.read_exact(out) {
            Ok(()) => self.at += need,
            Err(error) => {
                return Err(GgufError::Read {
                    at,
                    message: io_message(&error),
                });
            }
        }
        Ok(())
    }

    /// The next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// A 32-bit number.
    pub fn u32(&mut self) -> Result<u32, GgufError> {
        self.bytes().map(u32::from_le_bytes)
    }

    /// A 64-bit number.
    pub fn u64(&mut self) -> Result<u64, GgufError> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// Appends the next `count` bytes to `out`.
    pub fn append(&mut self, count: u64, out: &mut Vec<u8>) -> Result<(), GgufError> {
        let (at, left) = (self.at, self.left());
        let size = match usize::try_from(count) {
            Ok(size) if count <= left => size,
            _ => {
                return Err(GgufError::Truncated {
                    at,
                    need: count,
                    left,
                });
            }
        };
        let start = out.len();
        out.resize(start + size, 0);
        self.fill(&mut out[start..])
    }

    /// A length and that many bytes.
    pub fn text(&mut self) -> Result<Vec<u8>, GgufError> {
        let count = self.u64()?;
        let mut out = Vec::new();
        self.append(count, &mut out)?;
        Ok(out)
    }

    /// A key or tensor name.
    pub fn name(&mut self) -> Result<String, GgufError> {
        let at = self.at;
        let count = self.u64()?;
        if count == 0 || count > NAME_BYTES_MAX {
            return Err(GgufError::Name { at });
        }
        let mut out = Vec::new();
        self.append(count, &mut out)?;
        String::from_utf8(out).map_err(|_| GgufError::Name { at })
    }

    /// `count` texts, the caller having checked that so many may be left.
    pub fn texts(&mut self, count: u64) -> Result<Texts, GgufError> {
        let mut texts = Texts::default();
        for _ in 0..count {
            let length = self.u64()?;
            self.append(length, &mut texts.bytes)?;
            texts.ends.push(texts.bytes.len());
        }
        Ok(texts)
    }

    /// Refuses a count whose elements of at least `each_bytes` would not fit what is left.
    pub fn check_count(
        &self,
        what: &'static str,
        count: u64,
        each_bytes: u64,
    ) -> Result<(), GgufError> {
        let max = self.left() / each_bytes;
        if count > max {
            return Err(GgufError::Count { what, count, max });
        }
        Ok(())
    }
}
