//! Speed of flash reads, by the path that images are read with.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use tessera_hal::linux::{FixedRange, IoReport, LinuxFlash, OpenOptions, Region, open};
use tessera_hal::{Flash, PAGE_BYTES, PageIndex, Read};

/// A read that takes longer than this has failed.
const READ_DEADLINE_NS: u64 = 20_000_000_000;

/// What reads to make.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Reads in flight.
    pub depth: usize,
    /// Bytes from the file's start over which they are scattered.
    pub range_bytes: u64,
    /// One block after the other instead.
    pub sequential: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time that they took together.
    pub seconds: f64,
    /// CPU time of the process meanwhile.
    pub cpu_seconds: f64,
}

impl Sample {
    /// Adds another sample of the same load.
    pub fn add(&mut self, other: Sample) {
        self.reads += other.reads;
        self.bytes += other.bytes;
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
    }

    /// Bytes a second, whole.
    pub fn bytes_per_s(&self) -> f64 {
        (self.bytes as f64 / self.seconds).round()
    }

    /// CPU time of a read in nanoseconds, whole.
    pub fn cpu_ns_per_read(&self) -> f64 {
        (self.cpu_seconds * 1e9 / self.reads as f64).round()
    }
}

/// An open test file and the memory for its reads.
pub struct Reader {
    flash: LinuxFlash,
    buffers: Vec<&'static mut [u8]>,
    random: u64,
    /// How it is read.
    pub io: IoReport,
}

impl Reader {
    /// Opens `path` for reads of up to `block_bytes`, up to `depth` in flight. The memory for them
    /// is never given back, as the device may write to it at any time.
    pub fn open(path: &Path, block_bytes: usize, depth: usize) -> Result<Self> {
        let mut region = Region::new(block_bytes * depth).map_err(|error| anyhow!("{error}"))?;
        // As the engine's buffers: a large read into scattered pages may take twice as long.
        region.advise_huge_pages();
        let memory = region.into_static();
        memory.fill(1); // Taking the pages from the system is not what is measured.
        let options = OpenOptions {
            depth,
            fixed: Some(FixedRange::of(memory)),
            ..OpenOptions::default()
        };
        let (flash, io) =
            open(path, &options).map_err(|error| anyhow!("cannot open the test file: {error}"))?;
        Ok(Reader {
            flash,
            buffers: memory.chunks_exact_mut(block_bytes).collect(),
            random: 0x2545_F491_4F6C_DD1D,
            io,
        })
    }

    /// Makes reads for so many seconds, at least `load.depth` of them.
    pub fn run(&mut self, load: Load, seconds: f64) -> Result<Sample> {
        let (cpu_start, start) = (cpu_seconds(UsageWho::RUSAGE_SELF)?, Instant::now());
        let (mut submitted, mut sample) = (0, Sample::default());
        for _ in 0..load.depth {
            let Some(buf) = self.buffers.pop() else {
                bail!(
                    "{} reads in flight are more than there is memory for",
                    load.depth
                );
            };
            self.submit(&load, submitted, buf)?;
            submitted += 1;
        }
        while sample.reads < submitted {
            if !self.flash.wait(READ_DEADLINE_NS) {
                bail!("a read of the test file did not finish within 20 seconds");
            }
            while let Some((read, result)) = self.flash.reap() {
                result.map_err(|error| anyhow!("cannot read the test file: {error}"))?;
                sample.reads += 1;
                if start.elapsed().as_secs_f64() < seconds {
                    self.submit(&load, submitted, read.buf)?;
                    submitted += 1;
                } else {
                    self.buffers.push(read.buf);
                }
            }
            self.flash.flush();
        }
        sample.seconds = start.elapsed().as_secs_f64();
        sample.cpu_seconds = cpu_seconds(UsageWho::RUSAGE_SELF)? - cpu_start;
        sample.bytes = sample.reads * load.block_bytes as u64;
        Ok(sample)
    }

    fn submit(&mut self, load: &Load, number: u64, buf: &'static mut [u8]) -> Result<()> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let blocks = load.range_bytes / load.block_bytes as u64;
        let block = if load.sequential { number } else { self.random } % blocks;
        let read = Read {
            start: PageIndex((block * load.block_bytes as u64 / PAGE_BYTES) as u32),
            buf,
            bytes: load.block_bytes,
            tag: 0,
        };
        self.flash
            .submit(read)
            .map_err(|(error, _)| anyhow!("cannot read the test file: {error}"))
    }
}

/// CPU time of this process or thread so far.
pub fn cpu_seconds(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who)
        .map_err(|errno| anyhow!("the system does not tell CPU time: {}", errno.desc()))?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}
