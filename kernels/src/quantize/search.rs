//! Which scale of a block loses least.
//!
//! Weights are first divided by the block's extreme (or its range), so that what is tried does not
//! depend on their size. Sums run over a block's columns in order.

use super::{Fit, clamp, nearest, to_f16};
use crate::block::BLOCK;
use crate::math::TINY;

/// Scales that are tried at once by the vector kernels; divides the number of those of each type.
pub(crate) const AT_ONCE: usize = 4;

/// Q4: the code, negated, at which the largest magnitude shall be.
pub(crate) const Q4_STEPS: [f32; 16] = steps(8.0, 0.1);
/// What a Q4 weight's error counts, beside the square of the weight relative to the largest.
///
/// Measured on SmolLM2-135M (f16 to q4, all matrices, perplexity of 20 chunks of 512 tokens): every
/// weight the same 40.96, squares alone 39.59, with 0.1 38.69; ggml's `Q4_0` 40.08.
pub(crate) const Q4_BASE: f32 = 0.1;
/// As `Q4_STEPS` for Q5.
pub(crate) const Q5_STEPS: [f32; 16] = steps(16.0, 0.12);
/// The same for Q6.
pub(crate) const Q6_STEPS: [f32; 16] = steps(32.0, 0.15);

/// The codes that Q4O's range shall cover: from more than there are to fewer, which cuts off both
/// ends.
pub(crate) const Q4O_STEPS: [f32; 16] = {
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < all.len() {
        all[i] = Q4O_HIGH - 0.7 + 0.15 * i as f32;
        i += 1;
    }
    all
};
/// Largest code of Q4O.
pub(crate) const Q4O_HIGH: f32 = 15.0;

/// Candidates around `-zero`, itself first: it wins where nothing is better.
const fn steps<const N: usize>(zero: f32, step: f32) -> [f32; N] {
    let mut all = [-zero; N];
    let mut i = 1;
    while i < N {
        all[i] = -(zero + (i as i32 - N as i32 / 2) as f32 * step);
        i += 1;
    }
    all
}

/// Scale for codes up to 127: nothing is tried.
pub(super) fn plain(x: &[f32; BLOCK]) -> Fit {
    let (min, max) = range(x);
    let top = if -min < max { max } else { -min };
    Fit {
        d: to_f16(top / 127.0 + 0.0),
        m: 0.0,
    }
}

/// Scale for codes `-zero..zero`, the largest magnitude near code `-zero`.
///
/// As in ggml's `Q4_0` the sign of the scale is chosen so that the longer half of the codes is
/// where the largest weight is. Of the candidates that one wins whose codes `q`, with the scale
/// that fits them best, leave the smallest squared error: the largest `(q.v)^2 / q.q`. With a
/// `base` the error of weight `v` counts `v^2 + base` times.
pub(super) fn symmetric(x: &[f32; BLOCK], zero: f32, steps: &[f32], base: Option<f32>) -> Fit {
    let (min, max) = range(x);
    let extreme = if -min < max { max } else { min };
    let inverse = if extreme.abs() < TINY {
        0.0
    } else {
        1.0 / extreme
    };
    let v = x.map(|x| x * inverse);
    let (mut best, mut d) = (0.0, 0.0);
    for step in steps {
        let (mut qv, mut qq) = (0.0, 0.0);
        for v in v {
            let q = nearest(clamp(v * step, -zero, zero - 1.0));
            let wq = base.map_or(q, |base| (v * v + base) * q);
            qv += wq * v;
            qq += wq * q;
        }
        let fit = qv / qq;
        let score = fit * qv;
        if best < score {
            (best, d) = (score, fit);
        }
    }
    Fit {
        // The sign of a zero is not told apart.
        d: to_f16(d * extreme + 0.0),
        m: 0.0,
    }
}

/// Scale and minimum for codes `0..=15`.
///
/// Each candidate's codes get the scale and the minimum that fit them best (least squares).
pub(super) fn with_offset(x: &[f32; BLOCK]) -> Fit {
    let (min, max) = range(x);
    let width = max - min;
    let inverse = if width < TINY { 0.0 } else { 1.0 / width };
    let v = x.map(|x| (x - min) * inverse);
    let n = BLOCK as f32;
    let sv = v.iter().fold(0.0, |sum, v| sum + v);
    let (mut best, mut d, mut m) = (0.0, 1.0 / Q4O_HIGH, 0.0);
    for step in Q4O_STEPS {
        let shift = 0.5 * (Q4O_HIGH - step);
        let (mut sq, mut qq, mut qv) = (0.0, 0.0, 0.0);
        for v in v {
            let q = nearest(clamp(v * step + shift, 0.0, Q4O_HIGH));
            sq += q;
            qq += q * q;
            qv += q * v;
        }
        let inverse = 1.0 / (n * qq - sq * sq);
        let fit_d = (n * qv - sq * sv) * inverse;
        let fit_m = (sv * qq - sq * qv) * inverse;
        let score = fit_d * qv + fit_m * sv;
        if best < score {
            (best, d, m) = (score, fit_d, fit_m);
        }
    }
    Fit {
        d: to_f16(d * width),
        m: to_f16(m * width + min),
    }
}

/// Smallest and largest weight.
fn range(x: &[f32; BLOCK]) -> (f32, f32) {
    x.iter().fold((x[0], x[0]), |(min, max), &x| {
        (if x < min { x } else { min }, if max < x { x } else { max })
    })
}
