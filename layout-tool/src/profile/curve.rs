//! Misses of an LRU cache of every size, from one pass over the active neurons.
//!
//! Mattson's stack distances (1970): an access hits exactly the caches that hold more units than
//! were used since the last access to the same unit. They are counted with a Fenwick tree over the
//! times of last use (Bennett and Kruskal, 1975).

use tessera_runtime::format::{CACHES, PREFIXES};

use super::activity::Activity;

/// Sums over a prefix, and single changes, in logarithmic time.
struct Fenwick {
    sums: Vec<u32>,
}

impl Fenwick {
    fn new(len: usize) -> Self {
        Fenwick {
            sums: vec![0; len + 1],
        }
    }

    /// Adds `by` (which may be a wrapped negative number) at `index`.
    fn add(&mut self, index: usize, by: u32) {
        let mut at = index + 1;
        while at < self.sums.len() {
            self.sums[at] = self.sums[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    /// Sum of the elements below `end`.
    fn before(&self, end: usize) -> u32 {
        let (mut at, mut sum) = (end, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.sums[at]);
            at &= at - 1;
        }
        sum
    }
}

/// An unlimited LRU stack of units `0..units`.
struct Stack {
    tree: Fenwick,
    /// Time of last use; `None` for a unit that was never used.
    used: Vec<Option<usize>>,
    /// Unit used at each time, the last one to be so.
    times: Vec<usize>,
    len: u32,
}

impl Stack {
    fn new(units: usize) -> Self {
        Stack {
            tree: Fenwick::new(2 * units + 2),
            used: vec![None; units],
            times: Vec::new(),
            len: 0,
        }
    }

    /// Uses `unit`: how many others were used since its last use.
    fn access(&mut self, unit: usize) -> Option<usize> {
        if self.times.len() == self.tree.sums.len() - 1 {
            self.compact();
        }
        let now = self.times.len();
        self.times.push(unit);
        let before = self.used[unit].replace(now);
        self.tree.add(now, 1);
        let Some(before) = before else {
            self.len += 1;
            return None;
        };
        let distance = self.len - self.tree.before(before + 1);
        self.tree.add(before, 1u32.wrapping_neg());
        Some(distance as usize)
    }

    /// Numbers the times anew, without those at which a unit was used that was used later again.
    fn compact(&mut self) {
        let times = std::mem::take(&mut self.times);
        self.tree.sums.fill(0);
        for (time, unit) in times.into_iter().enumerate() {
            if self.used[unit] == Some(time) {
                let now = self.times.len();
                self.used[unit] = Some(now);
                self.tree.add(now, 1);
                self.times.push(unit);
            }
        }
    }
}

/// Misses (PREFIXES, CACHES) a token, in neurons, of an LRU cache of bundles of `k` neurons that
/// holds `c / 32` of the neurons, where the first `p / 8` of them stay in memory: whole bundles
/// only. A token uses each of its active bundles once, in order; a bundle's first use is a miss.
pub fn misses(activity: &Activity, k: usize) -> Vec<f32> {
    let (rows, neurons) = (activity.rows(), activity.neurons);
    let capacity = |cache: usize| neurons * cache / (CACHES - 1) / k;
    let mut curve = Vec::with_capacity(PREFIXES * CACHES);
    for prefix in 0..PREFIXES {
        let first = neurons * prefix / (PREFIXES - 1) / k;
        let mut stack = Stack::new(neurons.div_ceil(k));
        // Accesses that hit caches of that many bundles, but no smaller ones.
        let mut hits = vec![0u64; neurons.div_ceil(k) + 1];
        let mut accesses = 0u64;
        for row in 0..rows {
            let mut last = None;
            for neuron in activity.active(row) {
                let bundle = neuron / k;
                if bundle < first || last.replace(bundle) == Some(bundle) {
                    continue;
                }
                accesses += 1;
                if let Some(distance) = stack.access(bundle) {
                    hits[distance + 1] += 1;
                }
            }
        }
        curve.extend((0..CACHES).map(|cache| {
            let hits: u64 = hits[..=capacity(cache)].iter().sum();
            ((accesses - hits) * k as u64) as f32 / rows.max(1) as f32
        }));
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::super::testing::random_activity;
    use super::*;

    /// Misses of one cache, by keeping its contents in order of use.
    fn recount(activity: &Activity, k: usize, first: usize, capacity: usize) -> f32 {
        let (mut cache, mut misses): (Vec<usize>, usize) = (Vec::new(), 0);
        for row in 0..activity.rows() {
            let mut bundles: Vec<usize> = activity.active(row).map(|n| n / k).collect();
            bundles.dedup();
            for bundle in bundles.into_iter().filter(|&bundle| bundle >= first) {
                match cache.iter().position(|&held| held == bundle) {
                    Some(at) => drop(cache.remove(at)),
                    None => misses += 1,
                }
                cache.push(bundle);
                if cache.len() > capacity {
                    cache.remove(0);
                }
            }
        }
        (misses * k) as f32 / activity.rows().max(1) as f32
    }

    #[test]
    fn the_curve_equals_a_cache_of_each_size() {
        for (neurons, rows, k, seed) in [
            (64, 40, 1, 1),
            (96, 60, 4, 2),
            (64, 0, 1, 3),
            (32, 9, 32, 4),
        ] {
            let activity = random_activity(neurons, rows, seed);
            let have = misses(&activity, k);
            for prefix in 0..PREFIXES {
                for cache in 0..CACHES {
                    let first = neurons * prefix / 8 / k;
                    let want = recount(&activity, k, first, neurons * cache / 32 / k);
                    assert_eq!(
                        have[prefix * CACHES + cache],
                        want,
                        "{neurons} {prefix} {cache}"
                    );
                }
            }
        }
    }
}
