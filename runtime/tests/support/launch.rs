//! How a test starts a program of ours, and what it spares an emulator.

use std::env;
use std::process::Command;

/// Emulator of the machine that the tests are built for, with its arguments; not set, none.
///
/// Cargo's runner starts test programs only: the kernel cannot execute what they start in turn. The
/// emulator is named by its whole path, since some tests set `PATH`.
const RUNNER: &str = "TESSERA_TEST_RUNNER";

/// The program at `path`, without arguments yet.
pub fn program(path: &str) -> Command {
    let runner = env::var(RUNNER).unwrap_or_default();
    let mut words = runner.split_whitespace().chain([path]);
    let mut command = Command::new(words.next().unwrap_or(path));
    command.args(words);
    command
}

/// Whether an emulator runs the tests, some twenty times slower: then they do fewer rounds.
#[allow(dead_code, reason = "not by all who start programs")]
pub fn emulated() -> bool {
    env::var_os(RUNNER).is_some()
}
