//! What the images compute, computed here.

use tessera_hal::OneLane;
use tessera_hal::bare::{CycleClock, MemoryFlash};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

use crate::shared::{Job, Machine, run};

/// Memory that is enough for every job.
pub const REGION_BYTES: usize = 8 << 20;

/// What an image prints that runs `image` in both modes.
///
/// # Panics
/// If it cannot be run.
pub fn expected(image: &[u8]) -> String {
    expected_in(image, &mut vec![0; REGION_BYTES])
}

/// The same in this memory.
///
/// # Panics
/// If it cannot be run.
pub fn expected_in(image: &[u8], region: &mut [u8]) -> String {
    let mut text = String::new();
    for mode in [Mode::Exact, Mode::Predict] {
        let mut flash = MemoryFlash::new(image);
        let machine = Machine {
            cores: &OneLane,
            clock: CycleClock::new(1_000_000_000),
            kernels: Kernels::best(),
        };
        let job = Job { mode, ffn_pct: 15 };
        run(&mut flash, region, &machine, job, &mut text)
            .unwrap_or_else(|failure| panic!("{}: {failure}", mode.name()));
    }
    text
}
