//! The machine's own ceilings, measured in the same run.

use tessera_kernels::{Arithmetic, Kernels};

use crate::memory::{Memory, Work, rate, read};

/// Bytes that stay in the first cache.
const FIRST_CACHE_BYTES: usize = 16 << 10;

/// What the arithmetic of one table reaches in registers, and what one thread reads from its first
/// cache.
pub struct Roofs {
    /// G multiply-adds of bytes a second, by the number of threads less one.
    bytes: Vec<f64>,
    /// Those of floats, of one thread.
    pub floats: f64,
    /// GB/s of one thread.
    cached: f64,
}

impl Roofs {
    /// Measures on one thread and on all.
    pub fn measure(kernels: &Kernels, memory: &[Memory]) -> Self {
        let of = |arithmetic, threads: usize| {
            let run = |_| {
                let mut macs = 0;
                move || {
                    macs += (kernels.ceiling)(arithmetic, 10_000);
                    Work { bytes: 0, macs }
                }
            };
            rate(&memory[..threads], run).1
        };
        let (cached, _) = rate(&memory[..1], |memory| {
            let mut bytes = 0;
            move || {
                let weights = &memory.weights[..FIRST_CACHE_BYTES];
                bytes += (0..64).map(|_| read(weights)).sum::<usize>();
                Work { bytes, macs: 0 }
            }
        });
        let threads = 1..=memory.len();
        Roofs {
            bytes: threads.map(|count| of(Arithmetic::Bytes, count)).collect(),
            floats: of(Arithmetic::Floats, 1),
            cached,
        }
    }

    /// One line: what `make` reaches on these threads, beside what they read at that moment, and
    /// the share of the nearer roof.
    pub fn print<'m, F: FnMut() -> Work>(
        &self,
        label: &str,
        memory: &'m [Memory],
        make: impl Fn(&'m Memory) -> F + Sync,
    ) {
        let (read, _) = rate(memory, |memory| {
            let mut bytes = 0;
            move || {
                bytes += memory.read();
                Work { bytes, macs: 0 }
            }
        });
        let peak = self.bytes[memory.len() - 1];
        print_line(label, memory.len(), rate(memory, make), [read, peak]);
    }

    /// The same of one thread whose kernel works on floats in the first cache.
    pub fn print_small<'m, F: FnMut() -> Work>(
        &self,
        label: &str,
        memory: &'m Memory,
        make: impl Fn(&'m Memory) -> F + Sync,
    ) {
        let reached = rate(std::slice::from_ref(memory), make);
        // A multiply-add is two operations.
        print_line(label, 1, reached, [self.cached, 2.0 * self.floats]);
    }
}

fn print_line(label: &str, threads: usize, (bytes, macs): (f64, f64), [read, peak]: [f64; 2]) {
    let (of_read, of_peak) = (bytes / read, macs / peak);
    let roof = if of_read > of_peak { "read" } else { "peak" };
    println!(
        "{label:46} {threads:7} {bytes:6.1} {read:5.1} {macs:7.1} {peak:6.0} {:5.0}% of {roof}",
        100.0 * of_read.max(of_peak),
    );
}
