//! The machine, as little of it as Tessera needs: flash reads, lanes, a clock.
//!
//! # Rules
//!
//! - Split phase: a read goes in with its buffer and comes out with it, exactly once. No callbacks.
//! - Nothing is allocated between the start and the end of a device's life.
//! - Errors are values; a wait has a deadline; what was asked for and could not be had (direct I/O,
//!   io_uring, pinning) is reported, never fatal.
//!
//! # Out of scope
//!
//! Writing, files, paths, discovery by scanning folders, and arithmetic.

#![cfg_attr(not(any(test, feature = "linux")), no_std)]
#![deny(unsafe_code)]

#[cfg(all(
    feature = "linux",
    not(any(target_os = "linux", target_os = "android"))
))]
compile_error!("the feature `linux` works on Linux and Android only");

#[cfg(feature = "bare")]
pub mod bare;
pub mod clock;
pub mod cores;
pub mod flash;
#[cfg(feature = "linux")]
pub mod linux;
pub mod page;
pub mod reclaim;
#[cfg(feature = "sim")]
pub mod sim;
pub mod slots;

pub use clock::Clock;
pub use cores::{Cores, OneLane};
pub use flash::{Flash, IoError, Read};
pub use page::{PAGE_BYTES, PageCount, PageIndex};
pub use reclaim::{KeepAll, Reclaim};
pub use slots::Slots;
