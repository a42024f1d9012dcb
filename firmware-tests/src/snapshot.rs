//! Numbers and texts that a change must update knowingly.

use std::env;
use std::fs;
use std::path::Path;

/// Compares `found` with the file, or writes it where `UPDATE_SNAPSHOTS` is set.
///
/// # Panics
/// If they differ.
pub fn check(path: &Path, found: &str) {
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(path, found).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        return;
    }
    let wanted = fs::read_to_string(path).unwrap_or_default();
    assert!(
        wanted == found,
        "{} is not what was found (UPDATE_SNAPSHOTS=1 writes it).\n-- the file\n{wanted}\n\
         -- found\n{found}",
        path.display()
    );
}
