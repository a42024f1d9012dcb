//! No bytes make the reader panic: the fuzzing corpus, and every small change of small files.
//!
//! `UPDATE=1` writes the corpus anew.

use std::path::PathBuf;

use super::build::*;
use crate::source::{gguf, hf};

fn small_gguf() -> Vec<(&'static str, Vec<u8>)> {
    let mut bpe = tiny("qwen2");
    add_bpe(&mut bpe, "qwen2");
    let mut spm = tiny("llama");
    add_spm(&mut spm);
    spm.add("rope_freqs.weight", &[2], 1.0);
    let mut yarn = tiny("qwen3");
    yarn.set("qwen3.rope.scaling.type", text("yarn"))
        .set("qwen3.rope.scaling.factor", f32(4.0))
        .set("general.alignment", u32(32));
    vec![
        ("bpe", bpe.bytes()),
        ("spm", spm.bytes()),
        ("yarn", yarn.bytes()),
        ("experts", tiny_experts(false).bytes()),
        ("old_experts", tiny_experts(true).bytes()),
    ]
}

fn small_safetensors() -> Vec<(&'static str, Vec<u8>)> {
    let two = [
        ("a".to_owned(), vec![2, 2], 1.0),
        ("b".to_owned(), vec![3], 5.0),
    ];
    let half = r#"{"__metadata__":{"format":"pt"},
        "w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}"#;
    vec![
        ("two", safetensors(&two)),
        ("half", with_head(half, &[0; 4])),
    ]
}

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

/// Writes the corpus where that is asked for, then checks all of it.
fn check_corpus(target: &str, files: &[(&'static str, Vec<u8>)], check: fn(&[u8])) {
    let folder = corpus(target);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        check(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= files.len(), "{}: {count} files", folder.display());
}

/// Changes each of the first `head` bytes in some ways, and cuts the file everywhere.
fn check_mutations(bytes: &[u8], head: usize, values: fn(u8) -> Vec<u8>, check: fn(&[u8])) {
    let mut changed = bytes.to_vec();
    for at in 0..head {
        for value in values(bytes[at]) {
            changed[at] = value;
            check(&changed);
        }
        changed[at] = bytes[at];
    }
    (0..bytes.len()).for_each(|len| check(&bytes[..len]));
}

/// All other values of a byte.
fn others(byte: u8) -> Vec<u8> {
    (0..=255).filter(|value| *value != byte).collect()
}

/// Some of them: one bit changed, one more or less, and the extremes.
fn near(byte: u8) -> Vec<u8> {
    let borders = [byte.wrapping_add(1), byte.wrapping_sub(1), 0, 0x7F, 0xFF];
    (0..8).map(|bit| byte ^ 1 << bit).chain(borders).collect()
}

#[test]
fn no_change_of_a_gguf_file_panics() {
    check_corpus("gguf", &small_gguf(), gguf::check);
    for (name, bytes) in small_gguf() {
        assert!(
            gguf::from_bytes(&bytes).is_ok(),
            "{name}: {:?}",
            gguf::from_bytes(&bytes).err()
        );
        // Behind the head come only weights, which may be anything.
        let header = gguf::read_header(&bytes[..], bytes.len() as u64).unwrap();
        let head = header
            .tensors
            .iter()
            .map(|(_, tensor)| tensor.offset)
            .min()
            .unwrap();
        let values = if name == "bpe" { others } else { near };
        check_mutations(&bytes, head as usize, values, gguf::check);
    }
}

#[test]
fn no_change_of_a_safetensors_file_panics() {
    check_corpus("safetensors", &small_safetensors(), hf::check);
    for (name, bytes) in small_safetensors() {
        check_mutations(&bytes, bytes.len(), others, hf::check);
        let text = String::from_utf8_lossy(&bytes[8..]);
        assert!(text.contains("dtype"), "{name}");
    }
}
