//! Turning and interleaving rows.

use core::arch::aarch64::*;

use super::neon::V;

/// Lane `j` of `out[i]` is lane `i` of `a[j]`.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn transpose4(a: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    // SAFETY: the caller's.
    unsafe {
        let (a0, a1) = (vreinterpretq_u32_u8(a[0]), vreinterpretq_u32_u8(a[1]));
        let (a2, a3) = (vreinterpretq_u32_u8(a[2]), vreinterpretq_u32_u8(a[3]));
        let even = vreinterpretq_u64_u32(vtrn1q_u32(a0, a1));
        let odd = vreinterpretq_u64_u32(vtrn2q_u32(a0, a1));
        let even_two = vreinterpretq_u64_u32(vtrn1q_u32(a2, a3));
        let odd_two = vreinterpretq_u64_u32(vtrn2q_u32(a2, a3));
        [
            vreinterpretq_u8_u64(vzip1q_u64(even, even_two)),
            vreinterpretq_u8_u64(vzip1q_u64(odd, odd_two)),
            vreinterpretq_u8_u64(vzip2q_u64(even, even_two)),
            vreinterpretq_u8_u64(vzip2q_u64(odd, odd_two)),
        ]
    }
}

/// See [`crate::arch::simd::Simd8::transpose8`].
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn transpose8(a: [V; 8]) -> [V; 8] {
    let mut out = a;
    for half in 0..2 {
        // SAFETY: the caller's.
        let (low, high) = unsafe {
            (
                transpose4([a[0][half], a[1][half], a[2][half], a[3][half]]),
                transpose4([a[4][half], a[5][half], a[6][half], a[7][half]]),
            )
        };
        for i in 0..4 {
            out[half * 4 + i] = [low[i], high[i]];
        }
    }
    out
}

/// See [`crate::arch::simd::Simd8::zip4`].
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn zip4(rows: [V; 4]) -> [V; 4] {
    let mut out = rows;
    for half in 0..2 {
        let (a, b, c, d) = (rows[0][half], rows[1][half], rows[2][half], rows[3][half]);
        // SAFETY: the caller's.
        unsafe {
            let low = vreinterpretq_u16_u8(vzip1q_u8(a, b));
            let high = vreinterpretq_u16_u8(vzip2q_u8(a, b));
            let low_two = vreinterpretq_u16_u8(vzip1q_u8(c, d));
            let high_two = vreinterpretq_u16_u8(vzip2q_u8(c, d));
            out[0][half] = vreinterpretq_u8_u16(vzip1q_u16(low, low_two));
            out[1][half] = vreinterpretq_u8_u16(vzip2q_u16(low, low_two));
            out[2][half] = vreinterpretq_u8_u16(vzip1q_u16(high, high_two));
            out[3][half] = vreinterpretq_u8_u16(vzip2q_u16(high, high_two));
        }
    }
    out
}
