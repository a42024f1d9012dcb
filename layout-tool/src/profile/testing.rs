//! Made-up activity for tests.

use super::activity::Activity;

/// Activity in which neuron `n` fires in about one of `1 + n / 8` rows, in bursts.
pub fn random_activity(neurons: usize, rows: usize, seed: u64) -> Activity {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut awake = vec![false; neurons];
    let rows: Vec<Vec<usize>> = (0..rows)
        .map(|_| {
            for (neuron, awake) in awake.iter_mut().enumerate() {
                if random(3) > 0 {
                    *awake = random(1 + neuron / 8) == 0 && neuron != neurons / 2;
                }
            }
            (0..neurons).filter(|&neuron| awake[neuron]).collect()
        })
        .collect();
    Activity::from_rows(neurons, rows.iter().map(|row| &row[..]))
}
