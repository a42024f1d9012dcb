//! Reads that take their time: a pipe stands in for the file, and the test writes to it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::flash::{IoError, Read};
use crate::linux::flash_pread::PreadFlash;
use crate::linux::flash_uring::UringFlash;
use crate::linux::source::Source;
use crate::linux::{DROP_WAIT_NS, Region};
use crate::page::{PAGE_BYTES, PageIndex};

const PAGE: usize = PAGE_BYTES as usize;

fn buffer() -> &'static mut [u8] {
    Region::new(2 * PAGE).unwrap().into_static()
}

fn read() -> Read<'static> {
    Read {
        start: PageIndex(0),
        buf: buffer(),
        bytes: 2 * PAGE,
        tag: 7,
    }
}

/// A ring that reads what is written to the pipe; `None` where there is no io_uring.
fn ring(depth: usize) -> Option<(UringFlash, std::io::PipeWriter)> {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The trial at opening reads a page.
    writer.write_all(&[0; PAGE]).unwrap();
    let source = Source::of_stream(File::from(OwnedFd::from(reader)), 1 << 20);
    match UringFlash::new(source, depth, None) {
        Ok(flash) => Some((flash, writer)),
        Err((errno, _)) => {
            eprintln!("no io_uring here: error {errno}");
            None
        }
    }
}

#[test]
fn a_wait_ends_in_time_and_short_reads_go_on() {
    for old_kernel in [false, true] {
        let Some((mut flash, mut writer)) = ring(4) else {
            return;
        };
        if old_kernel {
            flash.pretend_old_kernel();
        }
        flash.submit(read()).unwrap();
        for written in [0, 100, 5000] {
            writer.write_all(&[9; PAGE * 2][..written]).unwrap();
            let start = Instant::now();
            assert!(!flash.wait(20_000_000), "{written} bytes");
            let passed = start.elapsed();
            assert!(passed >= Duration::from_millis(20) && passed < Duration::from_secs(10));
            assert!(flash.reap().is_none());
        }
        assert!(!flash.wait(0));
        writer.write_all(&[9; PAGE * 2][..2 * PAGE - 5100]).unwrap();
        assert!(flash.wait(u64::MAX));
        let (read, result) = flash.reap().unwrap();
        assert_eq!((read.tag, result), (7, Ok(())));
        assert!(read.buf.iter().all(|&byte| byte == 9));
        assert_eq!(flash.stats().resumed, 1);
    }
}

#[test]
fn a_stream_that_ends_is_the_end_of_the_image() {
    let Some((mut flash, mut writer)) = ring(4) else {
        return;
    };
    flash.submit(read()).unwrap();
    flash.flush();
    writer.write_all(&[1; 100]).unwrap();
    drop(writer);
    assert!(flash.wait(u64::MAX));
    assert_eq!(flash.reap().unwrap().1, Err(IoError::EndOfImage));
}

#[test]
fn dropping_a_stuck_ring_takes_no_longer_than_its_deadline() {
    let Some((mut flash, writer)) = ring(4) else {
        return;
    };
    flash.submit(read()).unwrap();
    flash.flush();
    let start = Instant::now();
    drop(flash);
    let passed = start.elapsed();
    assert!(passed >= Duration::from_nanos(DROP_WAIT_NS), "{passed:?}");
    assert!(
        passed < Duration::from_nanos(3 * DROP_WAIT_NS),
        "{passed:?}"
    );
    drop(writer);
}

#[test]
fn a_device_without_readers_times_out() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let mut flash = PreadFlash::new(Source::of_stream(file, 1 << 20), 2, 0).unwrap();
    flash.submit(read()).unwrap();
    flash.flush();
    let start = Instant::now();
    assert!(!flash.wait(20_000_000));
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert!(flash.reap().is_none());
    drop(flash);
    assert!(start.elapsed() < Duration::from_nanos(DROP_WAIT_NS));
}

#[test]
fn readers_report_what_the_system_says() {
    // A pipe cannot be read at an offset.
    let (reader, _writer) = std::io::pipe().unwrap();
    let source = Source::of_stream(File::from(OwnedFd::from(reader)), 1 << 20);
    let mut flash = PreadFlash::new(source, 2, 1).unwrap();
    flash.submit(read()).unwrap();
    assert!(flash.wait(u64::MAX));
    let (_, result) = flash.reap().unwrap();
    assert_eq!(
        result,
        Err(IoError::Device {
            errno: libc::ESPIPE
        })
    );
    assert_eq!(flash.stats().failed, 1);
}
