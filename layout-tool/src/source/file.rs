//! Files of a model: read at offsets, never mapped, so that resident memory stays small.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::error::SourceError;

/// Largest JSON file that is read.
const JSON_BYTES_MAX: u64 = 256 << 20;

/// A file, or bytes that stand for one.
#[derive(Debug)]
pub(super) struct SourceFile {
    path: PathBuf,
    len: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    File(File),
    Memory(Vec<u8>),
}

impl SourceFile {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let file = crate::regular::open(path).map_err(|error| SourceError::io(path, &error))?;
        let len = file
            .metadata()
            .map_err(|error| SourceError::io(path, &error))?
            .len();
        Ok(SourceFile {
            path: path.to_owned(),
            len,
            data: Data::File(file),
        })
    }

    /// Bytes in place of a file called `path`.
    pub fn memory(path: &Path, bytes: Vec<u8>) -> Self {
        let len = bytes.len() as u64;
        SourceFile {
            path: path.to_owned(),
            len,
            data: Data::Memory(bytes),
        }
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` from byte `offset` on.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        match &self.data {
            Data::File(file) => file.read_exact_at(out, offset),
            Data::Memory(bytes) => usize::try_from(offset)
                .ok()
                .and_then(|start| bytes.get(start..)?.get(..out.len()))
                .map(|bytes| out.copy_from_slice(bytes))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
        }
        .map_err(|error| SourceError::io(&self.path, &error))
    }

    /// A reader from the start on.
    pub fn reader(&self) -> impl Read + '_ {
        Sequential { file: self, at: 0 }
    }
}

struct Sequential<'f> {
    file: &'f SourceFile,
    at: u64,
}

impl Read for Sequential<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = match &self.file.data {
            Data::File(file) => file.read_at(out, self.at)?,
            Data::Memory(bytes) => {
                let start = usize::try_from(self.at).map_or(bytes.len(), |at| at.min(bytes.len()));
                (&bytes[start..]).read(out)?
            }
        };
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads and parses a JSON file; `None` if there is no such file.
pub(super) fn read_json(path: &Path) -> Result<Option<serde_json::Value>, SourceError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    match serde_json::from_str(&text) {
        Ok(value) => Ok(Some(value)),
        Err(error) => Err(SourceError::Json {
            path: path.to_owned(),
            message: error.to_string(),
        }),
    }
}

/// Reads a text file; `None` if there is no such file.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, SourceError> {
    let bytes = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SourceError::io(path, &error)),
    };
    if bytes > JSON_BYTES_MAX {
        let (path, max) = (path.to_owned(), JSON_BYTES_MAX);
        return Err(SourceError::FileTooLarge { path, bytes, max });
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) => Err(SourceError::io(path, &error)),
    }
}
