//! Gives cached neurons back while the system is short of memory, and takes them again.

use anyhow::Result;
use tessera_hal::linux::{DontNeed, MemoryPressure};

use crate::engine::LinuxSession;

/// Part of the planned cache that one event gives back, and one calm while takes again, at least.
const PART: usize = 8;
/// How long memory must not have been short before more of it is taken.
const CALM_NS: u64 = 10_000_000_000;

/// Whoever knows whether memory was short since it was asked last.
pub type Source = Box<dyn FnMut() -> bool>;

/// How much of the cache is given back. To be asked between two tokens.
pub struct Yielding {
    source: Source,
    /// Bytes of a part; 0 before the first look.
    part_bytes: usize,
    given_bytes: usize,
    /// The largest that was.
    given_bytes_max: usize,
    /// When memory was short last, or more was taken.
    since_ns: u64,
    calm_ns: u64,
}

impl Yielding {
    /// By the kernel's pressure stall information.
    ///
    /// # Errors
    /// Where the kernel does not give it.
    pub fn watch_system() -> Result<Self> {
        let pressure = MemoryPressure::open()?;
        Ok(Self::new(Box::new(move || pressure.happened())))
    }

    /// By any other source.
    pub fn new(source: Source) -> Self {
        Yielding {
            source,
            part_bytes: 0,
            given_bytes: 0,
            given_bytes_max: 0,
            since_ns: 0,
            calm_ns: CALM_NS,
        }
    }

    /// Takes more after this long a calm.
    pub fn calm_after(mut self, ns: u64) -> Self {
        self.calm_ns = ns;
        self
    }

    /// Gives a part of the cache back if memory was short, takes one again if it was not for long.
    ///
    /// # Errors
    /// A read in flight that does not come out of the device.
    pub fn look(&mut self, session: &mut LinuxSession) -> Result<()> {
        let (now_ns, spare_bytes) = (session.now_ns(), session.spare_bytes(&DontNeed));
        if self.part_bytes == 0 {
            self.part_bytes = (spare_bytes / PART).max(1);
        }
        if (self.source)() {
            let bytes = self.part_bytes.min(spare_bytes);
            self.given_bytes += session.shrink(bytes, &mut DontNeed)?;
            self.given_bytes_max = self.given_bytes_max.max(self.given_bytes);
            self.since_ns = now_ns;
        } else if self.given_bytes > 0 && now_ns.saturating_sub(self.since_ns) >= self.calm_ns {
            self.given_bytes -= match session.grow(self.part_bytes, &DontNeed) {
                // A part of a small cache may be less than a page, which is given whole.
                0 => session.grow(self.given_bytes, &DontNeed),
                taken => taken,
            };
            self.since_ns = now_ns;
        }
        Ok(())
    }

    /// Bytes that are given back now, and the most that were at any time.
    pub fn given_bytes(&self) -> (usize, usize) {
        (self.given_bytes, self.given_bytes_max)
    }
}
