//! 256-bit vectors: AVX2, with or without a VNNI instruction.

use core::arch::x86_64::*;

use super::shuffle::{bias8, fifth_bits, pair, split4, super_scales, transpose8, zip4};
use super::wide;
use crate::arch::simd::{
    Q5, Q6, Q8, RowRuns, Simd, Simd8, TokenRuns, eight_scales, is_4bit, one_by_one,
};

/// How bytes are multiplied and summed.
pub(super) trait Flavor: Copy {
    /// True if `dpbusd` may be called.
    const VNNI: bool;

    /// Adds four products of unsigned and signed bytes to each lane.
    ///
    /// # Safety
    /// The CPU has the instruction.
    unsafe fn dpbusd(acc: __m256i, u: __m256i, s: __m256i) -> __m256i;

    /// See [`Simd8::runs`].
    #[inline(always)]
    fn runs<const TY: u8, const T: usize>(
        s: Ymm<Self>,
        row: &RowRuns<'_>,
        x: [&TokenRuns<'_>; T],
        ask: impl FnMut(usize),
    ) -> [__m256; T] {
        one_by_one::<_, TY, T>(s, row, x, ask)
    }

    /// See [`Simd8::quad_sums`].
    ///
    /// # Safety
    /// The CPU has the flavor's instructions; the pair is there.
    #[inline(always)]
    unsafe fn quad_sums<const TY: u8>(
        _rows: &[[&[u8]; 4]],
        _at: usize,
        _c: &[[[u8; 4]; 16]; 8],
        _lanes: [usize; 2],
    ) -> Option<[[__m256i; 4]; 2]> {
        None
    }

    /// See [`Simd8::line_sums`].
    ///
    /// # Safety
    /// The CPU has the flavor's instructions; the pairs are there.
    #[inline(always)]
    unsafe fn line_sums(
        _rows: &[[&[u8]; 4]],
        _at: usize,
        _c: &[[[u8; 4]; 16]; 8],
        _lane: usize,
    ) -> Option<[[__m256i; 4]; 4]> {
        None
    }

    /// Adds 16 to each byte below 16 whose bit is set.
    ///
    /// # Safety
    /// The CPU has the flavor's instructions.
    #[inline(always)]
    unsafe fn add_fifth_bits(low: __m256i, bits: [u8; 4]) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_or_si256(low, fifth_bits(bits)) }
    }
}

/// AVX2 alone: `maddubs`, whose pairs must not exceed i16.
#[derive(Clone, Copy)]
pub(super) struct Maddubs;

/// AVX-VNNI.
#[derive(Clone, Copy)]
pub(super) struct Vnni;

/// AVX-512 F, BW, DQ, VL and VNNI: also vectors of twice the width.
#[derive(Clone, Copy)]
pub(super) struct Vnni512;

impl Flavor for Maddubs {
    const VNNI: bool = false;

    #[inline(always)]
    unsafe fn dpbusd(_: __m256i, _: __m256i, _: __m256i) -> __m256i {
        unreachable!("AVX2 has no dpbusd")
    }
}

impl Flavor for Vnni {
    const VNNI: bool = true;

    #[inline(always)]
    unsafe fn dpbusd(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_dpbusd_avx_epi32(acc, u, s) }
    }
}

impl Flavor for Vnni512 {
    const VNNI: bool = true;

    #[inline(always)]
    unsafe fn dpbusd(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_dpbusd_epi32(acc, u, s) }
    }

    #[inline(always)]
    unsafe fn add_fifth_bits(low: __m256i, bits: [u8; 4]) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_mask_add_epi8(low, u32::from_le_bytes(bits), low, _mm256_set1_epi8(16)) }
    }

    #[inline(always)]
    fn runs<const TY: u8, const T: usize>(
        s: Ymm<Self>,
        row: &RowRuns<'_>,
        x: [&TokenRuns<'_>; T],
        ask: impl FnMut(usize),
    ) -> [__m256; T] {
        // SAFETY: the value proves the instruction set.
        unsafe { wide::runs::<TY, T>(s, row, x, ask) }
    }

    #[inline(always)]
    unsafe fn quad_sums<const TY: u8>(
        rows: &[[&[u8]; 4]],
        at: usize,
        c: &[[[u8; 4]; 16]; 8],
        lanes: [usize; 2],
    ) -> Option<[[__m256i; 4]; 2]> {
        // SAFETY: the caller's.
        Some(unsafe { wide::quad_sums::<TY>(rows, at, c, lanes) })
    }

    #[inline(always)]
    unsafe fn line_sums(
        rows: &[[&[u8]; 4]],
        at: usize,
        c: &[[[u8; 4]; 16]; 8],
        lane: usize,
    ) -> Option<[[__m256i; 4]; 4]> {
        // SAFETY: the caller's.
        Some(unsafe { wide::line_sums(rows, at, c, lane) })
    }
}

/// Proves AVX2, F16C and the instruction of its flavor.
#[derive(Clone, Copy)]
pub(super) struct Ymm<X>(X);

impl Ymm<Maddubs> {
    /// # Safety
    /// The CPU has AVX2 and F16C.
    pub(super) unsafe fn new() -> Self {
        Ymm(Maddubs)
    }
}

impl Ymm<Vnni> {
    /// # Safety
    /// The CPU has AVX2, F16C and AVX-VNNI.
    pub(super) unsafe fn new() -> Self {
        Ymm(Vnni)
    }
}

impl Ymm<Vnni512> {
    /// # Safety
    /// The CPU has AVX2, F16C, AVX-512 F, BW, DQ, VL and VNNI.
    pub(super) unsafe fn new() -> Self {
        Ymm(Vnni512)
    }
}

/// Methods whose bodies are intrinsics.
macro_rules! ops {
    ($(fn $name:ident $(<const $n:ident: $nty:ty>)? (self $(, $arg:ident: $ty:ty)*) -> $ret:ty
        = $body:expr;)*) => {
        $(
            #[inline(always)]
            fn $name $(<const $n: $nty>)? (self $(, $arg: $ty)*) -> $ret {
                // SAFETY: a value of this type proves the instruction set.
                unsafe { $body }
            }
        )*
    };
}
pub(super) use ops;

impl<X: Flavor> Simd for Ymm<X> {
    const LANES: usize = 8;
    const Q8_BIAS: bool = X::VNNI;

    type F = __m256;
    type W = __m256i;
    type V = __m256i;
    /// With VNNI a sum in i32. Without: sums of pairs, in i16 for 4-bit weights, else in i32.
    type Acc = __m256i;
    type Bytes = [u8; 32];
    type Floats = [f32; 8];

    ops! {
        fn bytes(self, bytes: &[u8; 32]) -> __m256i = _mm256_loadu_si256(bytes.as_ptr().cast());
        fn splat4(self, bytes: &[u8; 4]) -> __m256i
            = _mm256_set1_epi32(i32::from_ne_bytes(*bytes));
        fn zero_v(self) -> __m256i = _mm256_setzero_si256();
        fn split4(self, a: __m256i) -> [__m256i; 2] = split4(a);
        fn biased(self, a: __m256i) -> __m256i = bias8::<X>(a);
        fn fifth_bits(self, words: &[[u8; 4]]) -> __m256i = {
            let bits = _mm256_set1_epi32(i32::from_ne_bytes(words[0]));
            let each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let mask = _mm256_mullo_epi32(each, _mm256_set1_epi32(0x0101_0101));
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bits, mask), mask);
            _mm256_and_si256(set, _mm256_set1_epi8(16))
        };
        fn vector(self, a: __m256) -> __m256i = _mm256_castps_si256(a);
        fn floats(self, floats: &[f32; 8]) -> __m256 = _mm256_loadu_ps(floats.as_ptr());
        fn floats_of(self, a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        fn splat(self, a: f32) -> __m256 = _mm256_set1_ps(a);
        fn add(self, a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(self, a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(self, a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(self, a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn min(self, a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn max(self, a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn less(self, a: __m256, b: __m256) -> __m256i
            = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        fn splat_w(self, a: i32) -> __m256i = _mm256_set1_epi32(a);
        fn add_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn sub_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        fn and_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn and_not_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_andnot_si256(a, b);
        fn or_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn max_w(self, a: __m256i, b: __m256i) -> __m256i = _mm256_max_epi32(a, b);
        fn shift_left<const N: u32>(self, a: __m256i) -> __m256i
            = _mm256_sll_epi32(a, _mm_cvtsi32_si128(N as i32));
        fn shift_right<const N: u32>(self, a: __m256i) -> __m256i
            = _mm256_sra_epi32(a, _mm_cvtsi32_si128(N as i32));
        fn to_f(self, a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        fn round(self, a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        fn bits(self, a: __m256) -> __m256i = _mm256_castps_si256(a);
        fn as_floats(self, a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        fn quad(self, a: [__m256i; 4]) -> __m256i = quad(a);
        fn zero_acc(self) -> __m256i = _mm256_setzero_si256();
        fn dot2<const TY: u8>(self, acc: __m256i, w: [__m256i; 2], a: [__m256i; 2]) -> __m256i
            = dot2::<X, TY>(acc, w, a);
        fn done<const TY: u8>(self, acc: __m256i) -> __m256i = match TY {
            _ if is_4bit(TY) && !X::VNNI => _mm256_madd_epi16(acc, _mm256_set1_epi16(1)),
            _ => acc,
        };
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize) {
        // SAFETY: a hint; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead).cast()) };
    }

    #[inline(always)]
    fn to_bytes(self, a: __m256i) -> [u8; 32] {
        let mut bytes = [0; 32];
        // SAFETY: the array is 32 bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), a) };
        bytes
    }

    #[inline(always)]
    fn scales_at<const TY: u8>(self, scales: &[u8], at: usize, minima_at: usize) -> [__m256; 2] {
        eight_scales::<_, TY>(self, scales, at, minima_at)
    }

    #[inline(always)]
    fn to_floats(self, a: __m256) -> [f32; 8] {
        let mut floats = [0.0; 8];
        // SAFETY: the array is 32 bytes, and the store needs no alignment.
        unsafe { _mm256_storeu_ps(floats.as_mut_ptr(), a) };
        floats
    }

    #[inline(always)]
    fn floats_at(self, floats: &[f32], at: usize) -> __m256 {
        self.floats(&floats[at..].as_chunks().0[0])
    }

    #[inline(always)]
    fn store_at(self, a: __m256, floats: &mut [f32], at: usize) {
        floats[at..].as_chunks_mut().0[0] = self.to_floats(a);
    }
}

/// See [`Simd::quad`].
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn quad(a: [__m256i; 4]) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let order = _mm256_broadcastsi128_si256(_mm_setr_epi8(
            0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
        ));
        let words = [
            _mm256_packs_epi32(a[0], a[1]),
            _mm256_packs_epi32(a[2], a[3]),
        ];
        _mm256_shuffle_epi8(_mm256_packs_epi16(words[0], words[1]), order)
    }
}

/// See [`Simd::dot2`].
///
/// # Safety
/// The CPU has AVX2 and the flavor's instructions.
#[inline(always)]
unsafe fn dot2<X: Flavor, const TY: u8>(acc: __m256i, w: [__m256i; 2], a: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        if X::VNNI {
            return X::dpbusd(X::dpbusd(acc, w[0], a[0]), w[1], a[1]);
        }
        let ones = _mm256_set1_epi16(1);
        match TY {
            // Eight times 2 * 15 * 127 fit i16.
            _ if is_4bit(TY) => {
                let acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w[0], a[0]));
                _mm256_add_epi16(acc, _mm256_maddubs_epi16(w[1], a[1]))
            }
            // Twice 2 * 63 * 127 fits.
            Q5 | Q6 => {
                let first = _mm256_maddubs_epi16(w[0], a[0]);
                let both = _mm256_add_epi16(first, _mm256_maddubs_epi16(w[1], a[1]));
                _mm256_add_epi32(acc, _mm256_madd_epi16(both, ones))
            }
            _ => {
                let first = _mm256_madd_epi16(signed_pairs(w[0], a[0]), ones);
                let second = _mm256_madd_epi16(signed_pairs(w[1], a[1]), ones);
                _mm256_add_epi32(acc, _mm256_add_epi32(first, second))
            }
        }
    }
}

/// Sums of two signed products: `|w|` times `a` with the sign of `w`, for `a` above -128.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn signed_pairs(w: __m256i, a: __m256i) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) }
}

impl<X: Flavor> Simd8 for Ymm<X> {
    ops! {
        fn words(self, words: &[i32; 8]) -> __m256i = _mm256_loadu_si256(words.as_ptr().cast());
        fn small(self, codes: &[i8; 8]) -> __m256
            = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.as_ptr().cast())));
        fn halves(self, halves: &[u8; 16]) -> __m256
            = _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast()));
        fn super_scales(self, bytes: &[u8; 16]) -> [__m256; 2] = super_scales(bytes);
        fn pair<const TY: u8>(self, bytes: &[u8]) -> [__m256i; 2] = pair::<X, TY>(bytes);
        fn transpose8(self, a: [__m256i; 8]) -> [__m256i; 8] = transpose8(a);
        fn zip4(self, rows: [__m256i; 4]) -> [__m256i; 4] = zip4(rows);
        fn unzip4(self, a: [__m256; 4]) -> [__m256; 4] = [
            _mm256_permute2f128_ps::<0x20>(a[0], a[1]),
            _mm256_permute2f128_ps::<0x20>(a[2], a[3]),
            _mm256_permute2f128_ps::<0x31>(a[0], a[1]),
            _mm256_permute2f128_ps::<0x31>(a[2], a[3]),
        ];
        fn tree(self, a: __m256) -> f32 = {
            let four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        };
        fn sum_w(self, a: __m256i) -> i32 = {
            let four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b00_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
        };
        fn sqrt(self, a: f32) -> f32 = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a)));
    }

    #[inline(always)]
    fn blocks<const TY: u8, const N: usize>(self, w: [__m256i; 8], a: &[[u8; 32]; 8]) -> __m256i {
        // SAFETY: the value proves the instruction set.
        unsafe { blocks::<X, TY, N>(w, a) }
    }

    #[inline(always)]
    fn runs<const TY: u8, const T: usize>(
        self,
        row: &RowRuns<'_>,
        x: [&TokenRuns<'_>; T],
        ask: impl FnMut(usize),
    ) -> [__m256; T] {
        X::runs::<TY, T>(self, row, x, ask)
    }

    #[inline(always)]
    unsafe fn quad_sums<const TY: u8>(
        self,
        rows: &[[&[u8]; 4]],
        at: usize,
        c: &[[[u8; 4]; 16]; 8],
        lanes: [usize; 2],
    ) -> Option<[[__m256i; 4]; 2]> {
        // SAFETY: the value proves the instruction set; the pair is there, says the caller.
        unsafe { X::quad_sums::<TY>(rows, at, c, lanes) }
    }

    #[inline(always)]
    unsafe fn line_sums(
        self,
        rows: &[[&[u8]; 4]],
        at: usize,
        c: &[[[u8; 4]; 16]; 8],
        lane: usize,
    ) -> Option<[[__m256i; 4]; 4]> {
        // SAFETY: the value proves the instruction set; the pairs are there, says the caller.
        unsafe { X::line_sums(rows, at, c, lane) }
    }

    #[inline(always)]
    fn prefetch_far(self, bytes: &[u8], ahead: usize) {
        // Hints for the outer caches alone are dropped more often (decision 0005).
        self.prefetch(bytes, ahead);
    }

    #[inline(always)]
    fn to_halves(self, a: __m256) -> [u16; 8] {
        let mut halves = [0; 8];
        // SAFETY: the value proves F16C; the array is 16 bytes, and the store needs no alignment.
        unsafe {
            let a = _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(a);
            _mm_storeu_si128(halves.as_mut_ptr().cast(), a);
        }
        halves
    }

    #[inline(always)]
    fn codes(self, a: [__m256i; 4]) -> [u8; 32] {
        // SAFETY: the value proves AVX2.
        let packed = unsafe {
            let words = [
                _mm256_packs_epi32(a[0], a[1]),
                _mm256_packs_epi32(a[2], a[3]),
            ];
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]), order)
        };
        self.to_bytes(packed)
    }
}

/// See [`Simd8::blocks`].
///
/// # Safety
/// The CPU has AVX2 and the flavor's instructions.
#[inline(always)]
unsafe fn blocks<X: Flavor, const TY: u8, const N: usize>(
    w: [__m256i; 8],
    a: &[[u8; 32]; 8],
) -> __m256i {
    // SAFETY: the caller's; the loads are of arrays, and need no alignment.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut dots = [_mm256_setzero_si256(); 8];
        for i in 0..N {
            let a = _mm256_loadu_si256(a[i].as_ptr().cast());
            dots[i] = if X::VNNI {
                X::dpbusd(dots[i], w[i], a)
            } else if TY == Q8 {
                _mm256_madd_epi16(signed_pairs(w[i], a), ones)
            } else {
                _mm256_madd_epi16(_mm256_maddubs_epi16(w[i], a), ones)
            };
        }
        // Halve the lanes of each block three times, within 128 bits, then across.
        // Sums of eight products of 5-bit codes, 8 * 31 * 127, fit i16.
        let small = is_4bit(TY) || TY == Q5;
        let mut four = [_mm256_setzero_si256(); 4];
        for i in 0..N / 2 {
            let (a, b) = (dots[2 * i], dots[2 * i + 1]);
            four[i] = if small {
                add_small_pairs(a, b)
            } else {
                _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
            };
        }
        let mut two = [four[0], four[2]];
        for i in 0..N.div_ceil(4) {
            let (a, b) = (four[2 * i], four[2 * i + 1]);
            two[i] = if small {
                add_small_pairs(a, b)
            } else {
                _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
            };
        }
        _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(two[0], two[1]),
            _mm256_permute2x128_si256::<0x31>(two[0], two[1]),
        )
    }
}

/// Sums of neighbouring lanes, those of `a` first, within 128 bits; lanes fit i16.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
unsafe fn add_small_pairs(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_madd_epi16(_mm256_packs_epi32(a, b), _mm256_set1_epi16(1)) }
}
