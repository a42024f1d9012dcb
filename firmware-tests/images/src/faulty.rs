//! Flash in memory whose reads come out otherwise than they should.

use tessera_hal::bare::MemoryFlash;
use tessera_hal::{Clock, Flash, IoError, OneLane, Read};
use tessera_kernels::Kernels;
use tessera_runtime::Mode;

use crate::machine::{Console, loaded_image, region};
use crate::model::{Job, Machine, run};

/// What comes out of a device.
pub type Done = (Read<'static>, Result<(), IoError>);
/// The device inside.
pub type Inside = MemoryFlash<'static, 'static>;

/// A device around another one, whose reads come out as `reap` says.
struct Faulty<R> {
    inside: Inside,
    reap: R,
}

impl<R: FnMut(&mut Inside) -> Option<Done> + Send> Flash<'static> for Faulty<R> {
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

    fn reap(&mut self) -> Option<Done> {
        (self.reap)(&mut self.inside)
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inside.wait(timeout_ns)
    }
}

/// Runs the model on such a device, and says how it was refused.
///
/// # Safety
/// The only use of the region.
///
/// # Panics
/// If it was not.
pub unsafe fn refusal(clock: impl Clock, reap: impl FnMut(&mut Inside) -> Option<Done> + Send) {
    let mut flash = Faulty {
        inside: MemoryFlash::new(loaded_image()),
        reap,
    };
    let machine = Machine {
        cores: &OneLane,
        clock,
        kernels: Kernels::best(),
    };
    // SAFETY: the caller's.
    let region = unsafe { region() };
    let (mode, ffn_pct) = (Mode::Exact, 15);
    match run(
        &mut flash,
        region,
        &machine,
        Job { mode, ffn_pct },
        &mut Console,
    ) {
        Ok(()) => panic!("nobody noticed the fault"),
        Err(failure) => crate::say!("\nrefused: {failure}"),
    }
}
