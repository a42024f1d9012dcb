//! The table of kernels of one instruction set.

use core::ops::Range;

use crate::view::{Activations, NeuronRows, Rows};

/// The kernels of one instruction set. Chosen once, then passed down; every table gives the same
/// bits. `scratch` is working memory: [`Kernels::scratch_bytes`] says how much, contents are
/// undefined before and after.
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Name for reports: `scalar`, `avx2`, `avxvnni`, `avx512vnni`, `neon`, ...
    pub name: &'static str,

    /// Rounds `x` to 8-bit blocks of 32: `s = max|x| / 127`, `q = round_half_even(x * (127 / max|x|))`
    /// (all zero where the maximum is below 2^-100; the maximum is compared as bits, so a NaN makes
    /// `s` NaN). `x.len()` is a multiple of 32; `sums` gets the integer sum of each block's codes.
    pub quantize: fn(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [i32]),

    /// W (rows, cols) @ x (cols,) -> out (rows,). `x` holds one token.
    pub matvec: fn(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]),

    /// W (rows, cols) @ x (tokens, cols)^T -> out (rows, tokens), row-major: `out[row * tokens + t]`.
    pub matmul: fn(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8]),

    /// Adds one group of neurons to a cluster's partial sum: `acc (cols,)`, `h` one value a neuron.
    pub down_group: fn(w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32], scratch: &mut [u8]),

    /// The same for several tokens and the outputs `cols` (a multiple of 64 but for the end):
    /// `h[n * tokens + t]`, `acc[(i - cols.start) * tokens + t]`.
    pub down_group_many: fn(
        w: &NeuronRows<'_>,
        cols: Range<usize>,
        tokens: usize,
        h: &[f32],
        acc: &mut [f32],
        scratch: &mut [u8],
    ),

    /// `sum_i a_i * b_i` in the order given for float weights in the crate docs.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// The same with `b` in f16 bits.
    pub dot_f16: fn(a: &[f32], b: &[u16]) -> f32,
    /// `y_i = y_i + a * x_i`.
    pub axpy: fn(a: f32, x: &[f32], y: &mut [f32]),
    /// The same with `x` in f16 bits.
    pub axpy_f16: fn(a: f32, x: &[u16], y: &mut [f32]),

    /// `out_i = (x_i * (1 / sqrt(mean + eps))) * weight_i`, `mean = dot(x, x) / len`.
    pub rmsnorm: fn(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]),
    /// In place: `e_i = exp(x_i - max)`, then `e_i * (1 / sum)`, the sum in the order of `dot`.
    pub softmax: fn(x: &mut [f32]),
    /// `h_i = act(gate_i) * up_i` (see [`crate::activation::Activation`]), in place of `gate`.
    pub gated: fn(act: crate::activation::Activation, gate: &mut [f32], up: &[f32]),
    /// f32 to f16 bits, round half to even.
    pub to_f16: fn(x: &[f32], out: &mut [u16]),
    /// CRC-32C (Castagnoli), continuing from `crc` (0 to begin); same convention as RFC 3720.
    pub crc32c: fn(crc: u32, bytes: &[u8]) -> u32,
}
