//! Lanes that cancel a session in the middle of a pass.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tessera_hal::Cores;
use tessera_hal::sim::ShuffledLanes;

/// Sets a flag when the lanes are called for the last of a number of times.
#[derive(Default)]
pub struct Interrupt {
    left: AtomicU64,
    pub flag: AtomicBool,
}

impl Interrupt {
    /// After so many calls from now on.
    pub fn after(&self, calls: u64) {
        self.left.store(calls, Ordering::Relaxed);
        self.flag.store(false, Ordering::Relaxed);
    }

    pub fn never(&self) {
        self.after(u64::MAX);
    }
}

pub struct Interrupting {
    pub lanes: ShuffledLanes,
    pub interrupt: &'static Interrupt,
}

impl Cores for Interrupting {
    fn lanes(&self) -> usize {
        self.lanes.lanes()
    }

    fn for_each<T: Send>(&self, items: &mut [T], job: &(dyn Fn(usize, &mut T) + Sync)) {
        if self.interrupt.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.interrupt.flag.store(true, Ordering::Relaxed);
        }
        self.lanes.for_each(items, job);
    }
}
