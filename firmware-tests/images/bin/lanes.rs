//! The small model from a disk, on two cores.
#![no_std]
#![no_main]

use images::machine::{Console, clock, disk, lanes, region};
use images::model::{Job, Machine, run};
use images::say;
use tessera_hal::Cores;
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

images::image!(go);

fn go() {
    let mut disk = disk();
    let cores = lanes(2);
    say!("{} lanes", cores.lanes());
    let machine = Machine {
        cores: &cores,
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
