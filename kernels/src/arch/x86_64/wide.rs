//! A pair of blocks in one 512-bit vector, for products of one token: half the instructions of the
//! 256-bit form, with the same integers.

use core::arch::x86_64::*;

use bytemuck::{must_cast_ref, pod_read_unaligned};

use super::ymm::{Vnni512, Ymm};
use crate::arch::simd::{
    Q4K, Q4O, Q5, Q6, Q8, RowRuns, TokenRuns, add_run, chunk_at, code_bytes, has_offset, is_4bit,
    offset_shift,
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

/// 32 bytes each at `first` and at `second` of a row.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI, and the bytes are there.
#[inline(always)]
unsafe fn two_blocks(row: &[u8], first: usize, second: usize) -> __m512i {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        let first = _mm256_loadu_si256(chunk_at::<32>(row, first).as_ptr().cast());
        let second = _mm256_loadu_si256(chunk_at::<32>(row, second).as_ptr().cast());
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second)
    }
}

/// Codes of the two pairs of blocks at byte `at` of a row, one a byte: of the even blocks, then of
/// the odd ones. Q8 plus 128.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI, and the pairs are there.
#[inline(always)]
unsafe fn two_pairs<const TY: u8>(row: &[u8], at: usize) -> [__m512i; 2] {
    let second = at + code_bytes::<TY>(2);
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        if TY == Q8 {
            let sign = _mm512_set1_epi8(-128);
            let even = two_blocks(row, at, second);
            let odd = two_blocks(row, at + 32, second + 32);
            return [_mm512_xor_si512(even, sign), _mm512_xor_si512(odd, sign)];
        }
        let codes = match is_4bit(TY) {
            true => _mm512_loadu_si512(chunk_at::<64>(row, at).as_ptr().cast()),
            false => two_blocks(row, at, second),
        };
        let mask = _mm512_set1_epi8(15);
        let even = _mm512_and_si512(codes, mask);
        let odd = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask);
        match TY {
            Q6 => {
                let first = _mm_loadu_si128(chunk_at::<16>(row, at + 32).as_ptr().cast());
                let second = _mm_loadu_si128(chunk_at::<16>(row, second + 32).as_ptr().cast());
                let high = _mm512_castsi128_si512(first);
                let high = _mm512_inserti32x4::<1>(high, second);
                let high = _mm512_shuffle_i32x4::<0b01_01_00_00>(high, high);
                // Bits 0-1 and 2-3 (even blocks), 4-5 and 6-7 (odd ones) to bits 4-5.
                let turns = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 4, 4, 4, 4, 2, 2, 2, 2);
                let for_even = _mm512_rolv_epi32(high, turns);
                let turns =
                    _mm512_setr_epi32(0, 0, 0, 0, 30, 30, 30, 30, 0, 0, 0, 0, 30, 30, 30, 30);
                let for_odd = _mm512_rolv_epi32(high, turns);
                let mask = _mm512_set1_epi8(0x30);
                // (high & mask) | low
                [
                    _mm512_ternarylogic_epi32::<0xea>(for_even, mask, even),
                    _mm512_ternarylogic_epi32::<0xea>(for_odd, mask, odd),
                ]
            }
            Q5 => {
                let first: [u32; 2] = pod_read_unaligned(chunk_at::<8>(row, at + 32));
                let second: [u32; 2] = pod_read_unaligned(chunk_at::<8>(row, second + 32));
                let fifth = _mm512_set1_epi8(16);
                let bits = |i: usize| u64::from(first[i]) | u64::from(second[i]) << 32;
                [
                    _mm512_mask_add_epi8(even, bits(0), even, fifth),
                    _mm512_mask_add_epi8(odd, bits(1), odd, fifth),
                ]
            }
            _ => [even, odd],
        }
    }
}

/// Codes of a run of eight interleaved blocks, in the order of the steps they meet.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn run_codes<const TY: u8>(codes: &[u8]) -> [__m512i; 4] {
    assert_eq!(codes.len(), code_bytes::<TY>(8));
    // SAFETY: the caller's; the length was asserted.
    unsafe {
        let [a, b] = two_pairs::<TY>(codes, 0);
        let [c, d] = two_pairs::<TY>(codes, code_bytes::<TY>(4));
        [a, b, c, d]
    }
}

/// Products of a run, as two halves to be added.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn run_dots(codes: &[__m512i; 4], q: &[[u8; 32]; 8]) -> __m512i {
    let q = must_cast_ref::<[[u8; 32]; 8], [[u8; 64]; 4]>(q);
    // SAFETY: the caller's; the loads need no alignment.
    unsafe {
        let mut dots = _mm512_setzero_si512();
        for step in 0..4 {
            let a = _mm512_loadu_si512(q[step].as_ptr().cast());
            dots = _mm512_dpbusd_epi32(dots, codes[step], a);
        }
        dots
    }
}

/// See [`crate::arch::simd::Simd8::runs`]: two runs at once, the first in the low half of each
/// vector.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
pub(super) unsafe fn runs<const TY: u8, const T: usize>(
    s: Ymm<Vnni512>,
    row: &RowRuns<'_>,
    x: [&TokenRuns<'_>; T],
    mut ask: impl FnMut(usize),
) -> [__m256; T] {
    if T == 1 {
        // SAFETY: the caller's.
        return [unsafe { runs_of_one::<TY>(s, row, x[0], ask) }; T];
    }
    let minima = match TY {
        Q4O => &row.scales[row.minima_at..],
        _ => row.scales,
    };
    let rows = row.codes.chunks_exact(2 * code_bytes::<TY>(8));
    let rows = rows.zip(row.scales.as_chunks().0.iter().zip(minima.as_chunks().0));
    let runs = x[0].q.len();
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [_mm256_setzero_ps(); T];
        for (two, (codes, (d, m))) in rows.take(runs / 2).enumerate() {
            ask(2 * two);
            let (first, second) = codes.split_at(code_bytes::<TY>(8));
            let codes = [run_codes::<TY>(first), run_codes::<TY>(second)];
            let [d, m] = match TY {
                Q4K => super_scales(d),
                _ => [halves(d), halves(m)],
            };
            for t in 0..T {
                let token = x[t];
                let (q, scales, of) = (&token.q[2 * two..], &token.scales[2 * two..], token.sums);
                let (q, scales) = (&q.as_chunks().0[0], &scales.as_chunks().0[0]);
                let p = two_runs::<TY>(&codes, d, m, q, scales, &of[2 * two..].as_chunks().0[0]);
                sums[t] = _mm256_add_ps(sums[t], _mm512_castps512_ps256(p));
                sums[t] = _mm256_add_ps(sums[t], _mm512_extractf32x8_ps::<1>(p));
            }
        }
        if runs % 2 == 1 {
            ask(runs - 1);
            add_run::<_, TY, T>(s, &mut sums, row, x, runs - 1);
        }
        sums
    }
}

/// The same for one token, whose loop has no bounds to check.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn runs_of_one<const TY: u8>(
    s: Ymm<Vnni512>,
    row: &RowRuns<'_>,
    x: &TokenRuns<'_>,
    mut ask: impl FnMut(usize),
) -> __m256 {
    let minima = match TY {
        Q4O => &row.scales[row.minima_at..],
        _ => row.scales,
    };
    let rows = row.codes.chunks_exact(2 * code_bytes::<TY>(8));
    let rows = rows.zip(row.scales.as_chunks().0.iter().zip(minima.as_chunks().0));
    let numbers = x.scales.as_chunks().0.iter().zip(x.sums.as_chunks().0);
    let tokens = x.q.as_chunks().0.iter().zip(numbers);
    // SAFETY: the caller's.
    unsafe {
        let mut sum = _mm256_setzero_ps();
        for (two, ((codes, (d, m)), (q, (scales, sums)))) in rows.zip(tokens).enumerate() {
            ask(2 * two);
            let (first, second) = codes.split_at(code_bytes::<TY>(8));
            let codes = [run_codes::<TY>(first), run_codes::<TY>(second)];
            let [d, m] = match TY {
                Q4K => super_scales(d),
                _ => [halves(d), halves(m)],
            };
            let p = two_runs::<TY>(&codes, d, m, q, scales, sums);
            sum = _mm256_add_ps(sum, _mm512_castps512_ps256(p));
            sum = _mm256_add_ps(sum, _mm512_extractf32x8_ps::<1>(p));
        }
        let runs = x.q.len();
        if runs % 2 == 1 {
            ask(runs - 1);
            let mut sums = [sum];
            add_run::<_, TY, 1>(s, &mut sums, row, [x], runs - 1);
            [sum] = sums;
        }
        sum
    }
}

/// The products of two runs of blocks, scaled.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn two_runs<const TY: u8>(
    codes: &[[__m512i; 4]; 2],
    d: __m512,
    m: __m512,
    q: &[[[u8; 32]; 8]; 2],
    scales: &[[f32; 8]; 2],
    sums: &[[i32; 8]; 2],
) -> __m512 {
    // SAFETY: the caller's; the loads are of arrays.
    unsafe {
        let [first, second] = [run_dots(&codes[0], &q[0]), run_dots(&codes[1], &q[1])];
        let dots = _mm512_add_epi32(
            _mm512_shuffle_i64x2::<0b01_00_01_00>(first, second),
            _mm512_shuffle_i64x2::<0b11_10_11_10>(first, second),
        );
        let sums = _mm512_loadu_si512(sums.as_ptr().cast());
        let dots = match offset_shift(TY, true) {
            Some(3) => _mm512_sub_epi32(dots, _mm512_slli_epi32::<3>(sums)),
            Some(4) => _mm512_sub_epi32(dots, _mm512_slli_epi32::<4>(sums)),
            Some(5) => _mm512_sub_epi32(dots, _mm512_slli_epi32::<5>(sums)),
            Some(_) => _mm512_sub_epi32(dots, _mm512_slli_epi32::<7>(sums)),
            None => dots,
        };
        let scales = _mm512_loadu_ps(scales.as_ptr().cast());
        let p = _mm512_mul_ps(_mm512_mul_ps(d, scales), _mm512_cvtepi32_ps(dots));
        if has_offset(TY) {
            let offsets = _mm512_mul_ps(scales, _mm512_cvtepi32_ps(sums));
            _mm512_add_ps(p, _mm512_mul_ps(m, offsets))
        } else {
            p
        }
    }
}

/// 16 f16.
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
pub(super) unsafe fn halves(halves: &[u8; 32]) -> __m512 {
    // SAFETY: the caller's; the load is of an array.
    unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())) }
}

/// Scales and minima of two super-blocks, see [`crate::SuperScales`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
pub(super) unsafe fn super_scales(two: &[u8; 32]) -> [__m512; 2] {
    let [first, second] = must_cast_ref::<[u8; 32], [[u8; 16]; 2]>(two);
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

/// See [`crate::arch::simd::Simd8::quad_sums`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI; each row has a pair of blocks at byte `at`.
#[inline(always)]
pub(super) unsafe fn quad_sums<const TY: u8>(
    rows: &[[&[u8]; 4]],
    at: usize,
    c: &[[[u8; 4]; 16]; 8],
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
    c: &[[[u8; 4]; 16]; 8],
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
