//! Images that lie: refused with a reason, or read; never a panic.

mod support;

use std::path::Path;

use support::{Recipe, tiny_image};
use tessera_kernels::Kernels;
use tessera_runtime::format::{ENTRY_BYTES, FormatError, Image, SUPERBLOCK_BYTES};
use tessera_runtime::plan::check;

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
    check(head, whole.len() as u64).unwrap();
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
            match check(&bytes, whole.len() as u64) {
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
        assert!(check(&head, whole.len() as u64).is_err(), "byte {at}");
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
        let error = check(head, cut as u64).unwrap_err();
        assert!(
            matches!(error, FormatError::Truncated { .. }),
            "{cut}: {error}"
        );
    }
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let error = check(b"GGUF\x03\0\0\0 and so on", 20).unwrap_err();
    assert_eq!(error, FormatError::NotAnImage);
    let mut newer = tiny_image(&Recipe::default());
    newer[8] = 9;
    let error = check(&newer, newer.len() as u64).unwrap_err();
    assert_eq!(error, FormatError::Version { have: 9, want: 4 });
}

/// The corpus of `runtime/fuzz`; `UPDATE=1` writes it anew.
#[test]
fn the_corpus_gives_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/image");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (name, n_experts, tied) in [("dense", 0, true), ("mixture", 2, false)] {
            let whole = tiny_image(&Recipe {
                n_experts,
                tied,
                ..Recipe::default()
            });
            let head_bytes = Image::head_bytes(&whole, whole.len() as u64).unwrap() as usize;
            std::fs::write(folder.join(name), &whole[..head_bytes]).unwrap();
        }
    }
    let mut read = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let mut head = std::fs::read(entry.unwrap().path()).unwrap();
        let table_bytes = head.len() - SUPERBLOCK_BYTES;
        reseal(&mut head, table_bytes);
        read += usize::from(check(&head, 1 << 32).is_ok());
    }
    assert!(read >= 2, "{read} of the corpus are images");
}
