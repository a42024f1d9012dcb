//! Moves of stored codes that lose nothing: no weight is rounded a second time.

use half::f16;
use tessera_kernels::{BLOCK, SuperScales, WeightType, pack_codes};

use crate::source::SourceType;

/// Values of IQ4_NL's sixteen codes (ggml's `kvalues_iq4nl`).
const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// What becomes of the weights of a source type in a weight type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fidelity {
    /// Every weight is the same float as before.
    Exact,
    /// Codes are the same; scales are rounded to f16.
    Codes,
    /// Weights are rounded anew.
    Rounded,
}

/// What becomes of weights of type `from` in type `to`.
pub const fn fidelity(from: SourceType, to: WeightType) -> Fidelity {
    use SourceType as S;
    use WeightType as W;
    match (from, to) {
        (_, W::F32)
        | (S::F16, W::F16)
        | (S::Q4_0, W::Q4 | W::Q5 | W::Q6 | W::Q8)
        | (S::Q4_1, W::Q4O)
        | (S::Q4K, W::Q4K)
        | (S::Q5_0, W::Q5 | W::Q6 | W::Q8)
        | (S::Q8_0 | S::Iq4Nl, W::Q8) => Fidelity::Exact,
        (S::Q4K, W::Q4O) => Fidelity::Codes,
        _ => Fidelity::Rounded,
    }
}

/// Moves one stored row of quantised weights; false where that is not possible.
///
/// It is not where [`fidelity`] says so, and in the rare rows whose numbers do not fit: a code of
/// -128, a scale that f16 cannot hold. `unpacked` is working memory.
pub fn move_row(
    from: SourceType,
    to: WeightType,
    stored: &[u8],
    unpacked: &mut Vec<u8>,
    codes: &mut [u8],
    scales: &mut [u8],
) -> bool {
    use SourceType as S;
    if !to.is_quantized() || fidelity(from, to) == Fidelity::Rounded {
        return false;
    }
    if to == WeightType::Q4K {
        return q4_k(stored, codes, scales);
    }
    if from == S::Q4K {
        return q4_k_codes(stored, codes, scales);
    }
    let blocks = stored.len() / from.block_bytes();
    let cols = blocks * BLOCK;
    unpacked.clear();
    unpacked.resize(cols, 0);
    // Added to the signed value of a code, gives the stored code.
    let shift: i8 = match to {
        WeightType::Q4 => 8,
        WeightType::Q5 => 16,
        WeightType::Q6 => 32,
        _ => 0,
    };
    let rows = stored
        .chunks_exact(from.block_bytes())
        .zip(unpacked.as_chunks_mut().0);
    for (block, (stored, out)) in rows.enumerate() {
        scales[2 * block..][..2].copy_from_slice(&stored[..2]);
        let mut finite = is_finite(&stored[..2]);
        match from {
            S::Q4_0 => nibbles(&stored[2..], out, |code| code as i8 - 8 + shift),
            S::Q4_1 => {
                scales[2 * (blocks + block)..][..2].copy_from_slice(&stored[2..4]);
                finite &= is_finite(&stored[2..4]);
                nibbles(&stored[4..], out, |code| code as i8);
            }
            S::Q5_0 => q5_0(stored, out, shift),
            S::Iq4Nl => nibbles(&stored[2..], out, |code| IQ4_NL[code as usize]),
            _ => out.copy_from_slice(&stored[2..]),
        }
        if !finite || (from == S::Q8_0 && out.contains(&(i8::MIN as u8))) {
            return false;
        }
    }
    pack_codes(to, cols, unpacked, codes);
    true
}

fn is_finite(half: &[u8]) -> bool {
    f16::from_le_bytes([half[0], half[1]]).is_finite()
}

/// Codes of a block of ggml: low nibbles are its first half, high nibbles its second.
fn nibbles(stored: &[u8], out: &mut [u8; BLOCK], code: impl Fn(u8) -> i8) {
    let (first, second) = out.split_at_mut(BLOCK / 2);
    for ((stored, first), second) in stored.iter().zip(first).zip(second) {
        *first = code(stored & 15) as u8;
        *second = code(stored >> 4) as u8;
    }
}

/// 5-bit codes: f16 scale, 32 fifth bits, nibbles.
fn q5_0(stored: &[u8], out: &mut [u8; BLOCK], shift: i8) {
    let fifth = u32::from_le_bytes([stored[2], stored[3], stored[4], stored[5]]);
    nibbles(&stored[6..], out, |code| code as i8);
    for (column, code) in out.iter_mut().enumerate() {
        let whole = *code | (((fifth >> column) & 1) as u8) << 4;
        *code = (whole as i8 - 16 + shift) as u8;
    }
}

/// Super-blocks of 256 with 6-bit scales: their codes already lie as pairs of blocks.
fn q4_k(stored: &[u8], codes: &mut [u8], scales: &mut [u8]) -> bool {
    let stored = stored.as_chunks::<144>().0.iter();
    let out = codes.as_chunks_mut::<128>().0.iter_mut();
    for ((stored, codes), scales) in stored.zip(out).zip(scales.as_chunks_mut().0) {
        codes.copy_from_slice(&stored[16..]);
        let packed: [(u8, u8); 8] = std::array::from_fn(|sub| scale_and_min(&stored[4..16], sub));
        let super_scales = SuperScales {
            d: u16::from_le_bytes([stored[0], stored[1]]),
            // ggml takes the minimum off.
            m: u16::from_le_bytes([stored[2], stored[3]]) ^ 0x8000,
            scales: packed.map(|(scale, _)| scale),
            minima: packed.map(|(_, min)| min),
        };
        *scales = super_scales.to_bytes();
        if !(is_finite(&stored[..2]) && is_finite(&stored[2..4])) {
            return false;
        }
    }
    true
}

/// The same to blocks with scales of their own, which are rounded to f16.
fn q4_k_codes(stored: &[u8], codes: &mut [u8], scales: &mut [u8]) -> bool {
    let minima_at = scales.len() / 2;
    let (scales, minima) = scales.split_at_mut(minima_at);
    let stored = stored.as_chunks::<144>().0.iter();
    let out = codes.as_chunks_mut::<128>().0.iter_mut();
    let halves = scales
        .as_chunks_mut::<16>()
        .0
        .iter_mut()
        .zip(minima.as_chunks_mut::<16>().0);
    for ((stored, codes), (scales, minima)) in stored.zip(out).zip(halves) {
        codes.copy_from_slice(&stored[16..]);
        let half_at = |at: usize| f16::from_le_bytes([stored[at], stored[at + 1]]).to_f32();
        let (d, dmin) = (half_at(0), half_at(2));
        for sub in 0..8 {
            let (scale, min) = scale_and_min(&stored[4..16], sub);
            let scale = f16::from_f32(d * f32::from(scale));
            let min = f16::from_f32(-(dmin * f32::from(min)));
            if !(scale.is_finite() && min.is_finite()) {
                return false;
            }
            scales[2 * sub..][..2].copy_from_slice(&scale.to_le_bytes());
            minima[2 * sub..][..2].copy_from_slice(&min.to_le_bytes());
        }
    }
    true
}

/// Scale and minimum of sub-block `sub`, 6 bits each, of the 12 bytes that hold eight of both.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 63, packed[sub + 4] & 63);
    }
    let (low, high) = (packed[sub + 4], [packed[sub - 4] >> 6, packed[sub] >> 6]);
    (low & 15 | high[0] << 4, low >> 4 | high[1] << 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::dequantize;

    /// Stored bytes that look like weights: random codes, modest scales.
    fn stored(ty: SourceType, blocks: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        let mut bytes: Vec<u8> = (0..blocks * ty.block_bytes()).map(|_| next()).collect();
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            let halves = if matches!(ty, SourceType::Q4_1 | SourceType::Q4K) {
                2
            } else {
                1
            };
            for half in 0..halves {
                let value = f16::from_f32(f32::from(next() as i8) / 1000.0);
                block[2 * half..][..2].copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    fn moved(from: SourceType, to: WeightType, stored: &[u8], cols: usize) -> Option<Vec<f32>> {
        let mut codes = vec![0xA5; to.code_bytes(cols)];
        let mut scales = vec![0xA5; to.scale_bytes(cols)];
        let done = move_row(from, to, stored, &mut Vec::new(), &mut codes, &mut scales);
        let mut out = vec![0.0; cols];
        done.then(|| tessera_kernels::dequantize_row(to, cols, &codes, &scales, &mut out))?;
        Some(out)
    }

    #[test]
    fn exact_moves_change_no_weight() {
        for from in SourceType::ALL {
            for to in WeightType::ALL {
                let quantized = to.is_quantized() && from.block_len() > 1;
                if !quantized || fidelity(from, to) != Fidelity::Exact {
                    continue;
                }
                for blocks in [1, 2, 3, 18] {
                    let blocks = blocks * to.cols_multiple() / from.block_len().max(32);
                    let mut bytes = stored(from, blocks, 77 + blocks as u64);
                    if from == SourceType::Q8_0 {
                        bytes
                            .iter_mut()
                            .filter(|b| **b == 128)
                            .for_each(|b| *b = 127);
                    }
                    let mut want = vec![0.0; blocks * from.block_len()];
                    dequantize(from, &bytes, &mut want);
                    let have = moved(from, to, &bytes, want.len()).expect("can be moved");
                    assert_eq!(have, want, "{} to {}", from.name(), to.name());
                }
            }
        }
    }

    #[test]
    fn q4_k_keeps_its_codes() {
        let (from, to) = (SourceType::Q4K, WeightType::Q4O);
        let bytes = stored(from, 3, 5);
        let mut want = vec![0.0; 768];
        dequantize(from, &bytes, &mut want);
        let have = moved(from, to, &bytes, 768).expect("can be moved");
        for (block, (have, want)) in have.chunks(32).zip(want.chunks(32)).enumerate() {
            // Codes up to 15 times the rounding of the scale, and that of the minimum.
            let top = want.iter().fold(0f32, |top, w| top.max(w.abs()));
            for (have, want) in have.iter().zip(want) {
                assert!(
                    (have - want).abs() <= 8.0 * top / 2048.0,
                    "block {block}: {have} {want}"
                );
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_left_alone() {
        let q8 = |bytes: &[u8]| moved(SourceType::Q8_0, WeightType::Q8, bytes, 32);
        let mut bytes = stored(SourceType::Q8_0, 1, 9);
        bytes[7] = 0x80;
        assert_eq!(q8(&bytes), None);
        bytes[7] = 0;
        bytes
            .iter_mut()
            .filter(|b| **b == 128)
            .for_each(|b| *b = 127);
        assert!(q8(&bytes).is_some());
        bytes[..2].copy_from_slice(&f16::NAN.to_le_bytes());
        assert_eq!(q8(&bytes), None);

        let mut bytes = stored(SourceType::Q4K, 1, 9);
        bytes[..2].copy_from_slice(&f16::MAX.to_le_bytes());
        bytes[4] = 63;
        assert_eq!(moved(SourceType::Q4K, WeightType::Q4O, &bytes, 256), None);
        assert_eq!(moved(SourceType::Q6K, WeightType::Q6, &[0; 210], 256), None);
        assert_eq!(moved(SourceType::F16, WeightType::Q8, &[0; 64], 32), None);
    }
}
