//! Split-phase reads of whole flash pages.

use crate::page::PageIndex;

/// One read: where from, and the memory it fills. Whoever holds it owns the memory.
#[derive(Debug)]
pub struct Read<'m> {
    /// First page.
    pub start: PageIndex,
    /// A whole number of pages, [`Flash::align_bytes`] aligned in memory.
    pub buf: &'m mut [u8],
    /// Chosen by the submitter and handed back untouched.
    pub tag: u32,
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
/// business, not the caller's: a read that comes out `Ok` is complete.
pub trait Flash<'m> {
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
