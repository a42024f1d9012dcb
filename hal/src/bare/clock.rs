//! The counter that a CPU has, as time.

#![allow(unsafe_code)]

#[cfg(any(target_arch = "arm", test))]
use core::sync::atomic::{AtomicU32, Ordering};

use crate::clock::Clock;

const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds from a counter that runs at a known rate: the time-stamp counter (x86-64), the
/// virtual count (AArch64), `time` (RISC-V), or a 32-bit timer that counts down (Arm).
#[derive(Debug, Clone, Copy)]
pub struct CycleClock {
    hz: u64,
    /// Where the timer of Arm is; unused elsewhere.
    #[cfg_attr(not(target_arch = "arm"), allow(dead_code))]
    timer: usize,
}

impl CycleClock {
    /// A clock over the CPU's own counter, which counts `hz` times a second.
    ///
    /// # Panics
    /// If `hz` is 0.
    #[cfg(not(target_arch = "arm"))]
    pub const fn new(hz: u64) -> Self {
        assert!(hz > 0, "a clock that stands still");
        CycleClock { hz, timer: 0 }
    }

    /// A clock over the register at `timer`, which counts down from 2^32 - 1, `hz` times a second.
    /// It begins anew after 2^32 counts, and is carried on from there: it must be read at least
    /// once in that time (214 s at 20 MHz), on one core. All clocks of a machine share the carry,
    /// so they are to be over the same timer.
    ///
    /// # Safety
    /// `timer` is the address of such a register, and reading it has no effect.
    ///
    /// # Panics
    /// If `hz` is 0.
    #[cfg(target_arch = "arm")]
    pub const unsafe fn new(hz: u64, timer: usize) -> Self {
        assert!(hz > 0, "a clock that stands still");
        CycleClock { hz, timer }
    }

    /// The counter; it only goes up.
    pub fn ticks(&self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: reading the counter has no effect, and every x86-64 CPU has it.
        let ticks = unsafe {
            core::arch::x86_64::_mm_lfence();
            core::arch::x86_64::_rdtsc()
        };
        #[cfg(target_arch = "aarch64")]
        let ticks = {
            let ticks: u64;
            // SAFETY: reading the counter has no effect; `isb` keeps it from being read early.
            unsafe {
                core::arch::asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack));
            }
            ticks
        };
        #[cfg(target_arch = "riscv64")]
        let ticks = {
            let ticks: u64;
            // SAFETY: reading the counter has no effect.
            unsafe { core::arch::asm!("rdtime {}", out(reg) ticks, options(nostack)) };
            ticks
        };
        #[cfg(target_arch = "arm")]
        // SAFETY: `new` was promised a register that may be read.
        let ticks = CARRY.widen(!unsafe { (self.timer as *const u32).read_volatile() });
        ticks
    }
}

/// Carries a count of 32 bits on when it begins anew.
#[cfg(any(target_arch = "arm", test))]
#[derive(Debug)]
struct Carry {
    last: AtomicU32,
    rounds: AtomicU32,
}

/// Of the one timer.
#[cfg(target_arch = "arm")]
static CARRY: Carry = Carry::new();

#[cfg(any(target_arch = "arm", test))]
impl Carry {
    const fn new() -> Self {
        Carry {
            last: AtomicU32::new(0),
            rounds: AtomicU32::new(0),
        }
    }

    /// The whole count, whose lower half is `count`.
    fn widen(&self, count: u32) -> u64 {
        if count < self.last.swap(count, Ordering::Relaxed) {
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        u64::from(self.rounds.load(Ordering::Relaxed)) << 32 | u64::from(count)
    }
}

impl Clock for CycleClock {
    fn now_ns(&self) -> u64 {
        let (ticks, hz) = (self.ticks(), self.hz);
        // Seconds apart from the rest, so that nothing overflows for five hundred years.
        ticks / hz * NS_PER_S + ticks % hz * NS_PER_S / hz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_32_bits_is_carried_on() {
        let carry = Carry::new();
        let step = 3_000_000_000;
        let mut all = 0u64;
        for _ in 0..10 {
            assert_eq!(carry.widen(all as u32), all);
            assert_eq!(carry.widen(all as u32), all);
            all += step;
        }
        assert!(all > 6 << 32);
    }
}
