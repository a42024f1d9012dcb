//! What a session does, as log frames: plan, tokens, counters, an error.
#![no_std]
#![no_main]

use images::machine::{loaded_image, region};
use images::model::{HEAD_BYTES, Job, open, plan};
use tessera_hal::bare::MemoryFlash;
use tessera_hal::{Clock, OneLane};
use tessera_kernels::Kernels;
use tessera_runtime::{Mode, Session};

images::image!(go);

/// Time stands still, so that every machine counts the same.
struct Still;

impl Clock for Still {
    fn now_ns(&self) -> u64 {
        0
    }
}

fn go() {
    let mut flash = MemoryFlash::new(loaded_image());
    // SAFETY: the only use of the region.
    let (head, region) = unsafe { region() }.split_at_mut(HEAD_BYTES);
    let image = open(&mut flash, head).unwrap_or_else(|failure| panic!("{failure}"));
    let (mode, ffn_pct) = (Mode::Predict, 15);
    let plan = plan(&image, Job { mode, ffn_pct }, 1);
    let plan = plan.unwrap_or_else(|failure| panic!("{failure}"));
    defmt::info!("{}", plan);
    let kernels = Kernels::best();
    let session = Session::new(image, plan, region, flash, &OneLane, Still, kernels);
    let mut session = session.unwrap_or_else(|error| panic!("{error}"));
    if let Err(error) = session.load(&mut |_, _| {}) {
        panic!("{error}");
    }
    defmt::debug!("loaded: {}", session.stats());
    for token in [259, 388, 1151, u32::MAX] {
        match session.append(&[token]) {
            Ok(_) => defmt::info!("token {} at {}", token, session.pos()),
            Err(error) => defmt::error!("refused: {}", error),
        }
    }
    defmt::debug!("all: {}", session.stats());
}
