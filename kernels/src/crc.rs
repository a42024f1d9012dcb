//! CRC-32C in software: slicing by eight.

/// The Castagnoli polynomial, bit-reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[k][byte]`: what `byte` becomes after `k + 1` bytes of the register were shifted out.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut k = 0;
        while k < 64 {
            crc = (crc >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(crc & 1));
            k += 1;
            if k % 8 == 0 {
                tables[k / 8 - 1][byte] = crc;
            }
        }
        byte += 1;
    }
    tables
}

/// See [`crate::Kernels::crc32c`].
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word) ^ u64::from(crc);
        crc = 0;
        for (k, byte) in word.to_le_bytes().into_iter().enumerate() {
            crc ^= TABLES[7 - k][byte as usize];
        }
    }
    for byte in rest {
        crc = (crc >> 8) ^ TABLES[0][(crc as u8 ^ byte) as usize];
    }
    !crc
}

/// `table[k][byte]`: what byte `k` of the register contributes after `zeros` zero bytes.
///
/// With it, two streams of known length are joined: `crc(ab) = shift(crc(a), len(b)) ^ crc(b)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) const fn shift_table(zeros: usize) -> [[u32; 256]; 4] {
    let mut basis = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut crc = 1u32 << bit;
        let mut k = 0;
        while k < zeros * 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & 0u32.wrapping_sub(crc & 1));
            k += 1;
        }
        basis[bit] = crc;
        bit += 1;
    }
    let mut table = [[0u32; 256]; 4];
    let mut at = 0;
    while at < 1024 {
        let (k, byte) = (at / 256, at % 256);
        let mut bit = 0;
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                table[k][byte] ^= basis[k * 8 + bit];
            }
            bit += 1;
        }
        at += 1;
    }
    table
}

/// The register `crc` after as many zero bytes as `table` was made for.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn shift(table: &[[u32; 256]; 4], crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes();
    table[0][a as usize] ^ table[1][b as usize] ^ table[2][c as usize] ^ table[3][d as usize]
}
