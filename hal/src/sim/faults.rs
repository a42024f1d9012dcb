//! Faults: devices around a device.

use super::random::Random;
use crate::flash::{Flash, IoError, Read};

/// What a failed read leaves in the buffer, so that whoever uses it shall notice.
pub const POISON: u8 = 0xA5;

/// A device that fails some reads of the one inside, the same ones for the same seed.
#[derive(Debug)]
pub struct Faulty<F> {
    inner: F,
    random: Random,
    fail_pct: u32,
    errno: i32,
    failed: u64,
}

impl<F> Faulty<F> {
    /// Fails `fail_pct` of 100 reads, with the number of an I/O error (5).
    ///
    /// # Panics
    /// When `fail_pct` is more than 100.
    pub fn new(inner: F, seed: u64, fail_pct: u32) -> Self {
        assert!(fail_pct <= 100, "{fail_pct} of 100");
        Faulty {
            inner,
            random: Random::new(seed),
            fail_pct,
            errno: 5,
            failed: 0,
        }
    }

    /// Reads that have failed.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// From now on fails `fail_pct` of 100 reads.
    ///
    /// # Panics
    /// When `fail_pct` is more than 100.
    pub fn set_fail_pct(&mut self, fail_pct: u32) {
        assert!(fail_pct <= 100, "{fail_pct} of 100");
        self.fail_pct = fail_pct;
    }
}

impl<'m, F: Flash<'m>> Flash<'m> for Faulty<F> {
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
        let (read, mut result) = self.inner.reap()?;
        if self.random.chance_pct(self.fail_pct) {
            read.buf[..read.bytes].fill(POISON);
            result = Err(IoError::Device { errno: self.errno });
            self.failed += 1;
        }
        Some((read, result))
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inner.wait(timeout_ns)
    }
}

/// A device that flips one bit of some reads and calls them good.
#[derive(Debug)]
pub struct Corrupting<F> {
    inner: F,
    random: Random,
    corrupt_pct: u32,
    corrupted: u64,
}

impl<F> Corrupting<F> {
    /// Flips a bit in `corrupt_pct` of 100 reads.
    ///
    /// # Panics
    /// When `corrupt_pct` is more than 100.
    pub fn new(inner: F, seed: u64, corrupt_pct: u32) -> Self {
        assert!(corrupt_pct <= 100, "{corrupt_pct} of 100");
        Corrupting {
            inner,
            random: Random::new(seed),
            corrupt_pct,
            corrupted: 0,
        }
    }

    /// Reads with a flipped bit.
    pub fn corrupted(&self) -> u64 {
        self.corrupted
    }
}

impl<'m, F: Flash<'m>> Flash<'m> for Corrupting<F> {
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
        let (read, result) = self.inner.reap()?;
        if result.is_ok() && self.random.chance_pct(self.corrupt_pct) {
            let bit = self.random.below(read.bytes as u64 * 8);
            read.buf[(bit / 8) as usize] ^= 1 << (bit % 8);
            self.corrupted += 1;
        }
        Some((read, result))
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.inner.wait(timeout_ns)
    }
}
