//! `exp` and what is made of it, the same operations as [`crate::math`].

use super::float::{Sums, four, padded};
use crate::activation::Activation;
use crate::arch::simd::{Simd, Simd8};
use crate::math::{self, GELU, ROUND, exp_constants as exp_of};

/// `a < b ? a : b`, NaN of `b` kept.
#[inline(always)]
pub(super) fn select_less<S: Simd>(s: S, a: S::F, b: S::F, than: [S::F; 2]) -> S::F {
    let less = s.less(than[0], than[1]);
    s.as_floats(s.or_w(s.and_w(less, s.bits(a)), s.and_not_w(less, s.bits(b))))
}

/// [`math::exp`], lane by lane.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let (high, low) = (s.splat(exp_of::HIGH), s.splat(exp_of::LOW));
    let x = select_less(s, high, x, [high, x]);
    let x = select_less(s, low, x, [x, low]);
    let round = s.splat(ROUND);
    let shifted = s.add(s.mul(x, s.splat(core::f32::consts::LOG2_E)), round);
    let n = s.sub(shifted, round);
    let r = s.sub(x, s.mul(n, s.splat(exp_of::LN2_HIGH)));
    let r = s.sub(r, s.mul(n, s.splat(exp_of::LN2_LOW)));
    let mut p = s.splat(exp_of::POLY[0]);
    for c in &exp_of::POLY[1..] {
        p = s.add(s.mul(p, r), s.splat(*c));
    }
    let y = s.add(s.add(s.mul(p, s.mul(r, r)), r), s.splat(1.0));
    let k = s.sub_w(s.bits(shifted), s.bits(round));
    let half = s.shift_right::<1>(k);
    s.mul(
        s.mul(y, power_of_two(s, half)),
        power_of_two(s, s.sub_w(k, half)),
    )
}

#[inline(always)]
fn power_of_two<S: Simd>(s: S, k: S::W) -> S::F {
    s.as_floats(s.shift_left::<23>(s.add_w(k, s.splat_w(127))))
}

#[inline(always)]
fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let minus = s.as_floats(s.sub_w(s.bits(x), s.splat_w(i32::MIN)));
    s.div(x, s.add(s.splat(1.0), exp(s, minus)))
}

#[inline(always)]
fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let curve = s.add(s.splat(GELU[0]), s.mul(s.splat(GELU[1]), s.mul(x, x)));
    let inner = s.mul(x, curve);
    let one = s.splat(1.0);
    let e = s.add(exp(s, s.add(inner, inner)), one);
    let tanh = s.sub(one, s.div(s.splat(2.0), e));
    s.mul(s.mul(s.splat(0.5), x), s.add(one, tanh))
}

#[inline(always)]
fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    // `x < 0` leaves -0, which adding 0 makes 0 and which changes nothing else.
    let x = s.add(x, s.splat(0.0));
    s.as_floats(s.and_not_w(s.less(x, s.splat(0.0)), s.bits(x)))
}

/// See [`crate::Kernels::gated`].
#[inline(always)]
pub(crate) fn gated<S: Simd8>(s: S, act: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    match act {
        Activation::Silu => each::<S, { Activation::Silu as u8 }>(s, gate, up),
        Activation::GeluTanh => each::<S, { Activation::GeluTanh as u8 }>(s, gate, up),
        Activation::Relu => each::<S, { Activation::Relu as u8 }>(s, gate, up),
        Activation::ReluBoth => each::<S, { Activation::ReluBoth as u8 }>(s, gate, up),
    }
}

#[inline(always)]
fn each<S: Simd8, const ACT: u8>(s: S, gate: &mut [f32], up: &[f32]) {
    let ((gate, gate_rest), (up, up_rest)) = (gate.as_chunks_mut::<8>(), up.as_chunks::<8>());
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = s.to_floats(one::<S, ACT>(s, s.floats(gate), s.floats(up)));
    }
    if !gate_rest.is_empty() {
        let (gate, up) = (padded(0.0, gate_rest), padded(0.0, up_rest));
        let all = s.to_floats(one::<S, ACT>(s, s.floats(&gate), s.floats(&up)));
        gate_rest.copy_from_slice(&all[..gate_rest.len()]);
    }
}

#[inline(always)]
fn one<S: Simd8, const ACT: u8>(s: S, gate: S::F, up: S::F) -> S::F {
    match Activation::from_u8(ACT) {
        Some(Activation::Silu) => s.mul(silu(s, gate), up),
        Some(Activation::GeluTanh) => s.mul(gelu_tanh(s, gate), up),
        Some(Activation::Relu) => s.mul(relu(s, gate), up),
        _ => s.mul(relu(s, gate), relu(s, up)),
    }
}

/// See [`crate::Kernels::softmax`].
#[inline(always)]
pub(crate) fn softmax<S: Simd8>(s: S, x: &mut [f32]) {
    let max = maximum(s, x);
    let (eights, rest) = x.as_chunks_mut::<8>();
    for x in eights {
        *x = s.to_floats(exp(s, s.sub(s.floats(x), s.splat(max))));
    }
    for x in rest {
        *x = math::exp(*x - max);
    }
    let inverse = 1.0 / sum(s, x);
    let (eights, rest) = x.as_chunks_mut::<8>();
    for x in eights {
        *x = s.to_floats(s.mul(s.floats(x), s.splat(inverse)));
    }
    for x in rest {
        *x *= inverse;
    }
}

/// The largest of `x`, NaN passed over: where there is one, every result is NaN anyway.
#[inline(always)]
fn maximum<S: Simd8>(s: S, x: &[f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    let (eights, rest) = x.as_chunks::<8>();
    for x in eights {
        let x = s.floats(x);
        max = select_less(s, x, max, [max, x]);
    }
    let mut highest = f32::NEG_INFINITY;
    for x in s.to_floats(max) {
        highest = if x > highest { x } else { highest };
    }
    for &x in rest {
        highest = if x > highest { x } else { highest };
    }
    highest
}

#[inline(always)]
fn sum<S: Simd8>(s: S, x: &[f32]) -> f32 {
    let mut sums = Sums::new(s);
    let (chunks, rest) = x.as_chunks::<32>();
    for x in chunks {
        sums.add(s, four(s, x));
    }
    if !rest.is_empty() {
        sums.add(s, four(s, &padded(0.0, rest)));
    }
    sums.total(s)
}
