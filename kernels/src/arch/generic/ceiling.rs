//! What the machine's units do at best: products of registers, and nothing else.

use core::hint::black_box;

use crate::arch::simd::{Q4, Simd};
use crate::dispatch::Arithmetic;

/// Vectors of weights and of activations that are multiplied with each other: as many sums under
/// way as there are registers for.
const TILE: [usize; 2] = if cfg!(target_arch = "aarch64") {
    [3, 2]
} else {
    [4, 3]
};
const SUMS: usize = TILE[0] * TILE[1];

/// See [`crate::Kernels::ceiling`].
#[inline(always)]
pub(crate) fn ceiling<S: Simd>(s: S, of: Arithmetic, rounds: usize) -> usize {
    match of {
        Arithmetic::Bytes => bytes(s, rounds),
        Arithmetic::Floats => floats(s, rounds),
    }
}

/// Products of 4-bit codes, which every instruction set has at its best.
#[inline(always)]
fn bytes<S: Simd>(s: S, rounds: usize) -> usize {
    let one: S::Bytes = bytemuck::Zeroable::zeroed();
    let (w, a) = ([[one; 2]; TILE[0]], [[one; 2]; TILE[1]]);
    let mut sums = [[s.zero_acc(); TILE[1]]; TILE[0]];
    for _ in 0..rounds {
        // Unknown again each time: no product is computed once for all rounds.
        let (w, a) = (black_box(&w), black_box(&a));
        for i in 0..TILE[0] {
            let w = [s.bytes(&w[i][0]), s.bytes(&w[i][1])];
            for j in 0..TILE[1] {
                let a = [s.bytes(&a[j][0]), s.bytes(&a[j][1])];
                sums[i][j] = s.dot2::<Q4>(sums[i][j], w, a);
            }
        }
    }
    for sum in sums.as_flattened() {
        black_box(s.to_floats(s.as_floats(s.done::<Q4>(*sum))));
    }
    rounds * SUMS * 2 * 4 * S::LANES
}

/// Products that are rounded before they are added.
#[inline(always)]
fn floats<S: Simd>(s: S, rounds: usize) -> usize {
    let (w, a) = (
        [s.to_floats(s.splat(0.5)); TILE[0]],
        [s.to_floats(s.splat(0.25)); TILE[1]],
    );
    let mut sums = [[s.splat(0.0); TILE[1]]; TILE[0]];
    for _ in 0..rounds {
        let (w, a) = (black_box(&w), black_box(&a));
        for i in 0..TILE[0] {
            for j in 0..TILE[1] {
                let p = s.mul(s.floats(&w[i]), s.floats(&a[j]));
                sums[i][j] = s.add(sums[i][j], p);
            }
        }
    }
    for sum in sums.as_flattened() {
        black_box(s.to_floats(*sum));
    }
    rounds * SUMS * S::LANES
}
