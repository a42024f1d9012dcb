//! f32 rows to blocks and back: the definition of each format, and the choice of its scales.
//!
//! Choosing scales is the packer's work. It is plain float arithmetic in a fixed order, so the
//! same weights give the same bytes on every machine. Weights must be finite.

use crate::block::{BLOCK, SUPER_BLOCK, WeightType};
use crate::math::{ROUND, f16_to_f32, f32_to_f16};
use crate::pack::{pack_codes, unpack_block};

mod search;
mod super_block;

pub use super_block::SuperScales;

/// Blocks that are quantised before their codes are packed: a pair.
const PAIR: usize = 2 * BLOCK;

/// The f16 at index `index` of a row's scales, as f32.
pub(crate) fn scale_at(scales: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([
        scales[2 * index],
        scales[2 * index + 1],
    ]))
}

/// Scale and minimum of block `block` of a row of `cols` weights.
pub(crate) fn block_scale(ty: WeightType, cols: usize, scales: &[u8], block: usize) -> (f32, f32) {
    match ty {
        WeightType::Q4K => super_block::block_scale(scales, block),
        WeightType::Q4O => (
            scale_at(scales, block),
            scale_at(scales, cols / BLOCK + block),
        ),
        _ => (scale_at(scales, block), 0.0),
    }
}

/// What is taken off a stored code before it is multiplied by the scale.
pub(crate) const fn zero_code(ty: WeightType) -> i32 {
    match ty {
        WeightType::Q4 => 8,
        WeightType::Q5 => 16,
        WeightType::Q6 => 32,
        _ => 0,
    }
}

/// Writes the `cols` weights of one row to `out`.
///
/// # Panics
/// If a length does not fit.
pub fn dequantize_row(ty: WeightType, cols: usize, codes: &[u8], scales: &[u8], out: &mut [f32]) {
    assert_eq!(codes.len(), ty.code_bytes(cols));
    assert_eq!(scales.len(), ty.scale_bytes(cols));
    assert_eq!(out.len(), cols);
    match ty {
        WeightType::F32 => {
            for (out, bytes) in out.iter_mut().zip(codes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
        WeightType::F16 => {
            for (out, bytes) in out.iter_mut().zip(codes.as_chunks().0) {
                *out = f16_to_f32(u16::from_le_bytes(*bytes));
            }
        }
        _ => {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                dequantize_block(ty, cols, codes, scales, block, out);
            }
        }
    }
}

fn dequantize_block(
    ty: WeightType,
    cols: usize,
    codes: &[u8],
    scales: &[u8],
    block: usize,
    out: &mut [f32],
) {
    let (d, m) = block_scale(ty, cols, scales, block);
    let codes = unpack_block(ty, codes, block);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = match ty {
            WeightType::Q8 => d * f32::from(code as i8),
            WeightType::Q4O | WeightType::Q4K => d * f32::from(code) + m,
            _ => d * (i32::from(code) - zero_code(ty)) as f32,
        };
    }
}

/// Rounds one row of weights to type `ty`: the reverse of [`dequantize_row`].
///
/// Q8 takes `d = max|x| / 127`. Q4, Q5 and Q6 try 16 scales around the one that maps the largest
/// magnitude to the lowest code, Q4O 16 ranges around minimum and maximum; each then fits scale
/// (and minimum) to the codes by least squares, and the smallest squared error wins. Codes are
/// chosen against the scale as stored. Q4K fits its blocks as Q4O does and then rounds scales and
/// minima to 6 bits. Scales beyond the range of f16 are cut off there.
///
/// # Panics
/// If a length does not fit.
pub fn quantize_row(ty: WeightType, x: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    assert!(
        x.len().is_multiple_of(ty.cols_multiple()),
        "{} columns of {ty:?}",
        x.len()
    );
    assert_eq!(codes.len(), ty.code_bytes(x.len()));
    assert_eq!(scales.len(), ty.scale_bytes(x.len()));
    match ty {
        WeightType::F32 => {
            for (bytes, x) in codes.as_chunks_mut().0.iter_mut().zip(x) {
                *bytes = x.to_le_bytes();
            }
        }
        WeightType::F16 => {
            for (bytes, &x) in codes.as_chunks_mut().0.iter_mut().zip(x) {
                *bytes = f32_to_f16(x).to_le_bytes();
            }
        }
        WeightType::Q4K => {
            let code_bytes = ty.code_bytes(SUPER_BLOCK);
            let outs = codes
                .chunks_exact_mut(code_bytes)
                .zip(scales.as_chunks_mut().0);
            for (x, (codes, scales)) in x.as_chunks().0.iter().zip(outs) {
                let unpacked;
                (unpacked, *scales) = super_block::quantize(x);
                pack_codes(ty, SUPER_BLOCK, &unpacked, codes);
            }
        }
        _ => {
            let minima_at = x.len() / BLOCK;
            let pair_bytes = ty.code_bytes(PAIR);
            for (pair, x) in x.chunks(PAIR).enumerate() {
                let mut unpacked = [0; PAIR];
                let unpacked = &mut unpacked[..x.len()];
                for (i, x) in x.as_chunks().0.iter().enumerate() {
                    let (block_codes, fit) = quantize_block(ty, x);
                    unpacked[i * BLOCK..][..BLOCK].copy_from_slice(&block_codes);
                    store_scale(scales, 2 * pair + i, fit.d);
                    if ty == WeightType::Q4O {
                        store_scale(scales, minima_at + 2 * pair + i, fit.m);
                    }
                }
                let bytes = ty.code_bytes(x.len());
                pack_codes(
                    ty,
                    x.len(),
                    unpacked,
                    &mut codes[pair * pair_bytes..][..bytes],
                );
            }
        }
    }
}

fn store_scale(scales: &mut [u8], index: usize, value: f32) {
    scales[2 * index..][..2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

/// Scale and minimum of a block; both are f16 values.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fit {
    d: f32,
    m: f32,
}

/// One block's codes as they are given to `pack_codes`, and its scale.
fn quantize_block(ty: WeightType, x: &[f32; BLOCK]) -> ([u8; BLOCK], Fit) {
    let (fit, low, high, shift) = match ty {
        WeightType::Q8 => {
            let top = x
                .iter()
                .fold(0f32, |top, x| if x.abs() > top { x.abs() } else { top });
            (
                Fit {
                    d: to_f16(top / 127.0),
                    m: 0.0,
                },
                -127.0,
                127.0,
                0,
            )
        }
        WeightType::Q4 => (search::symmetric(x, 8.0, 0.1), -8.0, 7.0, 8),
        WeightType::Q5 => (search::symmetric(x, 16.0, 0.12), -16.0, 15.0, 16),
        WeightType::Q6 => (search::symmetric(x, 32.0, 0.15), -32.0, 31.0, 32),
        _ => (search::with_offset(x), 0.0, 15.0, 0),
    };
    let mut codes = [0; BLOCK];
    for (code, q) in codes.iter_mut().zip(round_to_codes(x, fit, low, high)) {
        *code = (q as i32 + shift) as u8;
    }
    (codes, fit)
}

/// `(x - m) / d` rounded to the nearest code of `low..=high`; all zero where `d` is.
fn round_to_codes(x: &[f32; BLOCK], fit: Fit, low: f32, high: f32) -> [f32; BLOCK] {
    let inverse = if fit.d == 0.0 { 0.0 } else { 1.0 / fit.d };
    let mut q = [0.0; BLOCK];
    for (q, x) in q.iter_mut().zip(x) {
        let scaled = (x - fit.m) * inverse;
        let scaled = if scaled > low { scaled } else { low };
        let scaled = if scaled < high { scaled } else { high };
        *q = (scaled + ROUND) - ROUND;
    }
    q
}

/// The nearest f16, as f32; magnitudes past the largest f16 become that.
fn to_f16(x: f32) -> f32 {
    const MAX: f32 = 65504.0;
    f16_to_f32(f32_to_f16(x.clamp(-MAX, MAX)))
}

#[cfg(test)]
mod tests;
