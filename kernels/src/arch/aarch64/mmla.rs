//! Tiles of two rows and two tokens by `smmla`.
//!
//! Codes are signed bytes here whatever their type: no unsigned one is above 63.

use core::arch::aarch64::*;
use core::arch::asm;

use bytemuck::must_cast_ref;

use super::neon::{V, W};

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

/// The first eight bytes of `a` and of `b`, and the others.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn zip(a: uint8x16_t, b: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: the caller's.
    unsafe {
        let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
        [
            vreinterpretq_u8_u64(vzip1q_u64(a, b)),
            vreinterpretq_u8_u64(vzip2q_u64(a, b)),
        ]
    }
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

/// See [`crate::arch::simd::Simd::tile`]. An odd token at the end is its own partner.
///
/// # Safety
/// The CPU has NEON and `i8mm`.
#[inline(always)]
pub(super) unsafe fn tile<const T: usize>(w: &[[u8; 32]; 8], a: [&[[u8; 4]; 8]; T]) -> [W; T] {
    let pairs = T.div_ceil(2);
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        // As many as there are pairs are used.
        let mut acc = [[vdupq_n_s32(0); 4]; T];
        let mut tokens = [[vdupq_n_u8(0); 2]; T];
        for half in 0..2 {
            for pair in 0..pairs {
                let first = must_cast_ref::<_, [[u8; 16]; 2]>(a[2 * pair]);
                let second = must_cast_ref::<_, [[u8; 16]; 2]>(a[(2 * pair + 1).min(T - 1)]);
                tokens[pair] = zip(
                    vld1q_u8(first[half].as_ptr()),
                    vld1q_u8(second[half].as_ptr()),
                );
            }
            for step in 0..2 {
                for two in 0..4 {
                    let rows = &w[4 * half + 2 * step + two / 2][two % 2 * 16..];
                    let rows = vld1q_u8(rows.as_ptr());
                    for pair in 0..pairs {
                        acc[pair][two] = smmla(acc[pair][two], rows, tokens[pair][step]);
                    }
                }
            }
        }
        let mut dots = [[vdupq_n_s32(0); 2]; T];
        for t in 0..T {
            let [a, b, c, d] = acc[t / 2];
            dots[t] = if t % 2 == 0 {
                [vuzp1q_s32(a, b), vuzp1q_s32(c, d)]
            } else {
                [vuzp2q_s32(a, b), vuzp2q_s32(c, d)]
            };
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
