//! The order of neurons in a section: the hottest first, then neighbours that fire together.
//!
//! Frequencies are cut into bands, octaves below one half, so that any prefix is hot to within a
//! factor of two. Neurons that are active in at least half of the rows stand by frequency; in each
//! of the other bands a greedy chain puts next the neuron that fires most often together with the
//! one before it (the largest intersection over union of their rows).

use super::activity::Activity;

/// Rows on which neurons are compared, at most, spread over the text.
const SAMPLE_ROWS: usize = 2048;

/// Old index of the neuron in each place.
pub fn order(activity: &Activity) -> Vec<u32> {
    let counts = activity.counts();
    let mut order: Vec<u32> = (0..activity.neurons as u32).collect();
    order.sort_by_key(|&neuron| std::cmp::Reverse(counts[neuron as usize]));
    let sample = Sample::new(activity);
    let band = |neuron: u32| band(counts[neuron as usize], activity.rows());
    let mut start = 0;
    while start < order.len() {
        let this = band(order[start]);
        let len = order[start..]
            .iter()
            .take_while(|&&n| band(n) == this)
            .count();
        if this.is_some_and(|band| band > 0) {
            sample.chain(&mut order[start..start + len]);
        }
        start += len;
    }
    order
}

/// Band 0 is half of the rows and more, each next one half as often; `None` is never.
fn band(count: u32, rows: usize) -> Option<u32> {
    if count == 0 {
        return None;
    }
    (0..usize::BITS).find(|band| (count as usize) << (band + 1) >= rows)
}

/// The sampled rows of each neuron as bits (neurons, words).
struct Sample {
    words: usize,
    bits: Vec<u64>,
}

impl Sample {
    fn new(activity: &Activity) -> Self {
        let rows = activity.rows().min(SAMPLE_ROWS);
        let words = rows.div_ceil(64);
        let mut bits = vec![0; activity.neurons * words];
        for index in 0..rows {
            let row = index * activity.rows() / rows;
            for neuron in activity.active(row) {
                bits[neuron * words + index / 64] |= 1u64 << (index % 64);
            }
        }
        Sample { words, bits }
    }

    fn row(&self, neuron: u32) -> &[u64] {
        &self.bits[neuron as usize * self.words..][..self.words]
    }

    /// Rows in which both fire, and in which either does.
    fn together(&self, one: u32, other: u32) -> (u64, u64) {
        let (mut both, mut either) = (0, 0);
        for (one, other) in self.row(one).iter().zip(self.row(other)) {
            both += u64::from((one & other).count_ones());
            either += u64::from((one | other).count_ones());
        }
        (both, either)
    }

    /// Puts a band, which is sorted by frequency, in the order of a greedy chain.
    fn chain(&self, band: &mut [u32]) {
        for at in 1..band.len() {
            let (done, rest) = band.split_at_mut(at);
            let last = done[at - 1];
            let mut best = (0, (0, 1));
            for (index, &neuron) in rest.iter().enumerate() {
                let (both, either) = self.together(last, neuron);
                let (best_both, best_either) = best.1;
                // The first of equals is the hottest that is left.
                if both * best_either > best_both * either {
                    best = (index, (both, either));
                }
            }
            rest[..=best.0].rotate_right(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::random_activity;
    use super::*;

    #[test]
    fn hotter_bands_come_first_and_companions_stand_together() {
        let activity = random_activity(96, 300, 7);
        let order = order(&activity);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..96));
        let counts = activity.counts();
        let bands: Vec<u32> = order
            .iter()
            .map(|&n| band(counts[n as usize], 300).unwrap_or(u32::MAX))
            .collect();
        assert!(bands.is_sorted(), "{bands:?}");
        assert_eq!(band(150, 300), Some(0));
        assert_eq!(
            (band(149, 300), band(75, 300), band(74, 300)),
            (Some(1), Some(1), Some(2))
        );

        // Two groups that fire in turn, their members mixed.
        let rows: Vec<Vec<usize>> = (0..60)
            .map(|row| match row % 6 {
                0 => (0..32).step_by(2).collect(),
                1 => (1..32).step_by(2).collect(),
                _ => Vec::new(),
            })
            .collect();
        let activity = Activity::from_rows(32, rows.iter().map(|row| &row[..]));
        let order = super::order(&activity);
        assert!(order[..16].iter().all(|n| n % 2 == 0), "{order:?}");
    }
}
