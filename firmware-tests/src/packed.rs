//! The small model as an image, calibrated, as the demonstration has it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use layout_tool::pack::{PackOptions, pack};
use layout_tool::profile::{ProfileOptions, Text, profile};
use tempfile::TempDir;

use crate::moved::moved;

/// Tokens of the text that neurons are ordered and predictors fitted by.
const CALIBRATION_TOKENS: usize = 1024;

/// A folder that lives as long as the process.
static FOLDER: OnceLock<(TempDir, PathBuf)> = OnceLock::new();

/// Austen with predictors: the same bytes on every machine.
///
/// # Panics
/// If it cannot be made.
pub fn austen() -> &'static Path {
    let (_, path) = FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let source = root.join("layout-tool/model/austen.gguf");
        let text = root.join("daemon/tests/data/austen/held-out.txt");
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
        let plain = folder.path().join("plain.image");
        let target = folder.path().join("austen.image");
        pack(&PackOptions::new(&source, &plain), &|_, _| {})
            .unwrap_or_else(|error| panic!("{error}"));
        let options = ProfileOptions {
            tokens: CALIBRATION_TOKENS,
            ..ProfileOptions::new(&plain, Text::Plain(text), &target)
        };
        profile(&options, &|_, _, _| true).unwrap_or_else(|error| panic!("{error}"));
        (folder, target)
    });
    path
}

/// The same, moved as [`moved`] says.
///
/// # Panics
/// If it cannot be made.
pub fn austen_moved() -> &'static Path {
    static MOVED: OnceLock<PathBuf> = OnceLock::new();
    MOVED.get_or_init(|| {
        let path = austen().with_file_name("moved.image");
        let write = || std::fs::write(&path, moved(&std::fs::read(austen())?));
        write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    })
}
