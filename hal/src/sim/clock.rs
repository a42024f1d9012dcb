//! Virtual time.

#[cfg(not(target_has_atomic = "64"))]
use core::cell::Cell;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;

/// A clock that moves when it is told to. Devices and code under test share it by reference.
///
/// It can be shared between threads where the machine has 64-bit atomics.
#[derive(Debug, Default)]
pub struct SimClock {
    #[cfg(target_has_atomic = "64")]
    now_ns: AtomicU64,
    #[cfg(not(target_has_atomic = "64"))]
    now_ns: Cell<u64>,
}

impl SimClock {
    /// A clock that shows 0.
    pub const fn new() -> Self {
        SimClock {
            #[cfg(target_has_atomic = "64")]
            now_ns: AtomicU64::new(0),
            #[cfg(not(target_has_atomic = "64"))]
            now_ns: Cell::new(0),
        }
    }

    /// Lets `ns` pass; time stops at its end instead of wrapping.
    pub fn advance(&self, ns: u64) {
        self.advance_to(self.now_ns().saturating_add(ns));
    }

    /// Lets time pass until `moment_ns`, unless that is over.
    pub fn advance_to(&self, moment_ns: u64) {
        #[cfg(target_has_atomic = "64")]
        self.now_ns.fetch_max(moment_ns, Ordering::Relaxed);
        #[cfg(not(target_has_atomic = "64"))]
        self.now_ns.set(self.now_ns.get().max(moment_ns));
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        #[cfg(target_has_atomic = "64")]
        return self.now_ns.load(Ordering::Relaxed);
        #[cfg(not(target_has_atomic = "64"))]
        return self.now_ns.get();
    }
}

#[test]
fn time_never_goes_back() {
    let clock = SimClock::new();
    clock.advance(5);
    clock.advance_to(3);
    assert_eq!(clock.now_ns(), 5);
    clock.advance_to(9);
    assert_eq!(clock.now_ns(), 9);
    clock.advance(u64::MAX);
    assert_eq!(clock.now_ns(), u64::MAX);
}
