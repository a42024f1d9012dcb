//! Kernels on floats, attention, and rounding of weights.

use std::hint::black_box;
use std::time::Instant;

use tessera_kernels::attention::{Queries, SEGMENT, Segment, clear, scratch_len, state_len};
use tessera_kernels::kv::{KvRows, KvType};
use tessera_kernels::{Kernels, QUANTIZE_SCRATCH_BYTES};

use crate::memory::{Memory, core_seconds};
use crate::roofs::Roofs;
use crate::{RUN_SECONDS, TYPES};

/// One call of a kernel.
type Run<'a> = Box<dyn FnMut() + 'a>;

/// The kernels on floats, from the first cache.
pub fn print_small(kernels: &Kernels, roofs: &Roofs, words: &[String], memory: &Memory) {
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
            let rate = elements / start.elapsed().as_secs_f64() / 1e9;
            let of_peak = match *name {
                "dot" => format!(", {:.0}% of peak", 100.0 * rate / roofs.floats),
                _ => String::new(),
            };
            println!("{label} {rate:6.2} elements/ns{of_peak}");
        }
    }
}

/// Attention over a cache of 4,096 positions; GB/s are those of keys and values.
pub fn print_attend(kernels: &Kernels, roofs: &Roofs, words: &[String], memory: &Memory) {
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
            let macs = (2 * len * rows) as f64 / ns;
            println!(
                "{label:44} {:6.1} GB/s {macs:6.1} GMAC/s, {:3.0}% of peak ({:.0})",
                bytes as f64 / ns,
                100.0 * macs / roofs.floats,
                roofs.floats
            );
        }
    }
}

/// Rounding weights to each type, as packing does; GB/s of f32.
pub fn print_quantize(kernels: &Kernels, words: &[String], memory: &Memory) {
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
