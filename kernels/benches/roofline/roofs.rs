//! The machine's own ceilings, measured in the same run.

use tessera_kernels::{Arithmetic, Kernels};

use crate::memory::{Memory, Work, rate};

/// What the arithmetic of one table reaches in registers.
pub struct Roofs {
    /// G multiply-adds of bytes a second, by the number of threads less one.
    bytes: Vec<f64>,
    /// Those of floats, of one thread.
    pub floats: f64,
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
        let threads = 1..=memory.len();
        Roofs {
            bytes: threads.map(|count| of(Arithmetic::Bytes, count)).collect(),
            floats: of(Arithmetic::Floats, 1),
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
        let (bytes, macs) = rate(memory, make);
        let peak = self.bytes[memory.len() - 1];
        let (of_read, of_peak) = (bytes / read, macs / peak);
        let roof = if of_read > of_peak { "read" } else { "peak" };
        println!(
            "{label:46} {:7} {bytes:6.1} {read:5.1} {macs:7.1} {peak:6.0} {:5.0}% of {roof}",
            memory.len(),
            100.0 * of_read.max(of_peak),
        );
    }
}
