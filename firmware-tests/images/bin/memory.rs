//! The small model, from an image that lies in memory.
#![no_std]
#![no_main]

use images::machine::{Console, clock, loaded_image, region};
use images::model::{Job, Machine, run};
use tessera_hal::OneLane;
use tessera_hal::bare::MemoryFlash;
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

images::image!(go);

fn go() {
    let mut flash = MemoryFlash::new(loaded_image());
    let machine = Machine {
        cores: &OneLane,
        clock: clock(),
        kernels: Kernels::best(),
    };
    for mode in [Mode::Exact, Mode::Predict] {
        // SAFETY: the one before is over, and nothing is being read.
        let region = unsafe { region() };
        let job = Job { mode, ffn_pct: 15 };
        if let Err(failure) = run(&mut flash, region, &machine, job, &mut Console) {
            panic!("{}: {failure}", mode.name());
        }
    }
}
