//! The runtime with no operating system.
//!
//! Images for four machines stand in `images`, outside the workspace: `bin/NAME.rs`, and beside it
//! `NAME.out` with what it shall print. [`build::build`] compiles them with the compiler of their
//! target, [`qemu::Qemu`] runs one with a time limit and is killed when dropped, and
//! `tests/qemu.rs` has a test for every image on every machine.
//!
//! A machine that cannot be built for or emulated here is reported on standard error, in every run,
//! and fails the test where `TESSERA_REQUIRE_FIRMWARE` is set.
#![forbid(unsafe_code)]

pub mod build;
pub mod decode;
pub mod elf;
pub mod model;
pub mod moved;
pub mod packed;
pub mod qemu;
pub mod snapshot;
pub mod target;

/// What the images run, to be run here.
#[path = "../images/src/model.rs"]
#[allow(missing_docs)]
pub mod shared;
