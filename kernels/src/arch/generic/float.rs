//! Kernels on floats: rounding to blocks, dot products, norms.

use bytemuck::must_cast_ref;

use crate::arch::simd::{Simd, Simd8};
use crate::block::BLOCK;
use crate::check;
use crate::math::{self, TINY};

/// The eight lanes of 32 floats.
#[inline(always)]
pub(super) fn four<S: Simd8>(s: S, x: &[f32; 32]) -> [S::F; 4] {
    let [a, b, c, d] = must_cast_ref::<[f32; 32], [[f32; 8]; 4]>(x);
    [s.floats(a), s.floats(b), s.floats(c), s.floats(d)]
}

/// The eight lanes of 32 f16.
#[inline(always)]
pub(super) fn four_halves<S: Simd8>(s: S, x: &[u8; 64]) -> [S::F; 4] {
    let [a, b, c, d] = must_cast_ref::<[u8; 64], [[u8; 16]; 4]>(x);
    [s.halves(a), s.halves(b), s.halves(c), s.halves(d)]
}

/// Sums with 32 accumulators: `V_j` of the crate docs.
pub(super) struct Sums<S: Simd8> {
    v: [S::F; 4],
}

impl<S: Simd8> Sums<S> {
    #[inline(always)]
    pub(super) fn new(s: S) -> Self {
        Sums {
            v: [s.splat(0.0); 4],
        }
    }

    #[inline(always)]
    pub(super) fn add(&mut self, s: S, a: [S::F; 4]) {
        for i in 0..4 {
            self.v[i] = s.add(self.v[i], a[i]);
        }
    }

    #[inline(always)]
    pub(super) fn add_products(&mut self, s: S, a: [S::F; 4], b: [S::F; 4]) {
        for i in 0..4 {
            self.v[i] = s.add(self.v[i], s.mul(a[i], b[i]));
        }
    }

    #[inline(always)]
    pub(super) fn total(self, s: S) -> f32 {
        let [a, b, c, d] = self.v;
        s.tree(s.add(s.add(a, b), s.add(c, d)))
    }
}

/// The rest of a slice, filled up with zeros.
#[inline(always)]
pub(super) fn padded<T: Copy, const N: usize>(zero: T, rest: &[T]) -> [T; N] {
    let mut all = [zero; N];
    all[..rest.len()].copy_from_slice(rest);
    all
}

/// Scale and inverse scale of lanes whose largest magnitude has the bits `top`, and a mask of the
/// lanes where it is finite: codes elsewhere are zero.
#[inline(always)]
pub(super) fn scale_of<S: Simd>(s: S, top: S::W) -> (S::F, S::F, S::W) {
    let top = s.as_floats(top);
    let tiny = s.less(top, s.splat(TINY));
    let scale = s.div(top, s.splat(127.0));
    let inverse = s.div(s.splat(127.0), top);
    (
        s.as_floats(s.and_not_w(tiny, s.bits(scale))),
        s.as_floats(s.and_not_w(tiny, s.bits(inverse))),
        s.less(top, s.splat(f32::INFINITY)),
    )
}

/// `round(x * inverse)` where `finite`, else 0.
#[inline(always)]
pub(super) fn code<S: Simd>(s: S, x: S::F, inverse: S::F, finite: S::W) -> S::W {
    s.round(s.as_floats(s.and_w(finite, s.bits(s.mul(x, inverse)))))
}

/// See [`crate::Kernels::quantize`].
#[inline(always)]
pub(crate) fn quantize<S: Simd8>(
    s: S,
    x: &[f32],
    q: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i32],
) {
    check::quantize(x, q, scales, sums);
    let x = x.as_chunks::<BLOCK>().0.iter();
    let q = q.as_chunks_mut::<BLOCK>().0.iter_mut();
    for (((x, q), scale), sum) in x.zip(q).zip(scales).zip(sums) {
        (*scale, *sum) = quantize_block(s, four(s, x), q);
    }
}

/// Codes of one block; its scale and the sum of the codes.
#[inline(always)]
fn quantize_block<S: Simd8>(s: S, x: [S::F; 4], q: &mut [i8; BLOCK]) -> (f32, i32) {
    let magnitude = s.splat_w(0x7fff_ffff);
    let mut top = s.splat_w(0);
    for x in x {
        top = s.max_w(top, s.and_w(magnitude, s.bits(x)));
    }
    let (scale, inverse, finite) = scale_of(s, s.splat_w(highest(s, top)));
    let mut codes = [s.splat_w(0); 4];
    for i in 0..4 {
        codes[i] = code(s, x[i], inverse, finite);
    }
    *q = bytemuck::must_cast(s.codes(codes));
    let pairs = [s.add_w(codes[0], codes[1]), s.add_w(codes[2], codes[3])];
    (s.to_floats(scale)[0], s.sum_w(s.add_w(pairs[0], pairs[1])))
}

/// See [`crate::Kernels::dot`].
#[inline(always)]
pub(crate) fn dot<S: Simd8>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sums = Sums::new(s);
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
    for (a, b) in a.iter().zip(b) {
        sums.add_products(s, four(s, a), four(s, b));
    }
    if !a_rest.is_empty() {
        let (a, b) = (padded(0.0, a_rest), padded(0.0, b_rest));
        sums.add_products(s, four(s, &a), four(s, &b));
    }
    sums.total(s)
}

/// See [`crate::Kernels::to_q8`].
#[inline(always)]
pub(crate) fn to_q8<S: Simd8>(s: S, x: &[f32], codes: &mut [i8]) -> f32 {
    check::to_q8(x, codes);
    let magnitude = s.splat_w(0x7fff_ffff);
    let mut top = s.splat_w(0);
    for x in x.as_chunks::<8>().0 {
        top = s.max_w(top, s.and_w(magnitude, s.bits(s.floats(x))));
    }
    let (one, inverse, finite) = scale_of(s, s.splat_w(highest(s, top)));
    let codes = bytemuck::cast_slice_mut::<i8, u8>(codes);
    for (x, codes) in x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)) {
        let x = padded::<f32, BLOCK>(0.0, x);
        let x = four(s, &x);
        let mut words = [s.splat_w(0); 4];
        for i in 0..4 {
            words[i] = code(s, x[i], inverse, finite);
        }
        codes.copy_from_slice(&s.codes(words)[..codes.len()]);
    }
    s.to_floats(one)[0]
}

/// The highest lane, none of which is negative.
#[inline(always)]
fn highest<S: Simd8>(s: S, a: S::W) -> i32 {
    let lanes = *must_cast_ref::<[f32; 8], [i32; 8]>(&s.to_floats(s.as_floats(a)));
    let mut highest = 0;
    for lane in lanes {
        highest = if lane > highest { lane } else { highest };
    }
    highest
}

/// See [`crate::Kernels::rmsnorm`].
#[inline(always)]
pub(crate) fn rmsnorm<S: Simd8>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len());
    assert_eq!(x.len(), out.len());
    let inverse = inverse_norm(s, x, eps);
    let (x, x_rest) = x.as_chunks::<8>();
    let (weight, weight_rest) = weight.as_chunks::<8>();
    let (out, out_rest) = out.as_chunks_mut::<8>();
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        let scaled = s.mul(s.floats(x), s.splat(inverse));
        *out = s.to_floats(s.mul(scaled, s.floats(weight)));
    }
    for ((out, x), weight) in out_rest.iter_mut().zip(x_rest).zip(weight_rest) {
        *out = (x * inverse) * weight;
    }
}

/// `1 / sqrt(mean + eps)`.
#[inline(always)]
fn inverse_norm<S: Simd8>(s: S, x: &[f32], eps: f32) -> f32 {
    let mean = dot(s, x, x) / x.len() as f32;
    1.0 / s.sqrt(mean + eps)
}

/// See [`crate::Kernels::rmsnorm_quantize`].
#[inline(always)]
pub(crate) fn rmsnorm_quantize<S: Simd8>(
    s: S,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    out: &mut [f32],
    q: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i32],
) {
    assert_eq!(x.len(), weight.len());
    check::quantize(x, q, scales, sums);
    assert_eq!(x.len(), out.len());
    let inverse = s.splat(inverse_norm(s, x, eps));
    let blocks = x.as_chunks::<BLOCK>().0.iter().zip(weight.as_chunks().0);
    let out = out.as_chunks_mut::<BLOCK>().0.iter_mut();
    let q = q.as_chunks_mut().0.iter_mut();
    let codes = q.zip(scales).zip(sums);
    for (((x, weight), out), ((q, scale), sum)) in blocks.zip(out).zip(codes) {
        let (mut y, weight) = (four(s, x), four(s, weight));
        for i in 0..4 {
            y[i] = s.mul(s.mul(y[i], inverse), weight[i]);
            s.store_at(y[i], out, 8 * i);
        }
        (*scale, *sum) = quantize_block(s, y, q);
    }
}

/// See [`crate::Kernels::to_f16`].
#[inline(always)]
pub(crate) fn to_f16<S: Simd8>(s: S, x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len());
    let ((x, x_rest), (out, out_rest)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (x, out) in x.iter().zip(out) {
        *out = s.to_halves(s.floats(x));
    }
    for (x, out) in x_rest.iter().zip(out_rest) {
        *out = math::f32_to_f16(*x);
    }
}
