//! Files, by every way there is to read them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use tempfile::TempDir;

use crate::flash::{Flash, IoError, Read};
use crate::linux::direct::BufferedWhy;
use crate::linux::open::{DEPTH_MAX, READERS_MAX};
use crate::linux::{
    Back, Choice, FixedRange, LinuxFlash, OpenError, OpenOptions, Region, open, sys,
};
use crate::page::{PAGE_BYTES, PageIndex};

const PAGE: usize = PAGE_BYTES as usize;

/// Longest wait of a test; never reached on a machine that works.
const PATIENCE_NS: u64 = 30_000_000_000;

struct Random(u64);

impl Random {
    fn below(&mut self, count: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % count
    }
}

/// Folders on the file systems that there are: the disk's, and one in memory.
fn folders() -> Vec<TempDir> {
    let mut folders = vec![tempfile::tempdir().unwrap()];
    match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => folders.push(folder),
        Err(error) => eprintln!("no file system in memory: {error}"),
    }
    folders
}

fn image(folder: &TempDir, size_bytes: usize) -> (PathBuf, Vec<u8>) {
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    let bytes: Vec<u8> = (0..size_bytes).map(|_| random.below(256) as u8).collect();
    let path = folder.path().join("image");
    fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

fn buffer(bytes: usize) -> &'static mut [u8] {
    Region::new(bytes).unwrap().into_static()
}

fn read(page: u32, buf: &'static mut [u8], bytes: usize) -> Read<'static> {
    Read {
        start: PageIndex(page),
        buf,
        bytes,
        tag: page,
    }
}

/// Every way to read: options and the keys of the reports that may come of them.
fn ways() -> Vec<(OpenOptions, [&'static str; 2])> {
    let mut ways = Vec::new();
    for (uring, name) in [(Choice::Require, "uring"), (Choice::Never, "pread")] {
        for direct in [Choice::Auto, Choice::Never] {
            let keys = match (name, direct) {
                ("uring", Choice::Auto) => ["uring-direct", "uring-buffered"],
                ("uring", _) => ["uring-buffered"; 2],
                (_, Choice::Auto) => ["pread-direct", "pread-buffered"],
                _ => ["pread-buffered"; 2],
            };
            ways.push((
                OpenOptions {
                    uring,
                    direct,
                    ..Default::default()
                },
                keys,
            ));
        }
    }
    ways
}

/// Opens, or says why this machine cannot; only io_uring may be missing.
fn open_or_skip(path: &Path, options: &OpenOptions) -> Option<LinuxFlash> {
    match open(path, options) {
        Ok((flash, _)) => Some(flash),
        Err(OpenError::Uring { errno }) => {
            eprintln!("no io_uring here: error {errno}");
            None
        }
        Err(error) => panic!("{options:?}: {error}"),
    }
}

/// Waits for one read.
fn next(flash: &mut LinuxFlash) -> (Read<'static>, Result<(), IoError>) {
    assert!(flash.wait(PATIENCE_NS), "no read finished");
    flash.reap().expect("wait said that one has finished")
}

/// Reads scattered runs of pages with a full queue, and compares every byte.
fn read_scattered(flash: &mut LinuxFlash, memory: &'static mut [u8], want: &[u8], seed: u64) {
    let mut random = Random(seed);
    let pages = (want.len() / PAGE) as u64;
    let mut spare: Vec<_> = memory.chunks_exact_mut(8 * PAGE).collect();
    let reads = 400;
    let (mut submitted, mut finished) = (0, 0);
    while finished < reads {
        while submitted < reads {
            let Some(buf) = spare.pop() else { break };
            let bytes = PAGE * (1 + random.below(8) as usize);
            let page = random.below(pages - bytes as u64 / PAGE_BYTES + 1) as u32;
            buf.fill(0xEE);
            match flash.submit(read(page, buf, bytes)) {
                Ok(()) => submitted += 1,
                Err((IoError::Busy, read)) => {
                    spare.push(read.buf);
                    break;
                }
                Err((error, _)) => panic!("{error}"),
            }
        }
        flash.flush();
        let (read, result) = next(flash);
        assert_eq!(result, Ok(()));
        let at = read.start.offset_bytes() as usize;
        assert_eq!(read.tag, read.start.0);
        assert!(
            read.buf[..read.bytes] == want[at..at + read.bytes],
            "page {}",
            read.tag
        );
        assert!(
            read.buf[read.bytes..].iter().all(|&byte| byte == 0xEE),
            "page {}",
            read.tag
        );
        spare.push(read.buf);
        finished += 1;
    }
    assert!(flash.reap().is_none());
    assert!(!flash.wait(PATIENCE_NS), "nothing is in flight");
    let stats = flash.stats();
    assert_eq!((stats.reads, stats.failed), (reads, 0));
}

#[test]
fn every_way_gives_the_same_bytes() {
    for folder in folders() {
        let (path, want) = image(&folder, 301 * PAGE + 100);
        for (mut options, keys) in ways() {
            for (depth, fixed) in [(1, false), (7, true), (32, false), (32, true)] {
                let memory = buffer(32 * 8 * PAGE);
                options.depth = depth;
                // Half of the memory, so that there are reads of both kinds.
                options.fixed = fixed.then(|| FixedRange::of(&memory[..16 * 8 * PAGE]));
                let Some(mut flash) = open_or_skip(&path, &options) else {
                    continue;
                };
                let (_, report) = open(&path, &options).unwrap();
                assert!(keys.contains(&report.io_path()), "{report}");
                assert_eq!((flash.depth(), report.depth), (depth, depth));
                assert_eq!(flash.size_bytes(), want.len() as u64);
                assert!(flash.align_bytes().is_power_of_two() && flash.align_bytes() <= PAGE);
                read_scattered(&mut flash, memory, &want, depth as u64 + 1);
            }
        }
    }
}

#[test]
fn an_old_kernel_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (path, want) = image(&folder, 100 * PAGE);
    let options = OpenOptions {
        uring: Choice::Require,
        ..Default::default()
    };
    let Some(mut flash) = open_or_skip(&path, &options) else {
        return;
    };
    let Back::Uring(ring) = &mut flash.0 else {
        panic!("io_uring was required")
    };
    ring.pretend_old_kernel();
    read_scattered(&mut flash, buffer(16 * 8 * PAGE), &want, 5);
}

#[test]
fn requests_that_cannot_be_are_handed_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, want) = image(&folder, 5 * PAGE + 100);
    for (options, _) in ways() {
        let options = OpenOptions {
            depth: 2,
            ..options
        };
        let Some(mut flash) = open_or_skip(&path, &options) else {
            continue;
        };
        let refused = |flash: &mut LinuxFlash, read: Read<'static>, want: IoError| {
            let tag = read.tag;
            let (error, read) = flash.submit(read).unwrap_err();
            assert_eq!((error, read.tag), (want, tag));
            read.buf
        };
        let buf = refused(
            &mut flash,
            read(5, buffer(8 * PAGE), PAGE),
            IoError::EndOfImage,
        );
        let buf = refused(&mut flash, read(3, buf, 3 * PAGE), IoError::EndOfImage);
        let buf = refused(&mut flash, read(u32::MAX, buf, PAGE), IoError::EndOfImage);
        let buf = refused(&mut flash, read(0, buf, 100), IoError::Unaligned);
        let buf = refused(&mut flash, read(0, buf, 0), IoError::Unaligned);
        let buf = refused(&mut flash, read(0, buf, 9 * PAGE), IoError::Unaligned);
        if flash.align_bytes() > 1 {
            let odd = &mut buffer(2 * PAGE)[1..];
            refused(&mut flash, read(0, odd, PAGE), IoError::Unaligned);
        }
        flash.submit(read(0, buf, 5 * PAGE)).unwrap();
        flash.submit(read(1, buffer(PAGE), PAGE)).unwrap();
        refused(&mut flash, read(2, buffer(PAGE), PAGE), IoError::Busy);
        for _read in 0..2 {
            let (read, result) = next(&mut flash);
            let at = read.start.offset_bytes() as usize;
            assert_eq!(result, Ok(()));
            assert!(read.buf[..read.bytes] == want[at..at + read.bytes]);
        }
        flash.submit(read(2, buffer(PAGE), PAGE)).unwrap();
        assert_eq!(next(&mut flash).1, Ok(()));
    }
}

#[test]
fn a_file_cut_short_while_open_ends_earlier() {
    for folder in folders() {
        for (options, _) in ways() {
            let (path, want) = image(&folder, 64 * PAGE);
            let Some(mut flash) = open_or_skip(&path, &options) else {
                continue;
            };
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(10 * PAGE_BYTES + 100)
                .unwrap();
            for (page, pages, expect) in [
                (20, 2, Err(IoError::EndOfImage)),
                (9, 3, Err(IoError::EndOfImage)),
                (10, 1, Err(IoError::EndOfImage)),
                (3, 7, Ok(())),
            ] {
                flash
                    .submit(read(page, buffer(8 * PAGE), pages * PAGE))
                    .unwrap();
                let (read, result) = next(&mut flash);
                assert_eq!(result, expect, "{options:?} page {page}");
                let at = read.start.offset_bytes() as usize;
                let same = read.buf[..read.bytes] == want[at..at + read.bytes];
                assert!(result.is_err() || same);
            }
        }
    }
}

#[test]
fn small_and_empty_images_open() {
    let folder = tempfile::tempdir().unwrap();
    for size_bytes in [0, 1, PAGE - 1, PAGE, PAGE + 1] {
        let (path, _) = image(&folder, size_bytes);
        for (options, _) in ways() {
            let Some(mut flash) = open_or_skip(&path, &options) else {
                continue;
            };
            let outcome = flash.submit(read(0, buffer(PAGE), PAGE));
            assert_eq!(outcome.is_ok(), size_bytes >= PAGE, "{size_bytes} bytes");
            assert_eq!(flash.wait(PATIENCE_NS), size_bytes >= PAGE);
        }
        let (_, report) = open(&path, &OpenOptions::default()).unwrap();
        if size_bytes < PAGE {
            assert_eq!(report.buffered, Some(BufferedWhy::TooSmall));
            let options = OpenOptions {
                direct: Choice::Require,
                ..Default::default()
            };
            let error = open(&path, &options).unwrap_err();
            assert_eq!(error, OpenError::Direct(BufferedWhy::TooSmall));
        }
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = image(&folder, PAGE);
    let error = |path: &Path, options: OpenOptions| open(path, &options).unwrap_err();
    let plain = OpenOptions::default();
    let missing = error(&folder.path().join("none"), plain.clone());
    assert_eq!(
        missing,
        OpenError::Open {
            errno: libc::ENOENT
        }
    );
    assert_eq!(missing.to_string(), "No such file or directory");
    assert_eq!(error(folder.path(), plain.clone()), OpenError::NotAFile);
    assert_eq!(
        error(Path::new("/dev/null"), plain.clone()),
        OpenError::NotAFile
    );
    for depth in [0, DEPTH_MAX + 1] {
        let options = OpenOptions {
            depth,
            ..plain.clone()
        };
        assert_eq!(error(&path, options), OpenError::Depth { depth });
    }
    for readers in [0, READERS_MAX + 1] {
        let options = OpenOptions {
            readers,
            ..plain.clone()
        };
        assert_eq!(error(&path, options), OpenError::Readers { readers });
    }
}

#[test]
fn a_file_of_too_many_pages_is_refused() {
    let size_bytes = (PAGE_BYTES << 32) + 1;
    for folder in folders() {
        let path = folder.path().join("huge");
        match File::create(&path).unwrap().set_len(size_bytes) {
            Ok(()) => {
                let error = open(&path, &OpenOptions::default()).unwrap_err();
                assert_eq!(error, OpenError::TooLarge { size_bytes });
            }
            Err(error) => eprintln!("no such file on this file system: {error}"),
        }
    }
}

#[test]
fn buffered_reads_do_not_stay_in_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let (path, want) = image(&folder, 512 * PAGE);
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    let cached = || sys::cached_pages(&file, 512);
    if cached() > 0 {
        eprintln!("this file system does not let go of its cache");
        return;
    }
    for uring in [Choice::Never, Choice::Auto] {
        let options = OpenOptions {
            uring,
            direct: Choice::Never,
            ..Default::default()
        };
        let (mut flash, _) = open(&path, &options).unwrap();
        read_scattered(&mut flash, buffer(32 * 8 * PAGE), &want, 3);
        assert_eq!(flash.stats().buffered, flash.stats().reads);
        let cached = cached();
        assert!(cached <= 32, "{cached} of 512 pages are still cached");
    }
}

#[test]
fn a_device_may_change_threads_and_be_dropped_busy() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = image(&folder, 64 * PAGE);
    for (options, _) in ways() {
        let Some(mut flash) = open_or_skip(&path, &options) else {
            continue;
        };
        for page in 0..32 {
            flash
                .submit(read(page, buffer(32 * PAGE), 32 * PAGE))
                .unwrap();
        }
        let worker = std::thread::spawn(move || {
            assert_eq!(next(&mut flash).1, Ok(()));
            drop(flash);
        });
        worker.join().unwrap();
    }
}

#[test]
fn a_kernel_that_takes_nothing_more_fails_reads_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = image(&folder, 8 * PAGE);
    let options = OpenOptions {
        uring: Choice::Require,
        ..Default::default()
    };
    let Some(mut flash) = open_or_skip(&path, &options) else {
        return;
    };
    flash.submit(read(1, buffer(PAGE), PAGE)).unwrap();
    assert_eq!(next(&mut flash).1, Ok(()));
    flash.submit(read(2, buffer(PAGE), PAGE)).unwrap();
    let Back::Uring(ring) = &mut flash.0 else {
        panic!("io_uring was required")
    };
    ring.pretend_dead(libc::ENXIO);
    let want = IoError::Device { errno: libc::ENXIO };
    let (read_back, result) = next(&mut flash);
    assert_eq!((read_back.tag, result), (2, Err(want)));
    let (error, _) = flash.submit(read(3, buffer(PAGE), PAGE)).unwrap_err();
    assert_eq!(error, want);
    assert!(!flash.wait(PATIENCE_NS));
}
