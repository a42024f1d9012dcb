//! Models from bytes made here, good ones and all kinds of bad ones.

mod build;
mod folder;
mod gguf_bytes;
mod gguf_model;
mod mutate;
mod rope;
mod safetensors;
mod split;
mod tokens;

use std::fmt::Display;

use super::{Model, Role};

/// What the user would read: one sentence, without a full stop.
fn sentence(error: &impl Display) -> String {
    let text = error.to_string();
    assert!(
        !text.is_empty() && !text.ends_with('.') && !text.contains('\n'),
        "{text:?}"
    );
    assert!(
        !text.contains("failed to") && !text.contains("  "),
        "{text:?}"
    );
    text
}

/// All weights of a tensor.
fn floats(model: &Model, role: Role) -> Vec<f32> {
    let tensor = model.tensor(role).unwrap_or_else(|| panic!("no {role:?}"));
    let mut out = Vec::new();
    tensor.read_f32(0, tensor.rows, &mut out).unwrap();
    out
}
