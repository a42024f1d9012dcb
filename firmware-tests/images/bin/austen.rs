//! The small model, from a disk: a cold cache smaller than its feed-forward weights.
#![no_std]
#![no_main]

use images::machine::{Console, clock, disk, region};
use images::model::{Job, Machine, run};
use tessera_hal::OneLane;
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

images::image!(go);

fn go() {
    let mut disk = disk();
    let machine = Machine {
        cores: &OneLane,
        clock: clock(),
        kernels: Kernels::best(),
    };
    for mode in [Mode::Exact, Mode::Predict] {
        // SAFETY: the one before is over, and the disk idle.
        let region = unsafe { region() };
        let job = Job { mode, ffn_pct: 15 };
        if let Err(failure) = run(&mut disk, region, &machine, job, &mut Console) {
            panic!("{}: {failure}", mode.name());
        }
    }
}
