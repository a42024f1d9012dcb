//! Rows of a source tensor to rows of an image.

use tessera_kernels::{
    Kernels, Loss, QUANTIZE_SCRATCH_BYTES, WeightType, interleave, quantize_row,
};

use super::error::PackError;
use super::moves::move_row;
use crate::source::{Tensor, dequantize};

/// Smallest magnitude that rounds to infinity as a half float.
const F16_OVERFLOW: f32 = 65520.0;

/// One row of an image: codes, and scales.
#[derive(Debug, Default, Clone)]
pub struct Row {
    /// Its codes.
    pub codes: Vec<u8>,
    /// Its scales; empty for the float types.
    pub scales: Vec<u8>,
}

impl Row {
    /// A row of zeros of type `ty`.
    pub fn zeros(ty: WeightType, cols: usize) -> Self {
        let mut row = Row::default();
        row.resize(ty, cols);
        quantize_row(ty, &vec![0.0; cols], &mut row.codes, &mut row.scales);
        row
    }

    /// Makes room for `cols` weights of type `ty`; contents are undefined.
    pub fn resize(&mut self, ty: WeightType, cols: usize) {
        self.codes.resize(ty.code_bytes(cols), 0);
        self.scales.resize(ty.scale_bytes(cols), 0);
    }

    /// Both runs of bytes.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        (&self.codes, &self.scales)
    }
}

/// Rounds rows with the kernels of this CPU.
#[derive(Debug)]
pub struct Quantizer {
    kernels: Kernels,
    scratch: Vec<u8>,
}

impl Default for Quantizer {
    fn default() -> Self {
        Quantizer {
            kernels: Kernels::best(),
            scratch: vec![0; QUANTIZE_SCRATCH_BYTES],
        }
    }
}

impl Quantizer {
    /// Rounds rows of `cols` weights to type `ty`; returns what that costs.
    pub fn rows(
        &mut self,
        ty: WeightType,
        cols: usize,
        weights: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
    ) -> Loss {
        (self.kernels.quantize_rows)(ty, cols, weights, codes, scales, &mut self.scratch)
    }
}

/// Working memory of a conversion.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Rounds rows.
    pub quantizer: Quantizer,
    /// Rows as stored.
    pub stored: Vec<u8>,
    /// One row as floats.
    pub floats: Vec<f32>,
    unpacked: Vec<u8>,
}

/// Refuses rows of `cols` weights that type `ty` cannot hold.
///
/// # Errors
/// [`PackError::Width`].
pub fn check_width(tensor: &Tensor<'_>, ty: WeightType, cols: usize) -> Result<(), PackError> {
    if cols.is_multiple_of(ty.cols_multiple()) {
        return Ok(());
    }
    Err(PackError::Width {
        tensor: tensor.name().to_owned(),
        cols,
        ty,
    })
}

/// Refuses weights that type `ty` cannot hold; `row` is for the message.
///
/// # Errors
/// [`PackError::NotFinite`] or [`PackError::TooLarge`].
pub fn check_weights(
    tensor: &Tensor<'_>,
    row: usize,
    ty: WeightType,
    weights: &[f32],
) -> Result<(), PackError> {
    // Of floats without sign the bits are in their order, infinities and NaN last.
    let magnitude = |w: &f32| (w.to_bits() & 0x7fff_ffff) as i32;
    let top = weights.iter().map(magnitude).fold(0, i32::max);
    let top = f32::from_bits(top as u32);
    let finite = top < f32::INFINITY;
    let tensor = || tensor.name().to_owned();
    if !finite {
        return Err(PackError::NotFinite {
            tensor: tensor(),
            row,
        });
    }
    // Scales are f16 as well.
    if ty != WeightType::F32 && top >= F16_OVERFLOW {
        return Err(PackError::TooLarge {
            tensor: tensor(),
            row,
        });
    }
    Ok(())
}

/// Converts one stored row of `tensor` to an interleaved one; `row` is its number, for messages.
///
/// # Errors
/// If a weight is not finite, or too large for the type.
pub fn convert_row(
    tensor: &Tensor<'_>,
    row: usize,
    stored: &[u8],
    ty: WeightType,
    (floats, unpacked): (&mut Vec<f32>, &mut Vec<u8>),
    quantizer: &mut Quantizer,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), PackError> {
    if !move_row(tensor.ty, ty, stored, unpacked, codes, scales) {
        floats.resize(tensor.cols, 0.0);
        dequantize(tensor.ty, stored, floats);
        check_weights(tensor, row, ty, floats)?;
        quantizer.rows(ty, tensor.cols, floats, codes, scales);
    }
    interleave(ty, tensor.cols, codes);
    Ok(())
}

/// Reads rows `start..start + count` of `tensor` and calls `put(index, row)` for each, counted from
/// the first of them; the memory of `row` is used again for every one.
///
/// # Errors
/// If they cannot be read or converted.
pub fn convert_rows(
    tensor: &Tensor<'_>,
    (start, count): (usize, usize),
    ty: WeightType,
    scratch: &mut Scratch,
    row: &mut Row,
    mut put: impl FnMut(usize, &Row),
) -> Result<(), PackError> {
    tensor.read_rows(start, count, &mut scratch.stored)?;
    row.resize(ty, tensor.cols);
    let Scratch {
        stored,
        floats,
        unpacked,
        quantizer,
    } = scratch;
    for (index, stored) in stored.chunks_exact(tensor.row_bytes()).enumerate() {
        let memory = (&mut *floats, &mut *unpacked);
        let (codes, scales) = (&mut row.codes[..], &mut row.scales[..]);
        convert_row(
            tensor,
            start + index,
            stored,
            ty,
            memory,
            quantizer,
            codes,
            scales,
        )?;
        put(index, row);
    }
    Ok(())
}
