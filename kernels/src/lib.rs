//! Arithmetic on slices, nothing else.
//!
//! Every kernel is *defined* here down to the order of its float operations, so that scalar code,
//! AVX2, AVX-512 and NEON give the same bits. Multiply and add are always rounded separately; no
//! kernel may fuse them. [`Kernels`] is a table of functions, chosen once by [`Kernels::best`].
//!
//! # Weights
//!
//! A matrix row is stored in two runs of bytes: its *codes* and, for the quantised types, its
//! *scales*. Weights come in blocks of [`BLOCK`] = 32 columns.
//!
//! | type | codes of a row | scales of a row | weight |
//! | --- | --- | --- | --- |
//! | `F32` | `cols` f32 | none | itself |
//! | `F16` | `cols` f16 | none | itself |
//! | `Q8` | `cols` i8 in -127..=127 | `cols/32` f16 `d` | `d * q` |
//! | `Q4` | `ceil(cols/64) * 32` bytes | `cols/32` f16 `d` | `d * (q - 8)` |
//! | `Q5` | `ceil(cols/64) * 40` bytes | `cols/32` f16 `d` | `d * (q - 16)` |
//! | `Q6` | `ceil(cols/64) * 48` bytes | `cols/32` f16 `d` | `d * (q - 32)` |
//! | `Q4O` | as `Q4` | `cols/32` f16 `d`, then `cols/32` f16 `m` | `d * q + m` |
//! | `Q4K` | as `Q4` | `cols/256` times 16 bytes, see [`SuperScales`] | `(D * s) * q + (M * n)` |
//!
//! 4-bit codes are stored in pairs of blocks: 32 bytes hold blocks `2p` and `2p+1`; byte `j` has
//! column `j` of block `2p` in its low and column `j` of block `2p+1` in its high half. Where the
//! number of blocks is odd the last high halves are zero.
//!
//! 6-bit codes: 48 bytes a pair of blocks. The first 32 hold the low four bits of each code exactly
//! as 4-bit codes are stored. Byte `k` of the last 16 holds the high two bits of four codes: of
//! block `2p` column `k` in bits 0-1 and column `k + 16` in bits 2-3, of block `2p+1` column `k` in
//! bits 4-5 and column `k + 16` in bits 6-7.
//!
//! 5-bit codes: 40 bytes a pair of blocks, the first 32 as 4-bit codes; bit `c` of the last eight
//! (counted from the lowest bit of the first byte) is the fifth bit of column `c` of the pair.
//!
//! Rows that are multiplied ([`Rows`]) are *interleaved*: of every whole run of eight blocks, 256
//! columns, place `32 s + 4 j + i` (`s`, `j` below 8, `i` below 4) has the code of column
//! `32 j + 4 s + i`, and is stored as told above for that place. So step `s` brings four columns of
//! each of the eight blocks. The last one to seven blocks are in order, and so are all columns of
//! neurons' down rows ([`NeuronRows`] of `down_group`) and of the float types. Down rows of a whole
//! group may be *zipped* ([`zip_row`]): byte `b` of a pair of blocks of the rows `4 q` to `4 q + 3`
//! side by side, for each `b`, for each `q`, for each pair.
//!
//! `Q4K` needs `cols` to be a multiple of [`SUPER_BLOCK`] = 256. `D * s` and `M * n`, an f16 times
//! six bits, are exact in f32; below they are `d_b` and `m_b`.
//!
//! # Products (`matvec`, `matmul`)
//!
//! Quantised weights meet activations that were quantised by [`Kernels::quantize`]: codes `a`,
//! scale `s`, integer sum `t` of a block's codes. For block `b` of a row:
//!
//! ```text
//! dot_b = sum_i q_i * a_i                                   exact, i32
//!       (Q4: minus 8 * t_b, Q5: minus 16 * t_b, Q6: minus 32 * t_b)
//! p_b   = (d_b * s_b) * f32(dot_b)                          Q8, Q6, Q5, Q4
//! p_b   = (d_b * s_b) * f32(dot_b) + m_b * (s_b * f32(t_b)) Q4O, Q4K
//! A_j   = 0 + p_j + p_{j+8} + p_{j+16} + ...                j = 0..8, in this order
//! y     = ((A0 + A4) + (A2 + A6)) + ((A1 + A5) + (A3 + A7))
//! ```
//!
//! Float weights meet the f32 activations: with `p_i = w_i * x_i`,
//!
//! ```text
//! V_j = 0 + p_j + p_{j+32} + ...            j = 0..32
//! U_j = (V_j + V_{j+8}) + (V_{j+16} + V_{j+24})     j = 0..8
//! y   = ((U0 + U4) + (U2 + U6)) + ((U1 + U5) + (U3 + U7))
//! ```
//!
//! # Down sums (`down_group`, `down_group_many`)
//!
//! Down columns are stored neuron by neuron, so the sum runs over rows. Neurons are taken in groups
//! of [`GROUP`] = 32 consecutive ones. For quantised weights, neurons `n` of a group with
//! activation `h_n`, and block `b` of the output:
//!
//! ```text
//! g_n   = h_n * d_{n,b}
//! top   = max_n |g_n|            compared as bits, so that NaN is kept
//! s     = top / 127              inv = 127 / top      (both 0 where top < 2^-100)
//! c_n   = round_half_even(g_n * inv)        i8
//! dot_i = sum_n c_n * q_{n,i}               exact, i32 (Q4: q - 8, Q5: q - 16, Q6: q - 32)
//! acc_i = acc_i + s * f32(dot_i)
//! Q4O, Q4K:
//!       e = 0 + h_0 * m_{0,b} + h_1 * m_{1,b} + ...   then   acc_i = acc_i + (s * f32(dot_i) + e)
//! ```
//!
//! A neuron with `h_n = 0` changes nothing, so dead neurons may be left out: hot (dense) and cold
//! (sparse) paths give the same bits. For float weights `acc_i = acc_i + h_n * w_{n,i}`, neuron by
//! neuron, where dead neurons are likewise free to be left out.
//!
//! # Attention (`attend`)
//!
//! Positions are cut into segments of [`attention::SEGMENT`] = 128 that begin at its multiples. Of
//! one segment, a query `q` of `n` elements sees the positions `p` from the window's begin to its
//! own; segments of which it sees nothing are left out. With a key `k_p` and a value `v_p`:
//!
//! ```text
//! s_p   = (0 + q_0 k_{p,0} + q_1 k_{p,1} + ... ) * scale          F32, F16
//! s_p   = f32(sum_i c_i k_{p,i}) * (d_p * (e * scale))            Q8: q = e * c by `to_q8`,
//!                                                                 d_p the key's scale
//! m     = max_p s_p + 0          NaN passed over
//! w_p   = exp(s_p - m)           0 where p is not seen
//! A_j   = 0 + w_j + w_{j+8} + w_{j+16} + ...                      j = 0..8, p from the segment's
//!                                                                 first position on
//! l     = ((A0 + A4) + (A2 + A6)) + ((A1 + A5) + (A3 + A7))
//! o_i   = 0 + w_p v_{p,i} + w_{p+1} v_{p+1,i} + ...               F32, F16
//! o_i   = 0 + (w_p d_p) v_{p,i} + (w_{p+1} d_{p+1}) v_{p+1,i} + ...    Q8, d_p the value's scale
//! ```
//!
//! A query's state `(M, L, O)` begins as `(-inf, 0, 0)` and takes the segments in order:
//!
//! ```text
//! M'    = max(M, m)        a = exp(M - M')        b = exp(m - M')
//! L'    = L * a + l * b    O'_i = O_i * a + o_i * b
//! ```
//!
//! and the result is `O_i * (1 / L)`. So it depends neither on the tokens beside it nor on who
//! worked on which segment. This is the blocked form of Dao's FlashAttention (2022), its segments
//! side by side as in Flash-Decoding (2023).

#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![deny(unsafe_code)]
// Without vectors, what serves vectors only is not used.
#![cfg_attr(
    any(test, not(any(target_arch = "x86_64", target_arch = "aarch64"))),
    allow(dead_code)
)]

pub mod activation;
#[cfg(not(test))]
mod arch;
pub mod attention;
pub mod block;
mod check;
mod crc;
pub mod dispatch;
mod interleave;
pub mod kv;
pub mod math;
mod neurons;
pub mod pack;
pub mod quantize;
mod scalar;
mod soon;
#[cfg(test)]
mod testing;
mod tiles;
pub mod view;
mod zip;

pub use activation::Activation;
pub use block::{BLOCK, GROUP, STRIP, SUPER_BLOCK, WeightType};
#[doc(hidden)]
pub use dispatch::Arithmetic;
pub use dispatch::{Kernels, PANEL_ROWS_MAX, QUANTIZE_SCRATCH_BYTES};
pub use interleave::{FEW_TOKENS, interleave, interleave_activations};
pub use neurons::NeuronRows;
pub use pack::{pack_codes, unpack_codes};
pub use quantize::{Loss, SuperScales, dequantize_row, quantize_row};
pub use soon::Soon;
pub use tiles::{TILE_TOKENS, TokenTiles, TokenTilesMut, tile_activations, tiles_len, wants_tiles};
pub use view::{Activations, Rows};
pub use zip::zip_row;

// Unit tests are of what is plain Rust, so that what serves vectors, minutes of compiling, is not
// compiled for them once more; tests/tables compares all of it with the reference.
#[cfg(test)]
mod arch {
    pub(crate) fn tables() -> core::iter::Empty<crate::Kernels> {
        core::iter::empty()
    }
}
