//! Whole devices and lanes, on this machine's kernel and file systems.

mod flash;
mod lanes;
mod stream;
