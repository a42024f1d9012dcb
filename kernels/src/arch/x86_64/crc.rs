//! CRC-32C by the `crc32` instruction, three streams at a time.

use core::arch::x86_64::_mm_crc32_u64;

use crate::crc::{shift, shift_table};

/// Bytes of one stream: three of them and 16 bytes are a page.
const STREAM: usize = 1360;
static AFTER_STREAM: [[u32; 256]; 4] = shift_table(STREAM);

/// See [`crate::Kernels::crc32c`].
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: reached through tables whose owner saw SSE4.2.
    unsafe { body(crc, bytes) }
}

#[target_feature(enable = "sse4.2")]
fn body(crc: u32, bytes: &[u8]) -> u32 {
    let mut crc = u64::from(!crc);
    let (triples, rest) = bytes.as_chunks::<{ 3 * STREAM }>();
    for triple in triples {
        let words = triple.as_chunks::<8>().0;
        let (first, others) = words.split_at(STREAM / 8);
        let (second, third) = others.split_at(STREAM / 8);
        let (mut b, mut c) = (0, 0);
        for ((x, y), z) in first.iter().zip(second).zip(third) {
            crc = _mm_crc32_u64(crc, u64::from_le_bytes(*x));
            b = _mm_crc32_u64(b, u64::from_le_bytes(*y));
            c = _mm_crc32_u64(c, u64::from_le_bytes(*z));
        }
        crc = u64::from(shift(&AFTER_STREAM, crc as u32)) ^ b;
        crc = u64::from(shift(&AFTER_STREAM, crc as u32)) ^ c;
    }
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        crc = _mm_crc32_u64(crc, u64::from_le_bytes(*word));
    }
    crate::crc::crc32c(!(crc as u32), rest)
}
