//! The reference: every kernel as the crate docs define it, in plain Rust.

use core::hint::black_box;

use crate::activation::Activation;
use crate::block::BLOCK;
use crate::dispatch::{Arithmetic, Kernels};
use crate::{check, crc, math};

mod attend;
mod down;
mod products;

pub(crate) const TABLE: Kernels = Kernels {
    name: "scalar",
    quantize,
    quantize_rows: |ty, cols, x, codes, scales, scratch| {
        check::quantize_scratch(scratch);
        crate::quantize::quantize_rows(ty, cols, x, codes, scales)
    },
    matvec: products::matvec,
    matmul: products::matmul,
    dot_group: products::dot_group,
    down_group: down::down_group,
    down_group_many: down::down_group_many,
    dot,
    attend: attend::attend,
    to_q8,
    rmsnorm,
    rmsnorm_quantize: |x, weight, eps, out, q, scales, sums| {
        rmsnorm(x, weight, eps, out);
        quantize(out, q, scales, sums);
    },
    softmax,
    gated,
    to_f16,
    crc32c: crc::crc32c,
    ceiling,
};

fn quantize(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
    check::quantize(x, q, scales, sums);
    let x = x.as_chunks::<BLOCK>().0.iter();
    let q = q.as_chunks_mut::<BLOCK>().0.iter_mut();
    for (((x, q), scale), sum) in x.zip(q).zip(scales).zip(sums) {
        let top = f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
        let (s, inverse) = scale_of(top);
        *scale = s;
        for (q, x) in q.iter_mut().zip(x) {
            *q = math::round_to_i32(x * inverse) as i8;
        }
        *sum = q.iter().map(|&q| i32::from(q)).sum();
    }
}

fn to_q8(x: &[f32], codes: &mut [i8]) -> f32 {
    check::to_q8(x, codes);
    let top = f32::from_bits(x.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0));
    let (s, inverse) = scale_of(top);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = math::round_to_i32(x * inverse) as i8;
    }
    s
}

/// `(top / 127, 127 / top)`, or zeros where `top` is below 2^-100.
fn scale_of(top: f32) -> (f32, f32) {
    if top < math::TINY {
        (0.0, 0.0)
    } else {
        (top / 127.0, 127.0 / top)
    }
}

/// The fixed tree over eight accumulators.
fn tree(a: [f32; 8]) -> f32 {
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

/// Sum of `products` with 32 accumulators.
fn sum(products: impl Iterator<Item = f32>) -> f32 {
    let mut v = [0f32; 32];
    for (i, p) in products.enumerate() {
        v[i % 32] += p;
    }
    tree(core::array::from_fn(|j| {
        (v[j] + v[j + 8]) + (v[j + 16] + v[j + 24])
    }))
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    sum(a.iter().zip(b).map(|(a, b)| a * b))
}

fn rmsnorm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), weight.len());
    assert_eq!(x.len(), out.len());
    let mean = dot(x, x) / x.len() as f32;
    let inverse = 1.0 / math::sqrt(mean + eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * inverse) * weight;
    }
}

fn softmax(x: &mut [f32]) {
    let max = x
        .iter()
        .fold(f32::NEG_INFINITY, |max, &x| if x > max { x } else { max });
    for x in x.iter_mut() {
        *x = math::exp(*x - max);
    }
    let inverse = 1.0 / sum(x.iter().copied());
    for x in x {
        *x *= inverse;
    }
}

fn gated(act: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = match act {
            Activation::Silu => math::silu(*gate) * up,
            Activation::GeluTanh => math::gelu_tanh(*gate) * up,
            Activation::Relu => math::relu(*gate) * up,
            Activation::ReluBoth => math::relu(*gate) * math::relu(up),
        };
    }
}

fn to_f16(x: &[f32], out: &mut [u16]) {
    assert_eq!(x.len(), out.len());
    for (out, &x) in out.iter_mut().zip(x) {
        *out = math::f32_to_f16(x);
    }
}

/// One multiply-add a round.
fn ceiling(of: Arithmetic, rounds: usize) -> usize {
    let (mut int, mut float) = (0i32, 0f32);
    for _ in 0..rounds {
        match of {
            Arithmetic::Bytes => int = int.wrapping_add(i32::from(black_box(1i8)) * 2),
            Arithmetic::Floats => float += black_box(1f32) * 0.5,
        }
    }
    black_box((int, float));
    rounds
}
