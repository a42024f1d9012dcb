//! Random numbers by counter: each row of each matrix has its own, whoever makes it and when.

/// The odd number next to 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What numbers are for; the order is part of what a seed means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Rows of the embedding.
    Embedding,
    /// Rows of q.
    Q,
    /// Rows of k.
    K,
    /// Rows of v.
    V,
    /// Rows of o.
    O,
    /// Codes of gate rows.
    Gate,
    /// Rows of up.
    Up,
    /// Down columns.
    Down,
    /// Rows of the lm_head.
    LmHead,
    /// Rows of the router.
    Router,
    /// Directions that gates listen to.
    Pattern,
    /// How a neuron's gate mixes the directions.
    Mixing,
    /// Tokens that predictors are tried on.
    Sample,
    /// The process of which statistics are taken.
    Process,
    /// Tensors of a GGUF file.
    Tensor,
}

/// A sequence of numbers that depends on its key only.
#[derive(Debug, Clone)]
pub struct Random {
    key: u64,
    count: u64,
}

/// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

impl Random {
    /// The numbers of row `row` of a matrix of `layer` and `expert`.
    pub fn new(seed: u64, role: Role, (layer, expert): (usize, usize), row: usize) -> Self {
        let parts = [role as u64, layer as u64, expert as u64, row as u64];
        let start = mix(seed.wrapping_add(GOLDEN));
        let key = parts
            .into_iter()
            .fold(start, |key, part| mix((key ^ part).wrapping_add(GOLDEN)));
        Random { key, count: 0 }
    }

    /// 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.count += 1;
        mix(self.key.wrapping_add(self.count.wrapping_mul(GOLDEN)))
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.bits().to_le_bytes();
        }
        if !rest.is_empty() {
            let last = self.bits().to_le_bytes();
            let len = rest.len();
            rest.copy_from_slice(&last[..len]);
        }
    }

    /// Some number below `count`, which is at most 2^32.
    pub fn below(&mut self, count: usize) -> usize {
        (((self.bits() >> 32) * count as u64) >> 32) as usize
    }

    /// A normal deviate, but for its tails: the sum of eight uniform ones. Without logarithms it is
    /// the same on every machine.
    #[inline]
    pub fn normal(&mut self) -> f32 {
        let halves = |word: u64| (0..4).map(move |i| (word >> (16 * i) & 0xffff) as i32);
        let sum: i32 = halves(self.bits()).chain(halves(self.bits())).sum();
        // 8 * 65,535 / 2, and the root of 8 * (2^32 - 1) / 12.
        (sum - 262_140) as f32 * (1.0 / 53_509.98)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_every_part_of_their_key() {
        let first = |seed, role, place, row| Random::new(seed, role, place, row).bits();
        let base = first(1, Role::Q, (2, 3), 4);
        assert_eq!(base, first(1, Role::Q, (2, 3), 4));
        for other in [
            first(2, Role::Q, (2, 3), 4),
            first(1, Role::K, (2, 3), 4),
            first(1, Role::Q, (3, 2), 4),
            first(1, Role::Q, (2, 4), 4),
            first(1, Role::Q, (2, 3), 5),
        ] {
            assert_ne!(base, other);
        }
        let mut bytes = [0; 11];
        Random::new(1, Role::Q, (2, 3), 4).fill(&mut bytes);
        assert_eq!(bytes[..8], base.to_le_bytes());
        assert_ne!(bytes[8..], [0; 3]);
    }

    #[test]
    fn normal_deviates_have_the_moments_of_a_normal_distribution() {
        let mut random = Random::new(7, Role::Sample, (0, 0), 0);
        let count = 200_000;
        let (mut sum, mut squares, mut above) = (0.0, 0.0, 0);
        for _ in 0..count {
            let x = f64::from(random.normal());
            (sum, squares) = (sum + x, squares + x * x);
            above += usize::from(x > 1.281_55);
        }
        let count = f64::from(count);
        assert!((sum / count).abs() < 0.01);
        assert!((squares / count - 1.0).abs() < 0.02);
        assert!((above as f64 / count - 0.1).abs() < 0.003, "{above}");
        assert!((0..1000).all(|_| random.below(3) < 3));
    }
}
