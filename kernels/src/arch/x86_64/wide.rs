//! A pair of blocks in one 512-bit vector, for products of one token: half the instructions of the
//! 256-bit form, with the same integers.

use core::arch::x86_64::*;

use bytemuck::{must_cast_ref, pod_read_unaligned};

use crate::arch::simd::{Q5, Q6, Q8, chunk_at, code_bytes, is_4bit};

/// Codes of the pair of blocks at byte `at` of a row, one a byte; Q8 plus 128.
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI, and the pair is there.
#[inline(always)]
unsafe fn pair<const TY: u8>(row: &[u8], at: usize) -> __m512i {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        if TY == Q8 {
            let codes = _mm512_loadu_si512(chunk_at::<64>(row, at).as_ptr().cast());
            return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        }
        let codes = _mm256_loadu_si256(chunk_at::<32>(row, at).as_ptr().cast());
        let both = _mm512_broadcast_i64x4(codes);
        let shifts = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
        let low = _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15));
        match TY {
            Q6 => {
                let high = _mm_loadu_si128(chunk_at::<16>(row, at + 32).as_ptr().cast());
                // Bits 0-1 and 2-3 (even block), 4-5 and 6-7 (odd one) to bits 4-5.
                let turns = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
                let high = _mm512_rolv_epi32(_mm512_broadcast_i32x4(high), turns);
                // (high & mask) | low
                _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x30), low)
            }
            Q5 => {
                let bits: u64 = pod_read_unaligned(chunk_at::<8>(row, at + 32));
                _mm512_mask_add_epi8(low, bits, low, _mm512_set1_epi8(16))
            }
            _ => low,
        }
    }
}

/// See [`crate::arch::simd::Simd8::eight`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI.
#[inline(always)]
pub(super) unsafe fn eight<const TY: u8>(codes: &[u8], a: &[[u8; 32]; 8]) -> __m256i {
    assert_eq!(codes.len(), code_bytes::<TY>(8));
    // SAFETY: the caller's; the length was asserted; the loads need no alignment.
    unsafe {
        let a = must_cast_ref::<[[u8; 32]; 8], [[u8; 64]; 4]>(a);
        let mut dots = [_mm512_setzero_si512(); 4];
        for p in 0..4 {
            let a = _mm512_loadu_si512(a[p].as_ptr().cast());
            let w = pair::<TY>(codes, p * code_bytes::<TY>(2));
            dots[p] = _mm512_dpbusd_epi32(dots[p], w, a);
        }
        // Sums of four lanes become lanes 0 to 3, within 128 bits.
        let four = if TY == Q8 {
            let two = [add_halves(dots[0], dots[1]), add_halves(dots[2], dots[3])];
            _mm512_add_epi32(
                _mm512_unpacklo_epi64(two[0], two[1]),
                _mm512_unpackhi_epi64(two[0], two[1]),
            )
        } else {
            // Four products of 6-bit codes, 4 * 63 * 127, fit i16; eight of 5-bit ones do.
            let two = [
                add_small_pairs(dots[0], dots[1]),
                add_small_pairs(dots[2], dots[3]),
            ];
            if is_4bit(TY) || TY == Q5 {
                add_small_pairs(two[0], two[1])
            } else {
                let two = [_mm512_castsi512_ps(two[0]), _mm512_castsi512_ps(two[1])];
                _mm512_add_epi32(
                    _mm512_castps_si512(_mm512_shuffle_ps::<0x88>(two[0], two[1])),
                    _mm512_castps_si512(_mm512_shuffle_ps::<0xdd>(two[0], two[1])),
                )
            }
        };
        // Even blocks in the first 256 bits, odd ones in the others, each as two halves.
        let whole = _mm512_add_epi32(four, _mm512_shuffle_i32x4::<0b10_11_00_01>(four, four));
        let order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
        _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, whole))
    }
}

/// Lanes 0 and 2, and 1 and 3, added, those of `a` and `b` in turn, within 128 bits.
#[inline(always)]
unsafe fn add_halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)) }
}

/// Sums of neighbouring lanes, those of `a` first, within 128 bits; lanes fit i16.
#[inline(always)]
unsafe fn add_small_pairs(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)) }
}

/// See [`crate::arch::simd::Simd8::quad_sums`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, VL and VNNI; each row has a pair of blocks at byte `at`.
#[inline(always)]
pub(super) unsafe fn quad_sums<const TY: u8>(
    rows: &[[&[u8]; 4]],
    at: usize,
    c: &[[[u8; 4]; 8]; 8],
    lanes: [usize; 2],
) -> [[__m256i; 4]; 2] {
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); 4];
        for (rows, c) in rows.iter().zip(c) {
            let w = [
                pair::<TY>(rows[0], at),
                pair::<TY>(rows[1], at),
                pair::<TY>(rows[2], at),
                pair::<TY>(rows[3], at),
            ];
            let low = [
                _mm512_unpacklo_epi8(w[0], w[1]),
                _mm512_unpacklo_epi8(w[2], w[3]),
            ];
            let high = [
                _mm512_unpackhi_epi8(w[0], w[1]),
                _mm512_unpackhi_epi8(w[2], w[3]),
            ];
            let zipped = [
                _mm512_unpacklo_epi16(low[0], low[1]),
                _mm512_unpackhi_epi16(low[0], low[1]),
                _mm512_unpacklo_epi16(high[0], high[1]),
                _mm512_unpackhi_epi16(high[0], high[1]),
            ];
            let even = _mm512_set1_epi32(i32::from_ne_bytes(c[lanes[0]]));
            let c = _mm512_mask_set1_epi32(even, 0xff00, i32::from_ne_bytes(c[lanes[1]]));
            for k in 0..4 {
                sums[k] = _mm512_dpbusd_epi32(sums[k], zipped[k], c);
            }
        }
        let mut out = [[_mm256_setzero_si256(); 4]; 2];
        for k in 0..4 {
            out[0][k] = _mm512_castsi512_si256(sums[k]);
            out[1][k] = _mm512_extracti64x4_epi64::<1>(sums[k]);
        }
        out
    }
}
