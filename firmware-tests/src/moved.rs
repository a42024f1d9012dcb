//! Images whose sections lie elsewhere: gigabytes further on, or at multiples of a page size.

use tessera_kernels::Kernels;
use tessera_runtime::format::{
    ENTRY_BYTES, Image, MatrixMap, SUPERBLOCK_BYTES, Section, SectionKind, Superblock, TileLayout,
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
    let cut = checked.ffn(0, 0).offset;
    let mut bytes = image.to_vec();
    seal(&mut bytes, &checked, cut, GAP_BYTES);
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
    superblock.image_bytes += GAP_BYTES;
    write_head(&mut bytes, superblock);
    assert!(
        checked
            .find(SectionKind::Vectors)
            .is_some_and(|vectors| vectors.offset < cut)
    );
    bytes
}

/// `image`, with every section at a multiple of `align_bytes`, or of what its kind wants if that is
/// more.
///
/// # Panics
/// If it is no image.
pub fn aligned(image: &[u8], align_bytes: u64) -> Vec<u8> {
    let checked = Image::new_checked(image, image.len() as u64);
    let checked = checked.unwrap_or_else(|error| panic!("{error}"));
    let mut superblock = *checked.superblock();
    let table_at = superblock.table_offset as usize;
    let mut bytes = image[..table_at + checked.n_sections() * ENTRY_BYTES].to_vec();
    for index in 0..checked.n_sections() {
        let mut section = checked.section(index);
        let from = section.offset as usize;
        let kind =
            SectionKind::from_u16(section.kind).map_or(align_bytes, SectionKind::align_bytes);
        section.offset = (bytes.len() as u64).next_multiple_of(kind.max(align_bytes));
        bytes.resize(section.offset as usize, 0);
        bytes.extend_from_slice(&image[from..][..section.bytes as usize]);
        section.write(&mut bytes[table_at + index * ENTRY_BYTES..][..ENTRY_BYTES]);
    }
    superblock.image_bytes = bytes.len() as u64;
    write_head(&mut bytes, superblock);
    let head = bytes[..table_at + checked.n_sections() * ENTRY_BYTES].to_vec();
    let moved = Image::new_checked(&head, bytes.len() as u64);
    let moved = moved.unwrap_or_else(|error| panic!("{error}"));
    seal(&mut bytes, &moved, 0, 0);
    bytes
}

/// Makes the checksums of all units from byte `cut` on those of units that stand `gap_bytes`
/// further on than they do in `bytes`.
fn seal(bytes: &mut [u8], image: &Image<'_>, cut: u64, gap_bytes: u64) {
    let crc32c = Kernels::best().crc32c;
    let mut seal_matrix = |map: MatrixMap| {
        for tile in (0..map.n_tiles()).filter(|_| map.offset >= cut) {
            let (offset, tile_bytes) = map.tile_place(tile);
            let tile = &mut bytes[offset as usize..][..tile_bytes];
            TileLayout::seal(tile, offset + gap_bytes, crc32c);
        }
    };
    let shape = *image.shape();
    assert_eq!(shape.n_experts, 0, "mixtures are not moved");
    (0..shape.n_layers)
        .flat_map(|layer| image.attention(layer))
        .for_each(&mut seal_matrix);
    seal_matrix(image.embedding());
    seal_matrix(image.lm_head());
    for map in (0..shape.n_layers).map(|layer| image.ffn(layer, 0)) {
        let bundle_bytes = map.bundle.bytes();
        for neuron in (0..map.neurons)
            .step_by(map.bundle.neurons)
            .filter(|_| map.offset >= cut)
        {
            let offset = map.bundle_offset(neuron);
            let bundle = &mut bytes[offset as usize..][..bundle_bytes];
            map.bundle.seal(bundle, offset + gap_bytes, crc32c);
        }
    }
}

/// Writes the superblock of an image whose table is in its place.
fn write_head(bytes: &mut [u8], mut superblock: Superblock) {
    let table_at = superblock.table_offset as usize;
    let table = &bytes[table_at..][..superblock.table_entries as usize * ENTRY_BYTES];
    superblock.table_crc = (Kernels::best().crc32c)(0, table);
    let head: &mut [u8; SUPERBLOCK_BYTES] = (&mut bytes[..SUPERBLOCK_BYTES])
        .try_into()
        .unwrap_or_else(|_| panic!("an image has a superblock"));
    superblock.write(head);
}
