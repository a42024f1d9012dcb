//! Numbers and texts that a change must update knowingly.

use std::env;
use std::fs;
use std::path::Path;

/// Numbers may differ by so many of a thousand: where code lies changes a little with the place of
/// the clone.
const PERMILLE: u64 = 5;
/// The same where another compiler made the images than the file's.
const PERMILLE_OTHER: u64 = 100;
/// And numbers of bytes by so many in any case: a function that is inlined or not changes the stack
/// by its frame, and a word more is much of an almost empty section. Budgets hold all the same.
const LOOSE_BYTES: u64 = 1024;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn differ(path: &Path, wanted: &str, found: &str) -> ! {
    panic!(
        "{} is not what was found (UPDATE_SNAPSHOTS=1 writes it).\n-- the file\n{wanted}\n\
         -- found\n{found}",
        path.display()
    )
}

/// Writes the file where `UPDATE_SNAPSHOTS` is set; true if so.
fn update(path: &Path, found: &str) -> bool {
    let wanted = env::var_os("UPDATE_SNAPSHOTS").is_some();
    if wanted {
        fs::write(path, found).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    wanted
}

/// Compares `found` with the file, or writes it where `UPDATE_SNAPSHOTS` is set.
///
/// # Panics
/// If they differ.
pub fn check(path: &Path, found: &str) {
    let wanted = read(path);
    if !update(path, found) && wanted != found {
        differ(path, &wanted, found);
    }
}

/// Compares lines of words and numbers, whose first line names the compiler. Numbers may differ a
/// little, and more where the compiler is another.
///
/// # Panics
/// If they differ by more.
pub fn check_numbers(path: &Path, found: &str) {
    if update(path, found) {
        return;
    }
    let wanted = read(path);
    let same_compiler = wanted.lines().next() == found.lines().next();
    let permille = if same_compiler {
        PERMILLE
    } else {
        PERMILLE_OTHER
    };
    if !near(&wanted, found, permille) {
        differ(path, &wanted, found);
    }
}

/// True if all lines but the first have the same words, and numbers within `permille` or, before
/// the word "bytes", within [`LOOSE_BYTES`].
fn near(wanted: &str, found: &str, permille: u64) -> bool {
    let words = |text: &str| -> Vec<String> {
        let lines = text.lines().skip(1);
        lines
            .flat_map(|line| line.split(' ').map(String::from).collect::<Vec<_>>())
            .collect()
    };
    let (wanted, found) = (words(wanted), words(found));
    let units = wanted.iter().skip(1).map(String::as_str).chain([""]);
    wanted.len() == found.len()
        && wanted
            .iter()
            .zip(&found)
            .zip(units)
            .all(|((wanted, found), unit)| {
                let (Ok(wanted), Ok(found)) = (wanted.parse::<u64>(), found.parse::<u64>()) else {
                    return wanted == found;
                };
                let apart = found.abs_diff(wanted);
                apart * 1000 <= wanted * permille || (unit == "bytes" && apart <= LOOSE_BYTES)
            })
}

#[cfg(test)]
mod tests {
    use super::near;

    #[test]
    fn numbers_may_differ_a_little_and_words_not_at_all() {
        assert!(near("one\n1000 steps", "other\n1005 steps", 5));
        assert!(!near("one\n1000 steps", "one\n1006 steps", 5));
        assert!(!near("one\n1000 steps", "one\n994 steps", 5));
        assert!(near("one\nbss 0 bytes", "one\nbss 1024 bytes", 5));
        assert!(!near("one\nbss 0 bytes", "one\nbss 1025 bytes", 5));
        assert!(!near(
            "one\n17 reads of 0 bytes",
            "one\n18 reads of 0 bytes",
            5
        ));
        assert!(!near("one\nstep 1000 bytes", "one\nstep 1000 words", 5));
        assert!(!near("one\nstep 1000", "one\nstep 1000 bytes", 5));
        assert!(!near("", "one\nstep 1000 bytes", 5));
    }
}
