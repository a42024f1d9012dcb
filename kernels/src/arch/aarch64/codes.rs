//! Codes and scales of blocks taken apart, and f16.

use core::arch::aarch64::*;
use core::arch::asm;

use bytemuck::must_cast_ref;

use super::neon::{F, Flavor, Neon, V};
use crate::arch::simd::{Q5, Q6, Q8, Simd};

/// See [`crate::arch::simd::Simd8::pair`].
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn pair<X: Flavor, const TY: u8>(s: Neon<X>, bytes: &[u8]) -> [V; 2] {
    // SAFETY: the caller's; the load is of an array.
    unsafe {
        match TY {
            Q8 => {
                let [a, b] = must_cast_ref::<[u8; 64], [[u8; 32]; 2]>(&bytes.as_chunks().0[0]);
                [s.bytes(a), s.bytes(b)]
            }
            Q6 => {
                let (low, high) = bytes.split_at(32);
                let [even, odd] = s.split4(s.bytes(&low.as_chunks().0[0]));
                let high = vld1q_u8(high.as_chunks::<16>().0[0].as_ptr());
                let mask = vdupq_n_u8(0x30);
                // Bits 0-1, 2-3, 4-5 and 6-7 to bits 4-5.
                let bits = [
                    vandq_u8(vshlq_n_u8::<4>(high), mask),
                    vandq_u8(vshlq_n_u8::<2>(high), mask),
                    vandq_u8(high, mask),
                    vandq_u8(vshrq_n_u8::<2>(high), mask),
                ];
                [
                    [vorrq_u8(even[0], bits[0]), vorrq_u8(even[1], bits[1])],
                    [vorrq_u8(odd[0], bits[2]), vorrq_u8(odd[1], bits[3])],
                ]
            }
            Q5 => {
                let (low, high) = bytes.as_chunks::<40>().0[0].split_at(32);
                let [even, odd] = s.split4(s.bytes(&low.as_chunks().0[0]));
                let high = vld1_u8(high.as_ptr());
                [
                    [
                        vorrq_u8(even[0], fifth_bits::<0>(high)),
                        vorrq_u8(even[1], fifth_bits::<2>(high)),
                    ],
                    [
                        vorrq_u8(odd[0], fifth_bits::<4>(high)),
                        vorrq_u8(odd[1], fifth_bits::<6>(high)),
                    ],
                ]
            }
            _ => s.split4(s.bytes(&bytes.as_chunks().0[0])),
        }
    }
}

/// 16 in each of the bytes whose bit is set, of the 16 bits from byte `AT` on.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn fifth_bits<const AT: u8>(bits: uint8x8_t) -> uint8x16_t {
    // SAFETY: the caller's.
    unsafe {
        let low = vtbl1_u8(bits, vdup_n_u8(AT));
        let high = vtbl1_u8(bits, vdup_n_u8(AT + 1));
        let mask = vcreate_u8(0x8040_2010_0804_0201);
        let set = vtstq_u8(vcombine_u8(low, high), vcombine_u8(mask, mask));
        vandq_u8(set, vdupq_n_u8(16))
    }
}

/// See [`crate::arch::simd::Simd8::super_scales`].
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn super_scales(bytes: &[u8; 16]) -> [F; 2] {
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        let all = vld1q_u8(bytes.as_ptr());
        let units = halves_to_f(all)[0];
        let bytes = vget_low_u8(vextq_u8::<4>(all, all));
        let scales = vand_u8(bytes, vdup_n_u8(63));
        // The four bytes of low halves, each for two minima.
        let low = vtbl1_u8(vget_high_u8(all), vcreate_u8(0x0707_0606_0505_0404));
        let odd = vcreate_u8(0xff00_ff00_ff00_ff00);
        let low = vbsl_u8(odd, vshr_n_u8::<4>(low), vand_u8(low, vdup_n_u8(15)));
        let high = vand_u8(vshr_n_u8::<2>(bytes), vdup_n_u8(0x30));
        let (d, m) = (widened(scales), widened(vorr_u8(low, high)));
        [
            [
                vmulq_laneq_f32::<0>(d[0], units),
                vmulq_laneq_f32::<0>(d[1], units),
            ],
            [
                vmulq_laneq_f32::<1>(m[0], units),
                vmulq_laneq_f32::<1>(m[1], units),
            ],
        ]
    }
}

/// Eight bytes as floats.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn widened(bytes: uint8x8_t) -> F {
    // SAFETY: the caller's.
    unsafe {
        let halves = vmovl_u8(bytes);
        [
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves))),
            vcvtq_f32_u32(vmovl_u16(vget_high_u16(halves))),
        ]
    }
}

/// Eight f16 to f32.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn halves_to_f(halves: uint8x16_t) -> F {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: the caller's: the CPU has NEON.
    unsafe {
        asm!("fcvtl {low:v}.4s, {halves:v}.4h", "fcvtl2 {high:v}.4s, {halves:v}.8h",
            low = out(vreg) low, high = lateout(vreg) high, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    [low, high]
}

/// Eight f32 to f16, half to even.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
pub(super) unsafe fn f_to_halves(a: F) -> uint16x8_t {
    let halves: uint16x8_t;
    // SAFETY: the caller's: the CPU has NEON.
    unsafe {
        asm!("fcvtn {halves:v}.4h, {low:v}.4s", "fcvtn2 {halves:v}.8h, {high:v}.4s",
            halves = out(vreg) halves, low = in(vreg) a[0], high = in(vreg) a[1],
            options(pure, nomem, nostack, preserves_flags));
    }
    halves
}
