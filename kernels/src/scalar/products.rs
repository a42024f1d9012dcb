//! `matvec` and `matmul`.

use super::{sum, tree};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::interleave::INTERLEAVED;
use crate::math::f16_to_f32;
use crate::neurons::NeuronRows;
use crate::pack::unpack_block;
use crate::quantize::{block_scale, zero_code};
use crate::view::{Activations, Rows};

pub(super) fn matvec(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    check::matvec(w, x, out);
    for (row, out) in out.iter_mut().enumerate() {
        *out = product(w, row, x, 0);
    }
}

pub(super) fn matmul(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8]) {
    check::matmul(w, x, out, scratch);
    for (at, out) in out.iter_mut().enumerate() {
        *out = product(w, at / x.tokens(), x, at % x.tokens());
    }
}

pub(super) fn dot_group(w: &NeuronRows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    check::dot_group(w, x, out);
    for (row, out) in out.iter_mut().enumerate() {
        let (codes, scales) = (w.codes()[row], w.scales()[row]);
        *out = product(&Rows::new(w.ty(), 1, w.cols(), codes, scales), 0, x, 0);
    }
}

/// Row `row` times token `token`.
fn product(w: &Rows<'_>, row: usize, x: &Activations<'_>, token: usize) -> f32 {
    let (codes, cols) = (w.codes(row), w.cols());
    match w.ty() {
        WeightType::F32 => {
            let weights = codes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes));
            sum(weights.zip(&x.x[token * cols..]).map(|(w, x)| w * x))
        }
        WeightType::F16 => {
            let halves = codes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u16::from_le_bytes(*bytes));
            sum(halves
                .zip(&x.x[token * cols..])
                .map(|(w, x)| f16_to_f32(w) * x))
        }
        _ => quantized_product(w, row, x, token),
    }
}

fn quantized_product(w: &Rows<'_>, row: usize, x: &Activations<'_>, token: usize) -> f32 {
    let (ty, scales) = (w.ty(), w.scales(row));
    let blocks = w.cols() / BLOCK;
    let mut a = [0f32; 8];
    let mut steps = [[0; BLOCK]; INTERLEAVED];
    for block in 0..blocks {
        let at = token * blocks + block;
        let (s, t) = (x.scales[at], x.sums[at]);
        let (run, lane) = (block / INTERLEAVED * INTERLEAVED, block % INTERLEAVED);
        let mut codes = [0; BLOCK];
        if run + INTERLEAVED <= blocks {
            if lane == 0 {
                steps = core::array::from_fn(|step| unpack_block(ty, w.codes(row), run + step));
            }
            for (step, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *codes = steps[step].as_chunks().0[lane];
            }
        } else {
            codes = unpack_block(ty, w.codes(row), block);
        }
        let mut dot = -zero_code(ty) * t;
        for (&q, &a) in codes.iter().zip(&x.q[at * BLOCK..][..BLOCK]) {
            let q = if ty == WeightType::Q8 {
                i32::from(q as i8)
            } else {
                i32::from(q)
            };
            dot += q * i32::from(a);
        }
        let (d, m) = block_scale(ty, w.cols(), scales, block);
        let mut p = (d * s) * dot as f32;
        if ty.has_offset() {
            p += m * (s * t as f32);
        }
        a[block % 8] += p;
    }
    tree(a)
}
