//! What leaving out neurons with low scores costs: for masks that prefer neurons in memory.

use super::field::{f32_at, put_u32};

/// Scores below which predicted neurons carry stated shares of the activations' magnitude.
///
/// The predicted neurons whose scores do not exceed score `i` carry at most
/// [`Cuts::LOSSES_PML`]`[i]` thousandths of the magnitude of all, on text that the predictor was
/// not trained on; with the next larger score of an active neuron they would carry more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cuts(pub [f32; Cuts::LOSSES_PML.len()]);

impl Cuts {
    /// Thousandths that may be lost, ascending.
    pub const LOSSES_PML: [u16; 8] = [1, 2, 5, 10, 20, 50, 100, 200];
    /// The most that a score is known for.
    pub const LOSS_PML_MAX: u16 = Self::LOSSES_PML[Self::LOSSES_PML.len() - 1];

    /// Those of predicted active neurons, each with its score, above zero, and its magnitude; all
    /// active neurons together have `total`. `scored` is put in order of scores.
    pub fn of(scored: &mut [(f32, f32)], total: f64) -> Self {
        scored.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let (mut scores, mut cut, mut lost) = ([0.0; Self::LOSSES_PML.len()], 0.0, 0.0f64);
        let mut runs = scored.chunk_by(|one, other| one.0 == other.0).peekable();
        for (score, loss) in scores.iter_mut().zip(Self::LOSSES_PML) {
            let most = f64::from(loss) / 1000.0 * total;
            while let Some(run) = runs.peek() {
                let more: f64 = run.iter().map(|&(_, magnitude)| f64::from(magnitude)).sum();
                let fits = lost + more <= most;
                if !fits {
                    break;
                }
                (cut, lost) = (run[0].0, lost + more);
                runs.next();
            }
            *score = cut;
        }
        Cuts(scores)
    }

    /// The score of the largest of [`Cuts::LOSSES_PML`] that is no larger than `loss_pml`; 0 where
    /// there is none.
    pub fn score(&self, loss_pml: u16) -> f32 {
        let known = Self::LOSSES_PML.partition_point(|&known| known <= loss_pml);
        known.checked_sub(1).map_or(0.0, |index| self.0[index])
    }

    /// What stands in `bytes` from `at` on; `None` if scores are no ascending numbers from zero on.
    pub(super) fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let scores = core::array::from_fn(|index| f32_at(bytes, at + 4 * index));
        let ascend = scores.is_sorted() && scores[0] >= 0.0;
        let sound = ascend && scores.last().is_some_and(|last| last.is_finite());
        sound.then_some(Cuts(scores))
    }

    /// Writes them to `bytes` from `at` on.
    pub(super) fn write(&self, bytes: &mut [u8], at: usize) {
        for (index, score) in self.0.iter().enumerate() {
            put_u32(bytes, at + 4 * index, score.to_bits());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_exceed_a_cut_carries_at_most_its_loss() {
        let mut scored: std::vec::Vec<(f32, f32)> = (1..4000u32)
            .map(|i| {
                let score = (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 64.0;
                (score, score * (1 + i % 3) as f32)
            })
            .collect();
        let total: f64 = scored.iter().map(|&(_, m)| f64::from(m)).sum::<f64>() / 0.9;
        let cuts = Cuts::of(&mut scored, total);
        let lost = |cut: f32| {
            let low = scored.iter().filter(|&&(score, _)| score <= cut);
            low.map(|&(_, m)| f64::from(m)).sum::<f64>() / total
        };
        for (loss, cut) in Cuts::LOSSES_PML.into_iter().zip(cuts.0) {
            let loss = f64::from(loss) / 1000.0;
            assert!(lost(cut) <= loss && cut > 0.0, "{cut}");
            let next = scored.iter().find(|&&(score, _)| score > cut).unwrap().0;
            assert!(lost(next) > loss, "{next}");
        }
        let [first, second, .., last] = cuts.0;
        assert_eq!(
            [0, 1, 4, 200, 900].map(|loss| cuts.score(loss)),
            [0.0, first, second, last, last]
        );
        assert_eq!(Cuts::of(&mut [], 0.0), Cuts([0.0; 8]));
        assert_eq!(Cuts::of(&mut [(1.0, f32::NAN)], 9.0), Cuts([0.0; 8]));
    }

    #[test]
    fn only_ascending_numbers_are_cuts() {
        let mut bytes = [0; 36];
        let cuts = Cuts([0.0, 0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0]);
        cuts.write(&mut bytes, 4);
        assert_eq!(Cuts::parse(&bytes, 4), Some(cuts));
        for (index, score) in [(0, -1.0), (3, f32::NAN), (7, f32::INFINITY), (2, 1.5)] {
            let mut wrong = cuts;
            wrong.0[index] = score;
            wrong.write(&mut bytes, 4);
            assert_eq!(Cuts::parse(&bytes, 4), None, "{score}");
        }
    }
}
