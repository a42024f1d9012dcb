//! Flash behind virtio-blk over MMIO, as virtual machines have it.
//!
//! Memory is identity-mapped: a buffer's address is what the device is told.

#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use virtio_drivers::device::blk::{BlkReq, BlkResp, SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::mmio::{MmioTransport, VirtIOHeader};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Error, Hal, PAGE_SIZE, PhysAddr};

use crate::clock::Clock;
use crate::flash::{Flash, IoError, Read};
use crate::page::PAGE_BYTES;

/// Requests that the device has at once: three descriptors each, in a queue of sixteen.
pub const VIRTIO_IN_FLIGHT: usize = 5;
/// Reads that wait here until the device can take them.
const WAITING_MAX: usize = 128;
/// Pages of the queue: descriptors and what is offered, what was used.
const DMA_PAGES: usize = 2;
/// Memory that the queue of the one device takes.
pub const DMA_BYTES: usize = DMA_PAGES * PAGE_SIZE;
/// Registers of a device, its configuration included.
const REGISTERS_BYTES: usize = 0x200;
const SECTORS_PER_PAGE: usize = PAGE_BYTES as usize / SECTOR_SIZE;

#[repr(C, align(4096))]
struct DmaPages(UnsafeCell<[u8; DMA_BYTES]>);

// SAFETY: pages are given out once each, by the counter `DMA_TAKEN`.
unsafe impl Sync for DmaPages {}

static DMA: DmaPages = DmaPages(UnsafeCell::new([0; DMA_BYTES]));
static DMA_TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Identity-mapped memory, and pages for one device's queue.
struct Identity;

// SAFETY: `dma_alloc` gives out zeroed pages of a static, none twice; addresses are the same for
// the device and for us, as the module's documentation demands.
unsafe impl Hal for Identity {
    fn dma_alloc(pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let first = DMA_TAKEN.fetch_add(pages, Ordering::Relaxed);
        if first + pages > DMA_PAGES {
            return (0, NonNull::dangling()); // The driver takes address 0 for "none left".
        }
        // SAFETY: in bounds of the static, by the comparison above.
        let page = unsafe { DMA.0.get().cast::<u8>().add(first * PAGE_SIZE) };
        match NonNull::new(page) {
            Some(page) => (page.as_ptr().addr() as PhysAddr, page),
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_address: PhysAddr, _page: NonNull<u8>, _pages: usize) -> i32 {
        0 // Never given out again: a machine has its device until it is switched off.
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _bytes: usize) -> NonNull<u8> {
        NonNull::new(address as usize as *mut u8).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _direction: BufferDirection) -> PhysAddr {
        buffer.cast::<u8>().as_ptr().addr() as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Why there is no flash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VirtioError {
    /// No virtio device answers at this address.
    NoDevice,
    /// A device of another kind is there; the number of its kind.
    NotBlock(u8),
    /// The device, or the memory for its queue, was refused.
    Refused(Error),
}

impl core::fmt::Display for VirtioError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoDevice => write!(f, "no virtio device answers at this address"),
            Self::NotBlock(kind) => write!(f, "a virtio device of kind {kind}, not a block device"),
            Self::Refused(error) => write!(f, "the virtio block device cannot be used: {error}"),
        }
    }
}

impl core::error::Error for VirtioError {}

/// What a request in flight is made of. The device writes to it, so it must stay where it is.
#[derive(Default)]
pub struct VirtioRequest {
    request: BlkReq,
    response: BlkResp,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Free,
    /// The device has it, under this number.
    InFlight(u16, Read<'static>),
    /// The device did not take it.
    Refused(Read<'static>),
}

/// A virtio block device. What is read is the whole device, so its size is that of the image,
/// rounded up to sectors.
pub struct VirtioFlash<K> {
    device: VirtIOBlk<Identity, MmioTransport<'static>>,
    requests: &'static mut [VirtioRequest; VIRTIO_IN_FLIGHT],
    waiting: heapless::Deque<Read<'static>, WAITING_MAX>,
    clock: K,
}

impl<K: Clock> VirtioFlash<K> {
    /// The device whose registers are at `base`.
    ///
    /// # Errors
    /// [`VirtioError`]: other addresses may be tried. Only one device can be had.
    ///
    /// # Safety
    /// `base` is the address of a virtio-mmio transport that nobody else uses, memory is
    /// identity-mapped, and the device sees it as the CPU does.
    ///
    /// # Panics
    /// If `base` is 0.
    pub unsafe fn new(
        base: usize,
        requests: &'static mut [VirtioRequest; VIRTIO_IN_FLIGHT],
        clock: K,
    ) -> Result<Self, VirtioError> {
        let header = NonNull::new(base as *mut VirtIOHeader);
        assert!(header.is_some(), "no device has address 0");
        let header = header.ok_or(VirtioError::NoDevice)?;
        // SAFETY: promised by the caller.
        let transport = unsafe { MmioTransport::new(header, REGISTERS_BYTES) };
        let transport = transport.map_err(|_| VirtioError::NoDevice)?;
        if transport.device_type() != DeviceType::Block {
            return Err(VirtioError::NotBlock(transport.device_type() as u8));
        }
        Ok(VirtioFlash {
            device: VirtIOBlk::new(transport).map_err(VirtioError::Refused)?,
            requests,
            waiting: heapless::Deque::new(),
            clock,
        })
    }
}

impl<K> VirtioFlash<K> {
    /// Hands waiting reads to the device, as many as it takes.
    fn start(&mut self) {
        for slot in self.requests.iter_mut() {
            if !matches!(slot.state, State::Free) {
                continue;
            }
            let Some(read) = self.waiting.pop_front() else {
                return;
            };
            let sector = read.start.0 as usize * SECTORS_PER_PAGE;
            // SAFETY: request, response and buffer live as long as the program; nobody touches
            // them until `reap` has the read back.
            let token = unsafe {
                self.device.read_blocks_nb(
                    sector,
                    &mut slot.request,
                    &mut read.buf[..read.bytes],
                    &mut slot.response,
                )
            };
            slot.state = match token {
                Ok(token) => State::InFlight(token, read),
                Err(_) => State::Refused(read),
            };
        }
    }

    /// The slot whose read is over, if there is one.
    fn finished(&mut self) -> Option<usize> {
        let used = self.device.peek_used();
        self.requests.iter().position(|slot| match &slot.state {
            State::Free => false,
            State::InFlight(token, _) => used == Some(*token),
            State::Refused(_) => true,
        })
    }
}

impl<K: Clock + Send> Flash<'static> for VirtioFlash<K> {
    fn size_bytes(&self) -> u64 {
        self.device.capacity().saturating_mul(SECTOR_SIZE as u64)
    }

    fn align_bytes(&self) -> usize {
        SECTOR_SIZE
    }

    fn depth(&self) -> usize {
        WAITING_MAX
    }

    fn submit(&mut self, read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        // Sectors are counted in `usize`.
        let reachable = u64::from(read.start.0) * (SECTORS_PER_PAGE as u64) <= usize::MAX as u64;
        let size_bytes = if reachable { self.size_bytes() } else { 0 };
        if let Err(error) = read.check(size_bytes, self.align_bytes()) {
            return Err((error, read));
        }
        self.waiting
            .push_back(read)
            .map_err(|read| (IoError::Busy, read))
    }

    fn flush(&mut self) {
        self.start();
    }

    fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        self.start();
        let index = self.finished()?;
        let slot = &mut self.requests[index];
        let failed = Err(IoError::Device { errno: 0 });
        let done = match mem::take(&mut slot.state) {
            State::Free => return None,
            State::Refused(read) => (read, failed),
            State::InFlight(token, read) => {
                let buf = &mut read.buf[..read.bytes];
                // SAFETY: the same three that the request was made with.
                let result = unsafe {
                    self.device
                        .complete_read_blocks(token, &slot.request, buf, &mut slot.response)
                };
                (read, result.or(failed))
            }
        };
        self.start();
        Some(done)
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.start();
        let deadline_ns = self.clock.now_ns().saturating_add(timeout_ns);
        loop {
            if self.finished().is_some() {
                return true;
            }
            let idle = |slot: &VirtioRequest| matches!(slot.state, State::Free);
            if self.requests.iter().all(idle) || self.clock.now_ns() >= deadline_ns {
                return false;
            }
            core::hint::spin_loop();
        }
    }
}

impl<K> core::fmt::Debug for VirtioFlash<K> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let free = |slot: &&VirtioRequest| matches!(slot.state, State::Free);
        f.debug_struct("VirtioFlash")
            .field("free", &self.requests.iter().filter(free).count())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
