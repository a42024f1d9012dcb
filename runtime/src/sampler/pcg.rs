//! The sampler's random numbers.

/// PCG32: 64 bits of state, 32 bits out, the same on every machine.
///
/// Source: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
/// Algorithms for Random Number Generation", 2014 (XSH-RR, `pcg32_random_r` of the minimal C
/// library; the stream is that library's demonstration stream, 54).
#[derive(Debug, Clone)]
pub(super) struct Pcg32 {
    state: u64,
}

const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const INCREMENT: u64 = (54 << 1) | 1;

impl Pcg32 {
    pub(super) fn new(seed: u64) -> Self {
        let mut pcg = Pcg32 { state: 0 };
        pcg.next_u32();
        pcg.state = pcg.state.wrapping_add(seed);
        pcg.next_u32();
        pcg
    }

    pub(super) fn next_u32(&mut self) -> u32 {
        let old = self.state;
        self.state = old.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        let shifted = (((old >> 18) ^ old) >> 27) as u32;
        shifted.rotate_right((old >> 59) as u32)
    }

    /// A number in `0..bound`, each as likely as the others to within 2^-64.
    ///
    /// Source: D. Lemire, "Fast Random Integer Generation in an Interval", 2019, without the
    /// rejection.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        let random = u64::from(self.next_u32()) << 32 | u64::from(self.next_u32());
        ((u128::from(random) * u128::from(bound)) >> 64) as u64
    }
}

#[test]
fn agrees_with_the_published_sequence() {
    let mut pcg = Pcg32::new(42);
    for want in [
        0xa15c_02b7,
        0x7b47_f409,
        0xba1d_3330,
        0x83d2_f293,
        0xbfa4_784b,
        0xcbed_606e,
    ] {
        assert_eq!(pcg.next_u32(), want);
    }
}

#[test]
fn below_stays_below() {
    let mut pcg = Pcg32::new(1);
    for bound in [1, 2, 3, 1 << 40, u64::MAX] {
        for _ in 0..100 {
            assert!(pcg.below(bound) < bound);
        }
    }
}
