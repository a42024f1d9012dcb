//! Down rows of a whole group zipped by four: a 32-bit lane of a vector holds one output's codes of
//! four neurons, as their sum wants them.

use crate::block::{BLOCK, GROUP, WeightType};

/// Rows that are zipped with each other.
pub(crate) const QUAD: usize = 4;
/// Their number in a group.
pub(crate) const QUADS: usize = GROUP / QUAD;

/// Puts the codes of row `row` of a group, as stored in order, in their places among the group's
/// zipped codes: for each pair of blocks in turn, for each four rows in turn, byte `b` of row `r`
/// of the four at place `4 b + r`.
///
/// # Panics
/// If the type is a float, there is no such row, or a length does not fit `cols`.
pub fn zip_row(ty: WeightType, cols: usize, row: usize, codes: &[u8], zipped: &mut [u8]) {
    check(ty, cols, row, codes.len(), zipped.len());
    let pair_bytes = ty.code_bytes(2 * BLOCK);
    let pairs = codes.chunks(pair_bytes);
    for (pair, zipped) in pairs.zip(zipped.chunks_mut(GROUP * pair_bytes)) {
        let quad = &mut zipped[row / QUAD * QUAD * pair.len()..];
        for (byte, four) in pair.iter().zip(quad.as_chunks_mut::<QUAD>().0) {
            four[row % QUAD] = *byte;
        }
    }
}

/// The reverse of [`zip_row`].
///
/// # Panics
/// Likewise.
pub(crate) fn unzip_row(ty: WeightType, cols: usize, row: usize, zipped: &[u8], codes: &mut [u8]) {
    check(ty, cols, row, codes.len(), zipped.len());
    let pair_bytes = ty.code_bytes(2 * BLOCK);
    let pairs = codes.chunks_mut(pair_bytes);
    for (pair, zipped) in pairs.zip(zipped.chunks(GROUP * pair_bytes)) {
        let quad = &zipped[row / QUAD * QUAD * pair.len()..];
        for (byte, four) in pair.iter_mut().zip(quad.as_chunks::<QUAD>().0) {
            *byte = four[row % QUAD];
        }
    }
}

/// Codes of block `block` of a zipped group's rows `4 quad` to `4 quad + 3`, one a byte, as stored:
/// for each column those of the four rows.
pub(crate) fn quad_block(
    ty: WeightType,
    cols: usize,
    zipped: &[u8],
    quad: usize,
    block: usize,
) -> [[u8; QUAD]; BLOCK] {
    let pair_bytes = ty.code_bytes(2 * BLOCK);
    let (before, odd) = (block / 2 * pair_bytes, block % 2);
    let len = pair_bytes.min(ty.code_bytes(cols) - before);
    let bytes = &zipped[GROUP * before + quad * QUAD * len..][..QUAD * len];
    let words = bytes.as_chunks::<QUAD>().0;
    // The same bits of four bytes at once.
    let bits = |at: usize, shift: usize, mask: u8| {
        u32::from_le_bytes(words[at]) >> shift & u32::from_le_bytes([mask; QUAD])
    };
    let mut codes = [[0; QUAD]; BLOCK];
    for (i, codes) in codes.iter_mut().enumerate() {
        let high = match ty {
            WeightType::Q8 => {
                *codes = words[odd * BLOCK + i];
                continue;
            }
            WeightType::Q6 => bits(BLOCK + i % 16, odd * 4 + i / 16 * 2, 3),
            WeightType::Q5 => bits(BLOCK + odd * 4 + i / 8, i % 8, 1),
            _ => 0,
        };
        *codes = (bits(i, odd * 4, 15) | high << 4).to_le_bytes();
    }
    codes
}

fn check(ty: WeightType, cols: usize, row: usize, codes: usize, zipped: usize) {
    assert!(ty.is_quantized(), "{ty:?} is not zipped");
    assert!(row < GROUP, "row {row} of {GROUP}");
    assert_eq!(codes, ty.code_bytes(cols));
    assert_eq!(zipped, GROUP * codes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn place_has_the_documented_byte() {
        // A pair and a half: 64 and 32 bytes of each row.
        let (ty, cols) = (WeightType::Q8, 96);
        let byte = |row: usize, at: usize| (row * 7 + at * 3) as u8;
        let mut zipped = vec![0; GROUP * cols];
        for row in 0..GROUP {
            let codes: Vec<u8> = (0..cols).map(|at| byte(row, at)).collect();
            zip_row(ty, cols, row, &codes, &mut zipped);
        }
        for (place, got) in zipped.iter().enumerate() {
            let (first, pair_bytes) = if place < 2048 { (0, 64) } else { (64, 32) };
            let within = place - GROUP * first;
            let (quad, rest) = (within / (4 * pair_bytes), within % (4 * pair_bytes));
            let want = byte(4 * quad + rest % 4, first + rest / 4);
            assert_eq!(*got, want, "{place}");
        }
    }

    #[test]
    fn rows_come_back() {
        let mut random = Random::new(5);
        for ty in WeightType::ALL.into_iter().filter(|ty| ty.is_quantized()) {
            for cols in [32usize, 64, 96, 544] {
                let cols = cols.next_multiple_of(ty.cols_multiple());
                let rows: Vec<_> = (0..GROUP)
                    .map(|_| random.bytes(ty.code_bytes(cols)))
                    .collect();
                let mut zipped = vec![0; GROUP * ty.code_bytes(cols)];
                for (row, codes) in rows.iter().enumerate() {
                    zip_row(ty, cols, row, codes, &mut zipped);
                }
                let mut back = vec![0; ty.code_bytes(cols)];
                for (row, codes) in rows.iter().enumerate() {
                    unzip_row(ty, cols, row, &zipped, &mut back);
                    assert_eq!(back, *codes, "{ty:?} {cols} {row}");
                }
            }
        }
    }
}
