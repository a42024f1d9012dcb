//! What a run measured, as a table and as JSON with stable keys.

use serde::Serialize;
use tessera_hal::linux::peak_resident_bytes;
use tessera_runtime::stats::Stats;

use crate::engine::{EngineReport, LinuxSession};
use crate::options::share_of;

/// Times and counters of the tokens of one run.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Tokens and nanoseconds of each prefill.
    pub prefills: Vec<(usize, u64)>,
    /// Sequences that are decoded side by side; 0 counts as 1.
    pub batch: usize,
    /// Nanoseconds of each step: of each decoded token, or of one token of each sequence.
    pub token_ns: Vec<u64>,
    /// Share of the weights that missed, for each decoded token.
    pub miss_rates: Vec<f64>,
    /// Counters of all decoded tokens.
    pub decode: Stats,
}

impl Recorder {
    /// Makes room, so that recording allocates nothing.
    pub fn with_capacity(tokens: usize) -> Self {
        Recorder {
            token_ns: Vec::with_capacity(tokens),
            miss_rates: Vec::with_capacity(tokens),
            prefills: Vec::with_capacity(64),
            ..Recorder::default()
        }
    }

    /// One decoded token, or one of each sequence.
    pub fn token(&mut self, ns: u64, counted: Stats) {
        self.token_ns.push(ns);
        let used = counted.hit_bytes + counted.miss_bytes;
        self.miss_rates
            .push(counted.miss_bytes as f64 / used.max(1) as f64);
        let sum = &mut self.decode;
        sum.bytes_read += counted.bytes_read;
        sum.reads += counted.reads;
        sum.stall_ns += counted.stall_ns;
        sum.retries += counted.retries;
        sum.hit_bytes += counted.hit_bytes;
        sum.miss_bytes += counted.miss_bytes;
        sum.active_neurons += counted.active_neurons;
        sum.all_neurons += counted.all_neurons;
    }

    /// Everything that was measured. Values that were not measured are `None`.
    pub fn metrics(&self, session: &LinuxSession, report: &EngineReport) -> Metrics {
        let (steps, batch) = (self.token_ns.len(), self.batch.max(1));
        let tokens = steps * batch;
        let per_token = |value: u64| (tokens > 0).then(|| value as f64 / tokens as f64);
        let mut sorted = self.token_ns.clone();
        sorted.sort_unstable();
        let ms = |ns: u64| ns as f64 / 1e6;
        let decode_ns: u64 = self.token_ns.iter().sum();
        let prefill_ns: u64 = self.prefills.iter().map(|&(_, ns)| ns).sum();
        let prefill_tokens: usize = self.prefills.iter().map(|&(tokens, _)| tokens).sum();
        let used = self.decode.hit_bytes + self.decode.miss_bytes;
        let mut misses = self.miss_rates.clone();
        misses.sort_unstable_by(f64::total_cmp);
        Metrics {
            prefill_tokens_per_s: rate(prefill_tokens, prefill_ns),
            decode_tokens_per_s: rate(tokens, decode_ns),
            first_token_ms: self.prefills.first().map(|&(_, ns)| ms(ns)),
            token_ms_mean: (steps > 0).then(|| ms(decode_ns) / steps as f64),
            token_ms_p50: percentile(&sorted, 50).map(ms),
            token_ms_p90: percentile(&sorted, 90).map(ms),
            token_ms_p99: percentile(&sorted, 99).map(ms),
            bytes_read_per_token: per_token(self.decode.bytes_read),
            reads_per_token: per_token(self.decode.reads),
            hit_rate: (used > 0).then(|| self.decode.hit_bytes as f64 / used as f64),
            miss_rate_p99: percentile(&misses, 99),
            stall_ms_per_token: per_token(self.decode.stall_ns).map(|ns| ns / 1e6),
            active_share: (self.decode.all_neurons > 0)
                .then(|| self.decode.active_neurons as f64 / self.decode.all_neurons as f64),
            resident_bytes_peak: peak_resident_bytes(),
            budget_bytes: session.plan().budget.total_bytes().unwrap_or(0) as u64,
            io_path: report.io.io_path(),
            kernels: report.kernels,
            npu: None,
            lanes: session.plan().sizes.lanes,
            batch,
            mode: session.plan().mode.name(),
            absent_loss: session
                .plan()
                .sizes
                .sparse
                .map(|sparse| share_of(sparse.absent_loss_pml)),
            cold: report.cold.clone(),
            predicted_tokens_per_s: report.predicted_tokens_per_s,
            logits_digest: None,
        }
    }
}

fn rate(count: usize, ns: u64) -> Option<f64> {
    (count > 0 && ns > 0).then(|| count as f64 * 1e9 / ns as f64)
}

/// Nearest-rank percentile of sorted values.
fn percentile<T: Copy>(sorted: &[T], pct: usize) -> Option<T> {
    let rank = (sorted.len() * pct).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// The keys of `bench --json` and `run --stats`.
#[derive(Debug, Serialize)]
#[allow(missing_docs)]
pub struct Metrics {
    pub prefill_tokens_per_s: Option<f64>,
    pub decode_tokens_per_s: Option<f64>,
    pub first_token_ms: Option<f64>,
    pub token_ms_mean: Option<f64>,
    pub token_ms_p50: Option<f64>,
    pub token_ms_p90: Option<f64>,
    pub token_ms_p99: Option<f64>,
    pub bytes_read_per_token: Option<f64>,
    pub reads_per_token: Option<f64>,
    pub hit_rate: Option<f64>,
    pub miss_rate_p99: Option<f64>,
    pub stall_ms_per_token: Option<f64>,
    pub active_share: Option<f64>,
    pub resident_bytes_peak: Option<u64>,
    pub budget_bytes: u64,
    pub io_path: &'static str,
    pub kernels: &'static str,
    pub npu: Option<&'static str>,
    pub lanes: usize,
    pub batch: usize,
    pub mode: &'static str,
    pub absent_loss: Option<f64>,
    pub cold: Option<String>,
    pub predicted_tokens_per_s: f64,
    pub logits_digest: Option<String>,
}

impl Metrics {
    /// A short table for people.
    pub fn print(&self) {
        let number = |value: Option<f64>, digits: usize, unit: &str| match value {
            Some(value) => format!("{value:.digits$} {unit}"),
            None => "not measured".to_owned(),
        };
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
        let rows = [
            ("prefill", number(self.prefill_tokens_per_s, 1, "tokens/s")),
            ("first token after", number(self.first_token_ms, 1, "ms")),
            ("decode", number(self.decode_tokens_per_s, 2, "tokens/s")),
            (
                if self.batch > 1 {
                    "a step of the batch takes"
                } else {
                    "a token takes"
                },
                format!(
                    "{} (p50 {}, p99 {})",
                    number(self.token_ms_mean, 2, "ms"),
                    number(self.token_ms_p50, 2, "ms"),
                    number(self.token_ms_p99, 2, "ms")
                ),
            ),
            (
                "read per token",
                self.bytes_read_per_token
                    .map_or("not measured".into(), |b| mib(b as u64)),
            ),
            (
                "waited for flash",
                number(self.stall_ms_per_token, 2, "ms per token"),
            ),
            (
                "weights found in memory",
                number(self.hit_rate.map(|rate| rate * 100.0), 1, "%"),
            ),
            (
                "neurons computed",
                number(self.active_share.map(|share| share * 100.0), 1, "%"),
            ),
            (
                "resident set, peak",
                self.resident_bytes_peak.map_or("unknown".into(), mib),
            ),
            ("budget used", mib(self.budget_bytes)),
            ("i/o path", self.io_path.to_owned()),
            (
                "kernels, lanes",
                format!("{}, {}", self.kernels, self.lanes),
            ),
            (
                "planner expected",
                number(Some(self.predicted_tokens_per_s), 2, "tokens/s"),
            ),
            (
                "cold neurons",
                self.cold.clone().unwrap_or("no cold segment".into()),
            ),
        ];
        for (name, value) in rows {
            eprintln!("  {name:<24} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!(percentile(&values, 50), Some(50));
        assert_eq!(percentile(&values, 99), Some(99));
        assert_eq!(percentile(&[7u64], 99), Some(7));
        assert_eq!(percentile::<u64>(&[], 50), None);
    }
}
