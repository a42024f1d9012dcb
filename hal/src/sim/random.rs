//! Small numbers that look random, the same for the same seed.

/// xorshift64 (Marsaglia, "Xorshift RNGs", 2003), its seed scrambled so that any will do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A sequence for each seed.
    pub const fn new(seed: u64) -> Self {
        // The finisher of splitmix64: neighbouring seeds give unlike sequences.
        let mut state = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        state ^= state >> 31;
        // xorshift never leaves 0.
        Random {
            state: if state == 0 { 1 } else { state },
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// A number below `count`.
    ///
    /// # Panics
    /// When `count` is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        assert!(count > 0, "no number is below 0");
        (self.next_u64() >> 16) % count
    }

    /// True in `pct` of 100 cases.
    pub fn chance_pct(&mut self, pct: u32) -> bool {
        self.below(100) < pct as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_and_repeat() {
        for seed in 0..100 {
            let (mut first, mut second) = (Random::new(seed), Random::new(seed));
            let mut other = Random::new(seed + 1);
            let numbers = [(); 8].map(|()| first.next_u64());
            assert_eq!(numbers, [(); 8].map(|()| second.next_u64()), "seed {seed}");
            assert_ne!(numbers, [(); 8].map(|()| other.next_u64()), "seed {seed}");
        }
    }

    #[test]
    fn chances_are_about_right() {
        let mut random = Random::new(7);
        for pct in [0, 1, 30, 100] {
            let hits = (0..10_000).filter(|_| random.chance_pct(pct)).count() as u32;
            assert!(
                hits.abs_diff(pct * 100) <= 150,
                "{pct} % gave {hits} of 10000"
            );
        }
    }
}
