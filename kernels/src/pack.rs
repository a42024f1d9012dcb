//! Codes one a byte to and from the stored layout (see the crate docs), without loss.

use crate::block::{BLOCK, WeightType};

/// Stores one row of codes, given one a byte: Q4, Q4O and Q4K 0..=15, Q5 0..=31, Q6
/// 0..=63, Q8 two's complement.
///
/// # Panics
/// If a length does not fit `cols`, or the type is a float.
pub fn pack_codes(ty: WeightType, cols: usize, codes: &[u8], packed: &mut [u8]) {
    check(ty, cols, codes.len(), packed.len());
    let pair_bytes = ty.code_bytes(2 * BLOCK);
    for (block, codes) in codes.as_chunks().0.iter().enumerate() {
        let pair = &mut packed[block / 2 * pair_bytes..];
        put_block(ty, codes, block % 2 == 1, pair);
    }
}

/// Stores one block's codes, given one a byte, at the even or the odd place of its pair, which
/// `packed` begins with. The even block clears the other's place.
#[inline(always)]
pub(crate) fn put_block(ty: WeightType, codes: &[u8; BLOCK], odd: bool, packed: &mut [u8]) {
    if ty == WeightType::Q8 {
        let at = if odd { BLOCK } else { 0 };
        packed[at..][..BLOCK].copy_from_slice(codes);
        return;
    }
    let (low, high) = packed.split_at_mut(BLOCK);
    for (byte, code) in low.iter_mut().zip(codes) {
        *byte = if odd { *byte | code << 4 } else { code & 15 };
    }
    if ty == WeightType::Q5 {
        let mut bits = [0; BLOCK / 8];
        for (byte, codes) in bits.iter_mut().zip(codes.as_chunks::<8>().0) {
            for (bit, code) in codes.iter().enumerate() {
                *byte |= (code >> 4 & 1) << bit;
            }
        }
        let (even, rest) = high.split_at_mut(BLOCK / 8);
        if odd {
            rest[..BLOCK / 8].copy_from_slice(&bits);
        } else {
            even.copy_from_slice(&bits);
            rest[..BLOCK / 8].fill(0);
        }
    }
    if ty == WeightType::Q6 {
        let (first, second) = codes.split_at(BLOCK / 2);
        let high = high[..BLOCK / 2].iter_mut();
        for ((byte, first), second) in high.zip(first).zip(second) {
            let bits = first >> 4 | second >> 4 << 2;
            *byte = if odd { *byte | bits << 4 } else { bits };
        }
    }
}

/// The reverse of [`pack_codes`].
///
/// # Panics
/// If a length does not fit `cols`, or the type is a float.
pub fn unpack_codes(ty: WeightType, cols: usize, packed: &[u8], codes: &mut [u8]) {
    check(ty, cols, codes.len(), packed.len());
    for (block, codes) in codes.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        *codes = unpack_block(ty, packed, block);
    }
}

/// Codes of block `block` of a stored row, one a byte, as stored (no offset taken off).
pub(crate) fn unpack_block(ty: WeightType, packed: &[u8], block: usize) -> [u8; BLOCK] {
    let (pair, odd) = (block / 2, block % 2);
    let mut codes = [0; BLOCK];
    match ty {
        WeightType::Q8 => codes.copy_from_slice(&packed[block * BLOCK..][..BLOCK]),
        WeightType::Q6 => {
            let (low, high) = packed[pair * 48..][..48].split_at(BLOCK);
            for (k, code) in codes.iter_mut().enumerate() {
                let shift = odd * 4 + k / 16 * 2;
                *code = low[k] >> (odd * 4) & 15 | (high[k % 16] >> shift & 3) << 4;
            }
        }
        WeightType::Q5 => {
            let (low, high) = packed[pair * 40..][..40].split_at(BLOCK);
            for (k, code) in codes.iter_mut().enumerate() {
                let column = odd * BLOCK + k;
                let fifth = high[column / 8] >> (column % 8) & 1;
                *code = low[k] >> (odd * 4) & 15 | fifth << 4;
            }
        }
        _ => {
            for (code, byte) in codes.iter_mut().zip(&packed[pair * BLOCK..][..BLOCK]) {
                *code = byte >> (odd * 4) & 15;
            }
        }
    }
    codes
}

fn check(ty: WeightType, cols: usize, codes: usize, packed: usize) {
    assert!(ty.is_quantized(), "{ty:?} has no codes");
    assert!(cols.is_multiple_of(BLOCK), "{cols} columns");
    assert_eq!(codes, cols);
    assert_eq!(packed, ty.code_bytes(cols));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_come_back() {
        for ty in [
            WeightType::Q8,
            WeightType::Q4,
            WeightType::Q4O,
            WeightType::Q6,
            WeightType::Q5,
        ] {
            let range = match ty {
                WeightType::Q8 => 256,
                WeightType::Q6 => 64,
                WeightType::Q5 => 32,
                _ => 16,
            };
            for cols in [0, 32, 64, 96, 576] {
                let codes: Vec<u8> = (0..cols)
                    .map(|i| ((i * 37 + i / 7) % range) as u8)
                    .collect();
                let mut packed = vec![0xff; ty.code_bytes(cols)];
                pack_codes(ty, cols, &codes, &mut packed);
                let mut back = vec![0; cols];
                unpack_codes(ty, cols, &packed, &mut back);
                assert_eq!(back, codes, "{ty:?} {cols}");
            }
        }
    }

    #[test]
    fn layout_is_the_documented_one() {
        let mut codes = [0u8; 96];
        (codes[5], codes[32 + 5], codes[16 + 5], codes[48 + 5]) = (0x1a, 0x2b, 0x3c, 0x0d);
        codes[64 + 7] = 0x3f;
        let mut packed = [0u8; 96];
        pack_codes(WeightType::Q6, 96, &codes, &mut packed);
        assert_eq!(packed[5], 0xba);
        assert_eq!(packed[21], 0xdc);
        assert_eq!(packed[32 + 5], 0b0010_1101);
        assert_eq!((packed[48 + 7], packed[80 + 7]), (0x0f, 0b11));
        let mut packed = [0u8; 80];
        pack_codes(WeightType::Q5, 96, &codes, &mut packed);
        assert_eq!(packed[5], 0xba);
        assert_eq!(packed[32..40], [1 << 5, 0, 1 << 5, 0, 0, 0, 0, 0]);
        assert_eq!((packed[40 + 7], packed[72]), (0x0f, 1 << 7));
    }
}
