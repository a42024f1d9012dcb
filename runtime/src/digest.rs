//! A digest of logits, for comparing runs bit for bit.

/// FNV-1a over pairs of f32 bit patterns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds `values` in their order.
    pub fn add(&mut self, values: &[f32]) {
        for pair in values.chunks(2) {
            let high = pair.get(1).map_or(0, |value| value.to_bits());
            let word = pair[0].to_bits() as u64 | (high as u64) << 32;
            self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The digest so far.
    pub fn value(&self) -> u64 {
        self.0
    }
}
