//! Real and golden models, as files.
//!
//! The golden models and test vectors are read where they stand beside the checkout, the real
//! models where `TESSERA_MODELS` says; without them a test says so and does nothing.

mod golden;
mod tokenizer;
mod types;

use std::path::PathBuf;

/// `../shared/NAME` beside the checkout, if it is there.
fn shared(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: there is no {}", path.display());
    None
}

/// `$VARIABLE/NAME`, if the variable is set.
fn in_folder(variable: &str, name: &str) -> Option<PathBuf> {
    match std::env::var_os(variable) {
        Some(folder) => Some(PathBuf::from(folder).join(name)),
        None => {
            eprintln!("skipped: {variable} does not name a folder with {name}");
            None
        }
    }
}
