//! GGUF files, versions 2 and 3: single, or a set of parts.

mod error;
mod header;
mod import;
mod names;
mod reader;
mod value;

use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::error::SourceError;
use super::file::SourceFile;
use super::index::Index;
use super::{Model, Options};

pub use error::GgufError;
pub use header::{Header, read_header};
pub(super) use import::ImportError;
pub use value::{Metadata, PerLayer, Texts, Value, ValueType};

/// Opens a GGUF file, or the set of parts whose first one this is.
pub(super) fn open(path: &Path, options: Options) -> Result<Model, SourceError> {
    let first = SourceFile::open(path)?;
    let header = head(&first)?;
    let mut files = vec![first];
    let mut index = Index::new();
    add(&mut index, 0, header.tensors, path)?;
    for (number, path) in part_paths(&header.metadata, path)?.into_iter().enumerate() {
        let number = number + 1;
        let file = SourceFile::open(&path)?;
        let part = head(&file)?;
        let no = part_key(&part.metadata, "split.no", &path)?;
        expect(&path, "split.no", no, number as u64)?;
        add(&mut index, number, part.tensors, &path)?;
        files.push(file);
    }
    if files.len() > 1 {
        let count = part_key(&header.metadata, "split.tensors.count", path)?;
        expect(path, "the number of tensors", index.len() as u64, count)?;
    }
    build(&header.metadata, index, files, options)
}

/// The model, with the first file's path added to errors about its metadata.
fn build(
    metadata: &Metadata,
    index: Index,
    files: Vec<SourceFile>,
    options: Options,
) -> Result<Model, SourceError> {
    let path = files[0].path().to_owned();
    import::model(metadata, index, files, options).map_err(|error| match error {
        ImportError::Bytes(error) => SourceError::Gguf { path, error },
        ImportError::Source(error) => error,
    })
}

fn head(file: &SourceFile) -> Result<Header, SourceError> {
    let buffer_bytes = file.len().min(1 << 20) as usize;
    read_header(
        BufReader::with_capacity(buffer_bytes, file.reader()),
        file.len(),
    )
    .map_err(|error| SourceError::Gguf {
        path: file.path().to_owned(),
        error,
    })
}

fn add(
    index: &mut Index,
    file: usize,
    tensors: Vec<(String, super::index::Stored)>,
    path: &Path,
) -> Result<(), SourceError> {
    for (name, mut tensor) in tensors {
        tensor.file = file;
        if index.insert(name.clone(), tensor).is_some() {
            let error = GgufError::TensorTwice { name };
            return Err(SourceError::Gguf {
                path: path.to_owned(),
                error,
            });
        }
    }
    Ok(())
}

fn expect(path: &Path, what: &'static str, have: u64, need: u64) -> Result<(), SourceError> {
    if have == need {
        return Ok(());
    }
    Err(SourceError::Split {
        path: path.to_owned(),
        what,
        have,
        need,
    })
}

fn part_key(metadata: &Metadata, key: &str, path: &Path) -> Result<u64, SourceError> {
    match metadata.unsigned(key) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(SourceError::KeyMissing {
            key: key.to_owned(),
        }),
        Err(error) => Err(SourceError::Gguf {
            path: path.to_owned(),
            error,
        }),
    }
}

/// Paths of the second to the last part; none for a single file.
fn part_paths(metadata: &Metadata, path: &Path) -> Result<Vec<PathBuf>, SourceError> {
    if !metadata.has("split.count") {
        return Ok(Vec::new());
    }
    let count = part_key(metadata, "split.count", path)?;
    if count <= 1 {
        return Ok(Vec::new());
    }
    let not = |found| SourceError::NotAModel {
        path: path.to_owned(),
        found,
    };
    if part_key(metadata, "split.no", path)? != 0 {
        return Err(not(
            "a later part of a split model, give the part -00001-of-",
        ));
    }
    let ending = format!("-00001-of-{count:05}.gguf");
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let Some(stem) = name.strip_suffix(&ending) else {
        return Err(not(
            "a split model whose parts are not called -00001-of-0000N.gguf",
        ));
    };
    // A name of at most 255 bytes states the count, so it has few digits.
    Ok((2..=count)
        .map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf")))
        .collect())
}

/// Reads `bytes` as a GGUF file and uses everything in it once: must never panic. For fuzzing.
pub fn check(bytes: &[u8]) {
    if let Ok(model) = from_bytes(bytes) {
        super::check_tensors(&model);
    }
}

/// The model in the bytes of a single GGUF file.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Model, SourceError> {
    let path = Path::new("memory.gguf");
    let file = SourceFile::memory(path, bytes.to_vec());
    let header = head(&file)?;
    let mut index = Index::new();
    add(&mut index, 0, header.tensors, path)?;
    build(&header.metadata, index, vec![file], Options::default())
}
