//! Images that lie: refused with a reason, or read; never a panic.

mod support;

use support::{Recipe, tiny_image};
use tessera_kernels::Kernels;
use tessera_runtime::chunk::Chunk;
use tessera_runtime::format::{ENTRY_BYTES, FormatError, Image, SUPERBLOCK_BYTES};
use tessera_runtime::{Plan, PlanOptions};

const CRC_AT: usize = SUPERBLOCK_BYTES - 4;
const TABLE_CRC_AT: usize = 52;

/// Makes both checksums right again, as an attacker would.
fn reseal(bytes: &mut [u8], table_bytes: usize) {
    let crc32c = Kernels::best().crc32c;
    let table_crc = crc32c(0, &bytes[SUPERBLOCK_BYTES..][..table_bytes]);
    bytes[TABLE_CRC_AT..TABLE_CRC_AT + 4].copy_from_slice(&table_crc.to_le_bytes());
    let crc = crc32c(0, &bytes[..CRC_AT]);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// What a caller does with an image before it trusts the weights.
fn use_head(head: &[u8], file_bytes: u64) -> Result<(), FormatError> {
    let image = Image::new_checked(head, file_bytes)?;
    let options = PlanOptions {
        memory_bytes: 1 << 22,
        seq_len: 16,
        batch_tokens: 4,
        logits_rows: 1,
        lanes: 2,
    };
    if let Ok(plan) = Plan::new(&image, options) {
        let zero: Chunk = bytemuck::Zeroable::zeroed();
        plan.write_chunks(&image, &mut vec![zero; plan.sizes.n_chunks]);
    }
    for offset in (0..file_bytes + 4096).step_by(1000) {
        let _ = image.unit_at(offset).map(|unit| unit.to_string());
    }
    Ok(())
}

#[test]
fn every_byte_of_the_head_may_lie() {
    let recipe = Recipe {
        n_experts: 2,
        tied: false,
        ..Recipe::default()
    };
    let whole = tiny_image(&recipe);
    let table_bytes = Image::head_bytes(&whole, whole.len() as u64).unwrap() as usize;
    let head = &whole[..table_bytes];
    let table_bytes = head.len() - SUPERBLOCK_BYTES;
    assert!(table_bytes.is_multiple_of(ENTRY_BYTES));
    use_head(head, whole.len() as u64).unwrap();
    let fields = (0..400).chain(SUPERBLOCK_BYTES..head.len());
    let (mut refused, mut read) = (0, 0);
    for at in fields {
        for value in [
            0,
            1,
            2,
            0x7f,
            0x80,
            0xfe,
            0xff,
            head[at] ^ 1,
            head[at] ^ 0x10,
        ] {
            let mut bytes = head.to_vec();
            bytes[at] = value;
            reseal(&mut bytes, table_bytes);
            match use_head(&bytes, whole.len() as u64) {
                Ok(()) => read += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(
        refused > 1000 && read > 100,
        "{refused} refused, {read} read"
    );
}

#[test]
fn without_resealing_every_flipped_bit_is_noticed() {
    let whole = tiny_image(&Recipe::default());
    let head_bytes = Image::head_bytes(&whole, whole.len() as u64).unwrap() as usize;
    let mut head = whole[..head_bytes].to_vec();
    for at in (0..head_bytes).step_by(7) {
        head[at] ^= 4;
        assert!(use_head(&head, whole.len() as u64).is_err(), "byte {at}");
        head[at] ^= 4;
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = tiny_image(&Recipe::default());
    let file_bytes = whole.len() as u64;
    let head_bytes = Image::head_bytes(&whole, file_bytes).unwrap() as usize;
    let cuts = [
        0,
        1,
        7,
        8,
        9,
        SUPERBLOCK_BYTES - 1,
        SUPERBLOCK_BYTES,
        head_bytes - 1,
        head_bytes,
    ];
    for cut in cuts.into_iter().chain([whole.len() / 2, whole.len() - 1]) {
        let head = &whole[..cut.min(head_bytes)];
        let error = use_head(head, cut as u64).unwrap_err();
        assert!(
            matches!(error, FormatError::Truncated { .. }),
            "{cut}: {error}"
        );
    }
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let error = use_head(b"GGUF\x03\0\0\0 and so on", 20).unwrap_err();
    assert_eq!(error, FormatError::NotAnImage);
    let mut newer = tiny_image(&Recipe::default());
    newer[8] = 9;
    let error = use_head(&newer, newer.len() as u64).unwrap_err();
    assert_eq!(error, FormatError::Version { have: 9, want: 1 });
}
