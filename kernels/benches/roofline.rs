//! What each kernel of each table reaches, beside the machine's own read bandwidth.
//!
//! `cargo bench -p tessera-kernels --features std [-- WORD...]` prints the lines that contain all
//! words (of table, kernel, type, shape). Weights are larger than the caches, so that `matvec` and
//! `down_group` show memory (with the word `cached` they are small: arithmetic); `matmul` and
//! `down_group_many` take 128 tokens. Numbers are medians of five runs; the machine's bandwidth is
//! measured again with each line. Time is what a thread had of its core, where Linux tells.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use tessera_kernels::attention::{Queries, SEGMENT, Segment, clear, scratch_len, state_len};
use tessera_kernels::kv::{KvRows, KvType};
use tessera_kernels::{
    Activations, GROUP, Kernels, NeuronRows, QUANTIZE_SCRATCH_BYTES, Rows, WeightType,
};

const TYPES: [WeightType; 6] = [
    WeightType::Q4O,
    WeightType::Q4,
    WeightType::Q8,
    WeightType::Q6,
    WeightType::Q5,
    WeightType::Q4K,
];
/// (rows, cols)
const SHAPES: [(usize, usize); 4] = [(8960, 1536), (1536, 8960), (1536, 576), (576, 1536)];
const TOKENS: usize = 128;
/// Weights of one thread: four times a usual L3.
const WEIGHT_BYTES: usize = 128 << 20;
/// Those of `cached`: half of a usual L2.
const CACHED_BYTES: usize = 400 << 10;
const RUNS: usize = 5;
const RUN_SECONDS: f64 = 0.06;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with('-'))
        .collect();
    let (cached, words): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| word == "cached");
    let bytes = if cached.is_empty() {
        WEIGHT_BYTES
    } else {
        CACHED_BYTES
    };
    let memory: Vec<Memory> = (0..2).map(|_| Memory::new(bytes)).collect();
    println!(
        "table       kernel           type  rows x cols   threads   GB/s  read  %read  GMAC/s"
    );
    for kernels in Kernels::available().filter(|kernels| kernels.name != "scalar") {
        for kernel in ["matvec", "down_group", "matmul", "down_group_many"] {
            for ty in TYPES {
                for (rows, cols) in SHAPES {
                    let case = Case {
                        kernels,
                        kernel,
                        ty,
                        rows,
                        cols,
                    };
                    let label = case.label();
                    if words.iter().all(|word| label.contains(word.as_str())) {
                        case.print(&label, &memory[..1]);
                        case.print(&label, &memory);
                    }
                }
            }
        }
        print_small(&kernels, &words, &memory[0]);
        print_attend(&kernels, &words, &memory[0]);
        print_quantize(&kernels, &words, &memory[0]);
    }
}

/// One thread's weights and inputs.
struct Memory {
    weights: Vec<u8>,
    floats: Vec<f32>,
    q: Vec<i8>,
    sums: Vec<i32>,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let len = 8960 * TOKENS;
        Memory {
            // Any two bytes are a small f16, so that any part may serve as scales.
            weights: (0..bytes).map(|_| (random() % 0x2c) as u8).collect(),
            floats: (0..len).map(|_| random() as f32 / 1e7 - 0.8).collect(),
            q: (0..len).map(|_| (random() % 255) as i8).collect(),
            sums: vec![3; len / 32],
        }
    }

    /// Reads all weights once; returns bytes.
    fn read(&self) -> usize {
        let mut sums = [0u64; 16];
        for chunk in self.weights.as_chunks::<128>().0 {
            for (sum, word) in sums.iter_mut().zip(chunk.as_chunks().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
        black_box(sums);
        self.weights.len()
    }
}

/// What a run did.
#[derive(Clone, Copy, Default)]
struct Work {
    bytes: usize,
    macs: usize,
}

struct Case {
    kernels: Kernels,
    kernel: &'static str,
    ty: WeightType,
    rows: usize,
    cols: usize,
}

impl Case {
    fn label(&self) -> String {
        let (name, kernel, ty) = (self.kernels.name, self.kernel, self.ty.name());
        format!(
            "{name:11} {kernel:16} {ty:5} {:4} x {:4}",
            self.rows, self.cols
        )
    }

    fn print(&self, label: &str, memory: &[Memory]) {
        let read = rate(memory, |memory| {
            let mut bytes = 0;
            move || {
                bytes += memory.read();
                Work { bytes, macs: 0 }
            }
        });
        let rate = rate(memory, |memory| self.runner(memory));
        println!(
            "{label}  {:7} {:6.1} {:5.1} {:5.0}% {:7.1}",
            memory.len(),
            rate.0,
            read.0,
            100.0 * rate.0 / read.0,
            rate.1
        );
    }

    /// A closure that does some more work and returns all work so far.
    fn runner<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() -> Work + 'm> {
        let &Case {
            kernels,
            kernel,
            ty,
            rows,
            cols,
        } = self;
        // As many rows as there are, if a matrix does not fit.
        let rows = rows.min(memory.weights.len() / ty.row_bytes(cols) / GROUP * GROUP);
        let matrix_bytes = rows * ty.row_bytes(cols);
        let matrices = memory.weights.len() / matrix_bytes;
        let code_bytes = rows * ty.code_bytes(cols);
        let many = matches!(kernel, "matmul" | "down_group_many");
        let tokens = if many { TOKENS } else { 1 };
        let mut scratch = vec![0u8; Kernels::scratch_bytes(cols, tokens)];
        let mut out = vec![0f32; rows.max(cols) * tokens];
        let mut done = 0;
        Box::new(move || {
            let bytes = &memory.weights[done % matrices * matrix_bytes..][..matrix_bytes];
            let (codes, scales) = bytes.split_at(code_bytes);
            let w = Rows::new(ty, rows, cols, codes, scales);
            done += 1;
            match kernel {
                "matvec" => (kernels.matvec)(&w, &memory.inputs(1, cols), &mut out[..rows]),
                "matmul" => {
                    let x = memory.inputs(TOKENS, cols);
                    (kernels.matmul)(&w, &x, &mut out[..rows * TOKENS], &mut scratch);
                }
                _ => {
                    for first in (0..rows).step_by(GROUP) {
                        let mut group = NeuronRows::new(ty, cols);
                        group.extend(&w.slice(first, GROUP));
                        // As the engine does: the next group's codes are asked for meanwhile.
                        let next = codes.get((first + GROUP) * ty.code_bytes(cols)..);
                        let next = next.unwrap_or(&[]);
                        group.then(&next[..next.len().min(codes.len() / rows * GROUP)]);
                        let h = &memory.floats[first * tokens..][..GROUP * tokens];
                        let acc = &mut out[..cols * tokens];
                        if many {
                            let all = 0..cols;
                            (kernels.down_group_many)(&group, all, tokens, h, acc, &mut scratch);
                        } else {
                            (kernels.down_group)(&group, h, acc, &mut scratch);
                        }
                    }
                }
            }
            Work {
                bytes: done * matrix_bytes,
                macs: done * rows * cols * tokens,
            }
        })
    }
}

impl Memory {
    fn inputs(&self, tokens: usize, cols: usize) -> Activations<'_> {
        let len = tokens * cols;
        let (q, floats, sums) = (
            &self.q[..len],
            &self.floats[..len / 32],
            &self.sums[..len / 32],
        );
        Activations::new(tokens, cols, &[], q, floats, sums)
    }
}

/// GB/s and GMAC/s of all threads together: the median run.
fn rate<'m, F>(memory: &'m [Memory], make: impl Fn(&'m Memory) -> F + Sync) -> (f64, f64)
where
    F: FnMut() -> Work,
{
    let mut rates: Vec<(f64, f64)> = (0..RUNS)
        .map(|_| {
            let barrier = Barrier::new(memory.len());
            let all = std::thread::scope(|scope| {
                let threads: Vec<_> = memory
                    .iter()
                    .map(|memory| scope.spawn(|| one_thread(&barrier, make(memory))))
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect::<Vec<_>>()
            });
            (
                all.iter().map(|rate| rate.0).sum(),
                all.iter().map(|rate| rate.1).sum(),
            )
        })
        .collect();
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    rates[RUNS / 2]
}

fn one_thread(barrier: &Barrier, mut run: impl FnMut() -> Work) -> (f64, f64) {
    let before = run();
    barrier.wait();
    let start = Instant::now();
    let core_start = core_seconds();
    loop {
        let work = run();
        let seconds = start.elapsed().as_secs_f64();
        if seconds > RUN_SECONDS {
            let seconds = core_start.map_or(seconds, |start| core_seconds().unwrap() - start);
            let (bytes, macs) = (work.bytes - before.bytes, work.macs - before.macs);
            return (bytes as f64 / seconds / 1e9, macs as f64 / seconds / 1e9);
        }
    }
}

/// Seconds that this thread had a core.
fn core_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}

/// One call of a kernel.
type Run<'a> = Box<dyn FnMut() + 'a>;

/// The kernels on floats, from the first cache.
fn print_small(kernels: &Kernels, words: &[String], memory: &Memory) {
    const LEN: usize = 1536;
    let mut y = memory.floats[..LEN].to_vec();
    let mut q = vec![0i8; LEN];
    let (mut scales, mut sums) = (vec![0f32; LEN / 32], vec![0i32; LEN / 32]);
    let x = &memory.floats[LEN..2 * LEN];
    let mut codes = vec![0i8; 256];
    let silu = tessera_kernels::Activation::Silu;
    let mut cases: [(&str, Run<'_>); 5] = [
        ("dot", Box::new(|| _ = black_box((kernels.dot)(x, x)))),
        (
            "to_q8",
            Box::new(|| {
                for x in x.chunks_exact(256) {
                    black_box((kernels.to_q8)(x, &mut codes));
                }
            }),
        ),
        (
            "crc32c",
            Box::new(|| _ = black_box((kernels.crc32c)(0, &memory.weights[..4 * LEN]))),
        ),
        (
            "quantize",
            Box::new(|| (kernels.quantize)(x, &mut q, &mut scales, &mut sums)),
        ),
        ("gated", Box::new(|| (kernels.gated)(silu, &mut y, x))),
    ];
    for (name, run) in &mut cases {
        let label = format!("{:11} {name:16}", kernels.name);
        if words.iter().all(|word| label.contains(word.as_str())) {
            let (mut count, start) = (0, Instant::now());
            while start.elapsed().as_secs_f64() < RUN_SECONDS {
                run();
                count += 1;
            }
            let elements = (count * LEN) as f64;
            println!(
                "{label} {:6.2} elements/ns",
                elements / start.elapsed().as_secs_f64() / 1e9
            );
        }
    }
}

/// Attention over a cache of 4,096 positions; GB/s are those of keys and values.
fn print_attend(kernels: &Kernels, words: &[String], memory: &Memory) {
    const POSITIONS: usize = 4096;
    let halves = memory.weights.len() / 2;
    let halves: &[u16] = &bytemuck::cast_slice(&memory.weights[..halves / 2 * 4])[..halves];
    for ty in [KvType::F32, KvType::F16, KvType::Q8] {
        for (dim, group, tokens) in [(64, 3, 1), (128, 6, 1), (64, 3, 16), (128, 6, 16)] {
            let (name, rows) = (kernels.name, group * tokens);
            let label = format!("{name:11} attend           {ty:?} {dim} x {group} x {tokens}");
            let len = POSITIONS * dim;
            if !words.iter().all(|word| label.contains(word.as_str())) || halves.len() < len {
                continue;
            }
            let all = match ty {
                KvType::F32 => KvRows::F32(&memory.floats[..len]),
                KvType::F16 => KvRows::F16(&halves[..len]),
                KvType::Q8 => KvRows::Q8(
                    bytemuck::cast_slice(&memory.weights[..len]),
                    &memory.floats[..POSITIONS],
                ),
            };
            let queries = Queries {
                q: &memory.floats[..rows * dim],
                group,
                pos: POSITIONS,
                window: 0,
                scale: 0.1,
            };
            let mut states = vec![0.0; rows * state_len(dim)];
            let mut work = vec![0.0; scratch_len(dim)];
            let (mut count, start, core_start) = (0, Instant::now(), core_seconds());
            while start.elapsed().as_secs_f64() < RUN_SECONDS {
                clear(dim, &mut states);
                for start in (0..POSITIONS).step_by(SEGMENT) {
                    let rows = all.slice(dim, start, SEGMENT);
                    let segment = Segment {
                        dim,
                        start,
                        count: SEGMENT,
                        keys: rows,
                        values: rows,
                    };
                    (kernels.attend)(&segment, &queries, &mut states, &mut work);
                }
                count += 1;
            }
            let seconds = start.elapsed().as_secs_f64();
            let seconds = core_start.map_or(seconds, |start| core_seconds().unwrap() - start);
            let ns = seconds * 1e9 / f64::from(count);
            // Keys and values are the same memory.
            let bytes = POSITIONS * (dim * ty.element_bytes() + ty.scale_bytes());
            println!(
                "{label:44} {:6.1} GB/s {:6.1} GMAC/s",
                bytes as f64 / ns,
                (2 * len * rows) as f64 / ns
            );
        }
    }
}

/// Rounding weights to each type, as packing does; GB/s of f32.
fn print_quantize(kernels: &Kernels, words: &[String], memory: &Memory) {
    const COLS: usize = 1536;
    let x = &memory.floats[..256 * COLS];
    for ty in TYPES {
        let label = format!("{:11} quantize_rows    {:5}", kernels.name, ty.name());
        if !words.iter().all(|word| label.contains(word.as_str())) {
            continue;
        }
        let (mut codes, mut scales) = (
            vec![0; 256 * ty.code_bytes(COLS)],
            vec![0; 256 * ty.scale_bytes(COLS)],
        );
        let mut scratch = vec![0; QUANTIZE_SCRATCH_BYTES];
        let (mut count, start, core_start) = (0, Instant::now(), core_seconds());
        while start.elapsed().as_secs_f64() < RUN_SECONDS {
            (kernels.quantize_rows)(ty, COLS, x, &mut codes, &mut scales, &mut scratch);
            count += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let seconds = core_start.map_or(seconds, |start| core_seconds().unwrap() - start);
        let bytes = (4 * x.len()) as f64 * f64::from(count);
        println!("{label:44} {:6.1} GB/s", bytes / seconds / 1e9);
    }
}
