//! Simulated devices: seeded, in virtual time, without a system or a heap.
//!
//! The same seed gives the same order of completions, the same times and the same faults, on any
//! machine. Faults are a device around a device, [`Faulty`]; so is what counts: [`Metered`].
//!
//! ```
//! use tessera_hal::sim::{Latency, SimClock, SimFlash};
//! use tessera_hal::{Clock, Flash, PageIndex, Read};
//!
//! #[repr(align(512))]
//! struct Page([u8; 4096]);
//!
//! let image = [7; 8192];
//! let clock = SimClock::new();
//! let mut page = Page([0; 4096]);
//! let mut flash = SimFlash::new(&image, &clock, Latency::UFS_4_0, 1);
//! let read = Read { start: PageIndex(1), buf: &mut page.0, bytes: 4096, tag: 0 };
//! flash.submit(read).unwrap();
//! assert!(flash.wait(10_000_000));
//! let (read, result) = flash.reap().unwrap();
//! assert_eq!((result, read.buf[0]), (Ok(()), 7));
//! assert!((40_000..100_000).contains(&clock.now_ns()));
//! ```

mod clock;
mod faults;
mod flash;
mod lanes;
mod latency;
mod metered;
mod random;
mod reclaim;
#[cfg(test)]
mod tests;

pub use clock::SimClock;
pub use faults::{Faults, Faulty, POISON, PerFault};
pub use flash::{SIM_DEPTH_MAX, SimFlash};
pub use lanes::ShuffledLanes;
pub use latency::Latency;
pub use metered::{Meter, Metered, REQUEST_LOG_MAX};
pub use random::Random;
pub use reclaim::Poisoning;
