//! How the weights of a synthetic model are chosen, so that its activations are known.
//!
//! The residual stream has a *constant block*, columns 0 to 31, in which every token's embedding
//! is [`UNIT`] and to which no layer writes. The other columns are random: of the token itself
//! (variance 1), of the last few tokens ([`CONTEXT`], written by layer 0's attention, see
//! [`super::window`]), and a little of every layer ([`ADDED`] after the last). All norms have
//! weights 1, so that a norm scales a token and changes no sign.
//!
//! Neuron `n`'s gate is `-t_n * unit + B_n (A x)` and noise, where rows of A are the layer's
//! *directions* and B_n is a random vector of length 1: a normal deviate, over tokens, that exceeds
//! its threshold with the probability that was prescribed. In 4-bit blocks this is exact: a block
//! of a gate row has the codes of its direction in their two high bits and noise in the low ones,
//! and B_n is its scale; the constant block holds the threshold in its scale.

use tessera_kernels::{Activation, BLOCK};

use super::normal::Normal;
use super::window::Window;
use crate::source::Config;

/// Value of the constant block.
pub const UNIT: f64 = 1.0;
/// Variance that the last few tokens add; a token's own is 1.
const CONTEXT: f64 = 10.0;
/// Variance that all feed-forward networks together add, and half of what attention adds.
const ADDED: f64 = 0.06;
/// Probability that up is above zero where that is needed too.
const UP_ALIVE: f64 = 0.8;
/// Exponent of the power law of activation.
const EXPONENT: f64 = -1.5;
/// Mean square of a random 4-bit code with a random sign: that of -8 to 7.
pub const CODE_SQUARE: f64 = 21.5;
/// Mean square of the noise in a gate's code: that of -0.5 and 0.5.
pub const NOISE_SQUARE: f64 = 0.25;
/// Directions of a layer, at most: with the constant they are two blocks of a predictor's row.
const DIRECTIONS_MAX: usize = 2 * BLOCK - 1;

/// Inputs of one layer, after the norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Variance of a column before the norm.
    pub variance: f64,
    /// The constant block's value.
    pub unit: f64,
    /// Deviation of the other columns.
    pub deviation: f64,
}

/// What is constant for all layers, and the levels of each.
#[derive(Debug, Clone)]
pub struct Design {
    /// The model.
    pub config: Config,
    /// Where all random numbers come from.
    pub seed: u64,
    /// Probability that a neuron is active, by rank: falling.
    pub probabilities: Vec<f64>,
    /// A gate's threshold, in deviations.
    pub thresholds: Vec<f32>,
    /// Mean of up, in deviations.
    pub up_mean: f64,
    /// Neurons listen to one of so many sets of directions, by turns.
    pub n_sets: usize,
    /// Directions of a set.
    pub n_directions: usize,
    /// What attention averages.
    pub window: Window,
    /// Inputs of each layer's attention and of its feed-forward network.
    pub levels: Vec<[Level; 2]>,
    /// Variance of attention's average of what attention wrote.
    twice: f64,
    /// Deviation of the hidden values of a whole layer: root of the sum of their mean squares.
    pub hidden: f64,
}

/// A power law over ranks with this mean.
fn power_law(count: usize, mean: f64, top: f64) -> Vec<f64> {
    let law = |knee: f64| {
        let rank = move |i: usize| (i as f64 + 0.5) / count as f64;
        (0..count).map(move |i| top * (1.0 + rank(i) / knee).powf(EXPONENT))
    };
    let (mut low, mut high) = (1e-9f64, 1e3f64);
    for _ in 0..80 {
        let knee = (low * high).sqrt();
        if law(knee).sum::<f64>() > mean * count as f64 {
            high = knee;
        } else {
            low = knee;
        }
    }
    law((low * high).sqrt()).collect()
}

impl Design {
    /// The design of a model of which `share` of the neurons are active for a token.
    pub fn new(config: Config, seed: u64, share: f64) -> Self {
        assert!(config.dim.is_multiple_of(2 * BLOCK) && config.dim >= 4 * BLOCK);
        assert!((config.n_heads * config.head_dim).is_multiple_of(2 * BLOCK));
        let normal = Normal::new();
        let both = config.activation == Activation::ReluBoth;
        let up_alive = if both { UP_ALIVE } else { 1.0 };
        let probabilities = power_law(config.ffn_dim, share, 0.97 * up_alive);
        let thresholds: Vec<f64> = probabilities
            .iter()
            .map(|p| normal.exceeded(p / up_alive))
            .collect();
        let (up_mean, up_square) = if both {
            let mean = -normal.exceeded(UP_ALIVE);
            (mean, normal.square_above(-mean))
        } else {
            (0.0, 1.0)
        };
        let squares = thresholds.iter().map(|t| normal.square_above(*t));
        // Of a mixture's experts each gets about half of the weight.
        let experts = config.n_experts_used.max(1) as f64;
        let hidden = (squares.sum::<f64>() * up_square / experts).sqrt();
        let blocks = config.dim / BLOCK - 1;
        let window = Window::new(&config.rope.inv_freq);
        let levels = (0..config.n_layers).map(|layer| levels(&config, layer));
        Design {
            seed,
            thresholds: thresholds.iter().map(|t| *t as f32).collect(),
            probabilities,
            up_mean,
            n_sets: (DIRECTIONS_MAX / blocks).max(1),
            n_directions: blocks.min(DIRECTIONS_MAX),
            twice: window.variance_twice(),
            window,
            levels: levels.collect(),
            hidden,
            config,
        }
    }

    /// Scale of random codes whose sum over a token's columns has deviation `deviation`.
    pub fn plain_scale(&self, level: &Level, deviation: f64) -> f64 {
        let columns = (self.config.dim - BLOCK) as f64;
        deviation / (level.deviation * (CODE_SQUARE * columns).sqrt())
    }

    /// Weight of each column of the constant block that adds `value` to a product.
    pub fn constant_weight(level: &Level, value: f64) -> f64 {
        value / (BLOCK as f64 * level.unit)
    }

    /// Scale of the output projection of a layer's attention.
    pub fn output_scale(&self, layer: usize) -> f64 {
        let rows = (self.config.n_heads * self.config.head_dim) as f64;
        let (variance, values) = if layer == 0 {
            (CONTEXT, self.window.variance())
        } else {
            let level = &self.levels[layer][0];
            let new = level.variance - CONTEXT;
            let old = CONTEXT * self.twice;
            let values = (new * self.window.variance() + old) / level.variance;
            (added(&self.config) / 2.0, values)
        };
        (variance / (rows * CODE_SQUARE * values)).sqrt()
    }

    /// Scale of the down columns of a layer.
    pub fn down_scale(&self) -> f64 {
        (added(&self.config) / CODE_SQUARE).sqrt() / self.hidden
    }
}

/// Variance that one feed-forward network adds.
fn added(config: &Config) -> f64 {
    ADDED / config.n_layers as f64
}

fn levels(config: &Config, layer: usize) -> [Level; 2] {
    let (added, done) = (added(config), layer as f64);
    let attention = if layer == 0 {
        1.0
    } else {
        1.0 + CONTEXT + added * done + added / 2.0 * (done - 1.0)
    };
    let ffn = 1.0 + CONTEXT + added * 1.5 * done;
    [attention, ffn].map(|variance| {
        let (dim, block) = (config.dim as f64, BLOCK as f64);
        let square = (block * UNIT * UNIT + (dim - block) * variance) / dim;
        let rms = (square + f64::from(config.rms_eps)).sqrt();
        Level {
            variance,
            unit: UNIT / rms,
            deviation: variance.sqrt() / rms,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::shapes::SHAPES;

    #[test]
    fn probabilities_follow_the_power_law_that_was_asked_for() {
        for share in [0.02, 0.1, 0.3] {
            let law = power_law(14336, share, 0.97);
            let mean = law.iter().sum::<f64>() / law.len() as f64;
            assert!((mean / share - 1.0).abs() < 1e-3, "{mean}");
            assert!(law.is_sorted_by(|a, b| a > b));
        }
        let law = power_law(14336, 0.1, 0.97);
        let share = |least: f64| law.iter().filter(|p| **p > least).count() as f64 / 14336.0;
        // PowerInfer-2 on Bamboo-7B: under 1 % of the neurons fire nearly always, and about three
        // quarters for some token of 32.
        assert!((0.0005..0.01).contains(&share(0.9)), "{}", share(0.9));
        assert!((0.02..0.06).contains(&share(0.5)), "{}", share(0.5));
        let union = law.iter().map(|p| 1.0 - (1.0 - p).powi(32)).sum::<f64>() / 14336.0;
        assert!((0.7..0.8).contains(&union), "{union}");
    }

    #[test]
    fn every_shape_has_a_design() {
        for shape in SHAPES {
            let design = Design::new(shape.config(Some(2)), 1, shape.share);
            assert!(design.n_sets * design.n_directions <= DIRECTIONS_MAX);
            assert!(design.thresholds.iter().all(|t| t.abs() < 6.0));
            assert!(design.hidden.is_finite() && design.hidden > 0.0);
            assert!(design.output_scale(0) > design.output_scale(1));
        }
    }
}
