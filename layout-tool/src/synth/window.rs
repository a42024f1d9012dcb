//! What attention does in a synthetic model: it averages the values of the last few tokens.
//!
//! Queries and keys of all tokens are the same vector, but for a little noise, so that a score
//! depends on the distance alone: the rotary embedding makes it a sum of cosines over the pairs of
//! a head. Pairs that turn slowly are left out, and fast ones too; what remains is a hill at
//! distance zero. So the part of the residual stream that attention writes changes slowly from
//! token to token, as the subject of a text does, and so do the neurons that listen to it.

/// Angle a position, of the pairs that take part.
const FREQUENCIES: std::ops::RangeInclusive<f32> = 0.004..=0.06;
/// Score at distance zero; at large distances it is near zero, and softmax leaves next to nothing.
const SCORE: f64 = 12.0;
/// Deviation of the noise of a score that comes from the key, and of as much from the query: how
/// much of a score depends on the tokens.
const NOISE: f64 = 0.15;
/// Distances that are looked at.
const DISTANCES: usize = 192;

/// The average over the last tokens.
#[derive(Debug, Clone)]
pub struct Window {
    /// Constant of a query's and a key's elements in pairs that take part.
    pub amplitude: f64,
    /// Pairs of a head that take part.
    pub pairs: Vec<bool>,
    /// Deviation of the other part of a query or key element.
    pub noise: f64,
    /// Weight of the token at a distance; they sum to 1.
    pub weights: Vec<f64>,
}

impl Window {
    /// The window of heads with these rotary frequencies.
    pub fn new(inv_freq: &[f32]) -> Self {
        let pairs: Vec<bool> = inv_freq.iter().map(|f| FREQUENCIES.contains(f)).collect();
        let count = pairs.iter().filter(|taken| **taken).count().max(1) as f64;
        let root = (2.0 * inv_freq.len() as f64).sqrt();
        let amplitude = (SCORE * root / count).sqrt();
        let score = |distance: usize| {
            let angles = inv_freq.iter().zip(&pairs).filter(|(_, taken)| **taken);
            let cosines = angles.map(|(f, _)| (distance as f64 * f64::from(*f)).cos());
            SCORE * cosines.sum::<f64>() / count
        };
        let mut weights: Vec<f64> = (0..DISTANCES).map(|d| score(d).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
        // A key's noise meets the constant elements of a query.
        let noise = NOISE * root / (amplitude * (2.0 * count).sqrt());
        Window {
            amplitude,
            pairs,
            noise,
            weights,
        }
    }

    /// Variance of the average, for values of variance 1 that are new with each token. Noise of the
    /// scores makes weights less equal: they are then log-normal.
    pub fn variance(&self) -> f64 {
        self.squares() * (2.0 * NOISE * NOISE).exp()
    }

    /// The same without that noise.
    pub fn squares(&self) -> f64 {
        self.weights.iter().map(|weight| weight * weight).sum()
    }

    /// Correlation of two such averages that many tokens apart.
    pub fn correlation(&self, distance: usize) -> f64 {
        let later = self.weights.iter().skip(distance);
        let products = self.weights.iter().zip(later).map(|(a, b)| a * b);
        products.sum::<f64>() / self.squares()
    }

    /// Variance of the average of such averages. It takes some time.
    pub fn variance_twice(&self) -> f64 {
        let correlations: Vec<f64> = (0..DISTANCES).map(|d| self.correlation(d)).collect();
        let all = self.weights.iter().enumerate();
        all.clone()
            .flat_map(|(i, a)| all.clone().map(move |(j, b)| (i.abs_diff(j), a * b)))
            .map(|(distance, product)| product * correlations[distance])
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_few_tokens_wide() {
        for head_dim in [64, 128] {
            let freq = |i: usize| 10_000f32.powf(-2.0 * i as f32 / head_dim as f32);
            let window = Window::new(&(0..head_dim / 2).map(freq).collect::<Vec<_>>());
            let width = 1.0 / window.variance();
            assert!((4.0..16.0).contains(&width), "{width}");
            assert!(window.weights.iter().skip(40).sum::<f64>() < 0.01);
            assert!(window.correlation(0) > 0.999 && window.correlation(1) > 0.7);
            assert!(window.correlation(1) > window.correlation(8));
            let twice = window.variance_twice();
            assert!(twice > window.variance() && twice < 1.0, "{twice}");
        }
    }
}
