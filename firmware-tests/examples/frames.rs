//! Prints the log frames on standard input: `cargo run --example frames IMAGE < FRAMES`.

use std::io::Read;
use std::process::ExitCode;
use std::{env, fs, io};

use firmware_tests::decode::decode;

fn lines() -> Result<String, String> {
    let path = env::args().nth(1).ok_or("usage: frames IMAGE < FRAMES")?;
    let elf = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let mut frames = Vec::new();
    let read = io::stdin().read_to_end(&mut frames);
    read.map_err(|error| format!("standard input: {error}"))?;
    decode(&elf, &frames)
}

fn main() -> ExitCode {
    match lines() {
        Ok(lines) => {
            print!("{lines}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("frames: {reason}");
            ExitCode::FAILURE
        }
    }
}
