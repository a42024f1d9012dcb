//! Superblock and section table of an image, and the plan made from them. Both checksums are made
//! right first, as an attacker would.
#![no_main]

use tessera_kernels::Kernels;
use tessera_runtime::format::SUPERBLOCK_BYTES;
use tessera_runtime::plan::check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut head = bytes.to_vec();
    if head.len() >= SUPERBLOCK_BYTES {
        let crc32c = Kernels::SCALAR.crc32c;
        let table_crc = crc32c(0, &head[SUPERBLOCK_BYTES..]);
        head[52..56].copy_from_slice(&table_crc.to_le_bytes());
        let crc = crc32c(0, &head[..SUPERBLOCK_BYTES - 4]);
        head[SUPERBLOCK_BYTES - 4..SUPERBLOCK_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
    let _ = check(&head, 1 << 32);
});
