//! What every kernel asserts at its door. Past it, lengths are known to fit.

use core::ops::Range;

use crate::attention::{Queries, SEGMENT, Segment, scratch_len, state_len};
use crate::block::{BLOCK, STRIP, WeightType};
use crate::dispatch::{Kernels, QUANTIZE_SCRATCH_BYTES};
use crate::kv::{HEAD_DIM_MAX, KV_ALIGN};
use crate::neurons::NeuronRows;
use crate::view::{Activations, Order, Rows};

/// Rows of `cols` weights of type `ty`.
#[inline]
pub(crate) fn cols(ty: WeightType, cols: usize) {
    assert!(
        cols > 0 && cols.is_multiple_of(ty.cols_multiple()),
        "{cols} columns of {ty:?}"
    );
}

pub(crate) fn quantize(x: &[f32], q: &[i8], scales: &[f32], sums: &[i32]) {
    assert!(x.len().is_multiple_of(BLOCK), "{} activations", x.len());
    assert_eq!(q.len(), x.len());
    assert_eq!(scales.len(), x.len() / BLOCK);
    assert_eq!(sums.len(), x.len() / BLOCK);
}

pub(crate) fn quantize_rows(ty: WeightType, cols: usize, x: &[f32], codes: &[u8], scales: &[u8]) {
    assert!(cols.is_multiple_of(ty.cols_multiple()), "{cols} columns");
    let rows = x.len().checked_div(cols).unwrap_or(0);
    assert_eq!(x.len(), rows * cols);
    assert_eq!(codes.len(), rows * ty.code_bytes(cols));
    assert_eq!(scales.len(), rows * ty.scale_bytes(cols));
}

pub(crate) fn quantize_scratch(scratch: &[u8]) {
    let (have, need) = (scratch.len(), QUANTIZE_SCRATCH_BYTES);
    assert!(have >= need, "{have} bytes of scratch, need {need}");
}

pub(crate) fn matvec(w: &Rows<'_>, x: &Activations<'_>, out: &[f32]) {
    assert_eq!(x.tokens(), 1);
    product(w, x, out);
    interleaved(w.ty(), x);
}

pub(crate) fn matmul(w: &Rows<'_>, x: &Activations<'_>, out: &[f32], scratch: &[u8]) {
    product(w, x, out);
    scratch_fits(w.cols(), scratch);
    if w.ty().is_quantized() && x.tiles.q.is_empty() {
        let (have, need) = (x.interleaved.len(), x.q.len());
        assert_eq!(have, need, "interleaved activations, or tiles");
    }
}

pub(crate) fn dot_group(w: &NeuronRows<'_>, x: &Activations<'_>, out: &[f32]) {
    assert_eq!((x.tokens(), x.cols()), (1, w.cols()));
    assert_eq!(out.len(), w.len());
    let interleaved_rows = w.has_order(Some(Order::Interleaved));
    assert!(interleaved_rows, "down rows are not multiplied");
    activations(w.ty(), x);
    interleaved(w.ty(), x);
}

fn interleaved(ty: WeightType, x: &Activations<'_>) {
    if ty.is_quantized() {
        assert_eq!(x.interleaved.len(), x.cols(), "interleaved activations");
    }
}

fn product(w: &Rows<'_>, x: &Activations<'_>, out: &[f32]) {
    assert_eq!(x.cols(), w.cols());
    assert!(w.are_interleaved(), "down rows are not multiplied");
    assert_eq!(out.len(), w.rows() * x.tokens());
    activations(w.ty(), x);
}

fn activations(ty: WeightType, x: &Activations<'_>) {
    let have = if ty.is_quantized() {
        x.q.len()
    } else {
        x.x.len()
    };
    assert_eq!(
        have,
        x.tokens() * x.cols(),
        "activations for {ty:?} weights"
    );
    if ty.is_quantized() {
        assert_eq!(x.scales.len(), have / BLOCK);
        assert_eq!(x.sums.len(), have / BLOCK);
    }
}

pub(crate) fn down_group(w: &NeuronRows<'_>, h: &[f32], acc: &[f32], scratch: &[u8]) {
    down_rows(w);
    assert_eq!(h.len(), w.len());
    assert_eq!(acc.len(), w.cols());
    scratch_fits(w.cols(), scratch);
}

pub(crate) fn down_group_many(
    w: &NeuronRows<'_>,
    cols: &Range<usize>,
    tokens: usize,
    h: &[f32],
    acc: &[f32],
    scratch: &[u8],
) {
    down_rows(w);
    assert!(
        cols.start <= cols.end && cols.end <= w.cols(),
        "{cols:?} of {}",
        w.cols()
    );
    assert!(cols.start.is_multiple_of(STRIP), "{cols:?}");
    assert!(
        cols.end == w.cols() || cols.end.is_multiple_of(STRIP),
        "{cols:?}"
    );
    assert_eq!(h.len(), w.len() * tokens);
    assert_eq!(acc.len(), cols.len() * tokens);
    scratch_fits(cols.len(), scratch);
}

fn down_rows(w: &NeuronRows<'_>) {
    let down = w.has_order(Some(Order::Plain)) || w.zipped().is_some();
    assert!(down, "interleaved rows are not summed");
}

fn scratch_fits(cols: usize, scratch: &[u8]) {
    let need = Kernels::scratch_bytes(cols);
    assert!(
        scratch.len() >= need,
        "{} bytes of scratch, need {need}",
        scratch.len()
    );
}

pub(crate) fn to_q8(x: &[f32], codes: &[i8]) {
    assert!(x.len().is_multiple_of(8), "{} elements", x.len());
    assert_eq!(codes.len(), x.len());
}

pub(crate) fn attend(segment: &Segment<'_>, queries: &Queries<'_>, states: &[f32], work: &[f32]) {
    let &Segment { dim, count, .. } = segment;
    assert!(
        dim.is_multiple_of(8) && (8..=HEAD_DIM_MAX).contains(&dim),
        "{dim} elements"
    );
    assert!(
        count.is_multiple_of(KV_ALIGN) && count <= SEGMENT,
        "{count} positions"
    );
    assert!(segment.start.is_multiple_of(SEGMENT), "{}", segment.start);
    segment.keys.check(dim, count);
    segment.values.check(dim, count);
    assert!(queries.group > 0 && queries.q.len().is_multiple_of(queries.group * dim));
    assert_eq!(states.len(), queries.q.len() / dim * state_len(dim));
    assert!(work.len() >= scratch_len(dim), "{} floats", work.len());
}
