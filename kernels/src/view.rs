//! Borrowed views of weights and activations: shapes that were checked once, at the door.

use crate::block::{BLOCK, GROUP, WeightType};

/// Consecutive rows of one matrix: W (rows, cols).
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    ty: WeightType,
    cols: usize,
    rows: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    ahead: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Rows whose codes stand in `codes`, one after the other, and whose scales in `scales`.
    ///
    /// # Panics
    /// If a length does not fit `rows` and `cols`, or a quantised row is not whole blocks.
    #[inline]
    pub fn new(
        ty: WeightType,
        rows: usize,
        cols: usize,
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Self {
        assert!(
            cols.is_multiple_of(ty.cols_multiple()),
            "{cols} columns of {ty:?}"
        );
        assert_eq!(codes.len(), rows * ty.code_bytes(cols));
        assert_eq!(scales.len(), rows * ty.scale_bytes(cols));
        Rows {
            ty,
            cols,
            rows,
            codes,
            scales,
            ahead: &[],
        }
    }

    /// The same rows; a product of them also asks memory for `next`, which will be needed
    /// afterwards, instead of for what follows the rows.
    #[inline]
    pub fn then(self, next: &'a [u8]) -> Self {
        Rows {
            ahead: next,
            ..self
        }
    }

    /// What is asked for while these rows are computed; empty: what follows them.
    #[inline]
    pub fn ahead(&self) -> &'a [u8] {
        self.ahead
    }

    /// Type of the weights.
    #[inline]
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Codes of row `row`.
    #[inline]
    pub fn codes(&self, row: usize) -> &'a [u8] {
        let bytes = self.ty.code_bytes(self.cols);
        &self.codes[row * bytes..][..bytes]
    }

    /// Scales of row `row`.
    #[inline]
    pub fn scales(&self, row: usize) -> &'a [u8] {
        let bytes = self.ty.scale_bytes(self.cols);
        &self.scales[row * bytes..][..bytes]
    }

    /// Rows `start..start + rows`.
    #[inline]
    pub fn slice(&self, start: usize, rows: usize) -> Rows<'a> {
        let (code, scale) = (
            self.ty.code_bytes(self.cols),
            self.ty.scale_bytes(self.cols),
        );
        Rows {
            rows,
            codes: &self.codes[start * code..(start + rows) * code],
            scales: &self.scales[start * scale..(start + rows) * scale],
            ..*self
        }
    }
}

/// Inputs of a product for `tokens` tokens: as floats and, for quantised weights, as 8-bit blocks.
#[derive(Debug, Clone, Copy)]
pub struct Activations<'a> {
    tokens: usize,
    cols: usize,
    /// (tokens, cols), for float weights; may be empty if only quantised weights are met.
    pub x: &'a [f32],
    /// (tokens, cols), in -127..=127; may be empty if only float weights are met.
    pub q: &'a [i8],
    /// (tokens, cols / 32): scale of each block.
    pub scales: &'a [f32],
    /// (tokens, cols / 32): sum of each block's codes.
    pub sums: &'a [i32],
}

impl<'a> Activations<'a> {
    /// Activations of `tokens` tokens. Either the floats or the codes may be left empty.
    ///
    /// # Panics
    /// If a length that is not zero does not fit.
    pub fn new(
        tokens: usize,
        cols: usize,
        x: &'a [f32],
        q: &'a [i8],
        scales: &'a [f32],
        sums: &'a [i32],
    ) -> Self {
        assert!(x.is_empty() || x.len() == tokens * cols);
        assert!(q.is_empty() || q.len() == tokens * cols);
        let blocks = if q.is_empty() {
            0
        } else {
            tokens * (cols / BLOCK)
        };
        assert_eq!(scales.len(), blocks);
        assert_eq!(sums.len(), blocks);
        Activations {
            tokens,
            cols,
            x,
            q,
            scales,
            sums,
        }
    }

    /// Number of tokens.
    #[inline]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// Down columns of up to [`GROUP`] neurons of one group, each stored as a row over the outputs.
///
/// Dead neurons may be left out; the order is the image's.
#[derive(Debug, Clone, Copy)]
pub struct NeuronRows<'a> {
    ty: WeightType,
    cols: usize,
    len: usize,
    codes: [&'a [u8]; GROUP],
    scales: [&'a [u8]; GROUP],
    ahead: &'a [u8],
}

impl<'a> NeuronRows<'a> {
    /// No neurons yet, of `cols` outputs each.
    #[inline]
    pub fn new(ty: WeightType, cols: usize) -> Self {
        assert!(
            cols.is_multiple_of(ty.cols_multiple()),
            "{cols} columns of {ty:?}"
        );
        NeuronRows {
            ty,
            cols,
            len: 0,
            codes: [&[]; GROUP],
            scales: [&[]; GROUP],
            ahead: &[],
        }
    }

    /// Asks memory for `next`, which will be needed afterwards, while these are computed.
    #[inline]
    pub fn then(&mut self, next: &'a [u8]) {
        self.ahead = next;
    }

    /// What is asked for while these neurons are computed; empty: what follows them.
    #[inline]
    pub fn ahead(&self) -> &'a [u8] {
        self.ahead
    }

    /// Adds one neuron.
    ///
    /// # Panics
    /// If the group is full or a length does not fit.
    #[inline]
    pub fn push(&mut self, codes: &'a [u8], scales: &'a [u8]) {
        assert_eq!(codes.len(), self.ty.code_bytes(self.cols));
        assert_eq!(scales.len(), self.ty.scale_bytes(self.cols));
        assert!(self.len < GROUP, "a group has {GROUP} neurons");
        self.codes[self.len] = codes;
        self.scales[self.len] = scales;
        self.len += 1;
    }

    /// Adds all of `rows`.
    #[inline]
    pub fn extend(&mut self, rows: &Rows<'a>) {
        assert_eq!((rows.ty(), rows.cols()), (self.ty, self.cols));
        let len = self.len + rows.rows();
        assert!(len <= GROUP, "a group has {GROUP} neurons");
        let codes = rows
            .codes
            .chunks_exact(rows.ty.code_bytes(rows.cols).max(1));
        for (slot, codes) in self.codes[self.len..len].iter_mut().zip(codes) {
            *slot = codes;
        }
        let scale_bytes = rows.ty.scale_bytes(rows.cols);
        if scale_bytes > 0 {
            let scales = rows.scales.chunks_exact(scale_bytes);
            for (slot, scales) in self.scales[self.len..len].iter_mut().zip(scales) {
                *slot = scales;
            }
        }
        self.len = len;
    }

    /// Type of the weights.
    #[inline]
    pub fn ty(&self) -> WeightType {
        self.ty
    }

    /// Number of outputs.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Codes of each neuron that was added.
    #[inline]
    pub fn codes(&self) -> &[&'a [u8]] {
        &self.codes[..self.len]
    }

    /// Scales of each neuron that was added.
    #[inline]
    pub fn scales(&self) -> &[&'a [u8]] {
        &self.scales[..self.len]
    }
}
