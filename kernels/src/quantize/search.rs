//! Which scale of a block loses least.

use super::{Fit, round_to_codes, to_f16};
use crate::block::BLOCK;

/// Scales that are tried.
const CANDIDATES: i32 = 16;

/// Scale for codes `-zero..zero`, the largest magnitude near code `-zero`.
///
/// As in ggml's `Q4_0` the sign of the scale is chosen so that the longer half of the codes is
/// where the largest weight is.
pub(super) fn symmetric(x: &[f32; BLOCK], zero: f32, step: f32) -> Fit {
    let mut extreme = 0f32;
    for &x in x {
        if x.abs() > extreme.abs() {
            extreme = x;
        }
    }
    let (low, high) = (-zero, zero - 1.0);
    let mut best = Best::new();
    for i in 0..CANDIDATES {
        // The definition's own scale first: it wins where nothing is better.
        let offset = if i == 0 { 0 } else { i - CANDIDATES / 2 };
        let fit = Fit {
            d: to_f16(extreme / -(zero + offset as f32 * step)),
            m: 0.0,
        };
        best.offer(x, fit, low, high);
    }
    let q = round_to_codes(x, best.fit, low, high);
    let (qx, qq) = (sum(&q, x), sum(&q, &q));
    if qq > 0.0 {
        best.offer(
            x,
            Fit {
                d: to_f16(qx / qq),
                m: 0.0,
            },
            low,
            high,
        );
    }
    best.fit
}

/// Scale and minimum for codes `0..16`.
pub(super) fn with_offset(x: &[f32; BLOCK]) -> Fit {
    const HIGH: f32 = 15.0;
    let (mut min, mut max) = (x[0], x[0]);
    for &x in x {
        min = if x < min { x } else { min };
        max = if x > max { x } else { max };
    }
    let mut best = Best::new();
    best.offer(
        x,
        Fit {
            d: to_f16((max - min) / HIGH),
            m: to_f16(min),
        },
        0.0,
        HIGH,
    );
    for i in 0..CANDIDATES {
        // From a range wider than needed to one that cuts off at both ends.
        let codes = HIGH - 0.7 + 0.15 * i as f32;
        let d = (max - min) / codes;
        let m = min + (0.5 * d) * (codes - HIGH);
        let q = round_to_codes(x, Fit { d, m }, 0.0, HIGH);
        if let Some(fit) = least_squares(&q, x) {
            best.offer(x, fit, 0.0, HIGH);
        }
    }
    best.fit
}

/// Scale and minimum that fit `d * q + m` to `x` best; `None` if all codes are the same.
fn least_squares(q: &[f32; BLOCK], x: &[f32; BLOCK]) -> Option<Fit> {
    const ONES: [f32; BLOCK] = [1.0; BLOCK];
    let count = BLOCK as f32;
    let (sq, sx, qq, qx) = (sum(q, &ONES), sum(x, &ONES), sum(q, q), sum(q, x));
    let determinant = count * qq - sq * sq;
    if determinant <= 0.0 {
        return None;
    }
    let d = (count * qx - sq * sx) / determinant;
    let m = (sx * qq - sq * qx) / determinant;
    Some(Fit {
        d: to_f16(d),
        m: to_f16(m),
    })
}

/// The fit with the smallest squared error so far.
struct Best {
    fit: Fit,
    error: f32,
}

impl Best {
    fn new() -> Self {
        Best {
            fit: Fit { d: 0.0, m: 0.0 },
            error: f32::INFINITY,
        }
    }

    fn offer(&mut self, x: &[f32; BLOCK], fit: Fit, low: f32, high: f32) {
        let mut rest = round_to_codes(x, fit, low, high);
        for (rest, x) in rest.iter_mut().zip(x) {
            *rest = x - (fit.d * *rest + fit.m);
        }
        let error = sum(&rest, &rest);
        if error < self.error {
            *self = Best { fit, error };
        }
    }
}

/// `sum(a * b)`, in eight partial sums.
fn sum(a: &[f32; BLOCK], b: &[f32; BLOCK]) -> f32 {
    let mut parts = [0f32; 8];
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        for i in 0..8 {
            parts[i] += a[i] * b[i];
        }
    }
    let [a, b, c, d, e, f, g, h] = parts;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
