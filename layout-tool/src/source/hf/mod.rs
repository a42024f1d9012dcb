//! Hugging Face folders: config.json, safetensors, tokenizer.json.

mod config;
mod names;
mod safetensors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::SourceError;
use super::file::{SourceFile, read_json};
use super::index::{Index, Role, assign, has};
use super::{Model, Options, tokenizer};
use names::Names;

pub use safetensors::SafetensorsError;

/// Largest number of weight files that is believed.
const FILES_MAX: usize = 4096;

/// Opens a folder.
pub(super) fn open(folder: &Path, options: Options) -> Result<Model, SourceError> {
    let not = |found| SourceError::NotAModel {
        path: folder.to_owned(),
        found,
    };
    let json = read_json(&folder.join("config.json"))?
        .ok_or_else(|| not("a folder without config.json"))?;
    let mut config = config::read(&json)?;
    let name = folder.file_name().and_then(|name| name.to_str());
    config.name = name.unwrap_or(&config.architecture).to_owned();
    config.check()?;
    config.rope = config::rope(&json, &config)?;

    let (files, index) = weights(folder)?;
    let mut notes = Vec::new();
    if !config.tied_embeddings && !has(&index, &Names, Role::LmHead) {
        config.tied_embeddings = true;
        notes.push("there is no lm_head.weight: the embedding serves as output projection".into());
    }
    config.qkv_bias |= has(&index, &Names, Role::QBias(0));
    let placed = assign(&index, &Names, &config)?;

    let tokens = tokenizer::folder::import(folder, &json, config.vocab_size, options.tokenizer)?;
    config.bos_token = tokens.bos_token;
    config.eos_tokens = tokens.eos_tokens;
    config.add_bos = tokens.add_bos && config.bos_token.is_some();
    config.check_tokens()?;
    notes.extend(tokens.notes);
    Ok(Model {
        config,
        tokenizer: tokens.files,
        notes,
        files,
        placed,
    })
}

/// The weight files and where each tensor is.
fn weights(folder: &Path) -> Result<(Vec<SourceFile>, Index), SourceError> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        let file = SourceFile::open(&single)?;
        let index = safetensors::read_index(&file, 0)?;
        return Ok((vec![file], index));
    }
    let path = folder.join("model.safetensors.index.json");
    let Some(json) = read_json(&path)? else {
        let found = if has_pickles(folder) {
            "a folder with PyTorch weights only, save the model as safetensors"
        } else {
            "a folder without model.safetensors or its index"
        };
        return Err(SourceError::NotAModel {
            path: folder.to_owned(),
            found,
        });
    };
    sharded(folder, &shards(&json)?)
}

fn has_pickles(folder: &Path) -> bool {
    [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "consolidated.00.pth",
    ]
    .iter()
    .any(|name| folder.join(name).is_file())
}

/// File names of the index with the tensors each is to hold.
fn shards(json: &Value) -> Result<BTreeMap<&str, Vec<&str>>, SourceError> {
    let bad = |name: &str, problem| SourceError::Index {
        name: name.to_owned(),
        problem,
    };
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(bad("weight_map", "is missing"));
    };
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, file) in map {
        let Some(file) = file.as_str() else {
            return Err(bad(tensor, "has no file name"));
        };
        // A name that leads out of the folder is an attack, or a mistake.
        if PathBuf::from(file)
            .file_name()
            .is_none_or(|name| name != file)
        {
            return Err(bad(file, "is not a plain file name"));
        }
        shards.entry(file).or_default().push(tensor);
    }
    if shards.len() > FILES_MAX {
        return Err(bad("weight_map", "names too many files"));
    }
    Ok(shards)
}

fn sharded(
    folder: &Path,
    shards: &BTreeMap<&str, Vec<&str>>,
) -> Result<(Vec<SourceFile>, Index), SourceError> {
    let mut files = Vec::new();
    let mut index = Index::new();
    for (number, (name, tensors)) in shards.iter().enumerate() {
        let file = SourceFile::open(&folder.join(name))?;
        let mut inside = safetensors::read_index(&file, number)?;
        for tensor in tensors {
            let Some(stored) = inside.remove(*tensor) else {
                let problem = "is not in the file that it names";
                return Err(SourceError::Index {
                    name: (*tensor).to_owned(),
                    problem,
                });
            };
            index.insert((*tensor).to_owned(), stored);
        }
        files.push(file);
    }
    Ok((files, index))
}

/// Reads `bytes` as a safetensors file and uses everything in it once: must never panic. For
/// fuzzing.
pub fn check(bytes: &[u8]) {
    let file = SourceFile::memory(Path::new("memory.safetensors"), bytes.to_vec());
    if let Ok(index) = safetensors::read_index(&file, 0) {
        for stored in index.values() {
            super::check_stored(&file, stored);
        }
    }
}
