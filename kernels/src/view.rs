//! Borrowed views of weights and activations: shapes that were checked once, at the door.

use crate::block::{BLOCK, GROUP, WeightType};
use crate::quantize::{dequantize_interleaved, dequantize_row};
use crate::soon::Soon;

/// Rows of one matrix: W (rows, cols).
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    ty: WeightType,
    cols: usize,
    rows: usize,
    codes: &'a [u8],
    scales: &'a [u8],
    /// Rows that follow each other directly, as a power of two.
    run_shift: u32,
    /// From one such run to the next.
    stride_bytes: usize,
    interleaved: bool,
    soon: Soon<'a>,
}

impl<'a> Rows<'a> {
    /// Interleaved rows (see the crate docs) whose codes stand in `codes`, one after the other, and
    /// whose scales in `scales`.
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
            run_shift: usize::BITS - 1,
            stride_bytes: 0,
            interleaved: true,
            soon: Soon::default(),
        }
    }

    /// Interleaved rows in runs of `run_rows` that follow each other; a run's codes begin
    /// `stride_bytes` after those of the run before, and its scales likewise. `codes` and `scales`
    /// begin with the first row's, and reach to the last one's or further.
    ///
    /// # Panics
    /// If `run_rows` is not a power of two that divides `rows`, or a length does not fit.
    #[inline]
    pub fn spread(
        ty: WeightType,
        rows: usize,
        cols: usize,
        codes: &'a [u8],
        scales: &'a [u8],
        run_rows: usize,
        stride_bytes: usize,
    ) -> Self {
        assert!(
            cols.is_multiple_of(ty.cols_multiple()),
            "{cols} columns of {ty:?}"
        );
        assert!(run_rows.is_power_of_two(), "runs of {run_rows} rows");
        assert!(
            rows.is_multiple_of(run_rows),
            "{rows} in runs of {run_rows}"
        );
        if let Some(last) = (rows / run_rows).checked_sub(1) {
            let end = |row_bytes| last * stride_bytes + run_rows * row_bytes;
            let (code_end, scale_end) = (end(ty.code_bytes(cols)), end(ty.scale_bytes(cols)));
            assert!(codes.len() >= code_end, "{} of {code_end}", codes.len());
            assert!(scales.len() >= scale_end, "{} of {scale_end}", scales.len());
        }
        Rows {
            ty,
            cols,
            rows,
            codes,
            scales,
            run_shift: run_rows.ilog2(),
            stride_bytes,
            interleaved: true,
            soon: Soon::default(),
        }
    }

    /// The same rows, whose columns are in order: neurons' down rows, which are not multiplied.
    #[inline]
    pub fn in_order(self) -> Self {
        Rows {
            interleaved: false,
            ..self
        }
    }

    /// True if blocks are interleaved, as products want them.
    #[inline]
    pub(crate) fn are_interleaved(&self) -> bool {
        self.interleaved
    }

    /// Writes the weights of row `row` to `out (cols,)`.
    ///
    /// # Panics
    /// If there is no such row, or the length does not fit.
    pub fn dequantize(&self, row: usize, out: &mut [f32]) {
        let (codes, scales) = (self.codes(row), self.scales(row));
        if self.interleaved {
            dequantize_interleaved(self.ty, self.cols, codes, scales, out);
        } else {
            dequantize_row(self.ty, self.cols, codes, scales, out);
        }
    }

    /// The same rows; a product of them also asks memory for `soon`, which will be needed
    /// afterwards, instead of for what follows the rows.
    #[inline]
    pub fn then(self, soon: impl Into<Soon<'a>>) -> Self {
        Rows {
            soon: soon.into(),
            ..self
        }
    }

    /// What is asked for while these rows are computed; nothing: what follows them.
    #[inline]
    pub fn soon(&self) -> Soon<'a> {
        self.soon
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
        &self.codes[self.place(row, bytes)..][..bytes]
    }

    /// Scales of row `row`.
    #[inline]
    pub fn scales(&self, row: usize) -> &'a [u8] {
        let bytes = self.ty.scale_bytes(self.cols);
        &self.scales[self.place(row, bytes)..][..bytes]
    }

    /// Where row `row` begins, if a row has `bytes` bytes.
    #[inline]
    fn place(&self, row: usize, bytes: usize) -> usize {
        let run = row >> self.run_shift;
        run * self.stride_bytes + (row - (run << self.run_shift)) * bytes
    }

    /// Codes and scales of rows that follow each other.
    #[inline]
    pub(crate) fn all(&self) -> (&'a [u8], &'a [u8]) {
        debug_assert!(self.follow_each_other());
        (self.codes, self.scales)
    }

    /// True if there is one run only.
    #[inline]
    pub(crate) fn follow_each_other(&self) -> bool {
        self.rows >> self.run_shift <= 1
    }

    /// Rows `start..start + rows`.
    ///
    /// # Panics
    /// If they are not there, or `start` is within a run of a [`Rows::spread`].
    #[inline]
    pub fn slice(&self, start: usize, rows: usize) -> Rows<'a> {
        assert!(start <= self.rows && rows <= self.rows - start);
        let run = 1 << self.run_shift;
        assert!(self.rows <= run || start.is_multiple_of(run));
        let from = |bytes| self.place(start, bytes);
        Rows {
            rows,
            codes: &self.codes[from(self.ty.code_bytes(self.cols))..],
            scales: &self.scales[from(self.ty.scale_bytes(self.cols))..],
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
    /// (cols,): `q` of the only token as [`interleave_activations`](crate::interleave_activations)
    /// gives it; may be empty if several tokens are met.
    pub interleaved: &'a [i8],
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
            interleaved: &[],
        }
    }

    /// The same one token, for [`Kernels::matvec`](crate::Kernels::matvec) and
    /// [`Kernels::dot_group`](crate::Kernels::dot_group) with quantised weights.
    ///
    /// # Panics
    /// If there are several tokens, or the length does not fit.
    pub fn with_interleaved(self, interleaved: &'a [i8]) -> Self {
        assert_eq!((self.tokens, interleaved.len()), (1, self.q.len()));
        Activations {
            interleaved,
            ..self
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
    soon: Soon<'a>,
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
            soon: Soon::default(),
        }
    }

    /// Asks memory for `soon`, which will be needed afterwards, while these are computed.
    #[inline]
    pub fn then(&mut self, soon: impl Into<Soon<'a>>) {
        self.soon = soon.into();
    }

    /// What is asked for while these neurons are computed; nothing: what follows them.
    #[inline]
    pub fn soon(&self) -> Soon<'a> {
        self.soon
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
        let run_rows = rows.rows.min(1 << rows.run_shift);
        for first in (0..rows.rows).step_by(run_rows.max(1)) {
            let slots = self.len + first..self.len + first + run_rows;
            let of = |bytes: &'a [u8], row_bytes: usize| {
                let run = &bytes[rows.place(first, row_bytes)..][..run_rows * row_bytes];
                run.chunks_exact(row_bytes.max(1))
            };
            let codes = of(rows.codes, rows.ty.code_bytes(rows.cols));
            for (slot, codes) in self.codes[slots.clone()].iter_mut().zip(codes) {
                *slot = codes;
            }
            let scales = of(rows.scales, rows.ty.scale_bytes(rows.cols));
            for (slot, scales) in self.scales[slots].iter_mut().zip(scales) {
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
