//! Split-phase reads of whole flash pages.

use crate::page::{PAGE_BYTES, PageIndex};

/// One read: where from, and the memory it fills. Whoever holds it owns the memory.
#[derive(Debug)]
pub struct Read<'m> {
    /// First page.
    pub start: PageIndex,
    /// At least `bytes` long, [`Flash::align_bytes`] aligned in memory.
    pub buf: &'m mut [u8],
    /// Bytes to read, to the front of `buf`: a whole number of pages, at most `buf.len()`. The rest
    /// of `buf` travels along untouched, so that a buffer can serve reads of several sizes.
    pub bytes: usize,
    /// Chosen by the submitter and handed back untouched.
    pub tag: u32,
}

impl Read<'_> {
    /// What a device of this size and alignment checks before it takes the read.
    ///
    /// # Errors
    /// [`IoError::Unaligned`] and [`IoError::EndOfImage`]. An empty read is not a whole number of
    /// pages, and neither is one of the last page where the image ends in the middle of it.
    pub fn check(&self, size_bytes: u64, align_bytes: usize) -> Result<(), IoError> {
        let whole = self.bytes > 0 && (self.bytes as u64).is_multiple_of(PAGE_BYTES);
        let aligned = self.buf.as_ptr().addr().is_multiple_of(align_bytes);
        if !whole || !aligned || self.bytes > self.buf.len() {
            return Err(IoError::Unaligned);
        }
        match self.start.offset_bytes().checked_add(self.bytes as u64) {
            Some(end_bytes) if end_bytes <= size_bytes => Ok(()),
            _ => Err(IoError::EndOfImage),
        }
    }
}

/// Why a read did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum IoError {
    /// The queue is full: reap, then submit again.
    Busy,
    /// The device failed this read; the buffer's contents are undefined.
    Device {
        /// The system's error number, 0 where there is none.
        errno: i32,
    },
    /// The image ends inside this read.
    EndOfImage,
    /// The request breaks the rules of [`Read`] (length or address not aligned).
    Unaligned,
}

impl core::fmt::Display for IoError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Busy => write!(f, "the read queue is full"),
            Self::Device { errno } => write!(f, "the device failed the read (error {errno})"),
            Self::EndOfImage => write!(f, "the image ends inside the read"),
            Self::Unaligned => write!(f, "length or address of the read is not aligned"),
        }
    }
}

impl core::error::Error for IoError {}

/// Split-phase flash reads.
///
/// `Ok` from [`submit`](Flash::submit) means that this read will come out of
/// [`reap`](Flash::reap) exactly once, in any order, with its buffer; `Err` means that it never
/// will, and hands the read back. Short reads, interruptions and alignment are the device's
/// business, not the caller's: a read that comes out `Ok` is complete. A device may move between
/// lanes; one lane at a time has it.
pub trait Flash<'m>: Send {
    /// Size of the image in bytes.
    fn size_bytes(&self) -> u64;
    /// Alignment that buffers need in memory: a power of two, at most 4096.
    fn align_bytes(&self) -> usize;
    /// Reads that may be in flight at once.
    fn depth(&self) -> usize;
    /// Starts a read. The device may hold it back until [`flush`](Flash::flush), `reap` or `wait`.
    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)>;
    /// Hands everything submitted to the hardware.
    fn flush(&mut self);
    /// A finished read, if there is one; never blocks.
    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)>;
    /// Blocks until a read has finished or `timeout_ns` have passed; true if one has.
    fn wait(&mut self, timeout_ns: u64) -> bool;
}

impl<'m, F: Flash<'m>> Flash<'m> for &mut F {
    fn size_bytes(&self) -> u64 {
        (**self).size_bytes()
    }

    fn align_bytes(&self) -> usize {
        (**self).align_bytes()
    }

    fn depth(&self) -> usize {
        (**self).depth()
    }

    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)> {
        (**self).submit(read)
    }

    fn flush(&mut self) {
        (**self).flush();
    }

    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)> {
        (**self).reap()
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        (**self).wait(timeout_ns)
    }
}
