//! CRC-32C by the `crc32cx` instruction, three streams at a time.

use core::arch::aarch64::__crc32cd;

use crate::crc::{shift, shift_table};

/// Bytes of one stream: three of them and 16 bytes are a page.
const STREAM: usize = 1360;
static AFTER_STREAM: [[u32; 256]; 4] = shift_table(STREAM);

/// See [`crate::Kernels::crc32c`]. Only for a CPU with the feature `crc`.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: put into tables only where the CPU has the instruction.
    unsafe { body(crc, bytes) }
}

#[target_feature(enable = "crc")]
fn body(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = !crc;
    let (triples, rest) = bytes.as_chunks::<{ 3 * STREAM }>();
    for triple in triples {
        let words = triple.as_chunks::<8>().0;
        let (first, others) = words.split_at(STREAM / 8);
        let (second, third) = others.split_at(STREAM / 8);
        let (mut b, mut c) = (0, 0);
        for ((x, y), z) in first.iter().zip(second).zip(third) {
            crc = __crc32cd(crc, u64::from_le_bytes(*x));
            b = __crc32cd(b, u64::from_le_bytes(*y));
            c = __crc32cd(c, u64::from_le_bytes(*z));
        }
        crc = shift(&AFTER_STREAM, crc) ^ b;
        crc = shift(&AFTER_STREAM, crc) ^ c;
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        crc = __crc32cd(crc, u64::from_le_bytes(*word));
    }
    crate::crc::crc32c(!crc, rest)
}
