//! Belady's optimum: evict what is wanted again last (IBM Systems Journal 5, 1966).

use std::collections::BinaryHeap;

/// Never asked for again.
const NEVER: u32 = u32::MAX;

/// For each demand, the index of the next one of the same bundle.
#[derive(Debug)]
pub struct Future(Vec<u32>);

impl Future {
    /// Looks through `demands`, of bundles below `n_bundles`, from the end.
    pub fn new(demands: &[u32], n_bundles: usize) -> Self {
        assert!(demands.len() < NEVER as usize, "{} demands", demands.len());
        let mut next = vec![NEVER; demands.len()];
        let mut seen = vec![NEVER; n_bundles];
        for (at, &bundle) in demands.iter().enumerate().rev() {
            next[at] = std::mem::replace(&mut seen[bundle as usize], at as u32);
        }
        Future(next)
    }
}

/// A cache that knows the future.
#[derive(Debug)]
pub struct Belady<'a> {
    future: &'a Future,
    n_slots: usize,
    held: usize,
    /// Demand for which each bundle is kept, where it is kept.
    wanted: Vec<Option<u32>>,
    /// (Next demand, bundle) of all bundles held, and stale entries of earlier demands.
    heap: BinaryHeap<(u32, u32)>,
    at: usize,
}

impl<'a> Belady<'a> {
    /// An empty cache.
    pub fn new(future: &'a Future, n_bundles: usize, n_slots: usize) -> Self {
        assert!(n_slots > 0, "a cache of no slots");
        Belady {
            future,
            n_slots,
            held: 0,
            wanted: vec![None; n_bundles],
            heap: BinaryHeap::new(),
            at: 0,
        }
    }

    /// Takes the next demand, which is of `bundle`; true for a hit.
    pub fn demand(&mut self, bundle: u32) -> bool {
        let next = self.future.0[self.at];
        self.at += 1;
        let hit = self.wanted[bundle as usize].is_some();
        if !hit && self.held == self.n_slots {
            self.evict();
        }
        self.held += !hit as usize;
        self.wanted[bundle as usize] = Some(next);
        self.heap.push((next, bundle));
        hit
    }

    fn evict(&mut self) {
        while let Some((next, bundle)) = self.heap.pop() {
            if self.wanted[bundle as usize] == Some(next) {
                self.wanted[bundle as usize] = None;
                self.held -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewest misses over all ways to choose victims.
    fn fewest(demands: &[u32], held: &mut Vec<u32>, n_slots: usize) -> usize {
        let Some((&bundle, rest)) = demands.split_first() else {
            return 0;
        };
        if held.contains(&bundle) {
            return fewest(rest, held, n_slots);
        }
        if held.len() < n_slots {
            held.push(bundle);
            let misses = fewest(rest, held, n_slots);
            held.pop();
            return 1 + misses;
        }
        let best = (0..n_slots).map(|slot| {
            let victim = std::mem::replace(&mut held[slot], bundle);
            let misses = fewest(rest, held, n_slots);
            held[slot] = victim;
            misses
        });
        1 + best.min().unwrap()
    }

    #[test]
    fn no_choice_of_victims_does_better() {
        let mut state = 1u32;
        for _ in 0..300 {
            let demands: Vec<u32> = (0..14)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 17;
                    state ^= state << 5;
                    state % 5
                })
                .collect();
            for n_slots in 1..=4 {
                let future = Future::new(&demands, 5);
                let mut belady = Belady::new(&future, 5, n_slots);
                let misses = demands
                    .iter()
                    .filter(|&&bundle| !belady.demand(bundle))
                    .count();
                let want = fewest(&demands, &mut Vec::new(), n_slots);
                assert_eq!(misses, want, "{demands:?}, {n_slots} slots");
            }
        }
    }
}
