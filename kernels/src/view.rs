//! Borrowed views of weights and activations: shapes that were checked once, at the door.

use core::ops::Range;
use core::slice::ChunksExact;

use crate::block::{BLOCK, GROUP, WeightType};
use crate::check;
use crate::interleave::FEW_TOKENS;
use crate::quantize::{block_scale, dequantize_block, dequantize_interleaved, dequantize_row};
use crate::soon::Soon;
use crate::tiles::{TokenTiles, tiles_len};
use crate::zip::{QUAD, quad_block, unzip_row};

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
    order: Order,
    soon: Soon<'a>,
}

/// How the codes of quantised rows stand; those of floats are always in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// As products want them.
    Interleaved,
    /// Row by row, column by column.
    Plain,
    /// Groups as [`zip_row`](crate::zip_row) puts them.
    Zipped,
}

impl<'a> Rows<'a> {
    /// Interleaved rows (see the crate docs) whose codes stand in `codes`, one after the other, and
    /// whose scales in `scales`.
    ///
    /// # Panics
    /// If a length does not fit `rows` and `cols`, there are no columns, or a quantised row is not
    /// whole blocks.
    #[inline]
    pub fn new(
        ty: WeightType,
        rows: usize,
        cols: usize,
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Self {
        check::cols(ty, cols);
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
            order: Order::Interleaved,
            soon: Soon::default(),
        }
    }

    /// Interleaved rows in runs of `run_rows` that follow each other; a run's codes begin
    /// `stride_bytes` after those of the run before, and its scales likewise. `codes` and `scales`
    /// begin with the first row's, and reach to the last one's or further.
    ///
    /// # Panics
    /// If `run_rows` is not a power of two that divides `rows`, there are no columns, or a length
    /// does not fit.
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
        check::cols(ty, cols);
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
            order: Order::Interleaved,
            soon: Soon::default(),
        }
    }

    /// The same rows, whose columns are in order: down rows of single neurons, which are not
    /// multiplied.
    #[inline]
    pub fn in_order(self) -> Self {
        Rows {
            order: Order::Plain,
            ..self
        }
    }

    /// The same rows, zipped ([`zip_row`](crate::zip_row)): down rows of whole groups.
    ///
    /// # Panics
    /// If there are not whole groups of rows that follow each other, or they are floats.
    #[inline]
    pub fn zipped(self) -> Self {
        assert!(self.ty.is_quantized(), "{:?} is not zipped", self.ty);
        assert!(
            self.run_shift >= GROUP.ilog2() && self.rows.is_multiple_of(GROUP),
            "{} rows, zipped in groups of {GROUP}",
            self.rows
        );
        Rows {
            order: Order::Zipped,
            ..self
        }
    }

    /// True if blocks are interleaved, as products want them.
    #[inline]
    pub(crate) fn are_interleaved(&self) -> bool {
        self.order == Order::Interleaved
    }

    /// How the codes stand; nothing for floats, whose columns are always in order.
    #[inline]
    pub(crate) fn order(&self) -> Option<Order> {
        self.ty.is_quantized().then_some(self.order)
    }

    /// True if rows are zipped: they have no codes of their own.
    #[inline]
    pub fn are_zipped(&self) -> bool {
        self.order == Order::Zipped
    }

    /// Copies the codes of row `row` to `out`; those of a zipped row in order.
    ///
    /// # Panics
    /// If there is no such row, or the length does not fit.
    pub fn copy_codes(&self, row: usize, out: &mut [u8]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if self.are_zipped() {
            unzip_row(self.ty, self.cols, row % GROUP, self.group(row), out);
        } else {
            out.copy_from_slice(self.codes(row));
        }
    }

    /// Codes of the group of row `row`, zipped.
    #[inline]
    pub(crate) fn group(&self, row: usize) -> &'a [u8] {
        let bytes = self.ty.code_bytes(self.cols);
        &self.codes[self.place(row / GROUP * GROUP, bytes)..][..GROUP * bytes]
    }

    /// Writes the weights of row `row` to `out (cols,)`.
    ///
    /// # Panics
    /// If there is no such row, or the length does not fit.
    pub fn dequantize(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let (ty, cols, scales) = (self.ty, self.cols, self.scales(row));
        assert_eq!(out.len(), cols);
        match self.order {
            Order::Interleaved => dequantize_interleaved(ty, cols, self.codes(row), scales, out),
            Order::Plain => dequantize_row(ty, cols, self.codes(row), scales, out),
            Order::Zipped => {
                for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                    let quad = row % GROUP / QUAD;
                    let codes = quad_block(ty, cols, self.group(row), quad, block);
                    let codes = codes.map(|codes| codes[row % QUAD]);
                    dequantize_block(ty, block_scale(ty, cols, scales, block), &codes, out);
                }
            }
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

    /// Codes of row `row`, which is not zipped.
    #[inline]
    pub fn codes(&self, row: usize) -> &'a [u8] {
        debug_assert!(!self.are_zipped());
        let bytes = self.ty.code_bytes(self.cols);
        &self.codes[self.place(row, bytes)..][..bytes]
    }

    /// Codes of up to `count` rows from `row` on that follow each other directly.
    #[inline]
    pub(crate) fn codes_from(&self, row: usize, count: usize) -> &'a [u8] {
        let bytes = self.ty.code_bytes(self.cols);
        let run_end = ((row >> self.run_shift) + 1) << self.run_shift;
        let end = (row + count).min(self.rows).min(run_end);
        &self.codes[self.place(row, bytes)..][..(end - row) * bytes]
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

    /// Runs of rows that follow each other; the last one may be shorter.
    #[inline]
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, run) = (self.rows, 1 << self.run_shift);
        let firsts = (0..rows).step_by(run);
        firsts.map(move |first| first..first + run.min(rows - first))
    }

    /// Codes of the rows of `run`, row by row.
    #[inline]
    pub(crate) fn run_codes(&self, run: &Range<usize>) -> ChunksExact<'a, u8> {
        self.run(self.codes, self.ty.code_bytes(self.cols), run)
    }

    /// The same of their scales.
    #[inline]
    pub(crate) fn run_scales(&self, run: &Range<usize>) -> ChunksExact<'a, u8> {
        self.run(self.scales, self.ty.scale_bytes(self.cols), run)
    }

    #[inline]
    fn run(&self, of: &'a [u8], row_bytes: usize, run: &Range<usize>) -> ChunksExact<'a, u8> {
        let bytes = &of[self.place(run.start, row_bytes)..][..run.len() * row_bytes];
        // Floats have no scales.
        bytes.chunks_exact(row_bytes.max(1))
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
        self.rows <= 1 << self.run_shift
    }

    /// Rows `start..start + rows`.
    ///
    /// # Panics
    /// If they are not there, `start` is within a run of a [`Rows::spread`], or zipped rows are not
    /// whole groups.
    #[inline]
    pub fn slice(&self, start: usize, rows: usize) -> Rows<'a> {
        assert!(start <= self.rows && rows <= self.rows - start);
        let run = 1 << self.run_shift;
        assert!(self.rows <= run || start.is_multiple_of(run));
        assert!(
            !self.are_zipped() || start.is_multiple_of(GROUP) && rows.is_multiple_of(GROUP),
            "{rows} rows from {start} on, zipped in groups of {GROUP}"
        );
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
    /// (tokens, cols): `q` of up to [`FEW_TOKENS`] tokens, each as
    /// [`interleave_activations`](crate::interleave_activations) gives it; empty for more.
    pub interleaved: &'a [i8],
    /// The same tokens in tiles; empty for a few.
    pub tiles: TokenTiles<'a>,
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
            tiles: TokenTiles::default(),
        }
    }

    /// The same few tokens, for products with rows as they are stored:
    /// [`matvec`](crate::Kernels::matvec), [`dot_group`](crate::Kernels::dot_group) and
    /// [`matmul`](crate::Kernels::matmul).
    ///
    /// # Panics
    /// If there are more than [`FEW_TOKENS`], or the length does not fit.
    pub fn with_interleaved(self, interleaved: &'a [i8]) -> Self {
        assert!(self.tokens <= FEW_TOKENS, "{} tokens", self.tokens);
        assert_eq!(interleaved.len(), self.q.len());
        Activations {
            interleaved,
            ..self
        }
    }

    /// The same tokens, for products with panels of rows: [`matmul`](crate::Kernels::matmul) of
    /// more than a few, see [`wants_tiles`](crate::wants_tiles).
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn with_tiles(self, tiles: TokenTiles<'a>) -> Self {
        let len = tiles_len(self.tokens, self.cols);
        assert_eq!(tiles.q.len(), len);
        assert_eq!(tiles.scales.len(), len / BLOCK);
        assert_eq!(tiles.sums.len(), len / BLOCK);
        Activations { tiles, ..self }
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
