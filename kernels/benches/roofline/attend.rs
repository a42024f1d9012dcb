//! Attention.

use std::time::Instant;

use tessera_kernels::Kernels;
use tessera_kernels::attention::{Queries, SEGMENT, Segment, clear, scratch_len, state_len};
use tessera_kernels::kv::{KvRows, KvType};

use crate::RUN_SECONDS;
use crate::memory::{Memory, core_seconds};
use crate::roofs::Roofs;

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
