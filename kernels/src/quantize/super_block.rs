//! `Q4K`: eight blocks whose scales and minima are 6-bit multiples of two f16.
//!
//! The format is ggml's `Q4_K`, its sixteen bytes of scales in an order that is quick to take
//! apart: f16 `D`, f16 `M`, eight bytes with a block's scale `s` in bits 0-5 and the high two bits
//! of its minimum `n` in bits 6-7, and four bytes with the low four bits of all minima, two a byte.
//! A weight is `(D * s) * q + (M * n)`; both products are exact in f32.

use super::{CUT_OFF, Fit, clamp, nearest, search, to_f16};
use crate::block::{BLOCK, SUPER_BLOCK};
use crate::math::{f16_to_f32, f32_to_f16};

/// Bytes of the scales of a super-block.
pub(crate) const SCALE_BYTES: usize = 16;
/// Blocks of a super-block.
const BLOCKS: usize = SUPER_BLOCK / BLOCK;
/// The largest 6-bit number.
const TOP: f32 = 63.0;

/// Scales of a super-block, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperScales {
    /// f16 bits that the scales are multiples of.
    pub d: u16,
    /// f16 bits that the minima are multiples of.
    pub m: u16,
    /// Scale of each block, below 64.
    pub scales: [u8; BLOCKS],
    /// Minimum of each block, below 64.
    pub minima: [u8; BLOCKS],
}

impl SuperScales {
    /// The stored form.
    ///
    /// # Panics
    /// If a scale or a minimum is 64 or more.
    pub fn to_bytes(&self) -> [u8; SCALE_BYTES] {
        let mut bytes = [0; SCALE_BYTES];
        bytes[..2].copy_from_slice(&self.d.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.m.to_le_bytes());
        for (block, (&scale, &min)) in self.scales.iter().zip(&self.minima).enumerate() {
            assert!(scale < 64 && min < 64, "{scale} and {min} of block {block}");
            bytes[4 + block] = scale | min >> 4 << 6;
            bytes[12 + block / 2] |= (min & 15) << (block % 2 * 4);
        }
        bytes
    }
}

/// `d` and `m` of block `block` of a row.
pub(super) fn block_scale(scales: &[u8], block: usize) -> (f32, f32) {
    let bytes = &scales[block / BLOCKS * SCALE_BYTES..][..SCALE_BYTES];
    let index = block % BLOCKS;
    let half = |at: usize| f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let scale = bytes[4 + index];
    let min = bytes[12 + index / 2] >> (index % 2 * 4) & 15 | scale >> 6 << 4;
    (half(0) * f32::from(scale & 63), half(2) * f32::from(min))
}

/// Rounds the weights of one super-block: codes one a byte, and the stored scales.
pub(super) fn quantize(x: &[f32; SUPER_BLOCK]) -> ([u8; SUPER_BLOCK], [u8; SCALE_BYTES]) {
    let x = x.map(|x| clamp(x, -CUT_OFF, CUT_OFF));
    let x = x.as_chunks::<BLOCK>().0;
    let mut fits = [Fit { d: 0.0, m: 0.0 }; BLOCKS];
    let (mut d_max, mut m_min) = (0f32, 0f32);
    for (fit, x) in fits.iter_mut().zip(x) {
        *fit = search::with_offset(x);
        if fit.m > 0.0 {
            // Minima share a sign: a block of positive weights begins at zero.
            let top = x.iter().fold(0f32, |top, &x| if x > top { x } else { top });
            *fit = Fit {
                d: top / 15.0,
                m: 0.0,
            };
        }
        d_max = if fit.d > d_max { fit.d } else { d_max };
        m_min = if fit.m < m_min { fit.m } else { m_min };
    }
    let (d, m) = (to_f16(d_max / TOP), to_f16(m_min / TOP));
    let mut scales = SuperScales {
        d: f32_to_f16(d),
        m: f32_to_f16(m),
        scales: [0; BLOCKS],
        minima: [0; BLOCKS],
    };
    let mut codes = [0; SUPER_BLOCK];
    for (block, (codes, x)) in codes
        .as_chunks_mut::<BLOCK>()
        .0
        .iter_mut()
        .zip(x)
        .enumerate()
    {
        let (scale, min) = (six_bits(fits[block].d, d), six_bits(fits[block].m, m));
        (scales.scales[block], scales.minima[block]) = (scale, min);
        let fit = Fit {
            d: d * f32::from(scale),
            m: m * f32::from(min),
        };
        let inverse = if fit.d == 0.0 { 0.0 } else { 1.0 / fit.d };
        for (code, x) in codes.iter_mut().zip(x) {
            *code = nearest(clamp((x - fit.m) * inverse, 0.0, search::Q4O_HIGH)) as u8;
        }
    }
    (codes, scales.to_bytes())
}

/// `a / unit`, rounded to 6 bits; 0 where `unit` is.
fn six_bits(a: f32, unit: f32) -> u8 {
    if unit == 0.0 {
        return 0;
    }
    nearest(clamp(a / unit, 0.0, TOP)) as u8
}
