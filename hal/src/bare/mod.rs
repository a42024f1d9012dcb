//! Boards without an operating system: what is left of a machine when nothing runs beneath us.
//!
//! - [`MemoryFlash`]: an image that already lies in memory.
//! - `VirtioFlash` (feature `virtio`): a virtio block device, several reads in flight.
//! - [`Team`] and [`Lanes`]: further cores that serve the first one; [`crate::OneLane`] where there
//!   is one core only.
//! - [`CycleClock`]: the counter that every CPU has, as nanoseconds.
//! - [`Uart`] and [`exit`]: text out, and the end of a run in an emulator.
//!
//! Nothing here finds hardware: whoever builds the board's image knows the addresses.
//!
//! Out of scope: interrupts, page tables, entry points (see `firmware-tests/images`).

#[cfg(not(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "arm"
)))]
compile_error!("the feature `bare` knows x86-64, AArch64, RISC-V (64 bits) and Arm");

mod clock;
mod exit;
mod lanes;
mod memory;
mod uart;
#[cfg(feature = "virtio")]
mod virtio;

pub use clock::CycleClock;
pub use exit::exit;
pub use lanes::{Lanes, Team};
pub use memory::MemoryFlash;
pub use uart::Uart;
#[cfg(feature = "virtio")]
pub use virtio::{DMA_BYTES, VIRTIO_IN_FLIGHT, VirtioError, VirtioFlash, VirtioRequest};
