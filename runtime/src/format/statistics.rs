//! Activation statistics of one feed-forward section, measured on a calibration text.

use super::field::{f32_at, put_u32, put_u64, u16_at, u32_at, u64_at};
use crate::limits::FFN_DIM_MAX;

/// Batch sizes of which frequencies are known: 1 to this.
pub const BATCHES: usize = 8;
/// Splits between hot prefix and cold set of which misses are known, in steps of an eighth.
pub const PREFIXES: usize = 9;
/// Cache sizes of which misses are known, in steps of a 32nd of the neurons.
pub const CACHES: usize = 33;

/// Bytes before the curve.
const HEADER_BYTES: usize = 64;
/// A frequency of 1.
const ONE: u16 = u16::MAX;

mod at {
    pub const NEURONS: usize = 0;
    pub const TOKENS: usize = 8;
    pub const THRESHOLD: usize = 16;
    pub const THRESHOLD_SHARE: usize = 20;
}

/// Why statistics were refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum StatisticsError {
    /// Fewer bytes than the neurons need.
    Truncated {
        /// Bytes there are.
        have_bytes: usize,
        /// Bytes needed.
        need_bytes: usize,
    },
    /// They are of a section of another size.
    Neurons {
        /// Neurons they are of.
        have: u32,
        /// Neurons of the section.
        want: u32,
    },
}

impl core::fmt::Display for StatisticsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated {
                have_bytes,
                need_bytes,
            } => write!(f, "{have_bytes} bytes of statistics, {need_bytes} needed"),
            Self::Neurons { have, want } => {
                write!(
                    f,
                    "the statistics are of {have} neurons, the section has {want}"
                )
            }
        }
    }
}

impl core::error::Error for StatisticsError {}

/// A checked view of a section's statistics.
#[derive(Debug, Clone, Copy)]
pub struct Statistics<'a> {
    bytes: &'a [u8],
    neurons: usize,
}

impl<'a> Statistics<'a> {
    /// Bytes of the statistics of `neurons` neurons.
    pub const fn bytes(neurons: usize) -> usize {
        HEADER_BYTES + PREFIXES * CACHES * 4 + BATCHES * neurons * 2
    }

    /// Checks that `bytes` are the statistics of a section of `neurons` neurons.
    ///
    /// # Errors
    /// [`StatisticsError`].
    pub fn new_checked(bytes: &'a [u8], neurons: usize) -> Result<Self, StatisticsError> {
        assert!(neurons <= FFN_DIM_MAX, "{neurons} neurons");
        let (have_bytes, need_bytes) = (bytes.len(), Self::bytes(neurons));
        if have_bytes < need_bytes {
            return Err(StatisticsError::Truncated {
                have_bytes,
                need_bytes,
            });
        }
        let (have, want) = (u32_at(bytes, at::NEURONS), neurons as u32);
        if have != want {
            return Err(StatisticsError::Neurons { have, want });
        }
        Ok(Statistics { bytes, neurons })
    }

    /// Tokens of the calibration text that this section served.
    pub fn tokens(&self) -> u64 {
        u64_at(self.bytes, at::TOKENS)
    }

    /// Magnitude of `act(gate)` below which a neuron may be skipped in threshold mode; 0 if none
    /// was calibrated.
    pub fn threshold(&self) -> f32 {
        f32_at(self.bytes, at::THRESHOLD)
    }

    /// The same, from the first bytes of a section; 0 if they are too few.
    pub fn threshold_of(first: &[u8]) -> f32 {
        match first.len() {
            HEADER_BYTES.. => f32_at(first, at::THRESHOLD),
            _ => 0.0,
        }
    }

    /// Calls `visit(neuron, share)` for each neuron whose frequency for one token lies in `piece`,
    /// which begins at byte `at` of a section of `neurons` neurons: in 255ths, rounded.
    pub fn shares_of(piece: &[u8], at: usize, neurons: usize, visit: &mut dyn FnMut(usize, u8)) {
        let first = HEADER_BYTES + PREFIXES * CACHES * 4;
        let skipped = first.saturating_sub(at).min(piece.len());
        let neuron = (at + skipped - first.min(at + skipped)) / 2;
        let pairs = piece[skipped..].chunks_exact(2);
        for (neuron, pair) in (neuron..neurons).zip(pairs) {
            let frequency = u32::from(u16_at(pair, 0));
            visit(neuron, ((frequency + 128) / 257) as u8);
        }
    }

    /// Share of the neurons that are not below the threshold, 0 to 1.
    pub fn threshold_share(&self) -> f32 {
        f32_at(self.bytes, at::THRESHOLD_SHARE)
    }

    /// Share of the batches of `batch` consecutive tokens in which `neuron` is active for one.
    ///
    /// # Panics
    /// If `batch` is not 1 to [`BATCHES`], or there is no such neuron.
    pub fn frequency(&self, batch: usize, neuron: usize) -> f32 {
        assert!((1..=BATCHES).contains(&batch) && neuron < self.neurons);
        let at = HEADER_BYTES + PREFIXES * CACHES * 4 + ((batch - 1) * self.neurons + neuron) * 2;
        f32::from(u16_at(self.bytes, at)) / f32::from(ONE)
    }

    /// Active bundles a token that an LRU cache of `cache / 32` of the section's neurons misses,
    /// counted in neurons, where the first `prefix / 8` of the neurons never leave memory.
    ///
    /// # Panics
    /// If `prefix` is not below [`PREFIXES`] or `cache` not below [`CACHES`].
    pub fn misses(&self, prefix: usize, cache: usize) -> f32 {
        assert!(prefix < PREFIXES && cache < CACHES);
        f32_at(self.bytes, HEADER_BYTES + (prefix * CACHES + cache) * 4)
    }
}

/// What [`Statistics`] are written from.
#[derive(Debug, Clone, Copy)]
pub struct StatisticsSource<'a> {
    /// See [`Statistics::tokens`].
    pub tokens: u64,
    /// See [`Statistics::threshold`].
    pub threshold: f32,
    /// See [`Statistics::threshold_share`].
    pub threshold_share: f32,
    /// Frequencies (BATCHES, neurons), 0 to 1.
    pub frequencies: &'a [f32],
    /// Misses (PREFIXES, CACHES).
    pub misses: &'a [f32],
}

impl StatisticsSource<'_> {
    /// Writes statistics of `neurons` neurons to `bytes`.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn write(&self, neurons: usize, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), Statistics::bytes(neurons));
        assert_eq!(self.frequencies.len(), BATCHES * neurons);
        assert_eq!(self.misses.len(), PREFIXES * CACHES);
        bytes.fill(0);
        put_u32(bytes, at::NEURONS, neurons as u32);
        put_u64(bytes, at::TOKENS, self.tokens);
        put_u32(bytes, at::THRESHOLD, self.threshold.to_bits());
        put_u32(bytes, at::THRESHOLD_SHARE, self.threshold_share.to_bits());
        let (curve, frequencies) = bytes[HEADER_BYTES..].split_at_mut(PREFIXES * CACHES * 4);
        for (to, misses) in curve.chunks_exact_mut(4).zip(self.misses) {
            to.copy_from_slice(&misses.to_le_bytes());
        }
        for (to, frequency) in frequencies.chunks_exact_mut(2).zip(self.frequencies) {
            let fixed = (frequency.clamp(0.0, 1.0) * f32::from(ONE) + 0.5) as u16;
            to.copy_from_slice(&fixed.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_reads_back() {
        let neurons = 5;
        let frequencies: std::vec::Vec<f32> =
            (0..BATCHES * neurons).map(|i| i as f32 / 64.0).collect();
        let misses: std::vec::Vec<f32> = (0..PREFIXES * CACHES).map(|i| i as f32).collect();
        let source = StatisticsSource {
            tokens: 1 << 40,
            threshold: 0.25,
            threshold_share: 0.5,
            frequencies: &frequencies,
            misses: &misses,
        };
        let mut bytes = std::vec![0; Statistics::bytes(neurons)];
        source.write(neurons, &mut bytes);
        let statistics = Statistics::new_checked(&bytes, neurons).unwrap();
        assert_eq!(statistics.tokens(), 1 << 40);
        assert_eq!(statistics.threshold(), 0.25);
        assert_eq!(statistics.threshold_share(), 0.5);
        assert_eq!(statistics.misses(0, 0), 0.0);
        assert_eq!(statistics.misses(8, 32), (9 * 33 - 1) as f32);
        for batch in 1..=BATCHES {
            for neuron in 0..neurons {
                let want = frequencies[(batch - 1) * neurons + neuron];
                assert!((statistics.frequency(batch, neuron) - want).abs() <= 0.5 / 65535.0);
            }
        }
        for piece_bytes in [2, 64, 1300, 4096] {
            let mut shares = std::vec![0; neurons];
            for (index, piece) in bytes.chunks(piece_bytes).enumerate() {
                let mut note = |neuron, share| shares[neuron] = share;
                Statistics::shares_of(piece, index * piece_bytes, neurons, &mut note);
            }
            for (neuron, &share) in shares.iter().enumerate() {
                let want = statistics.frequency(1, neuron) * 255.0;
                assert!((f32::from(share) - want).abs() <= 0.501, "{share} {want}");
            }
        }
        let (have_bytes, need_bytes) = (bytes.len() - 1, bytes.len());
        assert_eq!(
            Statistics::new_checked(&bytes[1..], neurons).err(),
            Some(StatisticsError::Truncated {
                have_bytes,
                need_bytes
            })
        );
        assert_eq!(
            Statistics::new_checked(&bytes, neurons - 1).err(),
            Some(StatisticsError::Neurons { have: 5, want: 4 })
        );
    }
}
