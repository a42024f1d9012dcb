//! What one token costs: to be run where time is the number of instructions.
#![no_std]
#![no_main]

use images::machine::{clock, loaded_image, region, stack_bytes};
use images::model::{HEAD_BYTES, Job, open, plan};
use images::say;
use tessera_hal::bare::MemoryFlash;
use tessera_hal::{Clock, OneLane};
use tessera_kernels::Kernels;
use tessera_runtime::{Mode, Session};

images::image!(go);

/// Tokens that are appended together.
const PROMPT: [u32; 4] = [259, 388, 1151, 579];
/// Tokens before the one that counts, so that the cache is as full as it gets.
const TOKENS: [u32; 8] = [259, 388, 1151, 579, 47, 621, 364, 259];

fn go() {
    for mode in [Mode::Exact, Mode::Predict] {
        step(mode);
    }
    say!("stack {} bytes", stack_bytes());
}

fn step(mode: Mode) {
    let mut flash = MemoryFlash::new(loaded_image());
    // SAFETY: the one before is over, and nothing is being read.
    let (head, region) = unsafe { region() }.split_at_mut(HEAD_BYTES);
    let fail = |error: &dyn core::fmt::Display| -> ! { panic!("{}: {error}", mode.name()) };
    let image = open(&mut flash, head).unwrap_or_else(|error| fail(&error));
    let job = Job { mode, ffn_pct: 15 };
    let plan = plan(&image, job, 1).unwrap_or_else(|error| fail(&error));
    let (clock, kernels) = (clock(), Kernels::best());
    // Used where it was made: it is too large to be moved on a small stack.
    let mut session = Session::new(image, plan, region, &mut flash, OneLane, &clock, kernels);
    let session = session.as_mut().unwrap_or_else(|error| fail(error));
    session
        .load(&mut |_, _| {})
        .unwrap_or_else(|error| fail(&error));
    if let Err(error) = session.append(&PROMPT) {
        fail(&error);
    }
    let (mut before, mut begun_ns) = (session.stats(), 0);
    for token in TOKENS {
        (before, begun_ns) = (session.stats(), clock.now_ns());
        if let Err(error) = session.append(&[token]) {
            fail(&error);
        }
    }
    let took = clock.now_ns() - begun_ns;
    let stats = session.stats().since(&before);
    let name = mode.name();
    say!(
        "{name}: {took} instructions, {} reads of {} bytes",
        stats.reads,
        stats.bytes_read
    );
}
