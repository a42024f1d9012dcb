//! Flash reads with io_uring: submitted in batches, one system call for many reads.
//!
//! The kernel writes to a read's buffer while the slot table holds it as an address, not as a
//! reference; the reference is made anew when the read comes out. Buffers are `'static`, so even
//! a device that is forgotten or dropped in the middle leaves no write into freed memory.

#![allow(unsafe_code)]

use core::mem::ManuallyDrop;
use core::slice;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;

use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::open::FixedRange;
use super::progress::{Progress, Step, Way};
use super::region::Region;
use super::source::Source;
use super::{DROP_WAIT_NS, FlashStats, sys};
use crate::flash::{IoError, Read};
use crate::page::{PAGE_BYTES, PageIndex};

/// Largest single request; longer reads are resumed. Also the kernel's limit for one registered
/// buffer.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// Registered files: their order in the table.
const DIRECT_FILE: u32 = 0;
const BUFFERED_FILE: u32 = 1;

/// How long the request made at opening may take.
const TRIAL_NS: u64 = 10_000_000_000;

/// Longest single sleep in the kernel; longer waits sleep again.
const ENTER_NS_MAX: u64 = 3600 * 1_000_000_000;

/// Times in a row that the kernel may be too busy to take requests before `flush` gives way.
const BUSY_MAX: u32 = 16;

/// A read that the kernel may be writing to.
struct InFlight {
    start: PageIndex,
    tag: u32,
    buf: *mut u8,
    buf_bytes: usize,
    progress: Progress,
}

/// A queue of reads in one io_uring.
pub(crate) struct UringFlash {
    ring: ManuallyDrop<IoUring>,
    source: Source,
    slots: Vec<Option<InFlight>>,
    free: Vec<u16>,
    /// In the submission ring, not yet taken by the kernel, oldest first.
    queued: VecDeque<u16>,
    done: VecDeque<(u16, Result<(), IoError>)>,
    fixed: Option<FixedRange>,
    files_registered: bool,
    /// The kernel takes a timeout with a wait (Linux 5.11); otherwise the ring is polled.
    timed: bool,
    /// Set when the kernel stopped taking requests: the error number.
    dead: Option<i32>,
    stats: FlashStats,
}

// SAFETY: the addresses in `slots` come from exclusive `'static` references that the device owns
// until it hands them back; nothing else in it is tied to a thread.
unsafe impl Send for UringFlash {}

/// Hands requests over and waits for a completion; `timed` says how. `Ok` also when time is up or
/// the kernel was interrupted or busy.
fn enter(ring: &mut IoUring, timed: bool, timeout_ns: u64) -> Result<(), i32> {
    let timeout_ns = timeout_ns.min(ENTER_NS_MAX);
    let submitter = ring.submitter();
    let outcome = if timed {
        let seconds = timeout_ns / 1_000_000_000;
        let time = Timespec::new()
            .sec(seconds)
            .nsec((timeout_ns % 1_000_000_000) as u32);
        submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
    } else {
        let outcome = submitter.submit();
        if outcome.is_ok() && ring.completion().is_empty() {
            sys::poll_readable(ring.as_raw_fd(), timeout_ns);
        }
        outcome
    };
    match outcome.map_err(|error| error.raw_os_error().unwrap_or(0)) {
        Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A ring whose completions interrupt nobody: this side looks for them when it has the time
/// (Linux 5.19), and on older kernels one whose completions do.
fn new_ring(depth: u32) -> std::io::Result<IoUring> {
    let mut calm = IoUring::builder();
    calm.dontfork().setup_coop_taskrun().setup_taskrun_flag();
    match calm.build(depth) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().dontfork().build(depth)
        }
        outcome => outcome,
    }
}

/// Reads one page through a new ring: a kernel or sandbox may allow setting up a ring and nothing
/// more.
fn try_ring(ring: &mut IoUring, source: &Source) -> Result<(), i32> {
    let region = Region::new(PAGE_BYTES as usize).map_err(|_| libc::ENOMEM)?;
    // Leaked unless the request is known to be over.
    let mut page = ManuallyDrop::new(region);
    let fd = Fd(source.file(source.way()).as_raw_fd());
    let request = opcode::Read::new(fd, page.as_mut_ptr(), page.len() as u32).build();
    // SAFETY: `page` is dropped only after the request's completion.
    let pushed = unsafe { ring.submission().push(&request) };
    assert!(pushed.is_ok(), "a new ring is empty");
    let deadline_ns = sys::monotonic_ns() + TRIAL_NS;
    loop {
        let now_ns = sys::monotonic_ns();
        if now_ns >= deadline_ns {
            return Err(libc::ETIMEDOUT);
        }
        enter(
            ring,
            ring.params().is_feature_ext_arg(),
            deadline_ns - now_ns,
        )?;
        let Some(completion) = ring.completion().next() else {
            continue;
        };
        // SAFETY: the request is over, and `page` is not used again.
        unsafe { ManuallyDrop::drop(&mut page) };
        let result = completion.result();
        return if result >= 0 { Ok(()) } else { Err(-result) };
    }
}

impl UringFlash {
    /// Sets up a ring and tries it; hands the source back with the error number if that fails.
    pub(crate) fn new(
        source: Source,
        depth: usize,
        fixed: Option<&FixedRange>,
    ) -> Result<Self, (i32, Source)> {
        let mut ring = match new_ring(depth as u32) {
            Ok(ring) => ring,
            Err(error) => return Err((error.raw_os_error().unwrap_or(libc::ENOSYS), source)),
        };
        if let Err(errno) = try_ring(&mut ring, &source) {
            return Err((errno, source));
        }
        let timed = ring.params().is_feature_ext_arg();
        let mut flash = UringFlash {
            ring: ManuallyDrop::new(ring),
            source,
            slots: (0..depth).map(|_| None).collect(),
            free: (0..depth as u16).rev().collect(),
            queued: VecDeque::with_capacity(depth),
            done: VecDeque::with_capacity(depth),
            fixed: None,
            files_registered: false,
            timed,
            dead: None,
            stats: FlashStats::default(),
        };
        let files = [Way::Direct, Way::Buffered].map(|way| flash.source.file(way).as_raw_fd());
        flash.files_registered = flash.ring.submitter().register_files(&files).is_ok();
        flash.fixed = fixed.filter(|fixed| flash.register(fixed)).cloned();
        Ok(flash)
    }

    pub(crate) fn has_registered_buffers(&self) -> bool {
        self.fixed.is_some()
    }

    pub(crate) fn stats(&self) -> FlashStats {
        self.stats
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn depth(&self) -> usize {
        self.slots.len()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() - self.done.len()
    }

    /// Pins `fixed` in pieces of the size that the kernel takes.
    fn register(&self, fixed: &FixedRange) -> bool {
        let FixedRange(range) = fixed;
        let pieces: Vec<libc::iovec> = range
            .clone()
            .step_by(REQUEST_BYTES_MAX)
            .map(|start| libc::iovec {
                iov_base: core::ptr::with_exposed_provenance_mut(start),
                iov_len: REQUEST_BYTES_MAX.min(range.end - start),
            })
            .collect();
        // SAFETY: the kernel checks that the addresses are mapped and pins their pages, so that
        // even if the caller unmaps them, reads go to pages that no one else got. Requests use
        // them only for buffers that the device owns.
        !pieces.is_empty() && unsafe { self.ring.submitter().register_buffers(&pieces).is_ok() }
    }

    /// Index of the registered piece that holds all of these bytes.
    fn fixed_piece(&self, address: usize, len_bytes: usize) -> Option<u16> {
        let FixedRange(range) = self.fixed.as_ref()?;
        let first = address.checked_sub(range.start)?;
        let piece = first / REQUEST_BYTES_MAX;
        let inside = address + len_bytes <= range.end;
        let same = (first + len_bytes - 1) / REQUEST_BYTES_MAX == piece;
        if inside && same {
            u16::try_from(piece).ok()
        } else {
            None
        }
    }

    /// The request for `len_bytes` at `at_bytes` in the file.
    fn request(&self, way: Way, buf: *mut u8, len_bytes: usize, at_bytes: u64) -> squeue::Entry {
        let len = len_bytes.min(REQUEST_BYTES_MAX) as u32;
        let fixed = self.fixed_piece(buf.addr(), len as usize);
        let file = match way {
            Way::Direct => DIRECT_FILE,
            Way::Buffered => BUFFERED_FILE,
        };
        let fd = self.source.file(way).as_raw_fd();
        match (self.files_registered, fixed) {
            (true, Some(piece)) => opcode::ReadFixed::new(Fixed(file), buf, len, piece)
                .offset(at_bytes)
                .build(),
            (true, None) => opcode::Read::new(Fixed(file), buf, len)
                .offset(at_bytes)
                .build(),
            (false, Some(piece)) => opcode::ReadFixed::new(Fd(fd), buf, len, piece)
                .offset(at_bytes)
                .build(),
            (false, None) => opcode::Read::new(Fd(fd), buf, len).offset(at_bytes).build(),
        }
    }

    /// Puts a slot's next request into the submission ring.
    fn push(&mut self, index: u16) {
        let slot = self.slots[index as usize]
            .as_ref()
            .expect("a slot in flight");
        let Progress {
            done_bytes,
            len_bytes,
            way,
            ..
        } = slot.progress;
        // SAFETY: `done_bytes` is less than the length of the buffer that `buf` begins.
        let buf = unsafe { slot.buf.add(done_bytes) };
        let at_bytes = slot.start.offset_bytes() + done_bytes as u64;
        let request = self.request(way, buf, len_bytes - done_bytes, at_bytes);
        // SAFETY: the slot owns the buffer until the request's completion has been seen.
        let pushed = unsafe {
            self.ring
                .submission()
                .push(&request.user_data(index as u64))
        };
        assert!(
            pushed.is_ok(),
            "the submission ring has a place for every slot"
        );
        self.queued.push_back(index);
    }

    /// Notes which requests the kernel has taken: all but the last ones in the ring.
    fn settle(&mut self) {
        let left = self.ring.submission().len();
        while self.queued.len() > left {
            self.queued.pop_front();
        }
    }

    /// After an error that no retry cures: fails what the kernel has not taken.
    fn die(&mut self, errno: i32) {
        self.dead = Some(errno);
        self.settle();
        while let Some(index) = self.queued.pop_front() {
            self.done.push_back((index, Err(IoError::Device { errno })));
        }
    }

    /// Takes completions out of the ring.
    fn pump(&mut self) {
        loop {
            let Some(completion) = self.ring.completion().next() else {
                return;
            };
            let index = completion.user_data() as u16;
            let result = completion.result();
            let slot = self.slots[index as usize]
                .as_mut()
                .expect("a completion has its slot");
            let outcome = if result < 0 {
                Err(-result)
            } else {
                Ok(result as usize)
            };
            match (slot.progress.step(outcome), self.dead) {
                (Step::Done(result), _) => self.done.push_back((index, result)),
                (Step::Again, None) => self.push(index),
                (Step::Again, Some(errno)) => {
                    self.done.push_back((index, Err(IoError::Device { errno })));
                }
            }
        }
    }

    pub(crate) fn submit(&mut self, read: Read<'static>) -> Result<(), (IoError, Read<'static>)> {
        if let Err(error) = self.source.check(&read) {
            return Err((error, read));
        }
        if let Some(errno) = self.dead {
            return Err((IoError::Device { errno }, read));
        }
        let Some(index) = self.free.pop() else {
            return Err((IoError::Busy, read));
        };
        let progress = Progress::new(read.bytes, self.source.way());
        let Read {
            start, buf, tag, ..
        } = read;
        let (buf, buf_bytes) = (buf.as_mut_ptr(), buf.len());
        self.slots[index as usize] = Some(InFlight {
            start,
            tag,
            buf,
            buf_bytes,
            progress,
        });
        self.push(index);
        Ok(())
    }

    pub(crate) fn flush(&mut self) {
        let mut busy = 0;
        while self.dead.is_none() && !self.queued.is_empty() {
            let outcome = self.ring.submit();
            self.settle();
            match outcome.map_err(|error| error.raw_os_error().unwrap_or(0)) {
                Ok(_) | Err(libc::EINTR) => {}
                Err(libc::EAGAIN | libc::EBUSY) => self.pump(),
                Err(errno) => self.die(errno),
            }
            busy += 1;
            if busy > BUSY_MAX {
                return; // What is left goes with the next flush or wait.
            }
        }
    }

    pub(crate) fn reap(&mut self) -> Option<(Read<'static>, Result<(), IoError>)> {
        if self.done.is_empty() {
            self.pump();
            // Completions that the kernel holds back come with the next call.
            let held_back = self.done.is_empty() && self.ring.submission().taskrun();
            if held_back && self.dead.is_none() {
                let _ = self.ring.submit();
                self.settle();
                self.pump();
            }
            if !self.queued.is_empty() {
                self.flush();
                self.pump();
            }
        }
        let (index, result) = self.done.pop_front()?;
        let slot = self.slots[index as usize].take().expect("a finished slot");
        self.free.push(index);
        self.stats.count(result, &slot.progress);
        self.source
            .drop_cache(slot.start.offset_bytes(), &slot.progress);
        // SAFETY: `buf` was taken apart from a `&'static mut [u8]` of this length in `submit`; the
        // kernel is done with it, and the slot that held it is empty now.
        let buf = unsafe { slice::from_raw_parts_mut(slot.buf, slot.buf_bytes) };
        let bytes = slot.progress.len_bytes;
        Some((
            Read {
                start: slot.start,
                buf,
                bytes,
                tag: slot.tag,
            },
            result,
        ))
    }

    pub(crate) fn wait(&mut self, timeout_ns: u64) -> bool {
        let deadline_ns = sys::monotonic_ns().saturating_add(timeout_ns);
        loop {
            self.pump();
            if !self.done.is_empty() {
                return true;
            }
            let now_ns = sys::monotonic_ns();
            if self.in_flight() == 0 {
                return false;
            }
            if now_ns >= deadline_ns {
                self.flush();
                self.pump();
                return !self.done.is_empty();
            }
            if self.dead.is_some() {
                sys::poll_readable(self.ring.as_raw_fd(), deadline_ns - now_ns);
                continue;
            }
            match enter(&mut self.ring, self.timed, deadline_ns - now_ns) {
                Ok(()) => self.settle(),
                Err(errno) => self.die(errno),
            }
        }
    }
}

impl Drop for UringFlash {
    /// Waits for reads in flight; a ring that does not finish is leaked, and so are its buffers.
    fn drop(&mut self) {
        let deadline_ns = sys::monotonic_ns() + DROP_WAIT_NS;
        while self.in_flight() > 0 {
            let now_ns = sys::monotonic_ns();
            if now_ns >= deadline_ns {
                return;
            }
            while self.reap().is_some() {}
            self.wait(deadline_ns - now_ns);
        }
        // SAFETY: the ring is dropped here only, and the device is not used again.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

#[cfg(test)]
impl UringFlash {
    /// Behaves as on a kernel that registers nothing and has no timed waits.
    pub(crate) fn pretend_old_kernel(&mut self) {
        self.files_registered = false;
        self.timed = false;
    }

    /// Behaves as if the kernel had refused to take any more requests.
    pub(crate) fn pretend_dead(&mut self, errno: i32) {
        self.die(errno);
    }
}
