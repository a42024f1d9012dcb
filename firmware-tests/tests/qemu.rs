//! Every image on every machine.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use firmware_tests::build::{Kind, build, images};
use firmware_tests::model::expected;
use firmware_tests::packed::austen;
use firmware_tests::qemu::{Devices, End, Qemu, Run};
use firmware_tests::snapshot;
use firmware_tests::target::Target;

/// Images are compiled here.
const FOLDER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/firmware");
/// Long enough for any image on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

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

fn disk() -> Devices<'static> {
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

/// The tests of each machine.
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
        }
    )+};
}

machines! {
    x86_64 = X86_64: hello = Devices::default(), austen = disk();
    aarch64 = Aarch64: hello = Devices::default(), austen = disk();
    riscv64 = Riscv64: hello = Devices::default(), austen = disk();
    thumbv8m = Thumb: hello = Devices::default();
}
