//! The normal distribution, as far as thresholds need it.

use std::f64::consts::PI;

/// Beyond this many deviations there is nothing.
const END: f64 = 8.0;
/// Points of the table a deviation.
const STEPS: usize = 256;

/// Its distribution function, tabulated.
#[derive(Debug, Clone)]
pub struct Normal {
    /// At `-END + i / STEPS`.
    below: Vec<f64>,
}

/// Its density.
pub fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

impl Normal {
    /// Integrates the density by Simpson's rule.
    pub fn new() -> Self {
        let step = 1.0 / STEPS as f64;
        let mut below = vec![0.0];
        let mut sum = 0.0;
        for index in 0..2 * END as usize * STEPS {
            let x = -END + index as f64 * step;
            let heights = density(x) + 4.0 * density(x + 0.5 * step) + density(x + step);
            sum += heights * step / 6.0;
            below.push(sum);
        }
        Normal { below }
    }

    /// Probability of a deviate below `x`.
    pub fn below(&self, x: f64) -> f64 {
        let place = ((x + END) * STEPS as f64).clamp(0.0, (self.below.len() - 1) as f64);
        let index = (place as usize).min(self.below.len() - 2);
        let (low, high) = (self.below[index], self.below[index + 1]);
        low + (high - low) * (place - index as f64)
    }

    /// The value that deviates exceed with probability `p`.
    pub fn exceeded(&self, p: f64) -> f64 {
        let below = 1.0 - p;
        let after = self.below.partition_point(|&sum| sum < below);
        let index = after.clamp(1, self.below.len() - 1) - 1;
        let (low, high) = (self.below[index], self.below[index + 1]);
        let part = ((below - low) / (high - low)).clamp(0.0, 1.0);
        -END + (index as f64 + part) / STEPS as f64
    }

    /// Mean square of `max(z - t, 0)` for a deviate `z`.
    pub fn square_above(&self, t: f64) -> f64 {
        (1.0 + t * t) * self.below(-t) - t * density(t)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let normal = Normal::new();
        for (x, below) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746),
            (-1.281_551_566, 0.1),
            (-3.090_232_306, 0.001),
        ] {
            assert!((normal.below(x) - below).abs() < 1e-6, "{x}");
            assert!((normal.exceeded(1.0 - below) - x).abs() < 1e-4, "{x}");
        }
        assert!((normal.square_above(0.0) - 0.5).abs() < 1e-6);
        assert!((normal.square_above(-8.0) - 65.0).abs() < 1e-3);
        assert!(normal.exceeded(0.0).is_finite() && normal.exceeded(1.0).is_finite());
    }
}
