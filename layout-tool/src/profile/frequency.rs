//! How often each neuron is active, for one token and for batches.

use tessera_runtime::format::BATCHES;

use super::activity::Activity;

/// Frequencies (BATCHES, neurons): the share of all runs of `batch` consecutive rows in which a
/// neuron is active at least once. A text shorter than a batch counts as one.
///
/// A gap of `g` rows in which a neuron sleeps holds `g - batch + 1` runs without it, so only gaps
/// are looked at.
pub fn frequencies(activity: &Activity) -> Vec<f32> {
    let (rows, neurons) = (activity.rows(), activity.neurons);
    let mut without = vec![0u64; BATCHES * neurons];
    // One past the last row in which the neuron was active.
    let mut awake = vec![0; neurons];
    let mut gap = |neuron: usize, gap: usize| {
        for batch in 1..=BATCHES.min(gap) {
            without[(batch - 1) * neurons + neuron] += (gap - batch + 1) as u64;
        }
    };
    for row in 0..rows {
        for neuron in activity.active(row) {
            gap(neuron, row - awake[neuron]);
            awake[neuron] = row + 1;
        }
    }
    for (neuron, awake) in awake.iter().enumerate() {
        gap(neuron, rows - awake);
    }
    let share = |(index, &without): (usize, &u64)| {
        let (batch, neuron) = (index / neurons + 1, index % neurons);
        if rows >= batch {
            let runs = (rows - batch + 1) as u64;
            return ((runs - without) as f64 / runs as f64) as f32;
        }
        f32::from(awake[neuron] > 0)
    };
    without.iter().enumerate().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::random_activity;
    use super::*;

    #[test]
    fn frequencies_equal_a_recount() {
        for (rows, seed) in [(0, 1), (1, 2), (5, 3), (8, 4), (97, 5)] {
            let activity = random_activity(64, rows, seed);
            let have = frequencies(&activity);
            for batch in 1..=BATCHES {
                for neuron in 0..64 {
                    let len = batch.min(rows).max(1);
                    let runs: Vec<bool> = (0..(rows + 1).saturating_sub(len))
                        .map(|start| {
                            (start..start + len).any(|row| activity.is_active(row, neuron))
                        })
                        .collect();
                    let hits = runs.iter().filter(|hit| **hit).count();
                    let want = (hits as f64 / runs.len().max(1) as f64) as f32;
                    assert_eq!(have[(batch - 1) * 64 + neuron], want, "{rows} {batch}");
                }
            }
        }
    }
}
