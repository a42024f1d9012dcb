//! The counter that a CPU has, as time.

#![allow(unsafe_code)]

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
    /// After 2^32 counts it begins anew.
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

    /// The counter; it only goes up, but for Arm's, which begins anew after 2^32 counts.
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
        let ticks = u64::from(!unsafe { (self.timer as *const u32).read_volatile() });
        ticks
    }
}

impl Clock for CycleClock {
    fn now_ns(&self) -> u64 {
        let (ticks, hz) = (self.ticks(), self.hz);
        // Seconds apart from the rest, so that nothing overflows for five hundred years.
        ticks / hz * NS_PER_S + ticks % hz * NS_PER_S / hz
    }
}
