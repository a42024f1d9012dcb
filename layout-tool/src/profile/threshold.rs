//! The magnitude below which a neuron of a SiLU or GELU model may be skipped.
//!
//! As in CATS (2024) a neuron is skipped where `|act(gate)|` is below a threshold of its section.
//! What that costs is measured, not guessed: each neuron carries the energy `(h * |down|)^2`, and
//! the threshold is the largest for which the skipped ones carry a stated share of a token's
//! energy, in the mean over all tokens. Tokens count alike, since a single one, an attention sink,
//! can have more energy than all others together: in layer 11 of SmolLM2-135M a share of the sum
//! would skip all neurons of all other tokens.

/// Bins of a histogram over magnitudes: 64 an octave, from 2^-24 to 2^8.
const BINS: usize = 32 * 64;
/// Bits of a float that do not tell bins apart.
const SHIFT: u32 = 17;
/// The first bin's float, shifted.
const LOW: u32 = (127 - 24) << 6;
/// Shares are summed in this unit, as integers: sums do not depend on their order.
const UNIT: f64 = (1u128 << 64) as f64;

/// Share of neurons in their tokens' energy by the magnitude of `act(gate)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    energy: Vec<u128>,
}

impl Histogram {
    /// Bytes of a stored histogram.
    pub const BYTES: usize = BINS * size_of::<u128>();

    /// Nothing yet.
    pub fn new() -> Self {
        Histogram {
            energy: vec![0; BINS],
        }
    }

    /// Adds a neuron whose `|act(gate)|` is `magnitude` and which carries `share` of its token's
    /// energy.
    pub fn add(&mut self, magnitude: f32, share: f64) {
        let bin = (magnitude.to_bits() >> SHIFT).saturating_sub(LOW);
        let energy = (share * UNIT) as u128;
        let sum = &mut self.energy[(bin as usize).min(BINS - 1)];
        *sum = sum.saturating_add(energy);
    }

    /// Adds all of a stored histogram.
    pub fn add_stored(&mut self, bytes: &[u8]) {
        for (sum, bytes) in self.energy.iter_mut().zip(bytes.as_chunks::<16>().0) {
            *sum = sum.saturating_add(u128::from_le_bytes(*bytes));
        }
    }

    /// Appends the histogram to `bytes`, and empties it.
    pub fn store(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend(self.energy.iter().flat_map(|sum| sum.to_le_bytes()));
        self.energy.fill(0);
    }

    /// The largest bin edge below which neurons carry at most `loss` of the energy; 0 where not
    /// even the first bin may be skipped.
    pub fn threshold(&self, loss: f64) -> f32 {
        let total: f64 = self.energy.iter().map(|&sum| sum as f64).sum();
        let (mut skipped, mut bins) = (0.0, 0);
        for &energy in &self.energy[..BINS - 1] {
            skipped += energy as f64;
            if skipped > loss * total {
                break;
            }
            bins += 1;
        }
        if bins == 0 || total == 0.0 {
            return 0.0;
        }
        f32::from_bits((LOW + bins) << SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_threshold_carries_at_most_the_loss() {
        let values: Vec<(f32, f32)> = (1..2000u32)
            .map(|i| {
                let magnitude = (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
                (magnitude, magnitude * magnitude * (1 + i % 3) as f32)
            })
            .collect();
        let mut histogram = Histogram::new();
        values
            .iter()
            .for_each(|&(m, e)| histogram.add(m, f64::from(e)));
        let mut bytes = Vec::new();
        histogram.clone().store(&mut bytes);
        assert_eq!(bytes.len(), Histogram::BYTES);
        let mut again = Histogram::new();
        again.add_stored(&bytes);
        assert_eq!(again, histogram);
        let total: f32 = values.iter().map(|&(_, e)| e).sum();
        for loss in [0.001, 0.01, 0.1] {
            let threshold = histogram.threshold(loss);
            let share = |limit: f32| {
                let below = values.iter().filter(|&&(m, _)| m < limit);
                f64::from(below.map(|&(_, e)| e).sum::<f32>() / total)
            };
            assert!(threshold > 0.0 && share(threshold) <= loss * 1.0001);
            // The next edge would lose too much.
            assert!(share(threshold * (1.0 + 1.0 / 32.0)) > loss);
        }
        assert_eq!(Histogram::new().threshold(0.5), 0.0);
    }
}
