//! The predictor of one feed-forward section: which neurons a token will activate.
//!
//! Two low-rank layers, as in Deja Vu (2023) and PowerInfer (2023), without a nonlinearity between
//! them, since what they approximate is the gate's own product: `score = B (A x) + bias`, and a
//! neuron is predicted to be active where its score is above zero.

use core::ops::Range;

use tessera_kernels::{BLOCK, Rows, WeightType};

use super::cuts::Cuts;
use super::field::{f32_at, put_u32, u32_at};
use crate::limits::{DIM_MAX, FFN_DIM_MAX, PREDICTOR_RANK_MAX};

/// Bytes before the first layer.
const HEADER_BYTES: usize = 64;
/// Each run of bytes begins at a multiple of this.
const ALIGN_BYTES: usize = 64;

mod at {
    pub const RANK: usize = 0;
    pub const DIM: usize = 4;
    pub const NEURONS: usize = 8;
    pub const TYPES: usize = 12;
    pub const RECALL: usize = 16;
    pub const PRECISION: usize = 20;
    pub const ACTIVE_SHARE: usize = 24;
    pub const CUTS: usize = 28;
    pub const HAS_CUTS: usize = 60;
}

/// Sizes of a predictor, and so where its parts stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictorLayout {
    /// Rows of the first layer, a multiple of 32.
    pub rank: usize,
    /// Columns of the first layer.
    pub dim: usize,
    /// Rows of the second layer.
    pub neurons: usize,
    /// Type of the first layer A (rank, dim).
    pub first: WeightType,
    /// Type of the second layer B (neurons, rank).
    pub second: WeightType,
}

/// How well a predictor does on text that it was not trained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Share of the activations' magnitude that predicted neurons carry, 0 to 1.
    pub recall: f32,
    /// Share of the predicted neurons that are active, 0 to 1.
    pub precision: f32,
    /// Share of the neurons that are active, 0 to 1.
    pub active_share: f32,
    /// What leaving out neurons with low scores costs; `None` in images of earlier versions.
    pub cuts: Option<Cuts>,
}

/// Why a predictor was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PredictorError {
    /// Fewer bytes than its sizes need.
    Truncated {
        /// Bytes there are.
        have_bytes: usize,
        /// Bytes needed.
        need_bytes: usize,
    },
    /// A number that is out of range, or not the model's.
    Field {
        /// Name of the number.
        what: &'static str,
        /// Its value.
        have: u32,
        /// What it should be, or the most that it may be.
        want: u32,
    },
    /// Scores of losses that are no ascending numbers.
    Cuts,
    /// Neurons are to be left out, and the predictor does not say what that costs.
    NoCuts,
}

impl core::fmt::Display for PredictorError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Truncated {
                have_bytes,
                need_bytes,
            } => write!(f, "{have_bytes} bytes of predictor, {need_bytes} needed"),
            Self::Field { what, have, want } => {
                write!(f, "{what} of the predictor is {have}, not {want}")
            }
            Self::Cuts => f.write_str("the predictor's scores of losses do not ascend"),
            Self::NoCuts => f.write_str(
                "the predictor does not say what leaving out neurons costs; layout-tool profile \
                 makes an image whose predictors do",
            ),
        }
    }
}

impl core::error::Error for PredictorError {}

/// Where the parts of a predictor stand.
struct Places {
    first_codes: Range<usize>,
    first_scales: Range<usize>,
    second_codes: Range<usize>,
    second_scales: Range<usize>,
    bias: Range<usize>,
}

impl PredictorLayout {
    fn places(&self) -> Places {
        let after = |end: usize, bytes: usize| {
            let start = end.next_multiple_of(ALIGN_BYTES);
            start..start + bytes
        };
        let (first, second) = (self.first, self.second);
        let first_codes = after(HEADER_BYTES, self.rank * first.code_bytes(self.dim));
        let first_scales = after(first_codes.end, self.rank * first.scale_bytes(self.dim));
        let second_codes = after(
            first_scales.end,
            self.neurons * second.code_bytes(self.rank),
        );
        let second_scales = after(
            second_codes.end,
            self.neurons * second.scale_bytes(self.rank),
        );
        let bias = after(second_scales.end, self.neurons * size_of::<f32>());
        Places {
            first_codes,
            first_scales,
            second_codes,
            second_scales,
            bias,
        }
    }

    /// Bytes of the whole section.
    pub fn bytes(&self) -> usize {
        self.places().bias.end
    }

    /// Writes a predictor to `bytes`, which are [`PredictorLayout::bytes`] long: codes and scales
    /// of each layer, one row after the other, and `bias` (neurons,).
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn write(
        &self,
        quality: Quality,
        first: (&[u8], &[u8]),
        second: (&[u8], &[u8]),
        bias: &[f32],
        bytes: &mut [u8],
    ) {
        assert_eq!(bytes.len(), self.bytes());
        assert_eq!(bias.len(), self.neurons);
        bytes.fill(0);
        for (at, number) in [
            (at::RANK, self.rank),
            (at::DIM, self.dim),
            (at::NEURONS, self.neurons),
        ] {
            put_u32(bytes, at, number as u32);
        }
        bytes[at::TYPES] = self.first as u8;
        bytes[at::TYPES + 1] = self.second as u8;
        for (at, share) in [
            (at::RECALL, quality.recall),
            (at::PRECISION, quality.precision),
            (at::ACTIVE_SHARE, quality.active_share),
        ] {
            put_u32(bytes, at, share.to_bits());
        }
        if let Some(cuts) = quality.cuts {
            cuts.write(bytes, at::CUTS);
            put_u32(bytes, at::HAS_CUTS, 1);
        }
        let places = self.places();
        bytes[places.first_codes].copy_from_slice(first.0);
        bytes[places.first_scales].copy_from_slice(first.1);
        bytes[places.second_codes].copy_from_slice(second.0);
        bytes[places.second_scales].copy_from_slice(second.1);
        for (to, bias) in bytes[places.bias].chunks_exact_mut(4).zip(bias) {
            to.copy_from_slice(&bias.to_le_bytes());
        }
    }

    /// Reads and checks the header of a section's bytes; `dim` and `neurons` are the model's.
    ///
    /// # Errors
    /// [`PredictorError`].
    pub fn parse(bytes: &[u8], dim: usize, neurons: usize) -> Result<Self, PredictorError> {
        let have_bytes = bytes.len();
        if have_bytes < HEADER_BYTES {
            let need_bytes = HEADER_BYTES;
            return Err(PredictorError::Truncated {
                have_bytes,
                need_bytes,
            });
        }
        assert!(dim <= DIM_MAX && neurons <= FFN_DIM_MAX);
        let equal = |what, at, want: usize| {
            let (have, want) = (u32_at(bytes, at), want as u32);
            (have == want)
                .then_some(())
                .ok_or(PredictorError::Field { what, have, want })
        };
        equal("dim", at::DIM, dim)?;
        equal("number of neurons", at::NEURONS, neurons)?;
        let rank = u32_at(bytes, at::RANK) as usize;
        if rank == 0 || rank > PREDICTOR_RANK_MAX || !rank.is_multiple_of(BLOCK) {
            return Err(PredictorError::Field {
                what: "rank",
                have: rank as u32,
                want: PREDICTOR_RANK_MAX as u32,
            });
        }
        let ty = |what, byte: u8, cols: usize| {
            WeightType::from_u8(byte)
                .filter(|ty| ty.is_quantized() && cols.is_multiple_of(ty.cols_multiple()))
                .ok_or(PredictorError::Field {
                    what,
                    have: u32::from(byte),
                    want: WeightType::Q8 as u32,
                })
        };
        if cuts_of(bytes).is_some_and(|cuts| cuts.is_none()) {
            return Err(PredictorError::Cuts);
        }
        let layout = PredictorLayout {
            rank,
            dim,
            neurons,
            first: ty("type of the first layer", bytes[at::TYPES], dim)?,
            second: ty("type of the second layer", bytes[at::TYPES + 1], rank)?,
        };
        let need_bytes = layout.bytes();
        if have_bytes < need_bytes {
            return Err(PredictorError::Truncated {
                have_bytes,
                need_bytes,
            });
        }
        Ok(layout)
    }

    /// The parts of a section with this layout.
    ///
    /// # Panics
    /// If `bytes` are too few, or not aligned to four bytes in memory.
    pub fn view<'a>(&self, bytes: &'a [u8]) -> Predictor<'a> {
        let p = self.places();
        let rows = |ty, rows, cols, codes: Range<usize>, scales: Range<usize>| {
            Rows::new(ty, rows, cols, &bytes[codes], &bytes[scales])
        };
        Predictor {
            first: rows(
                self.first,
                self.rank,
                self.dim,
                p.first_codes,
                p.first_scales,
            ),
            second: rows(
                self.second,
                self.neurons,
                self.rank,
                p.second_codes,
                p.second_scales,
            ),
            bias: bytemuck::cast_slice(&bytes[p.bias]),
        }
    }
}

impl Quality {
    /// What the header of a section says.
    ///
    /// # Panics
    /// If `bytes` are fewer than a header.
    pub fn of(bytes: &[u8]) -> Self {
        Quality {
            recall: f32_at(bytes, at::RECALL),
            precision: f32_at(bytes, at::PRECISION),
            active_share: f32_at(bytes, at::ACTIVE_SHARE),
            cuts: cuts_of(bytes).flatten(),
        }
    }
}

/// What stands in a header for the cost of leaving out neurons, if anything does; `None` inside
/// where that is unsound.
fn cuts_of(bytes: &[u8]) -> Option<Option<Cuts>> {
    (u32_at(bytes, at::HAS_CUTS) != 0).then(|| Cuts::parse(bytes, at::CUTS))
}

/// The parts of a predictor.
#[derive(Debug, Clone, Copy)]
pub struct Predictor<'a> {
    /// A (rank, dim).
    pub first: Rows<'a>,
    /// B (neurons, rank).
    pub second: Rows<'a>,
    /// (neurons,); minus infinity for neurons that are never active.
    pub bias: &'a [f32],
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> PredictorLayout {
        PredictorLayout {
            rank: 32,
            dim: 64,
            neurons: 3,
            first: WeightType::Q8,
            second: WeightType::Q4,
        }
    }

    fn written() -> std::vec::Vec<u8> {
        let layout = layout();
        let mut bytes = std::vec![0; layout.bytes()];
        let quality = Quality {
            recall: 0.99,
            precision: 0.5,
            active_share: 0.125,
            cuts: Some(Cuts([0.0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5])),
        };
        layout.write(
            quality,
            (&[1; 32 * 64], &[2; 32 * 4]),
            (&[3; 3 * 32], &[4; 3 * 2]),
            &[0.5, -1.0, f32::NEG_INFINITY],
            &mut bytes,
        );
        bytes
    }

    #[test]
    fn what_was_written_reads_back() {
        let bytes = written();
        assert_eq!(PredictorLayout::parse(&bytes, 64, 3), Ok(layout()));
        let quality = Quality::of(&bytes);
        assert_eq!((quality.recall, quality.precision), (0.99, 0.5));
        assert_eq!(quality.active_share, 0.125);
        assert_eq!(quality.cuts.map(|cuts| cuts.score(50)), Some(0.4));
        let aligned: std::vec::Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let predictor = layout().view(bytemuck::cast_slice(&aligned));
        assert_eq!(predictor.first.codes(31), [1; 64]);
        assert_eq!(predictor.first.scales(0), [2; 4]);
        assert_eq!(predictor.second.codes(2), [3; 32]);
        assert_eq!(predictor.second.scales(1), [4; 2]);
        assert_eq!(predictor.bias, [0.5, -1.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn every_wrong_number_is_refused() {
        let bytes = written();
        let parse = |bytes: &[u8]| PredictorLayout::parse(bytes, 64, 3);
        let need_bytes = HEADER_BYTES;
        let have_bytes = 63;
        assert_eq!(
            parse(&bytes[..63]),
            Err(PredictorError::Truncated {
                have_bytes,
                need_bytes
            })
        );
        assert!(matches!(
            parse(&bytes[..bytes.len() - 1]),
            Err(PredictorError::Truncated { .. })
        ));
        for (at, value) in [
            (at::RANK, 0),
            (at::RANK, 31),
            (at::RANK, u32::MAX - 31),
            (at::DIM, 65),
            (at::NEURONS, 4),
            (at::TYPES, 0),
            (at::TYPES, 255),
            (at::TYPES, 2 | 7 << 8),
        ] {
            let mut wrong = bytes.clone();
            put_u32(&mut wrong, at, value);
            assert!(
                matches!(parse(&wrong), Err(PredictorError::Field { .. })),
                "{value} at {at}"
            );
        }
        let mut wrong = bytes.clone();
        put_u32(&mut wrong, at::CUTS + 28, f32::NAN.to_bits());
        assert_eq!(parse(&wrong), Err(PredictorError::Cuts));
        put_u32(&mut wrong, at::HAS_CUTS, 0);
        assert_eq!(parse(&wrong), Ok(layout()));
        assert_eq!(Quality::of(&wrong).cuts, None);
    }
}
