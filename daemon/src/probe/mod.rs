//! Measures a device: flash, lanes, memory.
//!
//! Everything goes by the product's own paths: flash reads through `tessera_hal::linux`, lanes
//! through its fork-join, arithmetic through the kernels of decoding.

mod file;
mod flash;
mod lanes;

use std::path::Path;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use tessera_hal::linux::{Topology, allowed_cores, pin_here};
use tessera_kernels::Kernels;
use tessera_runtime::limits::LANES_MAX;

use crate::profile::{
    DramSection, FlashSection, IssuingCore, LaneSection, Measured, Number, PROFILE_VERSION,
    ProfileFile, RangeSection,
};
use file::TestFile;
use flash::{Load, Reader, Sample};
use lanes::Weights;

/// Sizes of random reads.
const BLOCKS_BYTES: [usize; 6] = [4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Reads in flight.
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Address ranges, where the test file is larger; the whole file is measured too.
const RANGES_BYTES: [u64; 2] = [128 << 20, 512 << 20];
/// Each point is measured so many times, a round of all points apart: devices drift.
const ROUNDS: usize = 2;
/// Sequential reads: what the weight stream makes.
const SEQUENTIAL: (usize, usize) = (1 << 20, 16);
/// The point of the grid at which each core issues reads: block and depth.
const ISSUING: (usize, usize) = (4 << 10, 16);

/// Shares of the time, together 1: the rest is for what takes as long as it takes.
mod share {
    pub const WRITE: f64 = 0.12;
    pub const GRID: f64 = 0.55;
    pub const SEQUENTIAL: f64 = 0.05;
    pub const ISSUING: f64 = 0.08;
    pub const LANES: f64 = 0.1;
    pub const DRAM: f64 = 0.05;
}

/// What to measure, and for how long.
#[derive(Clone, Copy)]
pub struct ProbeOptions<'a> {
    /// Where the test file is made.
    pub folder: &'a Path,
    /// Its size; `None` chooses by the free space.
    pub size_bytes: Option<u64>,
    /// About how long it may take.
    pub seconds: f64,
    /// Is told what is being measured and how much of all is done, from 0 to 1.
    pub progress: &'a (dyn Fn(&str, f64) + Sync),
}

/// Measures everything.
///
/// # Errors
/// A sentence: no space for the test file, or a device that fails.
pub fn probe(options: &ProbeOptions<'_>) -> Result<ProfileFile> {
    let start = Instant::now();
    let size_bytes = file::choose_size(options.folder, options.size_bytes)?;
    let n_lanes = lanes::lane_count().min(LANES_MAX);
    let topology = Topology::read(Path::new("/sys/devices/system/cpu"), &allowed_cores());
    let cores = topology.choose(n_lanes);
    ensure!(
        !cores.is_empty(),
        "the system does not say which cores there are"
    );
    let (dram, lanes) = measure_lanes(options, &cores)?;
    let write = |done: f64| (options.progress)("writing a test file", 0.15 + 0.15 * done);
    // A size that was asked for is written in full, however long it takes.
    let seconds = match options.size_bytes {
        Some(_) => f64::INFINITY,
        None => share::WRITE * options.seconds,
    };
    let file = TestFile::write(options.folder, size_bytes, seconds, &write)?;
    let path = file.path();
    // The lane that owns the flash queue sits on the fastest core.
    let grid = || {
        pin_here(cores[0]);
        measure_flash(options, &path, file.size_bytes)
    };
    let (flash, io) = thread::scope(|scope| scope.spawn(grid).join())
        .map_err(|_| anyhow!("measuring the flash went wrong"))??;
    let issuing_cores = measure_issuing(options, &path, &topology, file.size_bytes)?;
    Ok(ProfileFile {
        version: PROFILE_VERSION,
        measured: Some(Measured {
            tool: concat!("tessera ", env!("CARGO_PKG_VERSION")).into(),
            io_path: io.io_path().into(),
            io: io.to_string(),
            kernels: Kernels::best().name.into(),
            folder: options.folder.display().to_string(),
            test_file_bytes: file.size_bytes,
            seconds: Number((start.elapsed().as_secs_f64() * 10.0).round() / 10.0),
            issuing_cores,
        }),
        flash,
        dram,
        lanes,
    })
}

/// Each core alone, then 1, 2, … of them reading memory together.
fn measure_lanes(
    options: &ProbeOptions<'_>,
    cores: &[u16],
) -> Result<(DramSection, Vec<LaneSection>)> {
    let (weights, count) = (Weights::new()?, cores.len() as f64);
    let mut lanes = Vec::new();
    for &core in cores {
        (options.progress)("measuring lanes", 0.1 * lanes.len() as f64 / count);
        let seconds = share::LANES * options.seconds / count;
        let speed = lanes::lane_speed(&weights, core, seconds)?;
        lanes.push(LaneSection {
            core: speed.core,
            multiply_adds_per_s: Number(speed.multiply_adds_per_s),
            rows_bytes_per_s: Number(speed.rows_bytes_per_s),
            attention_multiply_adds_per_s: Some(Number(speed.attention_multiply_adds_per_s)),
        });
    }
    let (mut bytes_per_s, mut join_ns) = (Vec::new(), Vec::new());
    for n_lanes in 1..=cores.len() {
        (options.progress)("measuring memory", 0.1 + 0.05 * n_lanes as f64 / count);
        let seconds = share::DRAM * options.seconds / count;
        let speed = lanes::dram_bytes_per_s(&weights, &cores[..n_lanes], seconds)?;
        bytes_per_s.push(Number(speed));
        join_ns.push(Number(lanes::join_ns(n_lanes)?));
    }
    Ok((
        DramSection {
            bytes_per_s,
            join_ns,
        },
        lanes,
    ))
}

/// All points of the grid, and sequential reads.
fn measure_flash(
    options: &ProbeOptions<'_>,
    path: &Path,
    size_bytes: u64,
) -> Result<(FlashSection, tessera_hal::linux::IoReport)> {
    let (block_max, depth_max) = (
        BLOCKS_BYTES[BLOCKS_BYTES.len() - 1],
        DEPTHS[DEPTHS.len() - 1],
    );
    let mut reader = Reader::open(path, block_max, depth_max)?;
    let mut ranges: Vec<u64> = RANGES_BYTES.to_vec();
    ranges.retain(|&range_bytes| range_bytes < size_bytes);
    ranges.push(size_bytes);
    let mut grid = vec![[[Sample::default(); DEPTHS.len()]; BLOCKS_BYTES.len()]; ranges.len()];
    let mut sequential = Sample::default();
    let points = (ROUNDS * ranges.len() * BLOCKS_BYTES.len() * DEPTHS.len()) as f64;
    let seconds = share::GRID * options.seconds / points;
    let mut done = 0.0;
    for _ in 0..ROUNDS {
        let load = Load {
            block_bytes: SEQUENTIAL.0,
            depth: SEQUENTIAL.1,
            range_bytes: size_bytes,
            sequential: true,
        };
        sequential.add(reader.run(load, share::SEQUENTIAL * options.seconds / ROUNDS as f64)?);
        for (&range_bytes, blocks) in ranges.iter().zip(&mut grid) {
            for (&block_bytes, depths) in BLOCKS_BYTES.iter().zip(blocks) {
                for (&depth, sample) in DEPTHS.iter().zip(depths) {
                    (options.progress)("measuring flash", 0.3 + 0.6 * done / points);
                    let load = Load {
                        block_bytes,
                        depth,
                        range_bytes,
                        sequential: false,
                    };
                    sample.add(reader.run(load, seconds)?);
                    done += 1.0;
                }
            }
        }
    }
    let range = |(&range_bytes, blocks): (&u64, &[[Sample; DEPTHS.len()]; BLOCKS_BYTES.len()])| {
        let speeds = |depths: &[Sample; DEPTHS.len()]| {
            depths
                .iter()
                .map(|sample| Number(sample.bytes_per_s()))
                .collect()
        };
        RangeSection {
            range_bytes: Number(range_bytes as f64),
            bytes_per_s: blocks.iter().map(speeds).collect(),
        }
    };
    // A read's CPU time hardly depends on the range; the depth should be that of a busy queue.
    let cpu_ns = |block: usize| {
        let mut sum = Sample::default();
        for blocks in &grid {
            blocks[block][DEPTHS.len() / 2..]
                .iter()
                .for_each(|&sample| sum.add(sample));
        }
        Number(sum.cpu_ns_per_read())
    };
    let section = FlashSection {
        sequential_bytes_per_s: Number(sequential.bytes_per_s()),
        blocks_bytes: BLOCKS_BYTES.map(|bytes| Number(bytes as f64)).to_vec(),
        depths: DEPTHS.map(|depth| Number(depth as f64)).to_vec(),
        cpu_ns_per_read: (0..BLOCKS_BYTES.len()).map(cpu_ns).collect(),
        ranges: ranges.iter().zip(&grid).map(range).collect(),
    };
    Ok((section, reader.io))
}

/// One point of the grid, issued by every core in turn.
fn measure_issuing(
    options: &ProbeOptions<'_>,
    path: &Path,
    topology: &Topology,
    size_bytes: u64,
) -> Result<Vec<IssuingCore>> {
    let (block_bytes, depth) = ISSUING;
    let mut list = Vec::new();
    for core in &topology.cores {
        let done = list.len() as f64 / topology.cores.len() as f64;
        (options.progress)("measuring issuing cores", 0.9 + 0.1 * done);
        let seconds = share::ISSUING * options.seconds / topology.cores.len() as f64;
        let measure = || -> Result<Sample> {
            pin_here(core.index);
            let load = Load {
                block_bytes,
                depth,
                range_bytes: size_bytes,
                sequential: false,
            };
            Reader::open(path, block_bytes, depth)?.run(load, seconds)
        };
        let sample = thread::scope(|scope| scope.spawn(measure).join())
            .map_err(|_| anyhow!("measuring core {} went wrong", core.index))??;
        list.push(IssuingCore {
            core: core.index,
            block_bytes: block_bytes as u64,
            depth: depth as u32,
            bytes_per_s: Number(sample.bytes_per_s()),
            cpu_ns_per_read: Number(sample.cpu_ns_per_read()),
        });
    }
    Ok(list)
}
