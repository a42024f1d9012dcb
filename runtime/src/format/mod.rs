//! The image on flash: defined once, written by the layout tool and read by the runtime.
//!
//! `docs/format.md` is the normative text. All numbers are little-endian. An image is a superblock
//! of 16 KiB, a table of sections, and the sections. [`Image`] is a checked view of the first two;
//! after [`Image::new_checked`] no accessor can fail.

mod bundle;
mod cuts;
mod error;
mod field;
mod image;
mod matrix;
mod predictor;
mod section;
mod statistics;
mod superblock;
mod vectors;

pub use bundle::{BundleLayout, BundleParts, BundleReader, Bundles, FfnMatrix, PartRanges};
pub use cuts::Cuts;
pub use error::FormatError;
pub use image::{Image, UnitId};
pub use matrix::{FfnMap, MatrixMap, TileLayout, choose_tile_rows};
pub use predictor::{Predictor, PredictorError, PredictorLayout, Quality};
pub use section::{ENTRY_BYTES, NO_INDEX, Section, SectionKind};
pub use statistics::{BATCHES, CACHES, PREFIXES, Statistics, StatisticsError, StatisticsSource};
pub use superblock::{SUPERBLOCK_BYTES, Superblock, VERSION};
pub use vectors::VectorsLayout;

/// Sections begin at multiples of this, the page size of most systems. Where pages have 64 KiB,
/// nothing is lost: sections are read, not mapped.
pub const SECTION_ALIGN_BYTES: u64 = 16384;
/// Tiles, bundles and the matrices of one attention section begin at multiples of this.
pub const PAGE_BYTES: usize = 4096;

/// What the checksum of a tile or bundle continues from: the CRC-32C of its offset. So a unit that
/// is intact, but lies where another belongs, is noticed.
fn checksum_of_offset(offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> u32 {
    crc32c(0, &offset.to_le_bytes())
}

/// CRC-32C of `bytes`.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    (tessera_kernels::Kernels::SCALAR.crc32c)(0, bytes)
}
