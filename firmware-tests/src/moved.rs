//! An image whose back part lies gigabytes further on, without the gap.

use tessera_kernels::Kernels;
use tessera_runtime::format::{
    ENTRY_BYTES, Image, MatrixMap, SUPERBLOCK_BYTES, Section, SectionKind, TileLayout,
};

/// How far the back part is moved: past what 32 bits count, to where they would count again.
pub const GAP_BYTES: u64 = 5 << 30;

/// `image`, with everything from its first feed-forward section on declared [`GAP_BYTES`] further
/// on: sections, the checksums that cover their place, and the size. The bytes of the gap are left
/// out.
///
/// # Panics
/// If it is no image.
pub fn moved(image: &[u8]) -> Vec<u8> {
    let checked = Image::new_checked(image, image.len() as u64);
    let checked = checked.unwrap_or_else(|error| panic!("{error}"));
    let crc32c = Kernels::best().crc32c;
    let cut = checked.ffn(0, 0).offset;
    let mut bytes = image.to_vec();
    let seal_matrix = |bytes: &mut [u8], map: MatrixMap| {
        for tile in (0..map.n_tiles()).filter(|_| map.offset >= cut) {
            let (offset, tile_bytes) = map.tile_place(tile);
            let tile = &mut bytes[offset as usize..][..tile_bytes];
            TileLayout::seal(tile, offset + GAP_BYTES, crc32c);
        }
    };
    let shape = *checked.shape();
    assert_eq!(shape.n_experts, 0, "mixtures are not moved");
    for layer in 0..shape.n_layers {
        for map in checked.attention(layer) {
            seal_matrix(&mut bytes, map);
        }
        let map = checked.ffn(layer, 0);
        let bundle_bytes = map.bundle.bytes();
        for neuron in (0..map.neurons).step_by(map.bundle.neurons) {
            let offset = map.bundle_offset(neuron);
            let bundle = &mut bytes[offset as usize..][..bundle_bytes];
            map.bundle.seal(bundle, offset + GAP_BYTES, crc32c);
        }
    }
    seal_matrix(&mut bytes, checked.lm_head());
    let mut superblock = *checked.superblock();
    let table_at = superblock.table_offset as usize;
    let table = &mut bytes[table_at..][..checked.n_sections() * ENTRY_BYTES];
    for entry in table.chunks_exact_mut(ENTRY_BYTES) {
        let mut section = Section::parse(entry);
        if section.offset >= cut {
            section.offset += GAP_BYTES;
            section.write(entry);
        }
    }
    superblock.table_crc = crc32c(0, table);
    superblock.image_bytes += GAP_BYTES;
    let head: &mut [u8; SUPERBLOCK_BYTES] = (&mut bytes[..SUPERBLOCK_BYTES])
        .try_into()
        .unwrap_or_else(|_| panic!("an image has a superblock"));
    superblock.write(head);
    assert!(
        checked
            .find(SectionKind::Vectors)
            .is_some_and(|vectors| vectors.offset < cut)
    );
    bytes
}
