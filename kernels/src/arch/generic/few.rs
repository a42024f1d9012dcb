//! A few tokens: a row is unpacked once for up to four of them, and needs no panel.

use super::ahead::Ahead;
use super::matvec::{PREFETCH_BYTES, Token, ask_for_runs, row};
use crate::arch::simd::Simd8;
use crate::interleave::FEW_TOKENS;
use crate::tiles::TOKENS_AT_ONCE;
use crate::view::{Activations, Rows};

/// Quantised rows times the tokens of `x`, at most [`FEW_TOKENS`]: `out` (rows, tokens).
#[inline(always)]
pub(super) fn quantized<S: Simd8, const TY: u8>(
    s: S,
    w: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
) {
    let mut tokens = [Token::new(x, 0); FEW_TOKENS];
    for t in 1..x.tokens() {
        tokens[t] = Token::new(x, t);
    }
    let tokens = &tokens[..x.tokens()];
    let mut ahead = Ahead::new(w.soon(), w.rows() * tokens[0].runs.q.len().div_ceil(2));
    let rows_ahead = PREFETCH_BYTES.div_ceil(w.ty().code_bytes(w.cols()));
    let scales_ahead = rows_ahead * w.ty().scale_bytes(w.cols());
    for (index, out) in out.chunks_exact_mut(tokens.len()).enumerate() {
        let (codes, scales) = (w.codes(index), w.scales(index));
        let mut at = 0;
        while at < tokens.len() {
            // Once, while the first tokens read the row.
            let ask = |run| {
                if at > 0 {
                } else if ahead.is_given() {
                    ahead.ask(s);
                } else if w.follow_each_other() {
                    ask_for_runs::<S, TY>(s, [codes, scales], [PREFETCH_BYTES, scales_ahead], run);
                }
            };
            let (some, out) = (&tokens[at..], &mut out[at..]);
            at += match some.len() {
                TOKENS_AT_ONCE.. => put::<S, TY, TOKENS_AT_ONCE>(s, codes, scales, some, out, ask),
                2.. => put::<S, TY, 2>(s, codes, scales, some, out, ask),
                _ => put::<S, TY, 1>(s, codes, scales, some, out, ask),
            };
        }
    }
}

/// A row's products with the first `T` of `tokens`; returns `T`.
#[inline(always)]
fn put<S: Simd8, const TY: u8, const T: usize>(
    s: S,
    codes: &[u8],
    scales: &[u8],
    tokens: &[Token<'_>],
    out: &mut [f32],
    ask: impl FnMut(usize),
) -> usize {
    let mut some = [&tokens[0]; T];
    for t in 0..T {
        some[t] = &tokens[t];
    }
    out[..T].copy_from_slice(&row::<S, TY, T>(s, codes, scales, some, ask));
    T
}
