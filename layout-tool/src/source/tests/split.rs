//! GGUF models in several files.

use std::path::PathBuf;

use tempfile::TempDir;

use super::build::*;
use super::{floats, sentence};
use crate::source::{Role, SourceError, gguf, open};

/// Tensors of the first of two parts.
const FIRST: usize = 5;

/// The two parts of the tiny model.
fn parts() -> [Gguf; 2] {
    let mut first = tiny("llama");
    let second_tensors = first.tensors.split_off(FIRST);
    let count = (FIRST + second_tensors.len()) as i32;
    let mut second = Gguf {
        tensors: second_tensors,
        ..Gguf::default()
    };
    for (number, part) in [&mut first, &mut second].into_iter().enumerate() {
        part.set("split.no", u32(number as u32))
            .set("split.count", u32(2))
            .set("split.tensors.count", i32(count));
    }
    [first, second]
}

fn write(parts: &[Gguf; 2]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (number, part) in parts.iter().enumerate() {
        let name = format!("m-0000{}-of-00002.gguf", number + 1);
        std::fs::write(folder.path().join(name), part.bytes()).unwrap();
    }
    let first = folder.path().join("m-00001-of-00002.gguf");
    (folder, first)
}

fn error(parts: &[Gguf; 2]) -> SourceError {
    let (_folder, path) = write(parts);
    let error = open(&path).unwrap_err();
    sentence(&error);
    error
}

#[test]
fn parts_make_the_whole() {
    let (_folder, path) = write(&parts());
    let (split, whole) = (
        open(&path).unwrap(),
        gguf::from_bytes(&tiny("llama").bytes()).unwrap(),
    );
    assert_eq!(split.config, whole.config);
    for role in [
        Role::Embedding,
        Role::Q(0),
        Role::Down(0, 0),
        Role::FfnNorm(0),
    ] {
        assert_eq!(floats(&split, role), floats(&whole, role));
    }
}

#[test]
fn a_part_that_is_missing_or_of_another_set_is_named() {
    let (folder, path) = write(&parts());
    let second = folder.path().join("m-00002-of-00002.gguf");
    assert!(matches!(open(&second), Err(SourceError::NotAModel { .. })));
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&path, &renamed).unwrap();
    assert!(matches!(open(&renamed), Err(SourceError::NotAModel { .. })));
    std::fs::remove_file(&second).unwrap();
    let error = open(&path).unwrap_err();
    assert!(sentence(&error).contains("m-00002-of-00002.gguf"));
    assert!(matches!(error, SourceError::Io { .. }));
}

#[test]
fn parts_agree_about_their_set() {
    let mut wrong = parts();
    wrong[1].set("split.no", u32(5));
    assert!(matches!(
        error(&wrong),
        SourceError::Split {
            have: 5,
            need: 1,
            ..
        }
    ));
    let mut wrong = parts();
    wrong[0].set("split.tensors.count", i32(12));
    assert!(matches!(
        error(&wrong),
        SourceError::Split {
            have: 11,
            need: 12,
            ..
        }
    ));
    let mut wrong = parts();
    wrong[1].remove("split.no");
    assert_eq!(
        error(&wrong),
        SourceError::KeyMissing {
            key: "split.no".into()
        }
    );
    let mut wrong = parts();
    let again = wrong[0].tensors[0].clone();
    wrong[1].tensors.push(again);
    assert!(matches!(error(&wrong), SourceError::Gguf { .. }));
    let mut wrong = parts();
    wrong[1].set("split.no", text("1"));
    assert!(matches!(error(&wrong), SourceError::Gguf { .. }));
}
