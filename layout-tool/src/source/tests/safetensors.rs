//! Bytes that are no safetensors file, or not quite one.

use super::build::*;
use super::sentence;
use crate::source::hf::SafetensorsError;
use crate::source::{SourceError, hf, open};

/// What a folder with this weight file is refused for.
fn error(bytes: &[u8]) -> SafetensorsError {
    hf::check(bytes);
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), &config("llama"), &[]);
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let error = open(folder.path()).unwrap_err();
    sentence(&error);
    match error {
        SourceError::Safetensors { error, .. } => error,
        other => panic!("{other}"),
    }
}

fn head_error(head: &str, data: &[u8]) -> SafetensorsError {
    error(&with_head(head, data))
}

#[test]
fn a_head_that_is_cut_or_too_large_is_refused() {
    assert_eq!(
        error(b"1234567"),
        SafetensorsError::HeadTruncated { need: 8, len: 7 }
    );
    let bytes = with_head(
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
        &[0; 4],
    );
    for len in 8..bytes.len() - 4 {
        let need = bytes.len() as u64 - 4;
        let have = error(&bytes[..len]);
        assert_eq!(
            have,
            SafetensorsError::HeadTruncated {
                need,
                len: len as u64
            }
        );
    }
    for count in [100_000_001, 1 << 63, u64::MAX] {
        let mut bytes = bytes.clone();
        bytes[..8].copy_from_slice(&count.to_le_bytes());
        assert_eq!(
            error(&bytes),
            SafetensorsError::HeadTooLarge { bytes: count }
        );
    }
}

#[test]
fn weights_are_all_there_and_nothing_else() {
    let head = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    for have in [0, 7, 9] {
        let want = SafetensorsError::DataLength {
            need: 8,
            have: have as u64,
        };
        assert_eq!(head_error(head, &vec![0; have]), want);
    }
}

#[test]
fn a_damaged_head_is_refused() {
    let heads = [
        "",
        "{",
        "[]",
        r#"{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}"#,
    ];
    for head in heads {
        let error = head_error(head, &[0; 8]);
        assert!(
            matches!(error, SafetensorsError::Head { .. }),
            "{head}: {error}"
        );
    }
}

#[test]
fn names_are_unique_and_types_known() {
    let twice = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_eq!(
        head_error(twice, &[0; 4]),
        SafetensorsError::TensorTwice { name: "w".into() }
    );
    let int = r#"{"w":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let want = SafetensorsError::TensorType {
        name: "w".into(),
        ty: "I64".into(),
    };
    assert_eq!(head_error(int, &[0; 8]), want);
}
