//! Super-blocks of 256 weights: scales of sub-blocks are themselves quantised ("K" types of ggml).

use super::dequantize::half_at;

/// 16 sub-blocks of 16: `d * scale * q - dmin * min`, 2-bit codes.
///
/// Bytes: 16 of scales (low nibble) and minima (high), 64 of codes, d, dmin.
pub(super) fn q2_k(b: &[u8; 84], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 80), half_at(b, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(b[sub] & 15);
        let ml = dmin * f32::from(b[sub] >> 4);
        let (start, shift) = code_pairs(sub);
        for (l, out) in out.iter_mut().enumerate() {
            *out = dl * f32::from(b[16 + start + l] >> shift & 3) - ml;
        }
    }
}

/// 16 sub-blocks of 16: `d * (scale - 32) * q`, 2 low bits and an inverted high bit.
///
/// Bytes: 32 of high bits, 64 of low bits, 12 of 6-bit scales, d.
pub(super) fn q3_k(b: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(b, 108);
    let scales = &b[96..108];
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[sub % 8] >> (sub / 8 * 4) & 15;
        let high = scales[8 + sub % 4] >> (sub / 4 * 2) & 3;
        let dl = d * (i32::from(low | high << 4) - 32) as f32;
        let (start, shift) = code_pairs(sub);
        for (l, out) in out.iter_mut().enumerate() {
            let code = i32::from(b[32 + start + l] >> shift & 3);
            let set = b[sub % 2 * 16 + l] >> (sub / 2) & 1;
            *out = dl * (code - if set == 1 { 0 } else { 4 }) as f32;
        }
    }
}

/// Where the 2-bit codes of sub-block `sub` begin, and their place in the bytes.
///
/// Each 32 bytes hold 128 codes: eight sub-blocks, two at each of the four shifts.
fn code_pairs(sub: usize) -> (usize, usize) {
    (sub / 8 * 32 + sub % 2 * 16, sub % 8 / 2 * 2)
}

/// Scale and minimum of sub-block `sub`, 6 bits each, packed in 12 bytes.
fn scale_and_min(s: &[u8], sub: usize) -> (f32, f32) {
    let (scale, min) = if sub < 4 {
        (s[sub] & 63, s[sub + 4] & 63)
    } else {
        (
            s[sub + 4] & 15 | s[sub - 4] >> 6 << 4,
            s[sub + 4] >> 4 | s[sub] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// 8 sub-blocks of 32: `d * scale * q - dmin * min`, 4-bit codes.
///
/// Bytes: d, dmin, 12 of scales and minima, 128 of codes.
pub(super) fn q4_k(b: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&b[4..16], sub);
        let (dl, ml) = (d * scale, dmin * min);
        let codes = &b[16 + sub / 2 * 32..][..32];
        for (out, code) in out.iter_mut().zip(codes) {
            *out = dl * f32::from(code >> (sub % 2 * 4) & 15) - ml;
        }
    }
}

/// 8 sub-blocks of 32: as [`q4_k`], with a fifth bit.
///
/// Bytes: d, dmin, 12 of scales and minima, 32 of fifth bits, 128 of low bits.
pub(super) fn q5_k(b: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let high = &b[16..48];
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&b[4..16], sub);
        let (dl, ml) = (d * scale, dmin * min);
        let low = &b[48 + sub / 2 * 32..][..32];
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            let code = low >> (sub % 2 * 4) & 15 | (high >> sub & 1) << 4;
            *out = dl * f32::from(code) - ml;
        }
    }
}

/// 16 sub-blocks of 16: `d * scale * (q - 32)`, 8-bit scales.
///
/// Bytes: 128 of low nibbles, 64 of high pairs, 16 of scales, d.
pub(super) fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(b, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(b[192 + sub] as i8);
        // Each half of 128 weights has 64 bytes of nibbles and 32 of pairs, in quarters of 32.
        let (half, quarter, l0) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
        let low = &b[half * 64 + quarter % 2 * 32 + l0..][..16];
        let high = &b[128 + half * 32 + l0..][..16];
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            let code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            *out = dl * (i32::from(code) - 32) as f32;
        }
    }
}

#[test]
fn scales_are_unpacked_bit_by_bit() {
    let mut packed = [0u8; 12];
    packed[0] = 0b1100_0001; // Scale 0 is 1; scale 4 gets 0b11 on top.
    packed[4] = 0b0100_0010; // Minimum 0 is 2; minimum 4 gets 0b01 on top.
    packed[8] = 0b0101_1010; // Scale 4 ends in 0b1010, minimum 4 in 0b0101.
    assert_eq!(scale_and_min(&packed, 0), (1.0, 2.0));
    assert_eq!(scale_and_min(&packed, 4), (58.0, 21.0));
}
