//! A flash device over an image in memory.

use super::clock::SimClock;
use super::latency::Latency;
use super::random::Random;
use crate::clock::Clock;
use crate::flash::{Flash, IoError, Read};

/// Reads that a simulated device holds at most.
pub const SIM_DEPTH_MAX: usize = 64;

/// Virtual time that a look for a finished read takes when there is none, so that a caller that
/// only polls gets on.
const POLL_NS: u64 = 100;

struct InFlight<'m> {
    read: Read<'m>,
    ready_ns: u64,
}

/// A flash device over `image`. Reads finish in the order of their times, which vary by seed.
///
/// It is [`Flash`] for buffers of any lifetime: bytes are copied when a read comes out, never
/// behind the caller's back. `wait` moves the clock.
pub struct SimFlash<'i, 'm> {
    image: &'i [u8],
    clock: &'i SimClock,
    latency: Latency,
    random: Random,
    depth: usize,
    align_bytes: usize,
    in_flight: heapless::Vec<InFlight<'m>, SIM_DEPTH_MAX>,
    /// When the device has finished all transfers that it has taken.
    busy_until_ns: u64,
}

impl<'i> SimFlash<'i, '_> {
    /// A device with a queue of 32 that asks for buffers aligned to 512 bytes.
    pub fn new(image: &'i [u8], clock: &'i SimClock, latency: Latency, seed: u64) -> Self {
        SimFlash {
            image,
            clock,
            latency,
            random: Random::new(seed),
            depth: 32,
            align_bytes: 512,
            in_flight: heapless::Vec::new(),
            busy_until_ns: 0,
        }
    }

    /// With a queue of `depth`.
    ///
    /// # Panics
    /// When `depth` is 0 or more than [`SIM_DEPTH_MAX`].
    pub fn with_depth(mut self, depth: usize) -> Self {
        assert!((1..=SIM_DEPTH_MAX).contains(&depth), "depth {depth}");
        self.depth = depth;
        self
    }

    /// With another alignment of buffers.
    ///
    /// # Panics
    /// When it is not a power of two up to 4096.
    pub fn with_align_bytes(mut self, align_bytes: usize) -> Self {
        assert!(
            align_bytes.is_power_of_two() && align_bytes <= 4096,
            "alignment {align_bytes}"
        );
        self.align_bytes = align_bytes;
        self
    }

    /// Index of the read that finishes first, with its time; the older one of two.
    fn first(&self) -> Option<(usize, u64)> {
        let times = self.in_flight.iter().map(|in_flight| in_flight.ready_ns);
        times.enumerate().min_by_key(|&(_, ready_ns)| ready_ns)
    }

    /// Moves the clock to where the first read finishes, unless that is after `deadline_ns`.
    fn advance(&mut self, deadline_ns: u64) -> bool {
        let Some((_, ready_ns)) = self.first() else {
            return false;
        };
        self.clock.advance_to(ready_ns.min(deadline_ns));
        ready_ns <= deadline_ns
    }

    /// When a read of `bytes` that starts now will be ready.
    fn schedule(&mut self, bytes: usize) -> u64 {
        let latency = self.latency;
        let spread_ns = latency.access_ns * latency.jitter_pct as u64 / 100;
        let early_ns = latency.access_ns.saturating_sub(spread_ns);
        let access_ns = early_ns + self.random.below(2 * spread_ns + 1);
        let arrival_ns = self.clock.now_ns().saturating_add(access_ns);
        let slow = self.random.below(1000) < latency.slow_pml as u64;
        let occupied_ns = latency.occupied_ns(bytes);
        // The transfer takes its turn; it never starts before the access is over.
        let idle_ns = self.busy_until_ns.max(self.clock.now_ns());
        self.busy_until_ns = idle_ns.saturating_add(occupied_ns);
        let ready_ns = self
            .busy_until_ns
            .max(arrival_ns.saturating_add(occupied_ns));
        ready_ns.saturating_add(if slow { latency.slow_ns } else { 0 })
    }
}

impl<'m> Flash<'m> for SimFlash<'_, 'm> {
    fn size_bytes(&self) -> u64 {
        self.image.len() as u64
    }

    fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)> {
        if let Err(error) = read.check(self.size_bytes(), self.align_bytes) {
            return Err((error, read));
        }
        if self.in_flight.len() == self.depth {
            return Err((IoError::Busy, read));
        }
        let ready_ns = self.schedule(read.bytes);
        let pushed = self.in_flight.push(InFlight { read, ready_ns });
        assert!(pushed.is_ok(), "depth is at most the capacity");
        Ok(())
    }

    fn flush(&mut self) {}

    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)> {
        let (index, ready_ns) = self.first()?;
        if ready_ns > self.clock.now_ns() {
            self.clock.advance(POLL_NS);
            return None;
        }
        // Keeps the others in order of submission: it decides between equal times.
        let InFlight { read, .. } = self.in_flight.remove(index);
        let start = read.start.offset_bytes() as usize;
        read.buf[..read.bytes].copy_from_slice(&self.image[start..start + read.bytes]);
        Some((read, Ok(())))
    }

    /// Returns false at once if nothing is in flight.
    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.advance(self.clock.now_ns().saturating_add(timeout_ns))
    }
}

impl core::fmt::Debug for SimFlash<'_, '_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimFlash")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight.len())
            .finish_non_exhaustive()
    }
}
