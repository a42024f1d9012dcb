//! Habits of this repository that no compiler checks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const LINE_CHARS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 600;
/// The only places where unsafe code may be allowed.
const UNSAFE_PLACES: [&str; 10] = [
    "kernels/src/arch/",
    "hal/src/slots.rs",
    "hal/src/linux/sys.rs",
    "hal/src/linux/region.rs",
    "hal/src/linux/flash_uring.rs",
    "hal/src/linux/cores.rs",
    "hal/src/bare/",
    "hal/tests/",
    "daemon/tests/",
    // Entry points of machines: their tests run them.
    "firmware-tests/images/",
];
/// Who may depend on whom (docs/architecture.md).
const ARROWS: [(&str, &[&str]); 6] = [
    ("kernels", &[]),
    ("hal", &[]),
    ("runtime", &["tessera-kernels", "tessera-hal"]),
    (
        "layout-tool",
        &["tessera-runtime", "tessera-kernels", "tessera-hal"],
    ),
    (
        "daemon",
        &[
            "tessera-runtime",
            "tessera-kernels",
            "tessera-hal",
            "layout-tool",
        ],
    ),
    (
        "firmware-tests",
        &[
            "tessera-runtime",
            "tessera-kernels",
            "tessera-hal",
            "layout-tool",
        ],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rust files of the workspace: path from its root, and text.
fn files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (folder, _) in ARROWS {
        let mut folders = vec![root().join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !path.ends_with("target") {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path
                        .strip_prefix(root())
                        .unwrap()
                        .to_string_lossy()
                        .into_owned();
                    found.push((name, std::fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    assert!(found.len() > 50, "only {} files", found.len());
    found
}

fn is_test(name: &str) -> bool {
    [
        "/tests/",
        "/tests.rs",
        "/fuzz/",
        "/benches/",
        "/testing.rs",
        "/examples/",
    ]
    .iter()
    .any(|part| name.contains(part))
}

/// The part of a file before its tests.
fn product(text: &str) -> &str {
    let end = ["#[cfg(test)]\nmod ", "#[test]"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min();
    &text[..end.unwrap_or(text.len())]
}

fn report(faults: &BTreeSet<String>) {
    let list: Vec<&str> = faults.iter().map(String::as_str).collect();
    assert!(faults.is_empty(), "{}", list.join("\n"));
}

#[test]
fn lines_and_files_are_short() {
    let mut faults = BTreeSet::new();
    for (name, text) in files() {
        for (index, line) in text.lines().enumerate() {
            if line.chars().count() > LINE_CHARS_MAX {
                faults.insert(format!(
                    "{name}:{}: over {LINE_CHARS_MAX} characters",
                    index + 1
                ));
            }
        }
        if !is_test(&name) && product(&text).lines().count() > FILE_LINES_MAX {
            faults.insert(format!("{name}: over {FILE_LINES_MAX} lines"));
        }
    }
    report(&faults);
}

#[test]
fn unsafe_code_stays_where_it_is_listed() {
    let mut faults = BTreeSet::new();
    for (name, text) in files() {
        let allows = text.contains(concat!("allow(", "unsafe_code)"));
        if allows && !UNSAFE_PLACES.iter().any(|place| name.starts_with(place)) {
            faults.insert(format!("{name}: unsafe code is not allowed here"));
        }
    }
    report(&faults);
}

#[test]
fn nothing_unfinished_and_no_unwrap_outside_tests() {
    let words = [
        concat!("todo", "!("),
        concat!("dbg", "!("),
        concat!("unimplemented", "!("),
    ];
    let mut faults = BTreeSet::new();
    for (name, text) in files() {
        for (index, line) in text.lines().enumerate() {
            if words.iter().any(|word| line.contains(word)) {
                faults.insert(format!("{name}:{}: unfinished", index + 1));
            }
        }
        if is_test(&name) {
            continue;
        }
        for (index, line) in product(&text).lines().enumerate() {
            if line.contains(".unwrap()") && !line.trim_start().starts_with("//") {
                faults.insert(format!("{name}:{}: unwrap", index + 1));
            }
        }
    }
    report(&faults);
}

#[test]
fn every_file_is_reachable() {
    let mut faults = BTreeSet::new();
    let files = files();
    for (name, _) in &files {
        let path = Path::new(name);
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let folder = path.parent().unwrap();
        let top = ["tests", "benches", "examples", "fuzz_targets", "bin"];
        // Shared by several tests, each of which names its path.
        if name.starts_with("runtime/tests/support/") {
            continue;
        }
        let at_top = folder
            .file_name()
            .is_some_and(|last| top.iter().any(|t| last == *t));
        if ["lib", "main"].contains(&stem.as_str()) || (at_top && !name.contains("/src/")) {
            continue;
        }
        let (module, parents) = if stem == "mod" {
            let module = folder.file_name().unwrap().to_string_lossy().into_owned();
            let above = folder.parent().unwrap();
            (
                module,
                [
                    above.join("mod.rs"),
                    above.with_extension("rs"),
                    above.join("lib.rs"),
                ],
            )
        } else {
            (
                stem,
                [
                    folder.join("mod.rs"),
                    folder.with_extension("rs"),
                    folder.join("lib.rs"),
                ],
            )
        };
        let declares = |text: &str| text.contains(&format!("mod {module};"));
        let main = folder.join("main.rs");
        let reachable = files.iter().any(|(other, text)| {
            let other = Path::new(other);
            (parents.iter().any(|parent| parent == other) || other == main) && declares(text)
                || (other.parent() == Some(folder) && declares(text))
        });
        if !reachable {
            faults.insert(format!("{name}: no file declares it"));
        }
    }
    report(&faults);
}

#[test]
fn crates_depend_only_along_the_arrows() {
    let mut faults = BTreeSet::new();
    for (folder, allowed) in ARROWS {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let section = manifest.split("[dependencies]").nth(1).unwrap_or("");
        let section = section.split("\n[").next().unwrap();
        for line in section.lines() {
            let name = line.split([' ', '.', '=']).next().unwrap_or("");
            let ours = name.starts_with("tessera") || name == "layout-tool";
            if ours && !allowed.contains(&name) {
                faults.insert(format!("{folder} depends on {name}"));
            }
        }
    }
    report(&faults);
}
