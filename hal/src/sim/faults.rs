//! Faults: a device around a device.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use super::clock::SimClock;
use super::random::Random;
use crate::clock::Clock;
use crate::flash::{Flash, IoError, Read};

/// What a failed read leaves in the buffer, so that whoever uses it shall notice.
pub const POISON: u8 = 0xA5;
/// Error number of a failed read: that of an I/O error.
const ERRNO: i32 = 5;
/// Reads that can be lost for ever.
const LOST_MAX: usize = 128;

/// A number for each kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerFault {
    /// Reads that come out as failures.
    pub failed: u32,
    /// Reads with a wrong bit that are called good.
    pub altered: u32,
    /// Reads that never come out.
    pub lost: u32,
}

/// One [`PerFault`] that is shared.
#[derive(Debug, Default)]
struct Shared {
    failed: AtomicU32,
    altered: AtomicU32,
    lost: AtomicU32,
}

impl Shared {
    fn get(&self) -> PerFault {
        PerFault {
            failed: self.failed.load(Ordering::Relaxed),
            altered: self.altered.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn set(&self, to: PerFault) {
        self.failed.store(to.failed, Ordering::Relaxed);
        self.altered.store(to.altered, Ordering::Relaxed);
        self.lost.store(to.lost, Ordering::Relaxed);
    }
}

/// How often reads go wrong, and how often they did. May be changed while somebody has the device.
#[derive(Debug, Default)]
pub struct Faults {
    shares_pml: Shared,
    counts: Shared,
    /// Only reads that begin at these pages are lost; all where the end is 0.
    lost_from: AtomicU32,
    lost_to: AtomicU32,
}

impl Faults {
    /// So many of 1,000 reads.
    pub fn new(shares_pml: PerFault) -> Self {
        let faults = Faults::default();
        faults.set(shares_pml);
        faults
    }

    /// From now on so many of 1,000 reads.
    pub fn set(&self, shares_pml: PerFault) {
        self.shares_pml.set(shares_pml);
    }

    /// From now on only reads that begin at one of these pages are lost.
    pub fn lose_only(&self, pages: Range<u32>) {
        self.lost_from.store(pages.start, Ordering::Relaxed);
        self.lost_to.store(pages.end, Ordering::Relaxed);
    }

    /// Reads that have gone wrong.
    pub fn counts(&self) -> PerFault {
        self.counts.get()
    }

    fn can_be_lost(&self, page: u32) -> bool {
        let [from, to] = [&self.lost_from, &self.lost_to].map(|page| page.load(Ordering::Relaxed));
        to == 0 || (from..to).contains(&page)
    }
}

/// A device whose reads go wrong, the same ones for the same seed.
pub struct Faulty<'i, 'm, F> {
    inner: F,
    clock: &'i SimClock,
    faults: &'i Faults,
    random: Random,
    lost: heapless::Vec<Read<'m>, LOST_MAX>,
}

impl<'i, F> Faulty<'i, '_, F> {
    /// Reads of `inner`, a device on `clock`, go wrong as `faults` say.
    pub fn new(inner: F, clock: &'i SimClock, faults: &'i Faults, seed: u64) -> Self {
        Faulty {
            inner,
            clock,
            faults,
            random: Random::new(seed),
            lost: heapless::Vec::new(),
        }
    }

    fn happens(&mut self, share_pml: u32) -> bool {
        share_pml > 0 && self.random.below(1000) < u64::from(share_pml)
    }
}

impl<'m, F: Flash<'m>> Flash<'m> for Faulty<'_, 'm, F> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn align_bytes(&self) -> usize {
        self.inner.align_bytes()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)> {
        self.inner.submit(read)
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)> {
        let faults = self.faults;
        let (shares_pml, counts) = (faults.shares_pml.get(), &faults.counts);
        loop {
            let (read, mut result) = self.inner.reap()?;
            if faults.can_be_lost(read.start.0) && self.happens(shares_pml.lost) {
                let kept = self.lost.push(read);
                assert!(kept.is_ok(), "more than {LOST_MAX} reads are lost");
                counts.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if self.happens(shares_pml.failed) {
                read.buf[..read.bytes].fill(POISON);
                result = Err(IoError::Device { errno: ERRNO });
                counts.failed.fetch_add(1, Ordering::Relaxed);
            } else if result.is_ok() && self.happens(shares_pml.altered) {
                let bit = self.random.below(read.bytes as u64 * 8);
                read.buf[(bit / 8) as usize] ^= 1 << (bit % 8);
                counts.altered.fetch_add(1, Ordering::Relaxed);
            }
            return Some((read, result));
        }
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        let end_ns = self.clock.now_ns().saturating_add(timeout_ns);
        let arrived = self.inner.wait(timeout_ns);
        if !arrived && !self.lost.is_empty() {
            // Whoever waits takes the lost reads for being in flight.
            self.clock.advance_to(end_ns);
        }
        arrived
    }
}

impl<F: core::fmt::Debug> core::fmt::Debug for Faulty<'_, '_, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("lost", &self.lost.len())
            .finish_non_exhaustive()
    }
}
