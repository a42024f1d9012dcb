//! A flash that loses one completion: the session says which read, and does not hang.
#![no_std]
#![no_main]

use images::faulty::{Inside, refusal};
use images::machine::clock;
use tessera_hal::bare::CycleClock;
use tessera_hal::{Clock, Flash};

images::image!(go);

/// Completions before the one that is lost.
const BEFORE: u32 = 40;

/// Time runs faster here, so that the deadline of a read is soon.
struct Hasty(CycleClock);

impl Clock for Hasty {
    fn now_ns(&self) -> u64 {
        self.0.now_ns() * 100
    }
}

fn go() {
    let mut before = BEFORE;
    let reap = |inside: &mut Inside| {
        let done = inside.reap()?;
        before = before.wrapping_sub(1);
        if before == 0 {
            return inside.reap();
        }
        Some(done)
    };
    // SAFETY: the only use of the region.
    unsafe { refusal(Hasty(clock()), reap) };
}
