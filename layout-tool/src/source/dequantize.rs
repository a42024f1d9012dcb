//! Stored weights to f32, with exactly ggml's meaning and order of float operations.
//!
//! The definitions are ggml's `dequantize_row_*`; the Python package `gguf` computes the same.

use half::f16;

use super::super_block;
use super::types::SourceType;

/// Values of IQ4_NL's sixteen codes.
const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Writes the `out.len()` weights stored in `bytes`.
///
/// # Panics
/// If `bytes` is not exactly the whole blocks that hold `out.len()` weights.
pub fn dequantize(ty: SourceType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        Some(bytes.len()),
        ty.row_bytes(out.len()),
        "{} x {}",
        ty.name(),
        out.len()
    );
    match ty {
        SourceType::F32 => each(bytes, out, |b: &[u8; 4], o: &mut [f32; 1]| {
            o[0] = f32::from_le_bytes(*b);
        }),
        SourceType::F16 => each(bytes, out, |b: &[u8; 2], o: &mut [f32; 1]| {
            o[0] = half_at(b, 0)
        }),
        SourceType::Bf16 => each(bytes, out, |b: &[u8; 2], o: &mut [f32; 1]| {
            o[0] = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
        }),
        SourceType::Q4_0 => each(bytes, out, q4_0),
        SourceType::Q4_1 => each(bytes, out, q4_1),
        SourceType::Q5_0 => each(bytes, out, q5_0),
        SourceType::Q5_1 => each(bytes, out, q5_1),
        SourceType::Q8_0 => each(bytes, out, q8_0),
        SourceType::Q2K => each(bytes, out, super_block::q2_k),
        SourceType::Q3K => each(bytes, out, super_block::q3_k),
        SourceType::Q4K => each(bytes, out, super_block::q4_k),
        SourceType::Q5K => each(bytes, out, super_block::q5_k),
        SourceType::Q6K => each(bytes, out, super_block::q6_k),
        SourceType::Iq4Nl => each(bytes, out, iq4_nl),
    }
}

/// Calls `block` for each block of `B` bytes and the `N` weights it holds.
fn each<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (bytes, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        block(bytes, out);
    }
}

/// The half float at byte `at`, widened.
pub(super) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q4_0(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        out[j] = (i32::from(b[2 + j] & 15) - 8) as f32 * d;
        out[j + 16] = (i32::from(b[2 + j] >> 4) - 8) as f32 * d;
    }
}

fn q4_1(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        out[j] = f32::from(b[4 + j] & 15) * d + m;
        out[j + 16] = f32::from(b[4 + j] >> 4) * d + m;
    }
}

/// Codes `j` and `j + 16` of a 5-bit block: nibbles in `low`, fifth bits in `high`.
fn q5_codes(high: &[u8], low: &[u8], j: usize) -> (u8, u8) {
    let bit = |i: usize| (high[i / 8] >> (i % 8) & 1) << 4;
    (low[j] & 15 | bit(j), low[j] >> 4 | bit(j + 16))
}

fn q5_0(b: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        let (first, second) = q5_codes(&b[2..6], &b[6..], j);
        out[j] = (i32::from(first) - 16) as f32 * d;
        out[j + 16] = (i32::from(second) - 16) as f32 * d;
    }
}

fn q5_1(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        let (first, second) = q5_codes(&b[4..8], &b[8..], j);
        out[j] = f32::from(first) * d + m;
        out[j + 16] = f32::from(second) * d + m;
    }
}

fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for (out, &q) in out.iter_mut().zip(&b[2..]) {
        *out = f32::from(q as i8) * d;
    }
}

fn iq4_nl(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        out[j] = d * f32::from(IQ4_NL[usize::from(b[2 + j] & 15)]);
        out[j + 16] = d * f32::from(IQ4_NL[usize::from(b[2 + j] >> 4)]);
    }
}

#[test]
fn blocks_by_hand() {
    let mut out = [0.0; 32];
    let mut bytes = vec![0x00, 0x3C]; // 1.0 as a half float.
    bytes.extend([0xF0; 16]);
    dequantize(SourceType::Q4_0, &bytes, &mut out);
    assert_eq!((out[0], out[16]), (-8.0, 7.0));
    dequantize(SourceType::Iq4Nl, &bytes, &mut out);
    assert_eq!((out[0], out[16]), (-127.0, 113.0));

    let mut one = [0.0];
    dequantize(SourceType::Bf16, &[0x80, 0x3F], &mut one);
    assert_eq!(one, [1.0]);
    dequantize(SourceType::F16, &[0x01, 0x00], &mut one);
    assert_eq!(one, [2f32.powi(-24)]);
    dequantize(SourceType::F32, &(-2.5f32).to_le_bytes(), &mut one);
    assert_eq!(one, [-2.5]);
    dequantize(SourceType::F32, &[], &mut []);
}
