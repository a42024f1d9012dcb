//! Rows that stand anywhere, times one token: gates and ups of the neurons that a token needs.

use super::ahead::Ahead;
use super::by_type;
use super::matvec::{PREFETCH_BYTES, Token, ask_for_runs, float_product, row};
use crate::arch::simd::Simd8;
use crate::block::WeightType;
use crate::check;
use crate::neurons::NeuronRows;
use crate::view::Activations;

/// See [`crate::Kernels::dot_group`].
#[inline(always)]
pub(crate) fn dot_group<S: Simd8>(s: S, w: &NeuronRows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    check::dot_group(w, x, out);
    match w.ty() {
        WeightType::F32 => floats::<S, false>(s, w, x.x, out),
        WeightType::F16 => floats::<S, true>(s, w, x.x, out),
        ty => {
            let token = Token::new(x, 0);
            by_type!(ty, quantized::<S>(s, w, &token, out));
        }
    }
}

#[inline(always)]
fn floats<S: Simd8, const HALF: bool>(s: S, w: &NeuronRows<'_>, x: &[f32], out: &mut [f32]) {
    for (row, out) in w.codes().iter().zip(out) {
        *out = float_product::<S, HALF>(s, row, x);
    }
}

/// While a row is computed, the same parts of one of the next are asked for.
#[inline(always)]
fn quantized<S: Simd8, const TY: u8>(s: S, w: &NeuronRows<'_>, x: &Token<'_>, out: &mut [f32]) {
    let runs = x.runs.q.len();
    let mut ahead = Ahead::over_rows(w.soon(), out.len(), runs);
    let rows_ahead = PREFETCH_BYTES.div_ceil(w.ty().code_bytes(w.cols()));
    for (index, out) in out.iter_mut().enumerate() {
        let rows = |index: usize| Some([*w.codes().get(index)?, *w.scales().get(index)?]);
        let next = rows(index + rows_ahead);
        if runs == 0 {
            ahead.ask(s);
        }
        [*out] = row::<S, TY, 1>(s, w.codes()[index], w.scales()[index], [x], |run| {
            ahead.ask(s);
            if let Some(next) = next {
                ask_for_runs::<S, TY>(s, next, [0; 2], run);
            }
        });
    }
}
