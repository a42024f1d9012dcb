//! Matrices on flash: tiles of rows, each with its own checksum.

use tessera_kernels::{Rows, WeightType};

use super::PAGE_BYTES;
use super::bundle::BundleLayout;
use super::checksum_of_offset;
use super::field::{put_u32, u32_at};

/// Bytes at a tile's end that hold its checksum.
const CRC_BYTES: usize = 4;

/// How consecutive rows make a tile.
///
/// A tile of R rows: codes of the R rows, scales of the R rows, zeros, and in its last four bytes
/// the CRC-32C of its offset in the image (u64) and all that precedes. It takes whole pages. The
/// last tile of a matrix may have fewer rows and then takes only the pages that those need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileLayout {
    /// Type of the weights.
    pub ty: WeightType,
    /// Columns.
    pub cols: usize,
    /// Rows of a full tile.
    pub rows: usize,
}

impl TileLayout {
    /// Bytes of a tile of `rows` rows.
    pub const fn tile_bytes(&self, rows: usize) -> usize {
        (rows * self.ty.row_bytes(self.cols) + CRC_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Where the scales of a tile of `rows` rows begin.
    pub const fn scales_at(&self, rows: usize) -> usize {
        rows * self.ty.code_bytes(self.cols)
    }

    /// The rows of a tile.
    pub fn view<'a>(&self, rows: usize, tile: &'a [u8]) -> Rows<'a> {
        let scales_at = self.scales_at(rows);
        let end = scales_at + rows * self.ty.scale_bytes(self.cols);
        Rows::new(
            self.ty,
            rows,
            self.cols,
            &tile[..scales_at],
            &tile[scales_at..end],
        )
    }

    /// Writes the checksum of a finished tile that will lie at `offset`, and returns it. `crc32c`
    /// is the kernel that computes it.
    pub fn seal(tile: &mut [u8], offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> u32 {
        let at = tile.len() - CRC_BYTES;
        let crc = crc32c(checksum_of_offset(offset, crc32c), &tile[..at]);
        put_u32(tile, at, crc);
        crc
    }

    /// True if this is the tile that belongs at `offset`, and its checksum is right.
    pub fn is_intact(tile: &[u8], offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> bool {
        let at = tile.len() - CRC_BYTES;
        crc32c(checksum_of_offset(offset, crc32c), &tile[..at]) == u32_at(tile, at)
    }
}

/// Rows per tile that waste least in tiles of at most `target_bytes`: a multiple of 8 where 8 rows
/// fit, and never more rows than `rows`.
pub fn choose_tile_rows(ty: WeightType, rows: usize, cols: usize, target_bytes: usize) -> usize {
    let row_bytes = ty.row_bytes(cols);
    let whole = |pages: usize| {
        let fit = (pages * PAGE_BYTES - CRC_BYTES) / row_bytes;
        if fit >= 8 { fit / 8 * 8 } else { fit }
    };
    let pages_max = (target_bytes / PAGE_BYTES).max(1);
    let best = (1..=pages_max)
        .filter(|&pages| whole(pages) > 0)
        // Wasted bytes a row, compared by cross multiplication; the first of equals wins.
        .min_by(|&a, &b| {
            let (rows_a, rows_b) = (whole(a), whole(b));
            (a * rows_b).cmp(&(b * rows_a))
        });
    best.map_or(1, whole).min(rows).max(1)
}

/// One matrix W (rows, cols) of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixMap {
    /// Where its first tile begins.
    pub offset: u64,
    /// Rows: outputs.
    pub rows: usize,
    /// Rows of a full tile, columns and type.
    pub tile: TileLayout,
}

impl MatrixMap {
    /// Number of tiles.
    pub const fn n_tiles(&self) -> usize {
        self.rows.div_ceil(self.tile.rows)
    }

    /// Rows of tile `tile`.
    pub fn tile_rows(&self, tile: usize) -> usize {
        self.tile.rows.min(self.rows - tile * self.tile.rows)
    }

    /// Offset and bytes of tile `tile`.
    pub fn tile_place(&self, tile: usize) -> (u64, usize) {
        let full_bytes = self.tile.tile_bytes(self.tile.rows) as u64;
        let offset = self.offset + tile as u64 * full_bytes;
        (offset, self.tile.tile_bytes(self.tile_rows(tile)))
    }

    /// Bytes of all tiles.
    pub fn bytes(&self) -> u64 {
        let (offset, bytes) = self.tile_place(self.n_tiles() - 1);
        offset - self.offset + bytes as u64
    }
}

/// One feed-forward section: the bundles of all its neurons, cluster after cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FfnMap {
    /// Where its first bundle begins.
    pub offset: u64,
    /// Neurons.
    pub neurons: usize,
    /// Layout of a bundle.
    pub bundle: BundleLayout,
}

impl FfnMap {
    /// Offset of the bundle that holds `neuron`, which must be its first.
    pub fn bundle_offset(&self, neuron: usize) -> u64 {
        self.offset + (neuron / self.bundle.neurons) as u64 * self.bundle.bytes() as u64
    }

    /// Bytes of the bundles of `neurons` neurons.
    pub const fn run_bytes(&self, neurons: usize) -> usize {
        neurons / self.bundle.neurons * self.bundle.bytes()
    }

    /// Bytes of all bundles.
    pub const fn bytes(&self) -> u64 {
        (self.neurons / self.bundle.neurons) as u64 * self.bundle.bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_waste_little_and_never_exceed_the_matrix() {
        for ty in WeightType::ALL {
            for cols in [64usize, 576, 1536, 4096, 14336] {
                let cols = cols.next_multiple_of(ty.cols_multiple());
                for rows in [1, 7, 192, 151_936] {
                    let best = choose_tile_rows(ty, rows, cols, 65536);
                    assert!(best >= 1 && best <= rows, "{ty:?} {rows} {cols}: {best}");
                    let tile = TileLayout {
                        ty,
                        cols,
                        rows: best,
                    };
                    if best < rows && best >= 8 {
                        assert!(best.is_multiple_of(8), "{ty:?} {cols}: {best}");
                        let waste = tile.tile_bytes(best) - best * ty.row_bytes(cols);
                        assert!(waste * 5 < tile.tile_bytes(best), "{ty:?} {cols}: {waste}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_another_place_breaks_a_tile() {
        let mut tile = [3u8; 4096];
        let crc32c = tessera_kernels::Kernels::SCALAR.crc32c;
        TileLayout::seal(&mut tile, 8192, crc32c);
        assert!(TileLayout::is_intact(&tile, 8192, crc32c));
        assert!(!TileLayout::is_intact(&tile, 4096, crc32c));
        for at in [0, 77, 4091, 4092, 4095] {
            tile[at] ^= 16;
            assert!(!TileLayout::is_intact(&tile, 8192, crc32c), "byte {at}");
            tile[at] ^= 16;
        }
    }
}
