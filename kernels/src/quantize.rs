//! f32 rows to blocks and back: the definition of each format, and the choice of its scales.
//!
//! Choosing scales is the packer's work. It is plain float arithmetic in a fixed order, so the
//! same weights give the same bytes on every machine. Weights must be finite.

use crate::block::{BLOCK, SUPER_BLOCK, WeightType};
use crate::check;
use crate::interleave::{INTERLEAVED, RUN, interleave};
use crate::math::{ROUND, f16_to_f32, f32_to_f16};
use crate::pack::{pack_codes, put_block, unpack_block};

pub(crate) mod search;
mod super_block;

pub use super_block::SuperScales;

/// The largest f16.
pub(crate) const F16_MAX: f32 = 65504.0;
/// Weights past this are taken for it, so that nothing overflows while scales are chosen: 2^60.
pub(crate) const CUT_OFF: f32 = f32::from_bits((127 + 60) << 23);

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
                let codes = unpack_block(ty, codes, block);
                dequantize_block(ty, block_scale(ty, cols, scales, block), &codes, out);
            }
        }
    }
}

/// Writes the `cols` weights of one interleaved row to `out`.
///
/// # Panics
/// If a length does not fit.
pub(crate) fn dequantize_interleaved(
    ty: WeightType,
    cols: usize,
    codes: &[u8],
    scales: &[u8],
    out: &mut [f32],
) {
    if !ty.is_quantized() {
        return dequantize_row(ty, cols, codes, scales, out);
    }
    assert_eq!(codes.len(), ty.code_bytes(cols));
    assert_eq!(scales.len(), ty.scale_bytes(cols));
    assert_eq!(out.len(), cols);
    for (run, out) in out.chunks_mut(RUN).enumerate() {
        let run_bytes = ty.code_bytes(out.len());
        let mut codes_of = [0; RUN];
        let plain = &mut codes_of[..run_bytes];
        plain.copy_from_slice(&codes[run * ty.code_bytes(RUN)..][..run_bytes]);
        interleave(ty, out.len(), plain);
        for (block, out) in out.chunks_mut(BLOCK).enumerate() {
            let scale = block_scale(ty, cols, scales, run * INTERLEAVED + block);
            dequantize_block(ty, scale, &unpack_block(ty, plain, block), out);
        }
    }
}

pub(crate) fn dequantize_block(
    ty: WeightType,
    (d, m): (f32, f32),
    codes: &[u8; BLOCK],
    out: &mut [f32],
) {
    for (out, &code) in out.iter_mut().zip(codes) {
        *out = match ty {
            WeightType::Q8 => d * f32::from(code as i8),
            WeightType::Q4O | WeightType::Q4K => d * f32::from(code) + m,
            _ => d * (i32::from(code) - zero_code(ty)) as f32,
        };
    }
}

/// What rounding cost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// Sum of `(w - w')^2`: in f32 within a block, in order, then in f64.
    pub error: f64,
    /// Sum of `w^2`, likewise.
    pub total: f64,
}

impl Loss {
    /// Adds weights of one row, or of a part of it, and what they became.
    pub fn add_row(&mut self, was: &[f32], is: &[f32]) {
        let (mut error, mut total) = (0f32, 0f32);
        for (was, is) in was.iter().zip(is) {
            error += (was - is) * (was - is);
            total += was * was;
        }
        self.error += f64::from(error);
        self.total += f64::from(total);
    }
}

impl core::ops::Add for Loss {
    type Output = Loss;

    fn add(self, other: Loss) -> Loss {
        Loss {
            error: self.error + other.error,
            total: self.total + other.total,
        }
    }
}

/// Rounds one row of weights to type `ty`: the reverse of [`dequantize_row`].
///
/// The scalar form of [`crate::Kernels::quantize_rows`].
///
/// # Panics
/// If a length does not fit.
pub fn quantize_row(ty: WeightType, x: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Loss {
    quantize_rows(ty, x.len(), x, codes, scales)
}

/// See [`crate::Kernels::quantize_rows`].
pub(crate) fn quantize_rows(
    ty: WeightType,
    cols: usize,
    x: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
) -> Loss {
    check::quantize_rows(ty, cols, x, codes, scales);
    match ty {
        WeightType::F32 | WeightType::F16 => return store_floats(ty, x, codes),
        WeightType::Q4K => return store_super_blocks(x, codes, scales),
        _ => {}
    }
    let mut loss = Loss::default();
    let mut place = Place::new(ty, cols);
    for x in x.as_chunks().0 {
        let (block_codes, fit) = quantize_block(ty, x);
        let shift = zero_code(ty);
        let (mut error, mut total) = (0.0, 0.0);
        let mut stored = [0; BLOCK];
        for ((stored, q), x) in stored.iter_mut().zip(block_codes).zip(x) {
            *stored = (q as i32 + shift) as u8;
            let rest = x - (q * fit.d + fit.m);
            error += rest * rest;
            total += x * x;
        }
        loss.error += f64::from(error);
        loss.total += f64::from(total);
        place.put(&stored, codes);
        place.put_scales([f32_to_f16(fit.d), f32_to_f16(fit.m)], scales);
        place.next();
    }
    loss
}

/// The float types: nothing is chosen.
pub(crate) fn store_floats(ty: WeightType, x: &[f32], codes: &mut [u8]) -> Loss {
    let mut loss = Loss::default();
    for (i, x) in x.iter().enumerate() {
        let mut rest = 0.0;
        if ty == WeightType::F16 {
            let half = f32_to_f16(*x);
            rest = x - f16_to_f32(half);
            codes[2 * i..][..2].copy_from_slice(&half.to_le_bytes());
        } else {
            codes[4 * i..][..4].copy_from_slice(&x.to_le_bytes());
        }
        loss.error += f64::from(rest * rest);
        loss.total += f64::from(x * x);
    }
    loss
}

/// `Q4K`, whose rows are whole super-blocks: the same in every table, since weights are rounded to
/// it on request only.
pub(crate) fn store_super_blocks(x: &[f32], codes: &mut [u8], scales: &mut [u8]) -> Loss {
    let ty = WeightType::Q4K;
    let mut loss = Loss::default();
    let outs = codes
        .chunks_exact_mut(ty.code_bytes(SUPER_BLOCK))
        .zip(scales.as_chunks_mut().0);
    for (x, (codes, scales)) in x.as_chunks().0.iter().zip(outs) {
        let unpacked;
        (unpacked, *scales) = super_block::quantize(x);
        pack_codes(ty, SUPER_BLOCK, &unpacked, codes);
        for (block, x) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            let mut back = [0.0; BLOCK];
            let codes = unpack_block(ty, codes, block);
            dequantize_block(
                ty,
                block_scale(ty, SUPER_BLOCK, scales, block),
                &codes,
                &mut back,
            );
            loss.add_row(x, &back);
        }
    }
    loss
}

/// Where the next block of a matrix is stored.
pub(crate) struct Place {
    ty: WeightType,
    blocks: usize,
    code_bytes: usize,
    scale_bytes: usize,
    row: usize,
    block: usize,
}

impl Place {
    /// The first block of rows of `cols` weights.
    pub(crate) fn new(ty: WeightType, cols: usize) -> Self {
        Place {
            ty,
            blocks: cols / BLOCK,
            code_bytes: ty.code_bytes(cols),
            scale_bytes: ty.scale_bytes(cols),
            row: 0,
            block: 0,
        }
    }

    /// Stores codes; those of the even block of a pair first.
    #[inline(always)]
    pub(crate) fn put(&self, stored: &[u8; BLOCK], codes: &mut [u8]) {
        let pair = self.row * self.code_bytes + self.block / 2 * self.ty.code_bytes(2 * BLOCK);
        put_block(self.ty, stored, self.block % 2 == 1, &mut codes[pair..]);
    }

    /// Stores the scale, and for Q4O the minimum, as f16 bits.
    #[inline(always)]
    pub(crate) fn put_scales(&self, [d, m]: [u16; 2], scales: &mut [u8]) {
        let at = self.row * self.scale_bytes + 2 * self.block;
        scales[at..][..2].copy_from_slice(&d.to_le_bytes());
        if self.ty == WeightType::Q4O {
            scales[at + 2 * self.blocks..][..2].copy_from_slice(&m.to_le_bytes());
        }
    }

    /// On to the next block.
    #[inline(always)]
    pub(crate) fn next(&mut self) {
        self.block += 1;
        if self.block == self.blocks {
            (self.row, self.block) = (self.row + 1, 0);
        }
    }
}

/// Scale and minimum of a block; both are f16 values.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fit {
    d: f32,
    m: f32,
}

/// Lowest and highest code, without the offset of [`zero_code`].
pub(crate) const fn code_range(ty: WeightType) -> (f32, f32) {
    match ty {
        WeightType::Q8 => (-127.0, 127.0),
        WeightType::Q6 => (-32.0, 31.0),
        WeightType::Q5 => (-16.0, 15.0),
        WeightType::Q4 => (-8.0, 7.0),
        _ => (0.0, search::Q4O_HIGH),
    }
}

/// One block's codes, without the offset of [`zero_code`], and its scale.
fn quantize_block(ty: WeightType, x: &[f32; BLOCK]) -> ([f32; BLOCK], Fit) {
    let x = &x.map(|x| clamp(x, -CUT_OFF, CUT_OFF));
    let fit = match ty {
        WeightType::Q8 => search::plain(x),
        WeightType::Q4 => search::symmetric(x, 8.0, &search::Q4_STEPS, Some(search::Q4_BASE)),
        WeightType::Q5 => search::symmetric(x, 16.0, &search::Q5_STEPS, None),
        WeightType::Q6 => search::symmetric(x, 32.0, &search::Q6_STEPS, None),
        _ => search::with_offset(x),
    };
    let (low, high) = code_range(ty);
    let inverse = if fit.d == 0.0 { 0.0 } else { 1.0 / fit.d };
    let codes = x.map(|x| nearest(clamp((x - fit.m) * inverse, low, high)));
    (codes, fit)
}

/// `x`, or the end of `low..=high` past which it is.
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    if x < high { x } else { high }
}

/// The nearest integer, half to even, of a small number.
fn nearest(x: f32) -> f32 {
    (x + ROUND) - ROUND
}

/// The nearest f16, as f32; magnitudes past the largest f16 become that.
fn to_f16(x: f32) -> f32 {
    f16_to_f32(f32_to_f16(clamp(x, -F16_MAX, F16_MAX)))
}

#[cfg(test)]
mod tests;
