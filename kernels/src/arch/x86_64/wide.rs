//! A pair of blocks in one 512-bit vector, for products of one token: half the instructions of the
//! 256-bit form, with the same integers.

use core::arch::x86_64::*;

use bytemuck::{must_cast_ref, pod_read_unaligned};

use super::ymm::{Vnni512, Ymm};
use crate::arch::simd::{
    EightBlocks, EightInputs, Q4K, Q4O, Q5, Q6, Q8, chunk_at, code_bytes, has_offset, is_4bit,
};

/// Codes of the pair of blocks at byte `at` of a row, one a byte; Q8 plus 128.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI, and the pair is there.
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

/// Products of eight blocks: those of the even ones in lanes 0 to 3, of the odd ones in 8 to 11.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn eight<const TY: u8>(codes: &[u8], a: &[[u8; 32]; 8]) -> __m512i {
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
        _mm512_add_epi32(four, _mm512_shuffle_i32x4::<0b10_11_00_01>(four, four))
    }
}

/// See [`crate::arch::simd::Simd8::add_two`]; the first row in the low half of each vector.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
pub(super) unsafe fn add_two<const TY: u8>(
    sums: __m512,
    rows: [&EightBlocks<'_>; 2],
    x: &EightInputs<'_, Ymm<Vnni512>>,
) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let first = eight::<TY>(rows[0].codes, x.q);
        let second = eight::<TY>(rows[1].codes, x.q);
        let order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
        let dots = _mm512_permutex2var_epi32(first, order, second);
        let dots = _mm512_add_epi32(dots, _mm512_broadcast_i32x8(x.corrections));
        let dots = _mm512_cvtepi32_ps(dots);
        let [d, m] = match TY {
            Q4K => super_scales(rows[0].scales, rows[1].scales),
            Q4O => [
                halves(rows[0].scales, rows[1].scales),
                halves(rows[0].minima, rows[1].minima),
            ],
            _ => [halves(rows[0].scales, rows[1].scales); 2],
        };
        let mut p = _mm512_mul_ps(_mm512_mul_ps(d, _mm512_broadcast_f32x8(x.scales)), dots);
        if has_offset(TY) {
            p = _mm512_add_ps(p, _mm512_mul_ps(m, _mm512_broadcast_f32x8(x.offsets)));
        }
        _mm512_add_ps(sums, p)
    }
}

/// Eight f16 of each row.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn halves(first: &[u8; 16], second: &[u8; 16]) -> __m512 {
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        let first = _mm256_castsi128_si256(_mm_loadu_si128(first.as_ptr().cast()));
        let second = _mm_loadu_si128(second.as_ptr().cast());
        _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(first, second))
    }
}

/// Scales and minima of a super-block of each row, see [`crate::SuperScales`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn super_scales(first: &[u8; 16], second: &[u8; 16]) -> [__m512; 2] {
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        let first = _mm_loadu_si128(first.as_ptr().cast());
        let second = _mm_loadu_si128(second.as_ptr().cast());
        // D and M of the first, then of the second.
        let units = _mm512_castps128_ps512(_mm_cvtph_ps(_mm_unpacklo_epi32(first, second)));
        let d = _mm512_permutexvar_ps(
            _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2),
            units,
        );
        let m = _mm512_permutexvar_ps(
            _mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3),
            units,
        );
        let bytes = _mm_unpacklo_epi64(_mm_srli_si128::<4>(first), _mm_srli_si128::<4>(second));
        let words = _mm512_cvtepu8_epi32(bytes);
        // The last four bytes of each.
        let low = _mm512_permutexvar_epi32(
            _mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3),
            _mm512_castsi128_si512(_mm_unpackhi_epi32(first, second)),
        );
        let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
        let low = _mm512_and_si512(_mm512_srlv_epi32(low, shifts), _mm512_set1_epi32(15));
        // ((words >> 2) & 0x30) | low
        let min = _mm512_ternarylogic_epi32::<0xea>(
            _mm512_srli_epi32::<2>(words),
            _mm512_set1_epi32(0x30),
            low,
        );
        let scale = _mm512_and_si512(words, _mm512_set1_epi32(63));
        [
            _mm512_mul_ps(d, _mm512_cvtepi32_ps(scale)),
            _mm512_mul_ps(m, _mm512_cvtepi32_ps(min)),
        ]
    }
}

/// Lanes 0 and 2, and 1 and 3, added, those of `a` and `b` in turn, within 128 bits.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn add_halves(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)) }
}

/// Sums of neighbouring lanes, those of `a` first, within 128 bits; lanes fit i16.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn add_small_pairs(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe { _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1)) }
}

/// See [`crate::arch::simd::Simd8::quad_sums`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI; each row has a pair of blocks at byte `at`.
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
            let zipped = zip4([
                pair::<TY>(rows[0], at),
                pair::<TY>(rows[1], at),
                pair::<TY>(rows[2], at),
                pair::<TY>(rows[3], at),
            ]);
            let c = two_coefficients(c[lanes[0]], c[lanes[1]]);
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

/// See [`crate::arch::simd::Simd8::line_sums`]: rows are zipped before their codes are taken apart,
/// and each line of a row is read once.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI; each row has two pairs of blocks at byte `at`.
#[inline(always)]
pub(super) unsafe fn line_sums(
    rows: &[[&[u8]; 4]],
    at: usize,
    c: &[[[u8; 4]; 8]; 8],
    lane: usize,
) -> [[__m256i; 4]; 4] {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        let mut even = [_mm512_setzero_si512(); 4];
        let mut odd = even;
        let low = _mm512_set1_epi8(15);
        for (rows, c) in rows.iter().zip(c) {
            let mut lines = [low; 4];
            for r in 0..4 {
                lines[r] = _mm512_loadu_si512(chunk_at::<64>(rows[r], at).as_ptr().cast());
            }
            let zipped = zip4(lines);
            let even_c = two_coefficients(c[lane], c[lane + 2]);
            let odd_c = two_coefficients(c[lane + 1], c[lane + 3]);
            for k in 0..4 {
                even[k] = _mm512_dpbusd_epi32(even[k], _mm512_and_si512(zipped[k], low), even_c);
                // Sixteen times the codes: shifted once, at the end.
                let high = _mm512_andnot_si512(low, zipped[k]);
                odd[k] = _mm512_dpbusd_epi32(odd[k], high, odd_c);
            }
        }
        let mut out = [[_mm256_setzero_si256(); 4]; 4];
        for k in 0..4 {
            let odd = _mm512_srai_epi32::<4>(odd[k]);
            out[0][k] = _mm512_castsi512_si256(even[k]);
            out[1][k] = _mm512_castsi512_si256(odd);
            out[2][k] = _mm512_extracti64x4_epi64::<1>(even[k]);
            out[3][k] = _mm512_extracti64x4_epi64::<1>(odd);
        }
        out
    }
}

/// Bytes of four rows side by side, within 128 bits.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn zip4(w: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller's.
    unsafe {
        let low = [
            _mm512_unpacklo_epi8(w[0], w[1]),
            _mm512_unpacklo_epi8(w[2], w[3]),
        ];
        let high = [
            _mm512_unpackhi_epi8(w[0], w[1]),
            _mm512_unpackhi_epi8(w[2], w[3]),
        ];
        [
            _mm512_unpacklo_epi16(low[0], low[1]),
            _mm512_unpackhi_epi16(low[0], low[1]),
            _mm512_unpacklo_epi16(high[0], high[1]),
            _mm512_unpackhi_epi16(high[0], high[1]),
        ]
    }
}

/// Four neurons' coefficients in each lane: `first` in the first 256 bits, `second` in the others.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn two_coefficients(first: [u8; 4], second: [u8; 4]) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let first = _mm512_set1_epi32(i32::from_ne_bytes(first));
        _mm512_mask_set1_epi32(first, 0xff00, i32::from_ne_bytes(second))
    }
}
