//! Tiles of two rows and two tokens by `smmla`.
//!
//! Codes are signed bytes here whatever their type: no unsigned one is above 63.

use core::arch::aarch64::*;
use core::arch::asm;

use super::neon::{V, W};
use crate::arch::simd::PANEL_VECTORS;
use crate::tiles::{TILE_TOKENS, TileBlock};

/// Adds to `[r0 t0, r0 t1, r1 t0, r1 t1]` the products of eight columns of two rows and two tokens.
///
/// # Safety
/// The CPU has NEON and `i8mm`.
#[inline(always)]
unsafe fn smmla(acc: int32x4_t, rows: uint8x16_t, tokens: uint8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the caller's: the CPU has `i8mm`.
    unsafe {
        asm!(
            ".arch_extension i8mm",
            "smmla {acc:v}.4s, {rows:v}.16b, {tokens:v}.16b",
            acc = inout(vreg) acc,
            rows = in(vreg) rows,
            tokens = in(vreg) tokens,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// See [`crate::arch::simd::Simd8::panel`]: eight columns of two rows a register.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn panel(words: [V; 2]) -> [V; 2] {
    let ([even, odd], mut out) = (words, words);
    for half in 0..2 {
        // SAFETY: the caller's.
        unsafe {
            let even = vreinterpretq_u32_u8(even[half]);
            let odd = vreinterpretq_u32_u8(odd[half]);
            out[half] = [
                vreinterpretq_u8_u32(vzip1q_u32(even, odd)),
                vreinterpretq_u8_u32(vzip2q_u32(even, odd)),
            ];
        }
    }
    out
}

/// Two steps of two tokens: eight columns of each.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn two_tokens(even: &[[u8; 4]; 2], odd: &[[u8; 4]; 2]) -> uint8x16_t {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        let even = vreinterpret_u32_u8(vld1_u8(even.as_ptr().cast()));
        let odd = vreinterpret_u32_u8(vld1_u8(odd.as_ptr().cast()));
        vreinterpretq_u8_u32(vcombine_u32(vzip1_u32(even, odd), vzip2_u32(even, odd)))
    }
}

/// See [`crate::arch::simd::Simd::tile`]; four tokens at once.
///
/// # Safety
/// The CPU has `i8mm`.
#[inline(always)]
pub(super) unsafe fn tile<const N: usize>(
    w: &[[[u8; 32]; PANEL_VECTORS]; 8],
    a: &TileBlock,
) -> [[W; TILE_TOKENS]; N] {
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        let mut dots = [[[vdupq_n_s32(0); 2]; TILE_TOKENS]; N];
        for v in 0..N {
            for first in (0..TILE_TOKENS).step_by(4) {
                let mut acc = [[vdupq_n_s32(0); 4]; 2];
                for steps in 0..4 {
                    let [even, odd] = [&a[2 * steps], &a[2 * steps + 1]];
                    let (even, odd) = (even[first..].as_chunks().0, odd[first..].as_chunks().0);
                    let tokens = [two_tokens(&even[0], &odd[0]), two_tokens(&even[1], &odd[1])];
                    for two in 0..4 {
                        let rows = &w[2 * steps + two / 2][v][two % 2 * 16..];
                        let rows = vld1q_u8(rows.as_ptr());
                        for pair in 0..2 {
                            acc[pair][two] = smmla(acc[pair][two], rows, tokens[pair]);
                        }
                    }
                }
                for pair in 0..2 {
                    let [a, b, c, d] = acc[pair];
                    let at = first + 2 * pair;
                    dots[v][at] = [vuzp1q_s32(a, b), vuzp1q_s32(c, d)];
                    dots[v][at + 1] = [vuzp2q_s32(a, b), vuzp2q_s32(c, d)];
                }
            }
        }
        dots
    }
}

/// See [`crate::Kernels::ceiling`]: `smmla` in registers.
///
/// # Safety
/// The CPU has `i8mm`.
#[inline(always)]
pub(super) unsafe fn ceiling(rounds: usize) -> usize {
    const SUMS: usize = 12;
    // SAFETY: the caller's.
    unsafe {
        let (rows, tokens) = (vdupq_n_u8(1), vdupq_n_u8(2));
        let mut sums = [vdupq_n_s32(0); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = smmla(*sum, rows, tokens);
            }
        }
        core::hint::black_box(sums);
    }
    rounds * SUMS * 2 * 2 * 8
}
