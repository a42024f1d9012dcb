//! The table of kernels of one instruction set.

use core::ops::Range;

use crate::attention::{Queries, Segment};
use crate::block::{BLOCK, WeightType};
use crate::neurons::NeuronRows;
use crate::quantize::Loss;
use crate::view::{Activations, Rows};

/// The kernels of one instruction set. Chosen once, then passed down; every table gives the same
/// bits. `scratch` is working memory: [`Kernels::scratch_bytes`] says how much at least, contents
/// are undefined before and after.
///
/// # Panics
/// Every function, if a length is not the one that it names here or scratch is too short; those of
/// products and down sums also if rows stand in another order than they want.
#[allow(
    clippy::type_complexity,
    reason = "each is the signature that callers see"
)]
#[derive(Clone, Copy)]
pub struct Kernels {
    /// Name for reports: `scalar`, `avx2`, `avxvnni`, `avx512vnni`, `neon`, `neondot`,
    /// `neoni8mm`.
    pub name: &'static str,

    /// Rounds `x` to 8-bit blocks of 32: `s = max|x| / 127`,
    /// `q = round_half_even(x * (127 / max|x|))`; all zero where the maximum is below 2^-100. The
    /// maximum is compared as bits, so a NaN makes `s` NaN. `x.len()` is a multiple of 32; `sums`
    /// gets the integer sum of each block's codes.
    pub quantize: fn(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [i32]),

    /// Rounds weights `x` (rows, cols) to type `ty`: codes and scales of one row after the other,
    /// as stored, all columns in order. `cols` is a multiple of [`WeightType::cols_multiple`];
    /// `scratch` has at least [`QUANTIZE_SCRATCH_BYTES`].
    ///
    /// Q8 takes `d = max|x| / 127`. Q4, Q5 and Q6 try 16 scales around the one that maps the
    /// largest magnitude to the lowest code, Q4O 16 ranges around minimum and maximum; each is
    /// fitted to its codes by least squares, and the smallest squared error wins (in Q4 large
    /// weights count more: `quantize/search.rs`). Codes are then chosen against the scale as
    /// stored. Q4K fits its blocks as Q4O does, then rounds scales and minima to 6 bits. Scales
    /// beyond the range of f16 are cut off there.
    ///
    /// Weights must be finite; float types take them all, and keep their bits.
    pub quantize_rows: fn(
        ty: WeightType,
        cols: usize,
        x: &[f32],
        codes: &mut [u8],
        scales: &mut [u8],
        scratch: &mut [u8],
    ) -> Loss,

    /// W (rows, cols) @ x (cols,) -> out (rows,). `W` is interleaved. `x` holds one token: floats
    /// for rows of floats, else codes, [interleaved](Activations::with_interleaved) too.
    pub matvec: fn(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]),

    /// W (rows, cols) @ x (tokens, cols)^T -> out (rows, tokens), row-major:
    /// `out[row * tokens + t]`. `W` is interleaved; `x` as for [`Kernels::matvec`], but codes of
    /// any number of tokens, which need not be interleaved.
    pub matmul: fn(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8]),

    /// The rows of a group of neurons times the one token of `x`: `out (neurons,)`, with the needs
    /// and the bits of [`Kernels::matvec`].
    pub dot_group: fn(w: &NeuronRows<'_>, x: &Activations<'_>, out: &mut [f32]),

    /// Adds one group of neurons to a cluster's partial sum: `acc (cols,)`, `h` one value a neuron.
    /// Rows of codes are in order or zipped.
    pub down_group: fn(w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32], scratch: &mut [u8]),

    /// The same for several tokens and the outputs `cols`, from a multiple of
    /// [`STRIP`](crate::STRIP) to one or to the last: `h[n * tokens + t]`,
    /// `acc[(i - cols.start) * tokens + t]`.
    pub down_group_many: fn(
        w: &NeuronRows<'_>,
        cols: Range<usize>,
        tokens: usize,
        h: &[f32],
        acc: &mut [f32],
        scratch: &mut [u8],
    ),

    /// `sum_i a_i * b_i` in the order given for float weights in the crate docs; both are as long.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,

    /// Adds what one segment of the cache gives to the states of queries, (tokens, group,
    /// [`state_len`](crate::attention::state_len)). `work` has at least
    /// [`scratch_len`](crate::attention::scratch_len) floats. What segments and queries have to
    /// hold, their types say.
    pub attend:
        fn(segment: &Segment<'_>, queries: &Queries<'_>, states: &mut [f32], work: &mut [f32]),

    /// Rounds `x`, whose length is a multiple of 8, to 8 bits as one block: the codes are those of
    /// [`Kernels::quantize`] with the maximum of all of `x`. Returns the scale.
    pub to_q8: fn(x: &[f32], codes: &mut [i8]) -> f32,

    /// `out_i = (x_i * (1 / sqrt(mean + eps))) * weight_i`, `mean = dot(x, x) / len`; all three are
    /// as long.
    pub rmsnorm: fn(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]),
    /// [`Kernels::rmsnorm`] and [`Kernels::quantize`] of what it gives, in one pass after the mean,
    /// with the needs of both.
    pub rmsnorm_quantize: fn(
        x: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
        q: &mut [i8],
        scales: &mut [f32],
        sums: &mut [i32],
    ),
    /// In place: `e_i = exp(x_i - max)`, then `e_i * (1 / sum)`, the sum in the order of `dot`.
    pub softmax: fn(x: &mut [f32]),
    /// `h_i = act(gate_i) * up_i` (see [`crate::activation::Activation`]), in place of `gate`; both
    /// are as long.
    pub gated: fn(act: crate::activation::Activation, gate: &mut [f32], up: &[f32]),
    /// f32 to f16 bits, round half to even; both are as long.
    pub to_f16: fn(x: &[f32], out: &mut [u16]),
    /// CRC-32C (Castagnoli), continuing from `crc` (0 to begin); same convention as RFC 3720.
    pub crc32c: fn(crc: u32, bytes: &[u8]) -> u32,

    /// For the benchmark: `rounds` rounds of this table's multiply-adds in registers. Returns how
    /// many they were.
    #[doc(hidden)]
    pub ceiling: fn(of: Arithmetic, rounds: usize) -> usize,
}

/// What [`Kernels::ceiling`] multiplies.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// 8-bit integers, summed in integers.
    Bytes,
    /// f32, products and sums rounded separately.
    Floats,
}

impl Kernels {
    /// The reference: plain Rust, on every machine.
    pub const SCALAR: Kernels = crate::scalar::TABLE;

    /// The tables of this CPU, the fastest first; the last one is [`Kernels::SCALAR`].
    ///
    /// With the feature `std` the CPU is asked; without it, what the build was allowed to use.
    pub fn available() -> impl Iterator<Item = Kernels> {
        crate::arch::tables().chain([Self::SCALAR])
    }

    /// The fastest table of this CPU.
    pub fn best() -> Kernels {
        Self::available().next().unwrap_or(Self::SCALAR)
    }

    /// The table of this name, if this CPU can run it.
    pub fn by_name(name: &str) -> Option<Kernels> {
        Self::available().find(|kernels| kernels.name == name)
    }

    /// Scratch that no kernel of any table exceeds with up to `cols_max` columns (outputs, for
    /// the down sums).
    pub const fn scratch_bytes(cols_max: usize) -> usize {
        let blocks = cols_max.div_ceil(2 * BLOCK) * 2;
        SCRATCH_FIXED_BYTES + blocks * PANEL_BLOCK_BYTES
    }
}

/// Scratch of [`Kernels::quantize_rows`].
pub const QUANTIZE_SCRATCH_BYTES: usize = 8192;

/// Most rows that a product of many tokens unpacks together: matrices cut into multiples of it fill
/// panels on every instruction set.
pub const PANEL_ROWS_MAX: usize = 32;
/// One block of a panel: codes one a byte, and f32 scales and minima.
const PANEL_BLOCK_BYTES: usize = PANEL_ROWS_MAX * (BLOCK + 2 * size_of::<f32>());
/// What does not grow: alignment, and the buffers of a pair of blocks of a down sum.
const SCRATCH_FIXED_BYTES: usize = 12_288;

impl core::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Kernels({})", self.name)
    }
}
