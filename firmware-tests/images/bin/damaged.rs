//! A flash that delivers damaged weights: the session says which, and computes nothing with them.
#![no_std]
#![no_main]

use images::machine::{Console, clock, loaded_image, region};
use images::model::{Job, Machine, run};
use images::say;
use tessera_hal::bare::MemoryFlash;
use tessera_hal::{Flash, IoError, OneLane, Read};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

images::image!(go);

/// Reads before those that are damaged: the head and what is small. Trying again does not help.
const BEFORE: u32 = 40;

struct Damaging {
    inside: MemoryFlash<'static, 'static>,
    before: u32,
}

impl Flash<'static> for Damaging {
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
        let (read, result) = self.inside.reap()?;
        if self.before > 0 {
            self.before -= 1;
        } else {
            // One bit, where every unit has weights.
            read.buf[0] ^= 1;
        }
        Some((read, result))
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inside.wait(timeout_ns)
    }
}

fn go() {
    let mut flash = Damaging {
        inside: MemoryFlash::new(loaded_image()),
        before: BEFORE,
    };
    let machine = Machine {
        cores: &OneLane,
        clock: clock(),
        kernels: Kernels::best(),
    };
    // SAFETY: the only use of the region.
    let region = unsafe { region() };
    let (mode, ffn_pct) = (Mode::Exact, 15);
    let job = Job { mode, ffn_pct };
    match run(&mut flash, region, &machine, job, &mut Console) {
        Ok(()) => panic!("nobody noticed the damage"),
        Err(failure) => say!("\nrefused: {failure}"),
    }
}
