//! A flash that delivers damaged weights: the session says which, and computes nothing with them.
#![no_std]
#![no_main]

use images::faulty::{Inside, refusal};
use images::machine::clock;
use tessera_hal::Flash;

images::image!(go);

/// Reads before those that are damaged: the head and what is small. Trying again does not help.
const BEFORE: u32 = 40;

fn go() {
    let mut before = BEFORE;
    let reap = |inside: &mut Inside| {
        let (read, result) = inside.reap()?;
        if before > 0 {
            before -= 1;
        } else {
            // One bit, where every unit has weights.
            read.buf[0] ^= 1;
        }
        Some((read, result))
    };
    // SAFETY: the only use of the region.
    unsafe { refusal(clock(), reap) };
}
