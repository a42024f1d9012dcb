//! Runs language models larger than the memory they may use.
#![no_std]
#![forbid(unsafe_code)]
