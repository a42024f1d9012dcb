//! Scores the policies of the cold cache on a trace, beside Belady's optimum.
//!
//! The first half of the tokens stands for the calibration: its activation frequencies seed the
//! policy that wants them, and it fills the caches. The second half is scored. A bundle is let go
//! as soon as it was used, so what many lanes hold at once is not modelled, nor are guesses.

pub mod belady;
pub mod start;
pub mod trace;

use std::fmt;
use std::path::Path;

use serde_json::{Value, json};
use tessera_runtime::arena::Arena;
use tessera_runtime::cache::{Acquired, BundleIndex, Cache, PolicyKind};

use belady::{Belady, Future};
use trace::{Trace, TraceError};

/// Slots in percent of the cold bundles.
const SHARES_PCT: [u32; 12] = [2, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90];
/// The policies, and how they are called.
pub const POLICIES: [(PolicyKind, &str); 2] = [
    (PolicyKind::Lru, "lru"),
    (PolicyKind::Frequency, "frequency"),
];
const OPTIMUM: &str = "belady";

/// Misses of one policy in a cache of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Name of the policy.
    pub policy: &'static str,
    /// Misses of a token, on average.
    pub misses_mean: f64,
    /// At most so many misses have 99 of 100 tokens.
    pub misses_p99: usize,
    /// Share of the demands that found their bundle.
    pub hit_rate: f64,
}

/// A size of the cache, and what each policy makes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Slots in percent of the cold bundles.
    pub share_pct: u32,
    /// Slots.
    pub slots: usize,
    /// In the order of [`POLICIES`], then the optimum.
    pub scores: Vec<Score>,
}

/// Scores of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Cold bundles.
    pub bundles: usize,
    /// Tokens of the trace.
    pub tokens: usize,
    /// Tokens that are scored.
    pub scored: usize,
    /// Demands of a scored token, on average.
    pub demands_mean: f64,
    /// One for each size.
    pub rows: Vec<Row>,
}

/// Scores `policies` on the trace at `path`, of which the share `prefix` of neurons is resident.
///
/// # Errors
/// [`TraceError`]
pub fn simulate(
    path: &Path,
    policies: &[PolicyKind],
    prefix: f64,
) -> Result<Simulation, TraceError> {
    Ok(score(&Trace::open(path, prefix)?, policies))
}

/// Scores `policies` on `trace`.
pub fn score(trace: &Trace, policies: &[PolicyKind]) -> Simulation {
    let first = trace.tokens() / 2;
    let scored = trace.tokens() - first;
    let future = Future::new(&trace.demands, trace.bundles());
    let seeds = seeds(trace, first);
    let mut rows: Vec<Row> = Vec::new();
    for share_pct in SHARES_PCT {
        let slots = (trace.bundles() as u64 * share_pct as u64 / 100).max(1) as usize;
        if rows.last().is_some_and(|row| row.slots == slots) {
            continue; // The model is too small for this size to be another one.
        }
        let mut scores = Vec::new();
        for (kind, name) in POLICIES.iter().filter(|(kind, _)| policies.contains(kind)) {
            scores.push(Score::new(
                name,
                trace,
                first,
                &misses(trace, *kind, &seeds, slots),
            ));
        }
        let mut belady = Belady::new(&future, trace.bundles(), slots);
        let misses = per_token(trace, |bundle| belady.demand(bundle));
        scores.push(Score::new(OPTIMUM, trace, first, &misses));
        rows.push(Row {
            share_pct,
            slots,
            scores,
        });
    }
    Simulation {
        bundles: trace.bundles(),
        tokens: trace.tokens(),
        scored,
        demands_mean: (trace.demands.len() - trace.token(first).start) as f64 / scored as f64,
        rows,
    }
}

/// Activation frequency of each bundle in the first `tokens` tokens, in units of 1 / 255.
fn seeds(trace: &Trace, tokens: usize) -> Vec<u8> {
    let mut counts = vec![0u64; trace.bundles()];
    for &bundle in &trace.demands[..trace.token(tokens).start] {
        counts[bundle as usize] += 1;
    }
    let share = |count| (255 * count + tokens as u64 / 2) / tokens as u64;
    counts
        .into_iter()
        .map(|count| share(count).min(255) as u8)
        .collect()
}

/// Misses of each token in the cache of the runtime.
fn misses(trace: &Trace, kind: PolicyKind, seeds: &[u8], slots: usize) -> Vec<usize> {
    let bundles = trace.bundles();
    // The arena begins at the first multiple of 4096 bytes.
    let mut region = vec![0; Cache::bytes(bundles, slots, kind) + 4096];
    let mut cache = Cache::new(&mut Arena::new(&mut region), bundles, slots, kind)
        .expect("the region has the bytes that the cache asks for");
    for (bundle, &share) in seeds.iter().enumerate() {
        cache.seed(BundleIndex(bundle as u32), share);
    }
    (0..trace.tokens())
        .map(|token| pass(&mut cache, &trace.demands[trace.token(token)]))
        .collect()
}

/// Misses of one pass.
fn pass(cache: &mut Cache<'_>, demands: &[u32]) -> usize {
    cache.next_pass();
    let missed = |&&bundle: &&u32| !demand(cache, bundle);
    demands.iter().filter(missed).count()
}

/// Asks for `bundle`, and lets it go at once; true for a hit.
fn demand(cache: &mut Cache<'_>, bundle: u32) -> bool {
    let found = cache.acquire(BundleIndex(bundle));
    match found.expect("every slot was released") {
        Acquired::Present(slot) => {
            cache.release(slot);
            true
        }
        Acquired::Reserved(slot) | Acquired::Loading(slot) => {
            cache.arrived(slot);
            cache.release(slot);
            false
        }
    }
}

/// Misses of each token, where `demand(bundle)` is true for a hit.
fn per_token(trace: &Trace, mut demand: impl FnMut(u32) -> bool) -> Vec<usize> {
    let misses = |token| {
        let demands = &trace.demands[trace.token(token)];
        demands.iter().filter(|&&bundle| !demand(bundle)).count()
    };
    (0..trace.tokens()).map(misses).collect()
}

impl Score {
    /// Of the tokens from `first` on.
    fn new(policy: &'static str, trace: &Trace, first: usize, misses: &[usize]) -> Self {
        let mut sorted = misses[first..].to_vec();
        sorted.sort_unstable();
        let total: usize = sorted.iter().sum();
        let demands = trace.demands.len() - trace.token(first).start;
        Score {
            policy,
            misses_mean: total as f64 / sorted.len() as f64,
            misses_p99: sorted[(sorted.len() * 99).div_ceil(100) - 1],
            hit_rate: 1.0 - total as f64 / demands.max(1) as f64,
        }
    }
}

impl Simulation {
    /// All of it, under stable keys.
    pub fn json(&self) -> Value {
        let score = |score: &Score| {
            json!({
                "policy": score.policy,
                "misses_mean": score.misses_mean,
                "misses_p99": score.misses_p99,
                "hit_rate": score.hit_rate,
            })
        };
        let row = |row: &Row| {
            json!({
                "share_pct": row.share_pct,
                "slots": row.slots,
                "scores": row.scores.iter().map(score).collect::<Vec<_>>(),
            })
        };
        json!({
            "bundles": self.bundles,
            "tokens": self.tokens,
            "scored_tokens": self.scored,
            "demands_mean": self.demands_mean,
            "sizes": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cold bundles, {:.1} demands a token; the last {} of {} tokens are scored",
            self.bundles, self.demands_mean, self.scored, self.tokens
        )?;
        write!(
            f,
            "cache       slots  policy     misses a token       P99  hit rate"
        )?;
        for row in &self.rows {
            for score in &row.scores {
                write!(
                    f,
                    "\n{:>3} % {:>11}  {:<10} {:>14.1} {:>9}  {:>6.2} %",
                    row.share_pct,
                    row.slots,
                    score.policy,
                    score.misses_mean,
                    score.misses_p99,
                    100.0 * score.hit_rate
                )?;
            }
        }
        Ok(())
    }
}
