//! Every image on every machine.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use firmware_tests::build::{Kind, build, images};
use firmware_tests::decode::decode;
use firmware_tests::elf::{Sizes, sizes};
use firmware_tests::model::expected;
use firmware_tests::packed::{austen, austen_moved};
use firmware_tests::qemu::{Devices, End, Qemu, Run};
use firmware_tests::snapshot;
use firmware_tests::target::Target;

/// Images are compiled here.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/firmware");
/// Long enough for any image on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Code and constants on the smallest machine, the model's image not counted.
const TEXT_BYTES_MAX: u64 = 256 << 10;
/// Variables there, the region not counted.
const STATIC_BYTES_MAX: u64 = 4 << 10;

/// The most that the stack was ever filled there: plan, session, prompt and tokens.
const STACK_BYTES_MAX: u64 = 16 << 10;

/// Past the capture of tests' output: what did not run must be seen.
fn say(message: &str) {
    let _ = writeln!(io::stderr(), "firmware: {message}");
}

/// Folders of what was built, or why it was not.
static BUILT: Mutex<BTreeMap<(Target, bool), Result<PathBuf, String>>> =
    Mutex::new(BTreeMap::new());

/// The image `name` for `target`; `None`, said aloud, where this machine cannot build or run it.
fn image(target: Target, name: &str, kind: Kind) -> Option<PathBuf> {
    let mut built = BUILT.lock().unwrap();
    let result = built
        .entry((target, kind == Kind::Frames))
        .or_insert_with(|| build(target, kind, Path::new(FOLDER)));
    match result {
        Ok(folder) => {
            say(&format!("{} {name}", target.name()));
            Some(folder.join(name))
        }
        Err(reason) => {
            let message = format!("{} {name} DOES NOT RUN: {reason}", target.name());
            assert!(
                env::var_os("TESSERA_REQUIRE_FIRMWARE").is_none(),
                "{message}"
            );
            say(&message);
            None
        }
    }
}

fn run(target: Target, name: &str, devices: Devices<'_>) -> Option<Run> {
    let image = image(target, name, Kind::Plain)?;
    Some(Qemu::start(target, &image, devices).finish(LIMIT))
}

/// Runs an image that prints what its file says.
fn check(target: Target, name: &str, devices: Devices<'_>) {
    if let Some(run) = run(target, name, devices) {
        assert_eq!(run.end, End::Done, "{run}");
        snapshot::check(&images().join(format!("bin/{name}.out")), &run.text());
    }
}

/// Runs the image that logs: its frames, decoded, are what its file says; no other image has any.
fn check_logs(target: Target) {
    let Some(path) = image(target, "logs", Kind::Frames) else {
        return;
    };
    let run = Qemu::start(target, &path, with_memory()).finish(LIMIT);
    assert_eq!(run.end, End::Done, "{run}");
    let lines = decode(&std::fs::read(path).unwrap(), &run.bytes).unwrap();
    snapshot::check(&images().join("bin/logs.out"), &lines);
    let plain = image(target, "memory", Kind::Plain).unwrap();
    assert!(decode(&std::fs::read(plain).unwrap(), &[]).is_err());
}

/// Instructions of one token, stack and sizes: the file's, and within the budget.
fn cost(target: Target) {
    let counted = Devices {
        counted: true,
        ..with_memory()
    };
    let Some(run) = run(target, "steps", counted) else {
        return;
    };
    assert_eq!(run.end, End::Done, "{run}");
    let path = image(target, "steps", Kind::Plain).unwrap();
    let Sizes { text, data, bss } = sizes(&std::fs::read(path).unwrap());
    let compiler = target.compiler().unwrap();
    let steps = run.text();
    let steps = steps.strip_suffix("done\n").unwrap();
    let found =
        format!("{compiler}\n{steps}text {text} bytes\ndata {data} bytes\nbss {bss} bytes\n");
    if target == Target::Thumb {
        assert!(text <= TEXT_BYTES_MAX, "{found}");
        assert!(data + bss <= STATIC_BYTES_MAX, "{found}");
        assert!(stack_bytes(steps) <= STACK_BYTES_MAX, "{found}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("snapshots");
    snapshot::check_numbers(&folder.join(format!("{}.out", target.name())), &found);
}

/// What the image `steps` says of its stack.
fn stack_bytes(steps: &str) -> u64 {
    let line = steps.lines().find_map(|line| line.strip_prefix("stack "));
    let bytes = line.and_then(|line| line.strip_suffix(" bytes"));
    bytes.expect("a line of the stack").parse().unwrap()
}

/// What does not end is killed, and what panics is known as such.
#[test]
fn an_image_that_hangs_or_panics_is_noticed() {
    for target in Target::ALL {
        if let Some(path) = image(target, "endless", Kind::Plain) {
            let qemu = Qemu::start(target, &path, Devices::default());
            let process = qemu.process();
            let run = qemu.finish(Duration::from_secs(3));
            assert_eq!(
                (run.end, run.text().as_str()),
                (End::TimedOut, "begun\n"),
                "{run}"
            );
            assert!(
                !Path::new(&format!("/proc/{process}")).exists(),
                "{process} lives"
            );
        }
        if let Some(run) = run(target, "panics", Devices::default()) {
            assert_eq!(run.end, End::Panicked, "{run}");
            assert!(run.text().contains("as told"), "{run}");
        }
    }
}

/// The disk is given out once.
#[test]
fn a_disk_that_is_asked_for_twice_is_refused() {
    for target in [Target::X86_64, Target::Aarch64, Target::Riscv64] {
        if let Some(run) = run(target, "twice", with_disk()) {
            assert_eq!(run.end, End::Panicked, "{run}");
            assert!(run.text().starts_with("begun\n"), "{run}");
            assert!(run.text().contains("the disk is in use"), "{run}");
        }
    }
}

#[test]
fn an_emulator_that_is_dropped_is_killed() {
    for target in Target::ALL {
        if let Some(path) = image(target, "endless", Kind::Plain) {
            let qemu = Qemu::start(target, &path, Devices::default());
            let process = PathBuf::from(format!("/proc/{}", qemu.process()));
            assert!(process.exists());
            drop(qemu);
            assert!(!process.exists(), "{} lives", process.display());
        }
    }
}

fn with_memory() -> Devices<'static> {
    Devices {
        loaded: Some(austen()),
        ..Devices::default()
    }
}

fn with_moved() -> Devices<'static> {
    Devices {
        loaded: Some(austen_moved()),
        ..Devices::default()
    }
}

fn with_two_cores() -> Devices<'static> {
    Devices {
        cores: 2,
        ..with_disk()
    }
}

fn with_disk() -> Devices<'static> {
    Devices {
        disk: Some(austen()),
        ..Devices::default()
    }
}

#[test]
fn the_host_computes_what_the_images_print() {
    let found = expected(&std::fs::read(austen()).unwrap());
    snapshot::check(&images().join("bin/austen.out"), &format!("{found}done\n"));
}

/// The tests of each machine: images by name, and what each is given.
macro_rules! machines {
    ($($module:ident = $target:ident: $($test:ident = $devices:expr),+;)+) => {$(
        mod $module {
            use super::*;

            $(
                #[test]
                fn $test() {
                    check(Target::$target, stringify!($test), $devices);
                }
            )+

            #[test]
            fn logs() {
                check_logs(Target::$target);
            }

            #[test]
            fn a_token_costs_what_the_snapshot_says() {
                cost(Target::$target);
            }
        }
    )+};
}

machines! {
    x86_64 = X86_64:
        hello = Devices::default(),
        memory = with_memory(),
        beyond = with_moved(),
        lost = with_memory(),
        damaged = with_memory(),
        austen = with_disk();
    aarch64 = Aarch64:
        hello = Devices::default(),
        memory = with_memory(),
        beyond = with_moved(),
        lost = with_memory(),
        damaged = with_memory(),
        austen = with_disk(),
        lanes = with_two_cores();
    riscv64 = Riscv64:
        hello = Devices::default(),
        memory = with_memory(),
        beyond = with_moved(),
        lost = with_memory(),
        damaged = with_memory(),
        austen = with_disk(),
        lanes = with_two_cores();
    thumbv8m = Thumb:
        hello = Devices::default(),
        memory = with_memory(),
        beyond = with_moved(),
        lost = with_memory(),
        damaged = with_memory();
}
