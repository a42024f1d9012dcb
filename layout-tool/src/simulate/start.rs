//! Misses of the first tokens after the start, by what the cache begins with.

use std::fmt;

use tessera_runtime::arena::Arena;
use tessera_runtime::cache::{BundleIndex, Cache, PolicyKind};

use super::trace::Trace;
use super::{SHARES_PCT, pass, seeds};

/// What a cache begins with, and how that is called.
const STARTS: [(PolicyKind, bool, bool, &str); 5] = [
    (PolicyKind::Lru, false, false, "lru"),
    (PolicyKind::Lru, true, true, "lru, filled"),
    (PolicyKind::Frequency, false, false, "frequency"),
    (PolicyKind::Frequency, true, false, "seeded"),
    (PolicyKind::Frequency, true, true, "seeded, filled"),
];

/// Misses after one kind of start in a cache of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Slots in percent of the cold bundles.
    pub share_pct: u32,
    /// What the cache begins with.
    pub name: &'static str,
    /// Misses of a token, on average.
    pub misses_mean: f64,
}

/// Scores of all kinds of start in caches of all sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Starts {
    /// Passes that are scored.
    pub passes: usize,
    /// By size, then by kind.
    pub scores: Vec<Start>,
}

impl Starts {
    /// Scores the first `passes` tokens after the first half of `trace`, which is learned from.
    pub fn of(trace: &Trace, passes: usize) -> Self {
        let first = trace.tokens() / 2;
        let passes = passes.clamp(1, trace.tokens() - first);
        Starts {
            passes,
            scores: starts(trace, &seeds(trace, first), passes),
        }
    }
}

impl fmt::Display for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "misses of each of the first {} passes\n      ",
            self.passes
        )?;
        for (.., name) in STARTS {
            write!(f, "  {name:>14}")?;
        }
        for row in self.scores.chunks(STARTS.len()) {
            write!(f, "\n{:>4} %", row[0].share_pct)?;
            for start in row {
                write!(f, "  {:>14.1}", start.misses_mean)?;
            }
        }
        Ok(())
    }
}

/// Runs the first `tokens` tokens after half of the trace through caches that have seen nothing of
/// it but the frequencies `seeds` of the first half, in units of 1 / 255.
fn starts(trace: &Trace, seeds: &[u8], tokens: usize) -> Vec<Start> {
    let first = trace.tokens() / 2;
    let last = (first + tokens).min(trace.tokens());
    let mut hottest: Vec<u32> = (0..trace.bundles() as u32).collect();
    // The front of each section, as the runtime fills its cache.
    hottest.sort_by_key(|bundle| bundle % trace.section_bundles);
    let mut all = Vec::new();
    for share_pct in SHARES_PCT {
        let slots = (trace.bundles() as u64 * u64::from(share_pct) / 100).max(1) as usize;
        for (kind, seeded, filled, name) in STARTS {
            let mut region = vec![0; Cache::bytes(trace.bundles(), slots, kind) + 4096];
            let cache = Cache::new(&mut Arena::new(&mut region), trace.bundles(), slots, kind);
            let mut cache = cache.expect("the region has the bytes that the cache asks for");
            for (bundle, &share) in seeds.iter().enumerate().filter(|_| seeded) {
                cache.seed(BundleIndex(bundle as u32), share);
            }
            // The hottest comes last, for the policy that takes that for recent.
            for &bundle in hottest[..slots].iter().rev().filter(|_| filled) {
                if let Some(slot) = cache.fill(BundleIndex(bundle)) {
                    cache.arrived(slot);
                }
            }
            let mut misses = 0;
            for token in first..last {
                misses += pass(&mut cache, &trace.demands[trace.token(token)]);
            }
            all.push(Start {
                share_pct,
                name,
                misses_mean: misses as f64 / (last - first) as f64,
            });
        }
    }
    all
}
