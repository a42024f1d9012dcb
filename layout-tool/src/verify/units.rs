//! Runs of units that are read and checked at once.

use tessera_runtime::format::{
    BundleLayout, FfnMap, Image, MatrixMap, Section, SectionKind, TileLayout,
};

use super::{Damage, Fault, section_name};

/// Bytes of a run, about.
const RUN_BYTES: u64 = 1 << 20;

/// What a run of bytes is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Between sections.
    Gap,
    /// A whole blob.
    Blob(Section),
    /// Whole tiles.
    Tiles { map: MatrixMap, first: usize },
    /// Whole bundles.
    Bundles(BundleLayout),
    /// Part of a section of a kind that this build does not know.
    Unknown,
}

/// Bytes of an image that are checked at once.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Where it begins.
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
    kind: Kind,
}

/// What checking a run showed.
#[derive(Debug, Default)]
pub struct Checked {
    /// Units checked.
    pub units: usize,
    /// Checksums of tiles and bundles, as the image id is made from.
    pub unit_crcs: Vec<u32>,
    /// What is wrong.
    pub damages: Vec<Damage>,
}

/// All bytes of an image after its head, in file order.
pub fn runs(image: &Image<'_>) -> Vec<Run> {
    let mut runs = Vec::new();
    let shape = image.shape();
    let first_layer = usize::from(!shape.tied_embeddings) + 1;
    let superblock = image.superblock();
    let entry_bytes = tessera_runtime::format::ENTRY_BYTES as u64;
    let mut end = superblock.table_offset + u64::from(superblock.table_entries) * entry_bytes;
    for index in 0..image.n_sections() {
        let section = image.section(index);
        if section.offset > end {
            runs.push(Run {
                offset: end,
                bytes: section.offset - end,
                kind: Kind::Gap,
            });
        }
        end = section.offset + section.bytes;
        let within = index.saturating_sub(first_layer) % (4 + shape.n_ffns());
        let layer = section.layer as usize;
        match SectionKind::from_u16(section.kind) {
            Some(kind) if kind.is_blob() => {
                let (offset, bytes) = (section.offset, section.bytes);
                runs.push(Run {
                    offset,
                    bytes,
                    kind: Kind::Blob(section),
                });
            }
            Some(SectionKind::Embedding) => add_tiles(&mut runs, image.embedding()),
            Some(SectionKind::LmHead) => add_tiles(&mut runs, image.lm_head()),
            Some(SectionKind::Ffn) => add_bundles(&mut runs, image.ffn(layer, within - 4)),
            Some(_) => add_tiles(&mut runs, image.attention(layer)[within]),
            None => add_unknown(&mut runs, &section),
        }
    }
    if superblock.image_bytes > end {
        runs.push(Run {
            offset: end,
            bytes: superblock.image_bytes - end,
            kind: Kind::Gap,
        });
    }
    runs
}

fn add_tiles(runs: &mut Vec<Run>, map: MatrixMap) {
    let step = (RUN_BYTES as usize / map.tile.tile_bytes(map.tile.rows)).max(1);
    for first in (0..map.n_tiles()).step_by(step) {
        let (offset, _) = map.tile_place(first);
        let (last, last_bytes) = map.tile_place((first + step).min(map.n_tiles()) - 1);
        let bytes = last - offset + last_bytes as u64;
        runs.push(Run {
            offset,
            bytes,
            kind: Kind::Tiles { map, first },
        });
    }
}

fn add_bundles(runs: &mut Vec<Run>, map: FfnMap) {
    let step = (RUN_BYTES / map.bundle.bytes() as u64).max(1) * map.bundle.bytes() as u64;
    for start in (0..map.bytes()).step_by(step as usize) {
        let bytes = step.min(map.bytes() - start);
        runs.push(Run {
            offset: map.offset + start,
            bytes,
            kind: Kind::Bundles(map.bundle),
        });
    }
}

fn add_unknown(runs: &mut Vec<Run>, section: &Section) {
    for start in (0..section.bytes).step_by(RUN_BYTES as usize) {
        let bytes = RUN_BYTES.min(section.bytes - start);
        runs.push(Run {
            offset: section.offset + start,
            bytes,
            kind: Kind::Unknown,
        });
    }
}

impl Run {
    /// Checks the bytes of the run.
    pub fn check(&self, image: &Image<'_>, bytes: &[u8], crc32c: fn(u32, &[u8]) -> u32) -> Checked {
        let mut checked = Checked::default();
        match self.kind {
            Kind::Unknown => {}
            Kind::Gap => {
                if bytes.iter().any(|byte| *byte != 0) {
                    let place = "gap between sections".to_owned();
                    checked.damages.push(Damage {
                        offset: self.offset,
                        place,
                        fault: Fault::Padding,
                    });
                }
            }
            Kind::Blob(section) => {
                let (data, padding) = bytes.split_at(section.data_bytes as usize);
                let name = || section_name(section.kind).to_owned();
                let intact = crc32c(0, data) == section.crc;
                checked.note(
                    name,
                    self.offset,
                    intact,
                    padding.iter().all(|byte| *byte == 0),
                );
            }
            Kind::Tiles { map, first } => {
                let mut at = 0;
                let mut tile = first;
                while at < bytes.len() {
                    let rows = map.tile_rows(tile);
                    let unit = &bytes[at..at + map.tile.tile_bytes(rows)];
                    let data = rows * map.tile.ty.row_bytes(map.tile.cols);
                    let padding = &unit[data..unit.len() - 4];
                    let offset = self.offset + at as u64;
                    let intact = TileLayout::is_intact(unit, offset, crc32c);
                    let zero = padding.iter().all(|byte| *byte == 0);
                    checked.note(|| unit_name(image, offset), offset, intact, zero);
                    checked.unit_crcs.push(crc_before(unit, unit.len()));
                    (at, tile) = (at + unit.len(), tile + 1);
                }
            }
            Kind::Bundles(layout) => {
                for (index, unit) in bytes.chunks_exact(layout.bytes()).enumerate() {
                    let offset = self.offset + (index * layout.bytes()) as u64;
                    let intact = layout.is_intact(unit, offset, crc32c);
                    let zero = bundle_padding_is_zero(&layout, unit);
                    checked.note(|| unit_name(image, offset), offset, intact, zero);
                    checked
                        .unit_crcs
                        .push(crc_before(unit, layout.first_bytes()));
                }
            }
        }
        checked
    }
}

impl Checked {
    fn note(&mut self, place: impl Fn() -> String, offset: u64, intact: bool, zero: bool) {
        self.units += 1;
        if !intact {
            self.damages.push(Damage {
                offset,
                place: place(),
                fault: Fault::Checksum,
            });
        } else if !zero {
            self.damages.push(Damage {
                offset,
                place: place(),
                fault: Fault::Padding,
            });
        }
    }
}

fn unit_name(image: &Image<'_>, offset: u64) -> String {
    image
        .unit_at(offset)
        .map_or("image".to_owned(), |unit| unit.to_string())
}

/// The checksum in the four bytes before `end`.
fn crc_before(unit: &[u8], end: usize) -> u32 {
    u32::from_le_bytes([unit[end - 4], unit[end - 3], unit[end - 2], unit[end - 1]])
}

fn bundle_padding_is_zero(layout: &BundleLayout, bundle: &[u8]) -> bool {
    let BundleLayout {
        dim,
        neurons,
        gate,
        up,
        down,
    } = *layout;
    let first = gate.row_bytes(dim) + up.scale_bytes(dim) + down.scale_bytes(dim);
    let second = up.code_bytes(dim) + down.code_bytes(dim);
    let (one, two) = bundle.split_at(layout.first_bytes());
    let mut padding = one[neurons * first..one.len() - 8]
        .iter()
        .chain(&two[neurons * second..]);
    padding.all(|byte| *byte == 0)
}
