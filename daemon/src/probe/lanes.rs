//! Speed of the lanes and of the memory behind them, with the kernels that decoding uses.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use nix::sys::resource::UsageWho;
use tessera_hal::Cores;
use tessera_hal::linux::{LaneOptions, Lanes, Pin, Region, memory_limit_bytes, pin_here};
use tessera_kernels::attention::{self, Queries, SEGMENT, Segment, scratch_len, state_len};
use tessera_kernels::kv::KvRows;
use tessera_kernels::{
    Activations, GROUP, Kernels, NeuronRows, Rows, WeightType, interleave_activations,
};

use super::flash::cpu_seconds;

/// Columns of the rows that are computed, a usual width of a model.
const COLS: usize = 2048;
/// 4-bit rows, the usual weights.
const TYPE: WeightType = WeightType::Q4;
/// A piece of rows that stays in a core's own cache: the half of a small one.
const CACHED_BYTES: usize = 192 << 10;
/// Memory of all lanes, larger than the caches.
const MEMORY_BYTES: usize = 256 << 20;
/// Fork-joins whose median is taken.
const JOINS: usize = 2000;

/// Memory that holds rows of small weights, whatever part is looked at.
pub struct Weights(Region);

impl Weights {
    /// Takes the memory: as much as shows what is behind the caches, and less where a control group
    /// leaves little.
    pub fn new() -> Result<Self> {
        let limit = memory_limit_bytes().map_or(MEMORY_BYTES, |bytes| (bytes / 8) as usize);
        let bytes = MEMORY_BYTES.min(limit.max(4 * CACHED_BYTES));
        let mut region = Region::new(bytes).map_err(|error| anyhow!("{error}"))?;
        region.advise_huge_pages(); // As the engine's weights.
        let mut state = 1u32;
        // Any two bytes are a small f16, so that any part may serve as scales.
        let small = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) % 0x2c) as u8
        };
        let pattern: Vec<u8> = (0..1 << 20).map(small).collect();
        for piece in region.chunks_mut(pattern.len()) {
            piece.copy_from_slice(&pattern[..piece.len()]);
        }
        Ok(Weights(region))
    }

    /// The share of lane `lane` of `lanes`.
    fn share(&self, lane: usize, lanes: usize) -> &[u8] {
        let bytes = self.0.len() / lanes;
        &self.0[lane * bytes..][..bytes]
    }
}

/// What a core did: its pin, multiply-adds a second from its cache, bytes a second from memory,
/// attention.
#[derive(Debug, Clone, Copy)]
pub struct LaneSpeed {
    /// The core, if the lane sat on it.
    pub core: Option<u16>,
    /// Multiply-adds a second on rows in the cache.
    pub multiply_adds_per_s: f64,
    /// Bytes a second of rows from memory.
    pub rows_bytes_per_s: f64,
    /// Multiply-adds of attention a second, keys and values in the cache.
    pub attention_multiply_adds_per_s: f64,
}

/// Measures one core, alone.
pub fn lane_speed(weights: &Weights, core: u16, seconds: f64) -> Result<LaneSpeed> {
    let measure = || -> Result<LaneSpeed> {
        let pin = pin_here(core);
        let seconds = seconds / 3.0;
        let cached = rows_bytes_per_s(&weights.0[..CACHED_BYTES], seconds)?;
        let multiply_adds_a_byte = COLS as f64 / TYPE.row_bytes(COLS) as f64;
        Ok(LaneSpeed {
            core: (pin == Pin::Core(core)).then_some(core),
            multiply_adds_per_s: (cached * multiply_adds_a_byte).round(),
            rows_bytes_per_s: rows_bytes_per_s(&weights.0, seconds)?.round(),
            attention_multiply_adds_per_s: attention_multiply_adds_per_s(seconds)?.round(),
        })
    };
    thread::scope(|scope| scope.spawn(measure).join())
        .map_err(|_| anyhow!("measuring core {core} went wrong"))?
}

/// Bytes a second at which the decode kernels go through `weights`, as through the gate rows, up
/// rows and down columns of neurons.
fn rows_bytes_per_s(weights: &[u8], seconds: f64) -> Result<f64> {
    let kernels = Kernels::best();
    let (code_bytes, row_bytes) = (TYPE.code_bytes(COLS), TYPE.row_bytes(COLS));
    let x: Vec<f32> = (0..COLS).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    let (mut q, mut scales, mut sums) = (vec![0; COLS], vec![0.0; COLS / 32], vec![0; COLS / 32]);
    (kernels.quantize)(&x, &mut q, &mut scales, &mut sums);
    let mut interleaved = vec![0; COLS];
    interleave_activations(&q, &mut interleaved);
    let x = Activations::new(1, COLS, &x, &q, &scales, &sums).with_interleaved(&interleaved);
    let mut scratch = vec![0u8; Kernels::scratch_bytes(COLS)];
    let (mut out, mut sum) = ([0f32; GROUP], vec![0f32; COLS]);
    let group_bytes = GROUP * row_bytes;
    // As in the engine, each call asks memory for what the next one needs.
    let mut group = |index: usize, group: &[u8], next: &[u8]| {
        let (codes, scales) = group.split_at(GROUP * code_bytes);
        let rows = Rows::new(TYPE, GROUP, COLS, codes, scales);
        if index % 3 < 2 {
            return (kernels.matvec)(&rows.then(next), &x, &mut out);
        }
        let mut columns = NeuronRows::new(TYPE, COLS);
        columns.extend(&rows.in_order());
        columns.then(next);
        (kernels.down_group)(&columns, &[0.5; GROUP], &mut sum, &mut scratch);
    };
    let (mut done, start, core_start) = (0, Instant::now(), cpu_seconds(UsageWho::RUSAGE_THREAD)?);
    loop {
        for (index, bytes) in weights.chunks_exact(group_bytes).enumerate() {
            let next = &weights[(index + 1) * group_bytes..];
            group(done, bytes, &next[..next.len().min(group_bytes)]);
            done += 1;
            // A look at the clock costs more than nothing.
            if done % 64 == 0 && start.elapsed().as_secs_f64() > seconds {
                black_box((&out, &sum));
                // The time that the thread had its core: others may have wanted it too.
                let core_seconds = cpu_seconds(UsageWho::RUSAGE_THREAD)? - core_start;
                return Ok((done * group_bytes) as f64 / core_seconds.max(seconds / 100.0));
            }
        }
    }
}

/// Multiply-adds a second of one token's attention: the queries of a few heads and a segment of
/// keys and values in half floats.
fn attention_multiply_adds_per_s(seconds: f64) -> Result<f64> {
    const HEADS: usize = 3;
    const DIM: usize = 64;
    let kernels = Kernels::best();
    let halves: Vec<u16> = (0..SEGMENT * DIM).map(|i| (i % 0x3c00) as u16).collect();
    let rows = KvRows::F16(&halves);
    let segment = Segment {
        dim: DIM,
        start: 0,
        count: SEGMENT,
        keys: rows,
        values: rows,
    };
    let queries = Queries {
        q: &[0.5; HEADS * DIM],
        group: HEADS,
        pos: SEGMENT,
        window: 0,
        scale: 0.1,
    };
    let mut states = [0.0; HEADS * state_len(DIM)];
    let mut work = [0.0; scratch_len(DIM)];
    let (mut done, start, core_start) = (0, Instant::now(), cpu_seconds(UsageWho::RUSAGE_THREAD)?);
    while done % 64 > 0 || start.elapsed().as_secs_f64() < seconds {
        attention::clear(DIM, &mut states);
        (kernels.attend)(&segment, &queries, &mut states, &mut work);
        done += 1;
    }
    black_box(&states);
    let core_seconds = cpu_seconds(UsageWho::RUSAGE_THREAD)? - core_start;
    Ok((done * 2 * HEADS * SEGMENT * DIM) as f64 / core_seconds.max(seconds / 100.0))
}

/// Bytes a second that one lane on each of `cores` reads, all together, with the decode kernels:
/// what they do not reach is no use to a token.
pub fn dram_bytes_per_s(weights: &Weights, cores: &[u16], seconds: f64) -> Result<f64> {
    let barrier = Barrier::new(cores.len());
    let read = |lane: usize| {
        pin_here(cores[lane]);
        let share = weights.share(lane, cores.len());
        barrier.wait();
        rows_bytes_per_s(share, seconds)
    };
    let read = &read;
    let rates: Option<Result<Vec<f64>>> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..cores.len())
            .map(|lane| scope.spawn(move || read(lane)))
            .collect();
        lanes.into_iter().map(|lane| lane.join().ok()).collect()
    });
    let rates = rates.ok_or_else(|| anyhow!("measuring memory went wrong"))??;
    Ok(rates.iter().sum::<f64>().round())
}

/// What a fork-join over `lanes` lanes costs, in nanoseconds: the median of many, with a moment of
/// other work between two of them.
pub fn join_ns(lanes: usize) -> Result<f64> {
    let measure = || {
        let options = LaneOptions {
            lanes,
            pin: true,
            pin_caller: true,
            ..LaneOptions::default()
        };
        let (lanes, _) = Lanes::new(&options);
        let mut items = vec![0u64; 4 * lanes.lanes()];
        let mut times: Vec<u64> = Vec::with_capacity(JOINS);
        for _ in 0..JOINS {
            spin(Duration::from_micros(5));
            let start = Instant::now();
            lanes.for_each(&mut items, &|_, item| *item += 1);
            times.push(start.elapsed().as_nanos() as u64);
        }
        times.sort_unstable();
        times[JOINS / 2] as f64
    };
    thread::scope(|scope| scope.spawn(measure).join())
        .map_err(|_| anyhow!("measuring fork-joins went wrong"))
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The number of lanes that the product would start here.
pub fn lane_count() -> usize {
    let (lanes, _) = Lanes::new(&LaneOptions::default());
    lanes.lanes()
}
