//! Linux and Android: direct reads by io_uring or threads, pinned lanes, one mapped region.
//!
//! What a machine or sandbox lacks is found out when a device is opened, and reported
//! ([`IoReport`], [`LaneReport`]); it is never fatal unless the caller requires it.

mod affinity;
mod cgroup;
mod clock;
mod cores;
mod direct;
mod flash_pread;
mod flash_uring;
mod lane_report;
mod memory;
mod open;
mod pressure;
mod progress;
mod reclaim;
mod region;
mod report;
mod source;
mod sys;
#[cfg(test)]
mod tests;
mod topology;

pub use affinity::{Pin, allowed_cores, pin_here};
pub use clock::MonotonicClock;
pub use cores::Lanes;
pub use direct::BufferedWhy;
pub use lane_report::{LANES_MAX, LaneOptions, LaneReport};
pub use memory::{memory_limit_bytes, peak_resident_bytes, reset_peak, resident_bytes};
pub use open::{Choice, DEPTH_MAX, FixedRange, OpenError, OpenOptions, READERS_MAX, open};
pub use pressure::MemoryPressure;
pub use reclaim::DontNeed;
pub use region::{REGION_ALIGN_BYTES, Region, RegionError};
pub use report::IoReport;
pub use topology::{CORE_INDEX_MAX, Core, Topology};

use flash_pread::PreadFlash;
use flash_uring::UringFlash;
use progress::{Progress, Way};

use crate::flash::{Flash, IoError, Read};

/// How long dropping a device waits for its reads.
const DROP_WAIT_NS: u64 = 2_000_000_000;

/// What a flash device has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlashStats {
    /// Reads that have come out.
    pub reads: u64,
    /// Bytes that have arrived.
    pub bytes: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Reads that took more than one attempt: short, interrupted or refused at first.
    pub resumed: u64,
    /// Reads that ended in the page cache.
    pub buffered: u64,
}

impl FlashStats {
    fn count(&mut self, result: Result<(), IoError>, progress: &Progress) {
        self.reads += 1;
        self.bytes += progress.done_bytes as u64;
        self.failed += u64::from(result.is_err());
        self.resumed += u64::from(progress.attempts > 1);
        self.buffered += u64::from(progress.way == Way::Buffered);
    }
}

/// An open image. Made by [`open()`].
///
/// It implements [`Flash`] for `'static` buffers only: a shorter borrow could end, if the device
/// were forgotten, while the kernel still writes to the buffer.
pub struct LinuxFlash(Back);

enum Back {
    Uring(Box<UringFlash>),
    Pread(PreadFlash),
}

impl LinuxFlash {
    fn uring(flash: UringFlash) -> Self {
        LinuxFlash(Back::Uring(Box::new(flash)))
    }

    fn pread(flash: PreadFlash) -> Self {
        LinuxFlash(Back::Pread(flash))
    }

    /// Counters since the image was opened.
    pub fn stats(&self) -> FlashStats {
        match &self.0 {
            Back::Uring(flash) => flash.stats(),
            Back::Pread(flash) => flash.stats(),
        }
    }

    fn source(&self) -> &source::Source {
        match &self.0 {
            Back::Uring(flash) => flash.source(),
            Back::Pread(flash) => flash.source(),
        }
    }
}

impl Flash<'static> for LinuxFlash {
    fn size_bytes(&self) -> u64 {
        self.source().size_bytes()
    }

    fn align_bytes(&self) -> usize {
        self.source().align_bytes()
    }

    fn depth(&self) -> usize {
        match &self.0 {
            Back::Uring(flash) => flash.depth(),
            Back::Pread(flash) => flash.depth(),
        }
    }

    fn submit(&mut self, read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        match &mut self.0 {
            Back::Uring(flash) => flash.submit(read),
            Back::Pread(flash) => flash.submit(read),
        }
    }

    fn flush(&mut self) {
        match &mut self.0 {
            Back::Uring(flash) => flash.flush(),
            Back::Pread(flash) => flash.flush(),
        }
    }

    fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        match &mut self.0 {
            Back::Uring(flash) => flash.reap(),
            Back::Pread(flash) => flash.reap(),
        }
    }

    /// Returns false at once if nothing is in flight.
    fn wait(&mut self, timeout_ns: u64) -> bool {
        match &mut self.0 {
            Back::Uring(flash) => flash.wait(timeout_ns),
            Back::Pread(flash) => flash.wait(timeout_ns),
        }
    }
}

impl core::fmt::Debug for LinuxFlash {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LinuxFlash")
            .field("source", self.source())
            .finish_non_exhaustive()
    }
}
