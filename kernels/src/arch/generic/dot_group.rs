//! Rows that stand anywhere, times one token: gates and ups of the neurons that a token needs.

use super::ahead::Ahead;
use super::by_type;
use super::matvec::{BLOCKS, ROWS, Token, WIDE_BYTES, float_product, rows};
use crate::arch::simd::{Simd8, code_bytes, scale_bytes};
use crate::block::WeightType;
use crate::check;
use crate::view::{Activations, NeuronRows};

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

#[inline(always)]
fn quantized<S: Simd8, const TY: u8>(s: S, w: &NeuronRows<'_>, x: &Token<'_>, out: &mut [f32]) {
    let wide = ROWS * w.ty().code_bytes(w.cols()) > WIDE_BYTES;
    let at_once = if wide { 2 } else { ROWS };
    let mut ahead = Ahead::new(w.soon(), out.len().div_ceil(at_once) * x.q.len());
    let done = if wide {
        0
    } else {
        chunks::<S, TY, ROWS>(s, w, x, out, 0, &mut ahead)
    };
    let done = chunks::<S, TY, 2>(s, w, x, out, done, &mut ahead);
    chunks::<S, TY, 1>(s, w, x, out, done, &mut ahead);
}

/// Rows from `first` on, `R` at a time as long as there are as many; returns where they end. While
/// they are computed the same parts of as many rows after them are asked for.
#[inline(always)]
fn chunks<S: Simd8, const TY: u8, const R: usize>(
    s: S,
    w: &NeuronRows<'_>,
    x: &Token<'_>,
    out: &mut [f32],
    mut first: usize,
    ahead: &mut Ahead<'_>,
) -> usize {
    let (group_bytes, scale_bytes) = (code_bytes::<TY>(BLOCKS), scale_bytes::<TY>(BLOCKS));
    for out in out[first..].as_chunks_mut::<R>().0 {
        let (mut codes, mut scales) = ([&[][..]; R], [&[][..]; R]);
        codes.copy_from_slice(&w.codes()[first..first + R]);
        scales.copy_from_slice(&w.scales()[first..first + R]);
        first += R;
        let next = first..(first + R).min(w.codes().len());
        let next = (&w.codes()[next.clone()], &w.scales()[next]);
        *out = rows::<S, TY, R>(s, codes, scales, x, |g| {
            ahead.ask(s);
            for (codes, scales) in next.0.iter().zip(next.1) {
                for line in 0..group_bytes.div_ceil(64) {
                    s.prefetch(codes, g * group_bytes + line * 64);
                }
                if (g * scale_bytes).is_multiple_of(64) {
                    s.prefetch(scales, g * scale_bytes);
                }
            }
        });
    }
    first
}
