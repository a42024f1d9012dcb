//! Raw system calls, each behind a safe function.
//!
//! Calls that a sandbox may answer with a signal instead of an error (`statx` on Android) are not
//! made there at all.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::AtomicU32;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};

use super::direct::DioSupport;

/// The error number of the last call that failed on this thread.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn timespec(ns: u64) -> libc::timespec {
    // Far beyond any wait, and still positive where `time_t` has 32 bits.
    let seconds = (ns / 1_000_000_000).min(i32::MAX as u64);
    libc::timespec {
        tv_sec: seconds as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = timespec(0);
    // SAFETY: `now` is a valid timespec to write to.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    assert_eq!(status, 0, "CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What `statx` says about direct reads of `file`; see statx(2), `STATX_DIOALIGN`.
///
/// The offset alignment is that of reads, which since Linux 6.14 may differ from that of writes.
pub(crate) fn dio_support(file: &File) -> DioSupport {
    const STATX_DIOALIGN: u32 = 0x2000;
    const STATX_DIO_READ_ALIGN: u32 = 0x2_0000;
    // Positions in `struct statx` (256 bytes, fixed by the kernel's ABI), in 32-bit words.
    const MASK: usize = 0;
    const DIO_MEM_ALIGN: usize = 0x98 / 4;
    const DIO_OFFSET_ALIGN: usize = 0x9c / 4;
    const DIO_READ_OFFSET_ALIGN: usize = 0xb4 / 4;

    if cfg!(target_os = "android") {
        return DioSupport::Unknown;
    }
    let mut words = [0u32; 64];
    // SAFETY: the path is a C string, and `words` has the 256 bytes of a `struct statx`.
    let status = unsafe {
        libc::syscall(
            libc::SYS_statx,
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            STATX_DIOALIGN | STATX_DIO_READ_ALIGN,
            words.as_mut_ptr(),
        )
    };
    if status != 0 || words[MASK] & STATX_DIOALIGN == 0 {
        return DioSupport::Unknown;
    }
    let mem_bytes = words[DIO_MEM_ALIGN];
    let mut offset_bytes = words[DIO_OFFSET_ALIGN];
    if words[MASK] & STATX_DIO_READ_ALIGN != 0 && words[DIO_READ_OFFSET_ALIGN] != 0 {
        offset_bytes = words[DIO_READ_OFFSET_ALIGN];
    }
    if mem_bytes == 0 || offset_bytes == 0 {
        return DioSupport::Refused;
    }
    DioSupport::Aligned {
        mem_bytes,
        offset_bytes,
    }
}

/// Waits until `fd` is readable or `timeout_ns` have passed, or a signal arrives.
pub(crate) fn poll_readable(fd: RawFd, timeout_ns: u64) {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = timespec(timeout_ns);
    // SAFETY: one valid pollfd, a valid timespec, no signal mask.
    unsafe { libc::ppoll(&mut poll, 1, &timeout, ptr::null()) };
}

/// Whether `fd` has priority data now, as triggers have; never waits.
pub(crate) fn poll_priority(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLPRI,
        revents: 0,
    };
    let timeout = timespec(0);
    // SAFETY: one valid pollfd, a valid timespec, no signal mask.
    let count = unsafe { libc::ppoll(&mut poll, 1, &timeout, ptr::null()) };
    // A trigger whose control group is gone has both for ever.
    count == 1 && poll.revents & (libc::POLLPRI | libc::POLLERR) == libc::POLLPRI
}

/// Sleeps while `word` holds `expected`, until woken; may return early.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32) {
    // SAFETY: `word` is a valid, aligned 32-bit word for the time of the call; no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes up to `count` sleepers of `word`.
pub(crate) fn futex_wake(word: &AtomicU32, count: u32) {
    // SAFETY: `word` is a valid, aligned 32-bit word; waking reads nothing else.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count.min(i32::MAX as u32),
        )
    };
}

/// Bytes of a page of memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: asks for a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096).next_power_of_two()
}

/// Gives the pages of private memory back; they are zeroed when they are touched again. False if
/// the kernel refuses, as it does where the first byte is not a page's, or the last byte is not.
pub(crate) fn forget(pages: &mut [u8]) -> bool {
    // The kernel would take the rest of the last page, which is somebody else's.
    if !pages.len().is_multiple_of(page_bytes()) {
        return false;
    }
    // SAFETY: nobody else has borrowed the bytes, and any bytes may take their place.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_DONTNEED) == 0 }
}

/// Maps `bytes` of zeroed private memory that is backed only once it is touched.
pub(crate) fn map_anonymous(bytes: usize) -> Result<*mut u8, i32> {
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        Err(last_errno())
    } else {
        Ok(start.cast())
    }
}

/// How many of the first `pages` pages of `file` the page cache holds; for tests.
#[cfg(test)]
pub(crate) fn cached_pages(file: &File, pages: usize) -> usize {
    let bytes = pages * 4096;
    let (protection, flags) = (libc::PROT_READ, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; nothing reads through it.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            protection,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(start, libc::MAP_FAILED, "error {}", last_errno());
    let mut resident = vec![0u8; pages];
    // SAFETY: the range is the mapping, and `resident` has a byte for each page of at least 4096.
    let status = unsafe { libc::mincore(start, bytes, resident.as_mut_ptr()) };
    assert_eq!(status, 0, "error {}", last_errno());
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(start, bytes) };
    resident.iter().filter(|&&page| page & 1 == 1).count()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn priority_data_is_seen_and_other_data_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let fd = receiver.as_raw_fd();
        assert!(!poll_priority(fd));
        sender.write_all(b"x").unwrap();
        poll_readable(fd, 5_000_000_000);
        assert!(!poll_priority(fd), "ordinary data");
        // SAFETY: one byte that is there, to a socket that is open.
        let sent =
            unsafe { libc::send(sender.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
        assert_eq!(sent, 1);
        let seen = (0..500).any(|_look| {
            thread::sleep(Duration::from_millis(10));
            poll_priority(fd)
        });
        assert!(seen, "urgent data");
    }
}
