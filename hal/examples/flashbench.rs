//! What a file's device gives, by back end, block size and queue depth: GB/s (10^9 bytes).
//!
//! `flashbench FILE [MIB_PER_CELL]`; the file should be larger than any cache below the system's.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use tessera_hal::linux::{Choice, FixedRange, LinuxFlash, OpenOptions, Region, open};
use tessera_hal::{Flash, PAGE_BYTES, PageIndex, Read};

const BLOCKS: [usize; 5] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const DEPTHS: [usize; 4] = [1, 4, 16, 32];

/// Reads `total_bytes` in blocks at scattered places, `depth` at a time; GB/s.
fn measure(
    flash: &mut LinuxFlash,
    memory: &'static mut [u8],
    block_bytes: usize,
    total_bytes: u64,
    scattered: bool,
) -> f64 {
    let blocks = flash.size_bytes() / block_bytes as u64;
    let reads = (total_bytes / block_bytes as u64).max(64);
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = 0;
    let mut start = |sequence: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = if scattered {
            random % blocks
        } else {
            sequence % blocks
        };
        PageIndex((block * block_bytes as u64 / PAGE_BYTES) as u32)
    };
    let begin = Instant::now();
    let mut finished = 0;
    for buf in memory.chunks_exact_mut(block_bytes) {
        let read = Read {
            start: start(next),
            buf,
            bytes: block_bytes,
            tag: 0,
        };
        flash.submit(read).expect("room in the queue");
        next += 1;
    }
    while finished < reads {
        assert!(flash.wait(10_000_000_000), "no read finished in 10 s");
        while let Some((mut read, result)) = flash.reap() {
            result.expect("a good device");
            finished += 1;
            if next < reads {
                read.start = start(next);
                next += 1;
                flash.submit(read).expect("room in the queue");
            }
        }
        flash.flush();
    }
    (finished * block_bytes as u64) as f64 / begin.elapsed().as_nanos() as f64
}

fn table(path: &Path, total_bytes: u64, uring: Choice, direct: Choice, fixed: bool) {
    let most_bytes = BLOCKS[BLOCKS.len() - 1] * DEPTHS[DEPTHS.len() - 1];
    for scattered in [false, true] {
        for (row, depth) in DEPTHS.into_iter().enumerate() {
            let mut line = format!("{:>5}", depth);
            for block_bytes in BLOCKS {
                let memory = Region::new(most_bytes).expect("memory").into_static();
                let memory = &mut memory[..depth * block_bytes];
                memory.fill(1); // Taking the pages from the system is not what is measured.
                let range = fixed.then(|| FixedRange::of(memory));
                let options = OpenOptions {
                    uring,
                    direct,
                    depth,
                    fixed: range,
                    readers: 4,
                    ..OpenOptions::default()
                };
                let (mut flash, report) = open(path, &options).expect("the file opens");
                if row == 0 && block_bytes == BLOCKS[0] {
                    let order = if scattered { "scattered" } else { "sequential" };
                    println!("{report}; {order}; rows: depth; columns: 4K 64K 256K 1M 4M");
                }
                let cell_bytes = if block_bytes < 65536 {
                    total_bytes / 8
                } else {
                    total_bytes
                };
                let speed = measure(&mut flash, memory, block_bytes, cell_bytes, scattered);
                line += &format!("{speed:>8.3}");
            }
            println!("{line}");
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(file) = arguments.next() else {
        eprintln!("flashbench FILE [MIB_PER_CELL]");
        return ExitCode::from(2);
    };
    let mib: u64 = arguments
        .next()
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(256);
    let path = Path::new(&file);
    for fixed in [true, false] {
        table(path, mib << 20, Choice::Auto, Choice::Auto, fixed);
    }
    table(path, mib << 20, Choice::Never, Choice::Auto, false);
    table(path, mib << 20, Choice::Auto, Choice::Never, false);
    table(path, mib << 20, Choice::Never, Choice::Never, false);
    ExitCode::SUCCESS
}
