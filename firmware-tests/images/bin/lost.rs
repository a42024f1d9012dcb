//! A flash that loses one completion: the session says which read, and does not hang.
#![no_std]
#![no_main]

use images::machine::{Console, clock, loaded_image, region};
use images::model::{Job, Machine, run};
use images::say;
use tessera_hal::bare::{CycleClock, MemoryFlash};
use tessera_hal::{Clock, Flash, IoError, OneLane, Read};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

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

struct Losing {
    inside: MemoryFlash<'static, 'static>,
    before: u32,
}

impl Flash<'static> for Losing {
    fn size_bytes(&self) -> u64 {
        self.inside.size_bytes()
    }

    fn align_bytes(&self) -> usize {
        self.inside.align_bytes()
    }

    fn depth(&self) -> usize {
        self.inside.depth()
    }

    fn submit(&mut self, read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        self.inside.submit(read)
    }

    fn flush(&mut self) {}

    fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        let done = self.inside.reap()?;
        self.before = self.before.wrapping_sub(1);
        if self.before == 0 {
            return self.inside.reap();
        }
        Some(done)
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inside.wait(timeout_ns)
    }
}

fn go() {
    let mut flash = Losing {
        inside: MemoryFlash::new(loaded_image()),
        before: BEFORE,
    };
    let machine = Machine {
        cores: &OneLane,
        clock: Hasty(clock()),
        kernels: Kernels::best(),
    };
    // SAFETY: the only use of the region.
    let region = unsafe { region() };
    let (mode, ffn_pct) = (Mode::Exact, 15);
    let job = Job { mode, ffn_pct };
    match run(&mut flash, region, &machine, job, &mut Console) {
        Ok(()) => panic!("nobody missed the read"),
        Err(failure) => say!("\nrefused: {failure}"),
    }
}
