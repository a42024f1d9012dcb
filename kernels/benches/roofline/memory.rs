//! Weights and inputs of the kernels, and how fast something goes over them.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use tessera_kernels::{Activations, FEW_TOKENS, TokenTiles};

use crate::{RUN_SECONDS, RUNS, TOKENS};

/// Numbers that begin with a cache line, as in a session's memory.
pub struct Aligned<T> {
    all: Vec<T>,
    first: usize,
}

impl<T: Copy + Default> Aligned<T> {
    fn new(numbers: impl ExactSizeIterator<Item = T>) -> Self {
        let pad = 64 / size_of::<T>();
        let mut all = Vec::<T>::with_capacity(numbers.len() + pad);
        let first = all.as_ptr().align_offset(64).min(pad);
        all.resize(first, T::default());
        all.extend(numbers);
        Aligned { all, first }
    }
}

impl<T> std::ops::Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all[self.first..]
    }
}

/// One thread's weights and inputs.
pub struct Memory {
    pub weights: Aligned<u8>,
    pub floats: Aligned<f32>,
    q: Aligned<i8>,
    sums: Aligned<i32>,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let len = 8960 * TOKENS;
        Memory {
            // Any two bytes are a small f16, so that any part may serve as scales.
            weights: Aligned::new((0..bytes).map(|_| (random() % 0x2c) as u8)),
            floats: Aligned::new((0..len).map(|_| random() as f32 / 1e7 - 0.8)),
            q: Aligned::new((0..len).map(|_| ((random() % 255) as i32 - 127) as i8)),
            sums: Aligned::new((0..len / 32).map(|_| 3)),
        }
    }

    /// Reads all weights once; returns bytes.
    pub fn read(&self) -> usize {
        read(&self.weights)
    }
}

/// Reads `bytes` in a plain loop; returns how many they are.
pub fn read(bytes: &[u8]) -> usize {
    let mut sums = [0u64; 16];
    for chunk in black_box(bytes).as_chunks::<128>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk.as_chunks().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    black_box(sums);
    bytes.len()
}

impl Memory {
    pub fn inputs(&self, tokens: usize, cols: usize) -> Activations<'_> {
        let len = tokens * cols;
        let (q, floats, sums) = (
            &self.q[..len],
            &self.floats[..len / 32],
            &self.sums[..len / 32],
        );
        let x = Activations::new(tokens, cols, &[], q, floats, sums);
        match tokens {
            // Any codes will do.
            0..=FEW_TOKENS => x.with_interleaved(q),
            _ => x.with_tiles(TokenTiles {
                q,
                scales: floats,
                sums,
            }),
        }
    }
}

/// What a run did.
#[derive(Clone, Copy, Default)]
pub struct Work {
    pub bytes: usize,
    /// Multiply-adds; operations on floats where these are counted.
    pub macs: usize,
}

/// GB/s and GMAC/s of all threads together: the median run.
pub fn rate<'m, F>(memory: &'m [Memory], make: impl Fn(&'m Memory) -> F + Sync) -> (f64, f64)
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
    rates.sort_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
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
pub fn core_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}
