//! Kernels on floats, the checksum, and the rounding of weights, on what is in the first cache.

use std::hint::black_box;

use tessera_kernels::{Activation, Kernels, QUANTIZE_SCRATCH_BYTES, WeightType};

use crate::TYPES;
use crate::memory::{Memory, Work};

/// Elements of a row; bytes of what is summed up.
const LEN: usize = 1536;
/// Elements of a key or value.
const HEAD_DIM: usize = 128;
/// Rows whose weights are rounded.
const ROWS: usize = 4;
/// Calls between two looks at the clock.
const CALLS: usize = 16;

/// Bytes that an element is read and written with, and operations on it: additions,
/// multiplications, divisions, comparisons and conversions of floats as the crate docs and
/// `math.rs` define them, without those of a block or a row.
const KERNELS: [(&str, usize, usize); 9] = [
    ("dot", 4 + 4, 2),
    // The sum of squares; two factors.
    ("rmsnorm", 4 + 4 + 4, 2 + 2),
    // Maximum, factor, code, sum of codes.
    ("quantize", 4 + 1, 4),
    ("rmsnorm_quantize", 4 + 4 + 4 + 1, 4 + 4),
    ("to_q8", 4 + 1, 3),
    ("to_f16", 4 + 2, 1),
    // Maximum, difference, sum, factor.
    ("softmax", 4 + 4, EXP + 4),
    // SiLU: `x / (1 + exp(-x))`, times up.
    ("gated", 4 + 4 + 4, EXP + 3),
    ("crc32c", 1, 0),
];
/// Operations of `exp`.
const EXP: usize = 25;

/// Operations that rounding a weight to a type takes: both ends of its block, candidates for the
/// scale, and its code and error.
const fn rounding(ty: WeightType) -> usize {
    let candidates = match ty {
        WeightType::Q8 => 0,
        WeightType::Q4 => 3 + 2 + 16 * 10,
        WeightType::Q5 | WeightType::Q6 => 3 + 16 * 9,
        _ => 3 + 16 * 11,
    };
    4 + candidates + 13
}

/// All of them.
pub fn cases(kernels: Kernels) -> impl Iterator<Item = Case> {
    let small = KERNELS.into_iter().map(move |(name, bytes, ops)| Case {
        kernels,
        name,
        ty: None,
        bytes: bytes * LEN,
        ops: ops * LEN,
    });
    let rounding = TYPES.into_iter().map(move |ty| Case {
        kernels,
        name: "quantize_rows",
        ty: Some(ty),
        bytes: ROWS * (4 * LEN + ty.row_bytes(LEN)),
        ops: ROWS * rounding(ty) * LEN,
    });
    small.chain(rounding)
}

/// One kernel, and what a call of it does.
pub struct Case {
    kernels: Kernels,
    name: &'static str,
    ty: Option<WeightType>,
    bytes: usize,
    ops: usize,
}

impl Case {
    pub fn label(&self) -> String {
        let ty = self.ty.map_or("", WeightType::name);
        format!("{:11} {:16} {ty:5}", self.kernels.name, self.name)
    }

    /// A closure that does some more work and returns all work so far.
    pub fn runner<'m>(&self, memory: &'m Memory) -> impl FnMut() -> Work + use<'m> {
        let mut call = self.call(memory);
        let (bytes, ops, mut calls) = (self.bytes, self.ops, 0);
        move || {
            (0..CALLS).for_each(|_| call());
            calls += CALLS;
            Work {
                bytes: calls * bytes,
                macs: calls * ops,
            }
        }
    }

    fn call<'m>(&self, memory: &'m Memory) -> Box<dyn FnMut() + 'm> {
        let (k, floats) = (self.kernels, &memory.floats);
        let (x, weight) = (&floats[..LEN], &floats[LEN..2 * LEN]);
        let (mut y, mut halves, mut q) = (x.to_vec(), vec![0; LEN], vec![0; LEN]);
        let (mut scales, mut sums) = (vec![0.0; LEN / 32], vec![0; LEN / 32]);
        match self.name {
            "dot" => Box::new(move || _ = black_box((k.dot)(x, weight))),
            "rmsnorm" => Box::new(move || (k.rmsnorm)(x, weight, 1e-5, &mut y)),
            "quantize" => Box::new(move || (k.quantize)(x, &mut q, &mut scales, &mut sums)),
            "rmsnorm_quantize" => Box::new(move || {
                (k.rmsnorm_quantize)(x, weight, 1e-5, &mut y, &mut q, &mut scales, &mut sums);
            }),
            "to_q8" => Box::new(move || {
                let codes = q.chunks_exact_mut(HEAD_DIM);
                for (x, codes) in x.chunks_exact(HEAD_DIM).zip(codes) {
                    black_box((k.to_q8)(x, codes));
                }
            }),
            "to_f16" => Box::new(move || (k.to_f16)(x, &mut halves)),
            "softmax" => Box::new(move || (k.softmax)(&mut y)),
            "gated" => {
                // Gates stay what they are, instead of vanishing.
                let up: Vec<f32> = x.iter().map(|x| 1.0 + (-x).exp()).collect();
                Box::new(move || (k.gated)(Activation::Silu, &mut y, &up))
            }
            "crc32c" => Box::new(move || _ = black_box((k.crc32c)(0, &memory.weights[..LEN]))),
            _ => {
                let (ty, x) = (self.ty.unwrap_or(WeightType::Q8), &floats[..ROWS * LEN]);
                let mut codes = vec![0; ROWS * ty.code_bytes(LEN)];
                let mut scales = vec![0; ROWS * ty.scale_bytes(LEN)];
                let mut scratch = vec![0; QUANTIZE_SCRATCH_BYTES];
                Box::new(move || {
                    (k.quantize_rows)(ty, LEN, x, &mut codes, &mut scales, &mut scratch);
                })
            }
        }
    }
}
