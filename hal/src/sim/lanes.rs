//! Lanes that are one thread, in a shuffled order.

use core::cell::Cell;

use super::random::Random;
use crate::cores::Cores;

/// Visits items one after the other, in an order and on lanes that vary by seed and from call to
/// call: what depends on either is a mistake that it shows.
#[derive(Debug)]
pub struct ShuffledLanes {
    lanes: usize,
    random: Cell<Random>,
    busy: Cell<bool>,
}

impl ShuffledLanes {
    /// Claims to be `lanes` lanes.
    ///
    /// # Panics
    /// When `lanes` is 0.
    pub fn new(lanes: usize, seed: u64) -> Self {
        assert!(lanes > 0, "there is at least the caller's lane");
        ShuffledLanes {
            lanes,
            random: Cell::new(Random::new(seed)),
            busy: Cell::new(false),
        }
    }
}

/// A permutation of `0..count`, computed index by index: invertible steps on a power of two, and
/// whatever falls outside is sent through again.
struct Permutation {
    count: u64,
    mask: u64,
    shift: u32,
    factor: u64,
    offset: u64,
}

impl Permutation {
    fn new(count: usize, random: &mut Random) -> Self {
        let count = count as u64;
        let mask = count.next_power_of_two() - 1;
        let shift = mask.count_ones().div_ceil(2).max(1);
        Permutation {
            count,
            mask,
            shift,
            factor: random.next_u64() | 1,
            offset: random.next_u64(),
        }
    }

    fn place(&self, index: u64) -> usize {
        let mut place = index;
        loop {
            for _round in 0..3 {
                place = place.wrapping_mul(self.factor).wrapping_add(self.offset) & self.mask;
                place ^= place >> self.shift;
            }
            if place < self.count {
                return place as usize;
            }
        }
    }
}

impl Cores for ShuffledLanes {
    fn lanes(&self) -> usize {
        self.lanes
    }

    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync)) {
        assert!(
            !self.busy.replace(true),
            "for_each inside a visit of the same lanes"
        );
        let mut random = self.random.get();
        let permutation = Permutation::new(items.len(), &mut random);
        for index in 0..items.len() as u64 {
            let lane = random.below(self.lanes as u64) as usize;
            visit(lane, &mut items[permutation.place(index)]);
        }
        self.random.set(random);
        self.busy.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_item_once_for_every_count() {
        for count in 0..70 {
            let lanes = ShuffledLanes::new(3, count as u64);
            let mut items = vec![0; count];
            for round in 1..4 {
                lanes.for_each(&mut items, &|lane, item| {
                    assert!(lane < 3);
                    *item += 1;
                });
                assert!(
                    items.iter().all(|&item| item == round),
                    "{count}: {items:?}"
                );
            }
        }
    }

    fn order(seed: u64) -> Vec<(usize, usize)> {
        let lanes = ShuffledLanes::new(4, seed);
        let seen = Mutex::new(Vec::new());
        let mut items: Vec<usize> = (0..16).collect();
        lanes.for_each(&mut items, &|lane, item| {
            seen.lock().unwrap().push((lane, *item))
        });
        seen.into_inner().unwrap()
    }

    #[test]
    fn the_order_is_the_seeds() {
        assert_eq!(order(5), order(5));
        assert_ne!(order(5), order(6));
        let in_order = |order: &[(usize, usize)]| order.is_sorted_by_key(|&(_, item)| item);
        assert!((0..50).all(|seed| !in_order(&order(seed))));
    }
}
