//! A checked view of an image's superblock and section table.

use tessera_kernels::WeightType;

use super::bundle::BundleLayout;
use super::matrix::{FfnMap, MatrixMap, TileLayout};
use super::section::{ENTRY_BYTES, NO_INDEX, Section, SectionKind};
use super::superblock::Superblock;
use super::vectors::VectorsLayout;
use super::{FormatError, PAGE_BYTES, SECTION_ALIGN_BYTES, checksum};
use crate::limits::UNIT_BYTES_MAX;
use crate::shape::Shape;

/// A unit of weights that is read and checked as one, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct UnitId {
    /// Number of the section's kind (see [`SectionKind`]).
    pub kind: u16,
    /// Layer, or [`NO_INDEX`].
    pub layer: u16,
    /// Expert, or [`NO_INDEX`].
    pub expert: u16,
    /// Tile or bundle within the section.
    pub unit: u32,
}

impl core::fmt::Display for UnitId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let kind = SectionKind::from_u16(self.kind);
        let word = if kind == Some(SectionKind::Ffn) {
            "bundle"
        } else {
            "tile"
        };
        write!(f, "{}", kind.map_or("unknown section", SectionKind::name))?;
        if self.layer != NO_INDEX {
            write!(f, ", layer {}", self.layer)?;
        }
        if self.expert != NO_INDEX {
            write!(f, ", expert {}", self.expert)?;
        }
        if kind.is_none_or(|kind| !kind.is_blob()) {
            write!(f, ", {word} {}", self.unit)?;
        }
        Ok(())
    }
}

/// A checked view of an image's first bytes: superblock and section table.
///
/// The table's order is fixed, so that a section is found by arithmetic: vectors, embedding (unless
/// tied), for each layer q, k, v, o and its feed-forward sections, lm_head, then any others.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    superblock: Superblock,
    table: &'a [u8],
}

impl<'a> Image<'a> {
    /// Bytes from the image's start that [`Image::new_checked`] needs; `superblock` is its first
    /// [`super::SUPERBLOCK_BYTES`], `file_bytes` the size of what holds the image.
    pub fn head_bytes(superblock: &[u8], file_bytes: u64) -> Result<u64, FormatError> {
        let parsed = Superblock::parse(superblock, file_bytes)?;
        let need_bytes = parsed
            .table_offset
            .checked_add(parsed.table_entries as u64 * ENTRY_BYTES as u64)
            .filter(|&end| end <= parsed.image_bytes)
            .ok_or(FormatError::Truncated {
                have_bytes: parsed.image_bytes,
                need_bytes: parsed.table_offset,
            })?;
        Ok(need_bytes)
    }

    /// Checks the superblock, the table and every relation between shape and sections.
    pub fn new_checked(head: &'a [u8], file_bytes: u64) -> Result<Self, FormatError> {
        let need_bytes = Self::head_bytes(head, file_bytes)?;
        let have_bytes = head.len() as u64;
        if have_bytes < need_bytes {
            return Err(FormatError::Truncated {
                have_bytes,
                need_bytes,
            });
        }
        let superblock = Superblock::parse(head, file_bytes)?;
        let table = &head[superblock.table_offset as usize..need_bytes as usize];
        if checksum(table) != superblock.table_crc {
            return Err(FormatError::TableChecksum);
        }
        let image = Image { superblock, table };
        image.check_entries()?;
        Ok(image)
    }

    fn check_entries(&self) -> Result<(), FormatError> {
        let shape = self.shape();
        let need = self.entry_lm_head() + 1;
        let have = self.superblock.table_entries;
        if (have as usize) < need {
            return Err(FormatError::EntryCount {
                have,
                need: need as u32,
            });
        }
        let mut end = self.superblock.table_offset + self.table.len() as u64;
        for index in 0..have {
            let section = self.section(index as usize);
            end = self.check_place(index, &section, end)?;
            if let Some(kind) = SectionKind::from_u16(section.kind)
                && kind.is_blob()
                && section.data_bytes > section.bytes
            {
                let (have, want) = (section.data_bytes, section.bytes);
                return Err(FormatError::EntryField {
                    entry: index,
                    what: "data",
                    have,
                    want,
                });
            }
        }
        let vectors = VectorsLayout::new(shape).len() as u64 * 4;
        self.check_name(0, SectionKind::Vectors, NO_INDEX, NO_INDEX)?;
        self.check_field(0, "data", self.section(0).data_bytes, vectors)?;
        let (dim, vocab) = (shape.dim, shape.vocab_size);
        if !shape.tied_embeddings {
            self.check_matrix(1, SectionKind::Embedding, NO_INDEX, vocab, dim)?;
        }
        self.check_matrix(
            self.entry_lm_head(),
            SectionKind::LmHead,
            NO_INDEX,
            vocab,
            dim,
        )?;
        for layer in 0..shape.n_layers {
            let at = self.entry_layer(layer);
            let (layer, q_dim, kv_dim) = (layer as u16, shape.q_dim(), shape.kv_dim());
            self.check_matrix(at, SectionKind::AttnQ, layer, q_dim, dim)?;
            self.check_matrix(at + 1, SectionKind::AttnK, layer, kv_dim, dim)?;
            self.check_matrix(at + 2, SectionKind::AttnV, layer, kv_dim, dim)?;
            self.check_matrix(at + 3, SectionKind::AttnO, layer, dim, q_dim)?;
            for expert in 0..shape.n_ffns() {
                self.check_ffn(at + 4 + expert, layer, expert as u16)?;
            }
        }
        Ok(())
    }

    /// Sections are aligned, in order, apart, and inside the image.
    fn check_place(&self, entry: u32, section: &Section, after: u64) -> Result<u64, FormatError> {
        let Section { offset, bytes, .. } = *section;
        let align = SectionKind::from_u16(section.kind)
            .map_or(SECTION_ALIGN_BYTES, SectionKind::align_bytes);
        let end = offset.checked_add(bytes).filter(|&end| {
            offset >= after
                && end <= self.superblock.image_bytes
                && offset.is_multiple_of(align)
                && bytes.is_multiple_of(PAGE_BYTES as u64)
        });
        end.ok_or(FormatError::EntryPlace {
            entry,
            offset,
            bytes,
        })
    }

    fn check_name(
        &self,
        entry: usize,
        kind: SectionKind,
        layer: u16,
        expert: u16,
    ) -> Result<(), FormatError> {
        let section = self.section(entry);
        let index = entry as u32;
        if section.kind != kind as u16 {
            let (have, want) = (section.kind, kind as u16);
            return Err(FormatError::EntryKind {
                entry: index,
                have,
                want,
            });
        }
        self.check_field(entry, "layer", section.layer as u64, layer as u64)?;
        self.check_field(entry, "expert", section.expert as u64, expert as u64)
    }

    fn check_field(
        &self,
        entry: usize,
        what: &'static str,
        have: u64,
        want: u64,
    ) -> Result<(), FormatError> {
        let entry = entry as u32;
        if have == want {
            Ok(())
        } else {
            Err(FormatError::EntryField {
                entry,
                what,
                have,
                want,
            })
        }
    }

    fn check_type(&self, entry: usize, index: usize) -> Result<WeightType, FormatError> {
        let section = self.section(entry);
        let number = section.types[index];
        let ty = section.weight_type(index).ok_or(FormatError::WeightType {
            entry: entry as u32,
            number,
        })?;
        let (cols, multiple) = (section.cols as u64, ty.cols_multiple() as u64);
        self.check_field(entry, "cols", cols, cols.next_multiple_of(multiple))?;
        Ok(ty)
    }

    fn check_matrix(
        &self,
        entry: usize,
        kind: SectionKind,
        layer: u16,
        rows: usize,
        cols: usize,
    ) -> Result<(), FormatError> {
        self.check_name(entry, kind, layer, NO_INDEX)?;
        let section = self.section(entry);
        self.check_field(entry, "rows", section.rows as u64, rows as u64)?;
        self.check_field(entry, "cols", section.cols as u64, cols as u64)?;
        self.check_type(entry, 0)?;
        let unit_rows = section.unit_rows as usize;
        let allowed = unit_rows.clamp(1, rows) as u64;
        self.check_field(entry, "tile rows", unit_rows as u64, allowed)?;
        let map = self.matrix(entry);
        // Before sizes are computed in usize, which may have 32 bits.
        let weight_bytes = rows_bytes(unit_rows as u64, &[map.tile.ty.row_bytes(cols)]);
        let largest = weight_bytes.min(UNIT_BYTES_MAX as u64);
        self.check_field(entry, "tile bytes", weight_bytes, largest)?;
        let tile_bytes = map.tile.tile_bytes(unit_rows);
        self.check_field(
            entry,
            "tile bytes",
            section.unit_bytes as u64,
            tile_bytes as u64,
        )?;
        let largest = tile_bytes.min(UNIT_BYTES_MAX) as u64;
        self.check_field(entry, "tile bytes", tile_bytes as u64, largest)?;
        self.check_field(entry, "bytes", section.bytes, map.bytes())
    }

    fn check_ffn(&self, entry: usize, layer: u16, expert: u16) -> Result<(), FormatError> {
        let shape = self.shape();
        let expert = if shape.n_experts == 0 {
            NO_INDEX
        } else {
            expert
        };
        self.check_name(entry, SectionKind::Ffn, layer, expert)?;
        let section = self.section(entry);
        self.check_field(entry, "rows", section.rows as u64, shape.ffn_dim as u64)?;
        self.check_field(entry, "cols", section.cols as u64, shape.dim as u64)?;
        for index in 0..3 {
            self.check_type(entry, index)?;
        }
        let map = self.ffn_at(entry);
        let neurons = shape.bundle_neurons as u64;
        // Before sizes are computed in usize, which may have 32 bits.
        let types = [map.bundle.gate, map.bundle.up, map.bundle.down];
        let weight_bytes = rows_bytes(neurons, &types.map(|ty| ty.row_bytes(shape.dim)));
        let largest = weight_bytes.min(UNIT_BYTES_MAX as u64);
        self.check_field(entry, "bundle bytes", weight_bytes, largest)?;
        self.check_field(entry, "bundle neurons", section.unit_rows as u64, neurons)?;
        let first = map.bundle.first_bytes() as u64;
        self.check_field(entry, "first part", section.first_bytes as u64, first)?;
        let bytes = map.bundle.bytes();
        self.check_field(
            entry,
            "bundle bytes",
            section.unit_bytes as u64,
            bytes as u64,
        )?;
        let largest = bytes.min(UNIT_BYTES_MAX) as u64;
        self.check_field(entry, "bundle bytes", bytes as u64, largest)?;
        self.check_field(entry, "bytes", section.bytes, map.bytes())
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The model's hyper-parameters.
    pub fn shape(&self) -> &Shape {
        &self.superblock.shape
    }

    /// Number of sections.
    pub fn n_sections(&self) -> usize {
        self.superblock.table_entries as usize
    }

    /// Section `index` of the table.
    pub fn section(&self, index: usize) -> Section {
        Section::parse(&self.table[index * ENTRY_BYTES..][..ENTRY_BYTES])
    }

    /// The first section of a kind.
    pub fn find(&self, kind: SectionKind) -> Option<Section> {
        (0..self.n_sections())
            .map(|i| self.section(i))
            .find(|s| s.kind == kind as u16)
    }

    /// The section of a kind after lm_head that belongs to the feed-forward section of `layer` and
    /// `expert` (0 in a model without experts).
    pub fn find_of(&self, kind: SectionKind, layer: usize, expert: usize) -> Option<Section> {
        let expert = match self.shape().n_experts {
            0 => NO_INDEX,
            _ => expert as u16,
        };
        let name = (kind as u16, layer as u16, expert);
        (self.entry_lm_head() + 1..self.n_sections())
            .map(|index| self.section(index))
            .find(|section| (section.kind, section.layer, section.expert) == name)
    }

    fn entry_layer(&self, layer: usize) -> usize {
        let first = if self.shape().tied_embeddings { 1 } else { 2 };
        first + layer * (4 + self.shape().n_ffns())
    }

    fn entry_lm_head(&self) -> usize {
        self.entry_layer(self.shape().n_layers)
    }

    fn matrix(&self, entry: usize) -> MatrixMap {
        let section = self.section(entry);
        let ty = section.weight_type(0).unwrap_or(WeightType::F32);
        let tile = TileLayout {
            ty,
            cols: section.cols as usize,
            rows: section.unit_rows as usize,
        };
        MatrixMap {
            offset: section.offset,
            rows: section.rows as usize,
            tile,
        }
    }

    fn ffn_at(&self, entry: usize) -> FfnMap {
        let section = self.section(entry);
        let ty = |index| section.weight_type(index).unwrap_or(WeightType::F32);
        let bundle = BundleLayout {
            dim: section.cols as usize,
            neurons: self.shape().bundle_neurons,
            gate: ty(0),
            up: ty(1),
            down: ty(2),
        };
        FfnMap {
            offset: section.offset,
            neurons: section.rows as usize,
            bundle,
        }
    }

    /// The vectors section.
    pub fn vectors(&self) -> Section {
        self.section(0)
    }

    /// The embedding: its own matrix, or the lm_head's where they are tied.
    pub fn embedding(&self) -> MatrixMap {
        if self.shape().tied_embeddings {
            self.lm_head()
        } else {
            self.matrix(1)
        }
    }

    /// q, k, v and o of a layer.
    pub fn attention(&self, layer: usize) -> [MatrixMap; 4] {
        let at = self.entry_layer(layer);
        core::array::from_fn(|index| self.matrix(at + index))
    }

    /// The feed-forward section of a layer, or of one of its experts.
    pub fn ffn(&self, layer: usize, expert: usize) -> FfnMap {
        self.ffn_at(self.entry_layer(layer) + 4 + expert)
    }

    /// The output matrix.
    pub fn lm_head(&self) -> MatrixMap {
        self.matrix(self.entry_lm_head())
    }

    /// The tile or bundle that holds the byte at `offset`. Sections are in file order.
    pub fn unit_at(&self, offset: u64) -> Option<UnitId> {
        let (mut low, mut high) = (0, self.n_sections());
        while low < high {
            let middle = (low + high) / 2;
            if self.section(middle).offset <= offset {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let section = self.section(low.checked_sub(1)?);
        let within =
            (offset - section.offset < section.bytes).then_some(offset - section.offset)?;
        Some(UnitId {
            kind: section.kind,
            layer: section.layer,
            expert: section.expert,
            unit: within.checked_div(section.unit_bytes as u64).unwrap_or(0) as u32,
        })
    }
}

/// Bytes of `count` rows of each of these lengths, counted in 64 bits on every machine.
fn rows_bytes(count: u64, row_bytes: &[usize]) -> u64 {
    let one: u64 = row_bytes.iter().map(|&bytes| bytes as u64).sum();
    one.saturating_mul(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{DIM_MAX, FFN_DIM_MAX};

    /// Where `usize` has 32 bits, a unit that is too large could pass for a small one.
    #[test]
    fn sizes_of_units_do_not_wrap_in_32_bits() {
        let row_bytes = WeightType::F32.row_bytes(DIM_MAX);
        let bytes = rows_bytes(FFN_DIM_MAX as u64, &[row_bytes; 3]);
        assert_eq!((bytes, bytes as u32), (3 << 36, 0));
        assert!(bytes > UNIT_BYTES_MAX as u64);
        assert_eq!(rows_bytes(u64::MAX, &[row_bytes; 3]), u64::MAX);
        // What passes can be counted in 32 bits, the page that it is rounded up to included.
        assert!(UNIT_BYTES_MAX + 2 * PAGE_BYTES < u32::MAX as usize);
    }
}
