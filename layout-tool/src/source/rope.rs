//! Frequencies of rotary positions, as Hugging Face `transformers` computes them in float32.

use std::f64::consts::PI;

use super::error::SourceError;

/// Rotary positions: pair `i` of a head turns by `pos * inv_freq[i]`.
///
/// Pairs are element `i` and `i + head_dim / 2` of a head, for every source.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// One angle a position, for each of `head_dim / 2` pairs.
    pub inv_freq: Vec<f32>,
    /// Factor of both cosine and sine; 1 but for yarn.
    pub attention_factor: f32,
    /// `none`, `linear`, `llama3`, `yarn`, or `factors` (a GGUF's list of divisors).
    pub kind: String,
}

/// How frequencies are changed for texts longer than those of the training.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original_len: f64,
    },
    Yarn(Yarn),
    Factors(Vec<f32>),
}

/// Parameters of yarn (Peng et al., 2023, "YaRN: Efficient Context Window Extension").
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Yarn {
    pub factor: f64,
    pub original_len: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    pub attention_factor: f64,
    /// Round the borders of the ramp outwards to whole pairs.
    pub truncate: bool,
}

/// Scale of the attention logits' square root that yarn's authors found best.
pub(super) fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * mscale * factor.ln() + 1.0
    }
}

impl Rope {
    /// Frequencies of heads of `head_dim` with the given base; refused unless all are finite.
    pub(super) fn new(head_dim: usize, base: f32, scaling: &Scaling) -> Result<Self, SourceError> {
        let powers = (0..head_dim / 2).map(|i| power(base, i, head_dim));
        let (kind, inv_freq): (_, Vec<f32>) = match scaling {
            Scaling::None => ("none", powers.map(|p| 1.0 / p).collect()),
            Scaling::Linear { factor } => {
                ("linear", powers.map(|p| 1.0 / p / *factor as f32).collect())
            }
            Scaling::Llama3 {
                factor,
                low,
                high,
                original_len,
            } => {
                let scale = |p: f32| llama3(1.0 / p, *factor, *low, *high, *original_len);
                ("llama3", powers.map(scale).collect())
            }
            Scaling::Yarn(yarn) => ("yarn", yarn.inv_freq(head_dim, base)),
            Scaling::Factors(factors) => (
                "factors",
                powers
                    .zip(factors)
                    .map(|(p, factor)| 1.0 / p / factor)
                    .collect(),
            ),
        };
        let attention_factor = match scaling {
            Scaling::Yarn(yarn) => yarn.attention_factor as f32,
            _ => 1.0,
        };
        if attention_factor.is_finite() && inv_freq.iter().all(|value| value.is_finite()) {
            return Ok(Rope {
                inv_freq,
                attention_factor,
                kind: kind.to_owned(),
            });
        }
        Err(SourceError::Rope {
            kind: format!("{kind} whose frequencies are not finite"),
        })
    }

    /// Stands in a configuration until the frequencies are known.
    pub(super) fn none() -> Self {
        Rope {
            inv_freq: Vec::new(),
            attention_factor: 1.0,
            kind: "none".to_owned(),
        }
    }
}

/// `base ^ (2 pair / head_dim)`: the exponent rounded to f32, the power too.
fn power(base: f32, pair: usize, head_dim: usize) -> f32 {
    let exponent = (2 * pair) as f32 / head_dim as f32;
    f64::from(base).powf(f64::from(exponent)) as f32
}

/// Long waves slowed by `factor`, short ones kept, those between blended.
fn llama3(inv_freq: f32, factor: f64, low: f64, high: f64, original_len: f64) -> f32 {
    let wavelen = (2.0 * PI) as f32 / inv_freq;
    let (low_wavelen, high_wavelen) = ((original_len / low) as f32, (original_len / high) as f32);
    if wavelen > low_wavelen {
        return inv_freq / factor as f32;
    }
    if wavelen < high_wavelen {
        return inv_freq;
    }
    let smooth = (original_len as f32 / wavelen - low as f32) / (high - low) as f32;
    (1.0 - smooth) * inv_freq / factor as f32 + smooth * inv_freq
}

impl Yarn {
    fn inv_freq(&self, head_dim: usize, base: f32) -> Vec<f32> {
        let (low, high) = self.ramp(head_dim, f64::from(base));
        let blend = |pair: usize| {
            let power = power(base, pair, head_dim);
            let (kept, slowed) = (1.0 / power, 1.0 / (self.factor as f32 * power));
            let ramp = ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
            let keep = 1.0 - ramp;
            slowed * (1.0 - keep) + kept * keep
        };
        (0..head_dim / 2).map(blend).collect()
    }

    /// The pairs between which frequencies go over from kept to slowed.
    fn ramp(&self, head_dim: usize, base: f64) -> (f64, f64) {
        let dim = head_dim as f64;
        let pair_at = |rotations: f64| {
            dim * (self.original_len / (rotations * 2.0 * PI)).ln() / (2.0 * base.ln())
        };
        let (mut low, mut high) = (pair_at(self.beta_fast), pair_at(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            (low, high + 0.001)
        } else {
            (low, high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(have: &[f32], want: &[f32]) {
        assert_eq!(have.len(), want.len());
        for (have, want) in have.iter().zip(want) {
            assert!(
                (have - want).abs() <= 1e-6 * want.abs(),
                "{have} is not {want}"
            );
        }
    }

    #[test]
    fn plain_and_linear_frequencies() {
        let want = [1.0, 0.1, 0.01, 0.001];
        let rope = Rope::new(8, 1e4, &Scaling::None).unwrap();
        close(&rope.inv_freq, &want);
        assert_eq!((rope.attention_factor, rope.kind.as_str()), (1.0, "none"));
        let rope = Rope::new(8, 1e4, &Scaling::Linear { factor: 4.0 }).unwrap();
        close(&rope.inv_freq, &want.map(|f| f / 4.0));
        let rope = Rope::new(8, 1e4, &Scaling::Factors(vec![1.0, 2.0, 4.0, 8.0])).unwrap();
        close(&rope.inv_freq, &[1.0, 0.05, 0.0025, 0.000125]);
    }

    #[test]
    fn llama3_keeps_blends_and_slows() {
        // transformers 4.46.3, the golden model of this kind.
        let scaling = Scaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original_len: 64.0,
        };
        let rope = Rope::new(16, 1e4, &scaling).unwrap();
        let want = [
            1.0,
            0.244_384_59,
            0.013_042_256,
            0.003_952_847_3,
            0.001_25,
            0.000_395_284_73,
            0.000_125,
            3.952_847_3e-5,
        ];
        close(&rope.inv_freq, &want);
    }

    #[test]
    fn yarn_ramps_between_two_pairs() {
        let yarn = Yarn {
            factor: 4.0,
            original_len: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: yarn_mscale(4.0, 1.0),
            truncate: true,
        };
        // By hand: low = floor(16 ln(64 / (64 pi)) / (2 ln 1e4)) < 0, high = ceil(2.016) = 3.
        assert_eq!(yarn.ramp(16, 1e4), (0.0, 3.0));
        let rope = Rope::new(16, 1e4, &Scaling::Yarn(yarn)).unwrap();
        assert_eq!(rope.inv_freq[0], 1.0);
        let kept = Rope::new(16, 1e4, &Scaling::None).unwrap().inv_freq;
        let blended = |i: usize, ramp: f32| kept[i] * (1.0 - ramp) + kept[i] / 4.0 * ramp;
        let third = 1.0 / 3.0;
        close(
            &rope.inv_freq[1..3],
            &[blended(1, third), blended(2, 2.0 * third)],
        );
        close(
            &rope.inv_freq[3..],
            &kept[3..].iter().map(|f| f / 4.0).collect::<Vec<_>>(),
        );
        assert!((rope.attention_factor - 1.138_629_4).abs() < 1e-6);
        assert_eq!(yarn_mscale(1.0, 1.0), 1.0);
    }

    #[test]
    fn yarn_as_qwen_models_state_it() {
        // transformers' formulas in numpy's float32.
        let yarn = Yarn {
            factor: 4.0,
            original_len: 32_768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
            truncate: true,
        };
        assert_eq!(yarn.ramp(128, 1e6), (23.0, 40.0));
        let rope = Rope::new(128, 1e6, &Scaling::Yarn(yarn)).unwrap();
        let pairs = [1, 23, 24, 30, 39, 40, 63].map(|pair| rope.inv_freq[pair]);
        let want = [
            0.805_842_2,
            0.006_978_306,
            0.005_375_321_5,
            0.001_064_361_1,
            6.490_394e-5,
            4.445_698_5e-5,
            3.102_344_4e-7,
        ];
        close(&pairs, &want);
    }
}
