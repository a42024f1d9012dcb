//! Vectors of eight lanes as pairs of 128-bit registers.

use core::arch::aarch64::*;
use core::arch::asm;

use super::codes::{f_to_halves, halves_to_f, pair, super_scales};
use super::mmla;
use super::shuffle::{transpose8, zip4};
use crate::arch::simd::{Dots, PanelBlock, Q8, Simd, Simd8, eight_scales, is_4bit, tile_of_steps};
use crate::tiles::TileBlock;

/// How bytes are multiplied and summed.
pub(super) trait Flavor: Copy {
    /// True if `sdot` may be used.
    const SDOT: bool;
    /// True if `smmla` may be used.
    const MMLA: bool = false;
}

/// NEON alone: products in i16.
#[derive(Clone, Copy)]
pub(super) struct Mull;

/// With the feature `dotprod`.
#[derive(Clone, Copy)]
pub(super) struct Sdot;

/// With the features `dotprod` and `i8mm`.
#[derive(Clone, Copy)]
pub(super) struct Mmla;

impl Flavor for Mull {
    const SDOT: bool = false;
}

impl Flavor for Sdot {
    const SDOT: bool = true;
}

impl Flavor for Mmla {
    const SDOT: bool = true;
    const MMLA: bool = true;
}

/// Proves NEON and the instruction of its flavor.
#[derive(Clone, Copy)]
pub(super) struct Neon<X>(X);

impl Neon<Mull> {
    /// # Safety
    /// The CPU has NEON.
    pub(super) unsafe fn new() -> Self {
        Neon(Mull)
    }
}

impl Neon<Sdot> {
    /// # Safety
    /// The CPU has NEON and `dotprod`.
    pub(super) unsafe fn new() -> Self {
        Neon(Sdot)
    }
}

impl Neon<Mmla> {
    /// # Safety
    /// The CPU has NEON, `dotprod` and `i8mm`.
    pub(super) unsafe fn new() -> Self {
        Neon(Mmla)
    }
}

pub(super) type F = [float32x4_t; 2];
pub(super) type W = [int32x4_t; 2];
pub(super) type V = [uint8x16_t; 2];

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

impl<X: Flavor> Simd for Neon<X> {
    const LANES: usize = 8;
    const Q8_BIAS: bool = false;

    type F = F;
    type W = W;
    type V = V;
    /// With `sdot` sums in i32 (the first two). Without, of each eight bytes' products: eight in
    /// i16 for 4-bit weights, else four pairs' in i32.
    type Acc = [int32x4_t; 4];
    type Bytes = [u8; 32];
    type Floats = [f32; 8];

    ops! {
        fn bytes(self, bytes: &[u8; 32]) -> V
            = [vld1q_u8(bytes.as_ptr()), vld1q_u8(bytes[16..].as_ptr())];
        fn splat4(self, bytes: &[u8; 4]) -> V
            = [vreinterpretq_u8_u32(vdupq_n_u32(u32::from_ne_bytes(*bytes))); 2];
        fn zero_v(self) -> V = [vdupq_n_u8(0); 2];
        fn split4(self, a: V) -> [V; 2] = [
            [vandq_u8(a[0], vdupq_n_u8(15)), vandq_u8(a[1], vdupq_n_u8(15))],
            [vshrq_n_u8::<4>(a[0]), vshrq_n_u8::<4>(a[1])],
        ];
        fn fifth_bits(self, words: &[[u8; 4]]) -> V = {
            let bits = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_ne_bytes(words[0])));
            let low = vreinterpretq_u8_u64(vcombine_u64(
                vcreate_u64(0x0202_0202_0101_0101),
                vcreate_u64(0x0808_0808_0404_0404),
            ));
            let fifth = vdupq_n_u8(16);
            [
                vandq_u8(vtstq_u8(bits, low), fifth),
                vandq_u8(vtstq_u8(bits, vshlq_n_u8::<4>(low)), fifth),
            ]
        };
        fn vector(self, a: F) -> V = [vreinterpretq_u8_f32(a[0]), vreinterpretq_u8_f32(a[1])];
        fn floats(self, floats: &[f32; 8]) -> F
            = [vld1q_f32(floats.as_ptr()), vld1q_f32(floats[4..].as_ptr())];
        fn floats_of(self, a: V) -> F = [vreinterpretq_f32_u8(a[0]), vreinterpretq_f32_u8(a[1])];
        fn splat(self, a: f32) -> F = [vdupq_n_f32(a); 2];
        fn add(self, a: F, b: F) -> F = [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])];
        fn sub(self, a: F, b: F) -> F = [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])];
        fn mul(self, a: F, b: F) -> F = [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])];
        fn div(self, a: F, b: F) -> F = [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])];
        fn min(self, a: F, b: F) -> F = [vminq_f32(a[0], b[0]), vminq_f32(a[1], b[1])];
        fn max(self, a: F, b: F) -> F = [vmaxq_f32(a[0], b[0]), vmaxq_f32(a[1], b[1])];
        fn less(self, a: F, b: F) -> W = [
            vreinterpretq_s32_u32(vcltq_f32(a[0], b[0])),
            vreinterpretq_s32_u32(vcltq_f32(a[1], b[1])),
        ];
        fn splat_w(self, a: i32) -> W = [vdupq_n_s32(a); 2];
        fn add_w(self, a: W, b: W) -> W = [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])];
        fn sub_w(self, a: W, b: W) -> W = [vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])];
        fn and_w(self, a: W, b: W) -> W = [vandq_s32(a[0], b[0]), vandq_s32(a[1], b[1])];
        fn and_not_w(self, a: W, b: W) -> W = [vbicq_s32(b[0], a[0]), vbicq_s32(b[1], a[1])];
        fn or_w(self, a: W, b: W) -> W = [vorrq_s32(a[0], b[0]), vorrq_s32(a[1], b[1])];
        fn max_w(self, a: W, b: W) -> W = [vmaxq_s32(a[0], b[0]), vmaxq_s32(a[1], b[1])];
        fn shift_left<const N: u32>(self, a: W) -> W = shift(a, N as i32);
        fn shift_right<const N: u32>(self, a: W) -> W = shift(a, -(N as i32));
        fn to_f(self, a: W) -> F = [vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])];
        fn round(self, a: F) -> W = [vcvtnq_s32_f32(a[0]), vcvtnq_s32_f32(a[1])];
        fn bits(self, a: F) -> W = [vreinterpretq_s32_f32(a[0]), vreinterpretq_s32_f32(a[1])];
        fn as_floats(self, a: W) -> F
            = [vreinterpretq_f32_s32(a[0]), vreinterpretq_f32_s32(a[1])];
        fn quad(self, a: [W; 4]) -> V = [quad(a, 0), quad(a, 1)];
        fn zero_acc(self) -> [int32x4_t; 4] = [vdupq_n_s32(0); 4];
        fn dot2<const TY: u8>(self, acc: [int32x4_t; 4], w: [V; 2], a: [V; 2]) -> [int32x4_t; 4]
            = dot2::<X, TY>(acc, w, a);
        fn done<const TY: u8>(self, acc: [int32x4_t; 4]) -> W = done::<X, TY>(acc);
    }

    #[inline(always)]
    fn biased(self, a: V) -> V {
        a
    }

    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize) {
        let at = bytes.as_ptr().wrapping_add(ahead);
        // SAFETY: a hint; any address will do.
        unsafe {
            asm!("prfm pldl1keep, [{at}]", at = in(reg) at,
                options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn to_bytes(self, a: V) -> [u8; 32] {
        let mut bytes = [0; 32];
        // SAFETY: the array is 32 bytes, and stores need no alignment.
        unsafe {
            vst1q_u8(bytes.as_mut_ptr(), a[0]);
            vst1q_u8(bytes[16..].as_mut_ptr(), a[1]);
        }
        bytes
    }

    #[inline(always)]
    fn scales_at<const TY: u8>(self, scales: &[u8], at: usize, minima_at: usize) -> [F; 2] {
        eight_scales::<_, TY>(self, scales, at, minima_at)
    }

    #[inline(always)]
    fn to_floats(self, a: F) -> [f32; 8] {
        let mut floats = [0.0; 8];
        // SAFETY: the array is 32 bytes, and stores need no alignment.
        unsafe {
            vst1q_f32(floats.as_mut_ptr(), a[0]);
            vst1q_f32(floats[4..].as_mut_ptr(), a[1]);
        }
        floats
    }

    #[inline(always)]
    fn floats_at(self, floats: &[f32], at: usize) -> F {
        self.floats(&floats[at..].as_chunks().0[0])
    }

    #[inline(always)]
    fn store_at(self, a: F, floats: &mut [f32], at: usize) {
        floats[at..].as_chunks_mut().0[0] = self.to_floats(a);
    }

    #[inline(always)]
    fn tile<const TY: u8, const N: usize>(
        self,
        w: &PanelBlock<Self>,
        a: &TileBlock,
    ) -> Dots<Self, N> {
        if X::MMLA {
            // SAFETY: the value proves the instruction.
            unsafe { mmla::tile(w, a) }
        } else {
            tile_of_steps::<Self, TY, N, 4>(self, w, a)
        }
    }
}

/// Left by `count`, or right where it is negative.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn shift(a: W, count: i32) -> W {
    // SAFETY: the caller's.
    unsafe {
        let count = vdupq_n_s32(count);
        [vshlq_s32(a[0], count), vshlq_s32(a[1], count)]
    }
}

/// See [`Simd::quad`]; half `i` of the lanes.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn quad(a: [W; 4], i: usize) -> uint8x16_t {
    // SAFETY: the caller's.
    unsafe {
        let two = vsliq_n_s32::<8>(a[0][i], a[1][i]);
        let three = vsliq_n_s32::<16>(two, a[2][i]);
        vreinterpretq_u8_s32(vsliq_n_s32::<24>(three, a[3][i]))
    }
}

/// Adds four products of signed bytes to each lane.
///
/// # Safety
/// The CPU has NEON and `dotprod`.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, w: uint8x16_t, a: uint8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: the caller's: the CPU has `dotprod`.
    unsafe {
        asm!(
            ".arch_extension dotprod",
            "sdot {acc:v}.4s, {w:v}.16b, {a:v}.16b",
            acc = inout(vreg) acc,
            w = in(vreg) w,
            a = in(vreg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// Adds products of eight signed bytes.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn mlal_low(acc: int16x8_t, w: uint8x16_t, a: uint8x16_t) -> int16x8_t {
    // SAFETY: the caller's.
    unsafe {
        let (w, a) = (vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a));
        vmlal_s8(acc, vget_low_s8(w), vget_low_s8(a))
    }
}

/// The same with the other eight.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn mlal_high(acc: int16x8_t, w: uint8x16_t, a: uint8x16_t) -> int16x8_t {
    // SAFETY: the caller's.
    unsafe { vmlal_high_s8(acc, vreinterpretq_s8_u8(w), vreinterpretq_s8_u8(a)) }
}

/// See [`Simd::dot2`].
///
/// # Safety
/// The CPU has NEON and the flavor's instructions.
#[inline(always)]
unsafe fn dot2<X: Flavor, const TY: u8>(
    acc: [int32x4_t; 4],
    w: [V; 2],
    a: [V; 2],
) -> [int32x4_t; 4] {
    let mut acc = acc;
    // SAFETY: the caller's.
    unsafe {
        for i in 0..2 {
            if X::SDOT {
                acc[i] = sdot(sdot(acc[i], w[0][i], a[0][i]), w[1][i], a[1][i]);
            } else if is_4bit(TY) {
                // Eight times 15 * 127 fit i16.
                let low = mlal_low(vreinterpretq_s16_s32(acc[2 * i]), w[0][i], a[0][i]);
                let high = mlal_high(vreinterpretq_s16_s32(acc[2 * i + 1]), w[0][i], a[0][i]);
                acc[2 * i] = vreinterpretq_s32_s16(mlal_low(low, w[1][i], a[1][i]));
                acc[2 * i + 1] = vreinterpretq_s32_s16(mlal_high(high, w[1][i], a[1][i]));
            } else {
                // Twice 128 * 127 fits.
                let zero = vdupq_n_s16(0);
                let low = mlal_low(mlal_low(zero, w[0][i], a[0][i]), w[1][i], a[1][i]);
                let high = mlal_high(mlal_high(zero, w[0][i], a[0][i]), w[1][i], a[1][i]);
                acc[2 * i] = vpadalq_s16(acc[2 * i], low);
                acc[2 * i + 1] = vpadalq_s16(acc[2 * i + 1], high);
            }
        }
    }
    acc
}

/// See [`Simd::done`].
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn done<X: Flavor, const TY: u8>(acc: [int32x4_t; 4]) -> W {
    // SAFETY: the caller's.
    unsafe {
        if X::SDOT {
            return [acc[0], acc[1]];
        }
        let mut pairs = acc;
        if is_4bit(TY) {
            for i in 0..4 {
                pairs[i] = vpaddlq_s16(vreinterpretq_s16_s32(acc[i]));
            }
        }
        [
            vpaddq_s32(pairs[0], pairs[1]),
            vpaddq_s32(pairs[2], pairs[3]),
        ]
    }
}

impl<X: Flavor> Simd8 for Neon<X> {
    ops! {
        fn words(self, words: &[i32; 8]) -> W
            = [vld1q_s32(words.as_ptr()), vld1q_s32(words[4..].as_ptr())];
        fn super_scales(self, bytes: &[u8; 16]) -> [F; 2] = super_scales(bytes);
        fn small(self, codes: &[i8; 8]) -> F = {
            let words = vmovl_s8(vld1_s8(codes.as_ptr()));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(words))),
            ]
        };
        fn halves(self, halves: &[u8; 16]) -> F = halves_to_f(vld1q_u8(halves.as_ptr()));
        fn transpose8(self, a: [V; 8]) -> [V; 8] = transpose8(a);
        fn zip4(self, rows: [V; 4]) -> [V; 4] = zip4(rows);
        fn tree(self, a: F) -> f32 = {
            let four = vaddq_f32(a[0], a[1]);
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        };
        fn sum_w(self, a: W) -> i32 = vaddvq_s32(vaddq_s32(a[0], a[1]));
        fn sqrt(self, a: f32) -> f32 = vget_lane_f32::<0>(vsqrt_f32(vdup_n_f32(a)));
    }

    #[inline(always)]
    fn pair<const TY: u8>(self, bytes: &[u8]) -> [V; 2] {
        // SAFETY: the value proves the instruction set.
        unsafe { pair::<X, TY>(self, bytes) }
    }

    #[inline(always)]
    fn panel(self, words: [V; 2]) -> [V; 2] {
        if X::MMLA {
            // SAFETY: the value proves NEON.
            unsafe { mmla::panel(words) }
        } else {
            words
        }
    }

    #[inline(always)]
    fn unzip4(self, a: [F; 4]) -> [F; 4] {
        [
            [a[0][0], a[1][0]],
            [a[2][0], a[3][0]],
            [a[0][1], a[1][1]],
            [a[2][1], a[3][1]],
        ]
    }

    #[inline(always)]
    fn blocks<const TY: u8, const N: usize>(self, w: [V; 8], a: &[[u8; 32]; 8]) -> W {
        // SAFETY: the value proves the instruction set.
        unsafe {
            let mut dots = [vdupq_n_s32(0); 8];
            for i in 0..N {
                dots[i] = block::<X, TY>(w[i], self.bytes(&a[i]));
            }
            let low = [vpaddq_s32(dots[0], dots[1]), vpaddq_s32(dots[2], dots[3])];
            let high = [vpaddq_s32(dots[4], dots[5]), vpaddq_s32(dots[6], dots[7])];
            [vpaddq_s32(low[0], low[1]), vpaddq_s32(high[0], high[1])]
        }
    }

    #[inline(always)]
    fn prefetch_far(self, bytes: &[u8], ahead: usize) {
        self.prefetch(bytes, ahead);
    }

    #[inline(always)]
    fn to_halves(self, a: F) -> [u16; 8] {
        let mut halves = [0; 8];
        // SAFETY: the value proves NEON; the array is 16 bytes, and the store needs no alignment.
        unsafe { vst1q_u16(halves.as_mut_ptr(), f_to_halves(a)) };
        halves
    }

    #[inline(always)]
    fn codes(self, a: [W; 4]) -> [u8; 32] {
        let mut all = self.zero_v();
        for i in 0..2 {
            // SAFETY: the value proves NEON.
            all[i] = unsafe {
                let low = vmovn_high_s32(vmovn_s32(a[2 * i][0]), a[2 * i][1]);
                let high = vmovn_high_s32(vmovn_s32(a[2 * i + 1][0]), a[2 * i + 1][1]);
                vreinterpretq_u8_s8(vmovn_high_s16(vmovn_s16(low), high))
            };
        }
        self.to_bytes(all)
    }
}

/// Sums of a block's products, spread over four lanes.
///
/// # Safety
/// The CPU has NEON and the flavor's instructions.
#[inline(always)]
unsafe fn block<X: Flavor, const TY: u8>(w: V, a: V) -> int32x4_t {
    // SAFETY: the caller's.
    unsafe {
        if X::SDOT {
            return sdot(sdot(vdupq_n_s32(0), w[0], a[0]), w[1], a[1]);
        }
        let zero = vdupq_n_s16(0);
        let first = mlal_high(mlal_low(zero, w[0], a[0]), w[0], a[0]);
        if TY == Q8 {
            // Twice 128 * 127 fits i16.
            let second = mlal_high(mlal_low(zero, w[1], a[1]), w[1], a[1]);
            vpadalq_s16(vpaddlq_s16(first), second)
        } else {
            // Four times 63 * 127 fits.
            vpaddlq_s16(mlal_high(mlal_low(first, w[1], a[1]), w[1], a[1]))
        }
    }
}
