//! `down_group` and `down_group_many`.

use core::ops::Range;

use super::scale_of;
use crate::block::{BLOCK, GROUP, WeightType};
use crate::check;
use crate::math::{f16_to_f32, round_to_i32};
use crate::neurons::NeuronRows;
use crate::pack::unpack_block;
use crate::quantize::{block_scale, zero_code};
use crate::zip::{QUAD, quad_block};

pub(super) fn down_group(w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32], scratch: &mut [u8]) {
    check::down_group(w, h, acc, scratch);
    add_token(
        w,
        0..w.cols(),
        Strided {
            values: h,
            stride: 1,
        },
        acc,
        1,
    );
}

pub(super) fn down_group_many(
    w: &NeuronRows<'_>,
    cols: Range<usize>,
    tokens: usize,
    h: &[f32],
    acc: &mut [f32],
    scratch: &mut [u8],
) {
    check::down_group_many(w, &cols, tokens, h, acc, scratch);
    for token in 0..tokens.min(acc.len()) {
        let h = Strided {
            values: h.get(token..).unwrap_or(&[]),
            stride: tokens,
        };
        add_token(w, cols.clone(), h, &mut acc[token..], tokens);
    }
}

/// One token's `h`: neuron `n`'s stands at `n * stride`.
#[derive(Clone, Copy)]
struct Strided<'a> {
    values: &'a [f32],
    stride: usize,
}

impl Strided<'_> {
    fn get(&self, neuron: usize) -> f32 {
        self.values[neuron * self.stride]
    }
}

/// One token: output `i` is added at `(i - cols.start) * stride` of `acc`.
fn add_token(
    w: &NeuronRows<'_>,
    cols: Range<usize>,
    h: Strided<'_>,
    acc: &mut [f32],
    stride: usize,
) {
    if !w.ty().is_quantized() {
        for (n, codes) in w.codes().iter().enumerate() {
            for i in cols.clone() {
                acc[(i - cols.start) * stride] += h.get(n) * float_at(w.ty(), codes, i);
            }
        }
        return;
    }
    for block in cols.start / BLOCK..cols.end / BLOCK {
        let group = Group::new(w, h, block);
        for i in 0..BLOCK {
            let acc = &mut acc[(block * BLOCK - cols.start + i) * stride];
            let p = group.s * group.dots[i] as f32;
            *acc += if w.ty().has_offset() { p + group.e } else { p };
        }
    }
}

/// A group's contribution to one block of outputs.
struct Group {
    s: f32,
    e: f32,
    dots: [i32; BLOCK],
}

impl Group {
    fn new(w: &NeuronRows<'_>, h: Strided<'_>, block: usize) -> Self {
        let mut g = [0f32; GROUP];
        let (mut top, mut e) = (0, 0f32);
        for (n, scales) in w.scales().iter().enumerate() {
            let (d, m) = block_scale(w.ty(), w.cols(), scales, block);
            g[n] = h.get(n) * d;
            top = top.max(g[n].abs().to_bits());
            if w.ty().has_offset() {
                e += h.get(n) * m;
            }
        }
        let (s, inverse) = scale_of(f32::from_bits(top));
        let mut c = [0; GROUP];
        for (c, g) in c.iter_mut().zip(&g[..w.len()]) {
            *c = round_to_i32(g * inverse);
        }
        let dots = match w.zipped() {
            Some(zipped) => dots_zipped(w, zipped, &c, block),
            None => dots_of_rows(w, &c, block),
        };
        Group { s, e, dots }
    }
}

/// Products of the codes `c` with a block of each row.
fn dots_of_rows(w: &NeuronRows<'_>, c: &[i32; GROUP], block: usize) -> [i32; BLOCK] {
    let mut dots = [0; BLOCK];
    for (codes, c) in w.codes().iter().zip(c) {
        for (dot, q) in dots.iter_mut().zip(unpack_block(w.ty(), codes, block)) {
            *dot += c * (signed(w.ty(), q) - zero_code(w.ty()));
        }
    }
    dots
}

/// The same where rows are zipped, four at a time.
fn dots_zipped(w: &NeuronRows<'_>, zipped: &[u8], c: &[i32; GROUP], block: usize) -> [i32; BLOCK] {
    // What all codes are too large by is taken off once.
    let mut dots = [-zero_code(w.ty()) * c.iter().sum::<i32>(); BLOCK];
    for (quad, c) in c.as_chunks::<QUAD>().0.iter().enumerate() {
        if *c == [0; QUAD] {
            continue;
        }
        let codes = quad_block(w.ty(), w.cols(), zipped, quad, block);
        for (dot, codes) in dots.iter_mut().zip(codes) {
            let [q0, q1, q2, q3] = codes.map(|q| signed(w.ty(), q));
            *dot += c[0] * q0 + c[1] * q1 + c[2] * q2 + c[3] * q3;
        }
    }
    dots
}

/// A stored code as a number.
fn signed(ty: WeightType, code: u8) -> i32 {
    match ty {
        WeightType::Q8 => i32::from(code as i8),
        _ => i32::from(code),
    }
}

fn float_at(ty: WeightType, codes: &[u8], i: usize) -> f32 {
    match ty {
        WeightType::F32 => f32::from_le_bytes(codes.as_chunks().0[i]),
        _ => f16_to_f32(u16::from_le_bytes(codes.as_chunks().0[i])),
    }
}
