//! The machine, the same for every target: console, clock, memory, devices.

use core::fmt;
use core::ptr;

use tessera_hal::Clock;
use tessera_hal::bare::{CycleClock, Lanes, Team, Uart};

use tessera_runtime::format::{SUPERBLOCK_BYTES, Superblock};

use crate::boot;

// SAFETY: the linker scripts define them; only their addresses are taken.
unsafe extern "C" {
    static mut __region_start: u8;
    static mut __region_end: u8;
    static mut __stack_bottom: u8;
    static mut __stack_top: u8;
}

/// What the stack is filled with before it is used.
const PAINT: u32 = 0xC0DE_CAFE;
/// Left unpainted below the caller's frame.
const PAINT_MARGIN_BYTES: usize = 512;

/// The serial port.
pub struct Console;

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: every machine here has its port there.
        unsafe { Uart::new(boot::UART) }.write_str(text)
    }
}

/// The machine's clock.
pub const fn clock() -> CycleClock {
    #[cfg(not(target_arch = "arm"))]
    return CycleClock::new(boot::CLOCK_HZ);
    // SAFETY: the timer of the board, which the entry point has started.
    #[cfg(target_arch = "arm")]
    return unsafe { CycleClock::new(boot::CLOCK_HZ, boot::TIMER) };
}

/// Where the further cores serve.
static TEAM: Team = Team::new();
/// How long cores may take to start.
const START_NS: u64 = 5_000_000_000;

/// The life of a further core, called by the machine's entry point.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn further() {
    TEAM.serve();
}

/// `count` lanes, this core's included.
///
/// # Panics
/// If the machine does not have them, or this was called before.
pub fn lanes(count: usize) -> Lanes<'static> {
    let clock = clock();
    let begun_ns = clock.now_ns();
    for core in 1..count {
        boot::start(core);
    }
    while TEAM.members() + 1 < count {
        let late = clock.now_ns() - begun_ns > START_NS;
        assert!(!late, "{} cores of {count} came", TEAM.members() + 1);
        core::hint::spin_loop();
    }
    Lanes::new(&TEAM)
}

/// The memory for a model.
///
/// # Safety
/// At most one such slice is in use at a time.
pub unsafe fn region() -> &'static mut [u8] {
    let (start, end) = (&raw mut __region_start, &raw mut __region_end);
    // SAFETY: the linker script keeps this memory free of all else, and the caller of other slices.
    unsafe { core::slice::from_raw_parts_mut(start, end.addr() - start.addr()) }
}

/// The first `bytes` of what QEMU's loader put into memory.
///
/// # Safety
/// The machine was started with at least so much there.
pub unsafe fn loaded(bytes: usize) -> &'static [u8] {
    // SAFETY: promised by the caller; nobody writes there.
    unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance(boot::IMAGE), bytes) }
}

/// The image that QEMU's loader put into memory.
///
/// # Panics
/// If none is there.
pub fn loaded_image() -> &'static [u8] {
    // SAFETY: every machine has memory there.
    let superblock = unsafe { loaded(SUPERBLOCK_BYTES) };
    match Superblock::parse(superblock, u64::MAX) {
        // SAFETY: so much was loaded, as the superblock says.
        Ok(superblock) => unsafe { loaded(superblock.image_bytes as usize) },
        Err(error) => panic!("no image was loaded: {error}"),
    }
}

/// Fills the part of the stack that is not in use, so that its depth can be seen later.
#[inline(never)]
pub fn paint_stack() {
    let here = 0u32;
    let end = (&raw const here).addr() - PAINT_MARGIN_BYTES;
    let mut at = (&raw mut __stack_bottom).cast::<u32>();
    while at.addr() < end {
        // SAFETY: below the frames in use, above the stack's end.
        unsafe {
            at.write_volatile(PAINT);
            at = at.add(1);
        }
    }
}

/// Bytes of the stack that were ever used.
pub fn stack_bytes() -> usize {
    let top = (&raw const __stack_top).addr();
    let mut at = (&raw const __stack_bottom).cast::<u32>();
    // SAFETY: inside the stack.
    while at.addr() < top && unsafe { at.read_volatile() } == PAINT {
        // SAFETY: at most the stack's top.
        at = unsafe { at.add(1) };
    }
    top - at.addr()
}

/// The virtio disk.
///
/// # Panics
/// If there is none, or this was called before.
#[cfg(feature = "virtio")]
pub fn disk() -> tessera_hal::bare::VirtioFlash<CycleClock> {
    use core::cell::UnsafeCell;
    use core::mem::MaybeUninit;
    use core::sync::atomic::{AtomicBool, Ordering};
    use tessera_hal::bare::{VIRTIO_IN_FLIGHT, VirtioFlash, VirtioRequest};

    struct Requests(UnsafeCell<MaybeUninit<[VirtioRequest; VIRTIO_IN_FLIGHT]>>);
    // SAFETY: reached below only, and there once.
    unsafe impl Sync for Requests {}
    static REQUESTS: Requests = Requests(UnsafeCell::new(MaybeUninit::uninit()));

    static TAKEN: AtomicBool = AtomicBool::new(false);

    assert!(!TAKEN.swap(true, Ordering::Relaxed), "the disk is in use");
    let (first, step, count) = boot::VIRTIO;
    for index in 0..count {
        // SAFETY: this is the one call, and what was made of earlier, empty places is gone.
        let requests = unsafe { (*REQUESTS.0.get()).write(Default::default()) };
        // SAFETY: the machine has its transports there, and memory is identity-mapped.
        if let Ok(flash) = unsafe { VirtioFlash::new(first + index * step, requests, clock()) } {
            return flash;
        }
    }
    panic!("no virtio disk at {first:#x} and {} more places", count - 1)
}
