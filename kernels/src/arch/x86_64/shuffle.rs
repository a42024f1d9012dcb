//! Codes and scales of blocks taken apart, and bytes moved between lanes, 256 bits at a time.

use core::arch::x86_64::*;

use bytemuck::{must_cast, must_cast_ref};

use super::ymm::Flavor;
use crate::arch::simd::{Q5, Q6, Q8};

/// See [`crate::arch::simd::Simd8::super_scales`].
///
/// # Safety
/// The CPU has AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn super_scales(bytes: &[u8; 16]) -> [__m256; 2] {
    // SAFETY: the caller's.
    unsafe {
        let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
        let units = _mm_cvtph_ps(bytes);
        let d = _mm256_broadcastss_ps(units);
        let m = _mm256_broadcastss_ps(_mm_movehdup_ps(units));
        let words = _mm256_cvtepu8_epi32(_mm_srli_si128::<4>(bytes));
        let scale = _mm256_and_si256(words, _mm256_set1_epi32(63));
        let low = _mm256_broadcastd_epi32(_mm_srli_si128::<12>(bytes));
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_and_si256(_mm256_srli_epi32::<2>(words), _mm256_set1_epi32(0x30));
        let min = _mm256_or_si256(low, high);
        [
            _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale)),
            _mm256_mul_ps(m, _mm256_cvtepi32_ps(min)),
        ]
    }
}

/// See [`crate::arch::simd::Simd8::pair`].
///
/// # Safety
/// The CPU has AVX2, and `bytes` are a pair of blocks.
#[inline(always)]
pub(super) unsafe fn pair<X: Flavor, const TY: u8>(bytes: &[u8]) -> [__m256i; 2] {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        match TY {
            Q8 => {
                let [a, b] = must_cast_ref::<[u8; 64], [[u8; 32]; 2]>(&bytes.as_chunks().0[0]);
                let a = _mm256_loadu_si256(a.as_ptr().cast());
                let b = _mm256_loadu_si256(b.as_ptr().cast());
                [bias8::<X>(a), bias8::<X>(b)]
            }
            Q6 => {
                let [a, b, high] =
                    must_cast_ref::<[u8; 48], [[u8; 16]; 3]>(&bytes.as_chunks().0[0]);
                let low: [u8; 32] = must_cast([*a, *b]);
                let low = split4(_mm256_loadu_si256(low.as_ptr().cast()));
                let high = _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast()));
                let mask = _mm256_set1_epi8(0x30);
                // To bits 4-5: of an even block from bits 0-1 and 2-3, of an odd one from 4-5, 6-7.
                let even = _mm256_sllv_epi32(high, _mm256_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2));
                let odd = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
                [
                    _mm256_or_si256(low[0], _mm256_and_si256(even, mask)),
                    _mm256_or_si256(low[1], _mm256_and_si256(odd, mask)),
                ]
            }
            Q5 => {
                let (low, high) = bytes.as_chunks::<40>().0[0].split_at(32);
                let low = split4(_mm256_loadu_si256(low.as_ptr().cast()));
                let high = high.as_chunks::<4>().0;
                [
                    X::add_fifth_bits(low[0], high[0]),
                    X::add_fifth_bits(low[1], high[1]),
                ]
            }
            _ => split4(_mm256_loadu_si256(
                bytes.as_chunks::<32>().0[0].as_ptr().cast(),
            )),
        }
    }
}

/// 16 in each byte whose bit is set.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn fifth_bits(bits: [u8; 4]) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let order = _mm256_setr_epi64x(
            0,
            0x0101_0101_0101_0101,
            0x0202_0202_0202_0202,
            0x0303_0303_0303_0303,
        );
        let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(bits)), order);
        let mask = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask);
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn split4(a: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller's.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        [
            _mm256_and_si256(a, mask),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), mask),
        ]
    }
}

/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn bias8<X: Flavor>(a: __m256i) -> __m256i {
    if X::VNNI {
        // SAFETY: the caller's.
        unsafe { _mm256_xor_si256(a, _mm256_set1_epi8(-128)) }
    } else {
        a
    }
}

/// See [`crate::arch::simd::Simd8::transpose8`].
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn transpose8(a: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe {
        let (mut two, mut four, mut out) = (a, a, a);
        for i in 0..4 {
            two[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
            two[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..2 {
            for k in 0..2 {
                let (x, y) = (two[4 * i + k], two[4 * i + 2 + k]);
                four[4 * i + 2 * k] = _mm256_unpacklo_epi64(x, y);
                four[4 * i + 2 * k + 1] = _mm256_unpackhi_epi64(x, y);
            }
        }
        for i in 0..4 {
            out[i] = _mm256_permute2x128_si256::<0x20>(four[i], four[4 + i]);
            out[4 + i] = _mm256_permute2x128_si256::<0x31>(four[i], four[4 + i]);
        }
        out
    }
}

/// See [`crate::arch::simd::Simd8::zip4`].
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub(super) unsafe fn zip4(rows: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller's.
    unsafe {
        let low = _mm256_unpacklo_epi8(rows[0], rows[1]);
        let high = _mm256_unpackhi_epi8(rows[0], rows[1]);
        let low_two = _mm256_unpacklo_epi8(rows[2], rows[3]);
        let high_two = _mm256_unpackhi_epi8(rows[2], rows[3]);
        [
            _mm256_unpacklo_epi16(low, low_two),
            _mm256_unpackhi_epi16(low, low_two),
            _mm256_unpacklo_epi16(high, high_two),
            _mm256_unpackhi_epi16(high, high_two),
        ]
    }
}
