//! 512-bit vectors: AVX-512 with VNNI, for products of several tokens.

use core::arch::x86_64::*;

use super::wide::{halves, super_scales};
use super::ymm::ops;
use crate::arch::simd::{Dots, PanelBlock, Q4K, Simd, has_offset, tile_of_steps};
use crate::tiles::{TILE_TOKENS, TileBlock};

/// Proves AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(super) struct Zmm(());

impl Zmm {
    /// # Safety
    /// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
    pub(super) unsafe fn new() -> Self {
        Zmm(())
    }
}

impl Simd for Zmm {
    const LANES: usize = 16;
    const Q8_BIAS: bool = true;

    type F = __m512;
    type W = __m512i;
    type V = __m512i;
    type Acc = __m512i;
    type Bytes = [u8; 64];
    type Floats = [f32; 16];

    ops! {
        fn bytes(self, bytes: &[u8; 64]) -> __m512i = _mm512_loadu_si512(bytes.as_ptr().cast());
        fn splat4(self, bytes: &[u8; 4]) -> __m512i
            = _mm512_set1_epi32(i32::from_ne_bytes(*bytes));
        fn zero_v(self) -> __m512i = _mm512_setzero_si512();
        fn split4(self, a: __m512i) -> [__m512i; 2] = {
            let mask = _mm512_set1_epi8(15);
            [_mm512_and_si512(a, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(a), mask)]
        };
        fn biased(self, a: __m512i) -> __m512i = _mm512_xor_si512(a, _mm512_set1_epi8(-128));
        fn fifth_bits(self, words: &[[u8; 4]]) -> __m512i = {
            let low = _mm512_set1_epi32(i32::from_ne_bytes(words[0]));
            let bits = _mm512_mask_set1_epi32(low, 0xff00, i32::from_ne_bytes(words[1]));
            let lane = _mm512_set_epi64(
                0x8080_8080_4040_4040_u64 as i64, 0x2020_2020_1010_1010,
                0x0808_0808_0404_0404, 0x0202_0202_0101_0101,
                0x8080_8080_4040_4040_u64 as i64, 0x2020_2020_1010_1010,
                0x0808_0808_0404_0404, 0x0202_0202_0101_0101,
            );
            _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(bits, lane), 16)
        };
        fn vector(self, a: __m512) -> __m512i = _mm512_castps_si512(a);
        fn scales_at<const TY: u8>(self, scales: &[u8], at: usize, minima_at: usize) -> [__m512; 2]
            = scales_at::<TY>(scales, at, minima_at);
        fn floats(self, floats: &[f32; 16]) -> __m512 = _mm512_loadu_ps(floats.as_ptr());
        fn floats_of(self, a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn splat(self, a: f32) -> __m512 = _mm512_set1_ps(a);
        fn add(self, a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(self, a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(self, a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(self, a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn min(self, a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn max(self, a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn less(self, a: __m512, b: __m512) -> __m512i
            = _mm512_movm_epi32(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b));
        fn splat_w(self, a: i32) -> __m512i = _mm512_set1_epi32(a);
        fn add_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn and_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn and_not_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_andnot_si512(a, b);
        fn or_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn max_w(self, a: __m512i, b: __m512i) -> __m512i = _mm512_max_epi32(a, b);
        fn shift_left<const N: u32>(self, a: __m512i) -> __m512i = _mm512_slli_epi32::<N>(a);
        fn shift_right<const N: u32>(self, a: __m512i) -> __m512i = _mm512_srai_epi32::<N>(a);
        fn to_f(self, a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn round(self, a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        fn bits(self, a: __m512) -> __m512i = _mm512_castps_si512(a);
        fn as_floats(self, a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn quad(self, a: [__m512i; 4]) -> __m512i = {
            let order = _mm512_broadcast_i32x4(_mm_setr_epi8(
                0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
            ));
            let words = [_mm512_packs_epi32(a[0], a[1]), _mm512_packs_epi32(a[2], a[3])];
            _mm512_shuffle_epi8(_mm512_packs_epi16(words[0], words[1]), order)
        };
        fn zero_acc(self) -> __m512i = _mm512_setzero_si512();
        fn dot2<const TY: u8>(self, acc: __m512i, w: [__m512i; 2], a: [__m512i; 2]) -> __m512i
            = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(acc, w[0], a[0]), w[1], a[1]);
    }

    #[inline(always)]
    fn done<const TY: u8>(self, acc: __m512i) -> __m512i {
        acc
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize) {
        // SAFETY: a hint; any address will do.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead).cast()) };
    }

    #[inline(always)]
    fn to_bytes(self, a: __m512i) -> [u8; 64] {
        let mut bytes = [0; 64];
        // SAFETY: the array is 64 bytes, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), a) };
        bytes
    }

    #[inline(always)]
    fn to_floats(self, a: __m512) -> [f32; 16] {
        let mut floats = [0.0; 16];
        // SAFETY: the array is 64 bytes, and the store needs no alignment.
        unsafe { _mm512_storeu_ps(floats.as_mut_ptr(), a) };
        floats
    }

    #[inline(always)]
    fn tile<const TY: u8, const V: usize>(
        self,
        w: &PanelBlock<Self>,
        a: &TileBlock,
    ) -> Dots<Self, V> {
        tile_of_steps::<Self, TY, V, TILE_TOKENS>(self, w, a)
    }

    #[inline(always)]
    fn floats_at(self, floats: &[f32], at: usize) -> __m512 {
        self.floats(&floats[at..].as_chunks().0[0])
    }

    #[inline(always)]
    fn store_at(self, a: __m512, floats: &mut [f32], at: usize) {
        floats[at..].as_chunks_mut().0[0] = self.to_floats(a);
    }
}

/// See [`Simd::scales_at`].
///
/// # Safety
/// The CPU has AVX-512 F, BW, DQ, VL and VNNI.
#[inline(always)]
unsafe fn scales_at<const TY: u8>(scales: &[u8], at: usize, minima_at: usize) -> [__m512; 2] {
    let sixteen = &scales[at..].as_chunks().0[0];
    // SAFETY: the caller's.
    unsafe {
        if TY == Q4K {
            return super_scales(sixteen);
        }
        let d = halves(sixteen);
        if has_offset(TY) {
            [d, halves(&scales[minima_at + at..].as_chunks().0[0])]
        } else {
            [d, d]
        }
    }
}
