//! Bundles: gate rows, up rows and down columns of neighbouring neurons, in two parts.

use core::ops::Range;

use tessera_kernels::{BLOCK, GROUP, Rows, Soon, WeightType, zip_row};

use super::PAGE_BYTES;
use super::checksum_of_offset;
use super::field::{put_u32, u32_at};

/// Bytes at the end of the first part that hold the checksums of the rest and of the first part.
const CRC_BYTES: usize = 8;
/// In memory, parts begin at multiples of this: lines of the caches.
const LINE_BYTES: usize = 64;

/// Layout of a bundle of k neurons over a residual stream of `dim` elements.
///
/// First part, whole pages: gate codes (k rows), gate scales, up scales, down scales (k rows each),
/// zeros, CRC-32C of the second part, CRC-32C of the bundle's offset in the image (u64) and all
/// that precedes in the first part. Second part, whole pages: up codes, down codes (k rows each),
/// zeros. All three are rows over `dim`: a down column is stored as a row. Where k is a whole
/// group, the down codes are zipped ([`zip_row`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleLayout {
    /// Width of the residual stream.
    pub dim: usize,
    /// Neurons of a bundle.
    pub neurons: usize,
    /// Type of the gate rows.
    pub gate: WeightType,
    /// Type of the up rows.
    pub up: WeightType,
    /// Type of the down columns.
    pub down: WeightType,
}

/// The three matrices' rows of one bundle.
#[derive(Debug, Clone, Copy)]
pub struct BundleParts<'a> {
    /// Gate rows (k, dim).
    pub gate: Rows<'a>,
    /// Up rows (k, dim).
    pub up: Rows<'a>,
    /// Down columns as rows (k, dim).
    pub down: Rows<'a>,
}

/// One of the three matrices of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FfnMatrix {
    /// A row a neuron.
    Gate,
    /// A row a neuron.
    Up,
    /// A column a neuron, stored as a row.
    Down,
}

impl FfnMatrix {
    /// All, as they stand in a bundle.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];
}

/// Byte ranges of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRanges {
    /// First part: gate codes and all scales.
    pub first: Range<usize>,
    /// Codes of the up rows.
    pub up_codes: Range<usize>,
    /// Codes of the down columns.
    pub down_codes: Range<usize>,
}

/// Where each run of bytes begins.
#[derive(Clone, Copy)]
struct Places {
    gate_scales: usize,
    up_scales: usize,
    down_scales: usize,
    down_scales_end: usize,
    up_codes: usize,
    down_codes: usize,
    down_codes_end: usize,
}

/// A layout whose places are worked out, for bundles as they stand in the image or, without what
/// fills pages up, in memory.
#[derive(Clone, Copy)]
pub struct BundleReader {
    layout: BundleLayout,
    places: Places,
    bytes: usize,
}

/// Bundles of neighbouring neurons, and how to read them.
#[derive(Clone, Copy)]
pub struct Bundles<'a> {
    /// Where their parts stand.
    pub reader: BundleReader,
    /// Whole bundles, one after the other.
    pub bytes: &'a [u8],
}

impl BundleReader {
    /// Bytes of `neurons` neurons, whole bundles.
    #[inline]
    pub const fn run_bytes(&self, neurons: usize) -> usize {
        neurons / self.layout.neurons * self.bytes
    }

    /// The matrices' rows of a whole bundle, or of several that follow each other.
    ///
    /// # Panics
    /// If these are not whole bundles.
    #[inline]
    pub fn view<'a>(&self, bundles: &'a [u8]) -> BundleParts<'a> {
        let (layout, p) = (&self.layout, &self.places);
        assert!(bundles.len().is_multiple_of(self.bytes));
        let neurons = bundles.len() / self.bytes * layout.neurons;
        let rows = |ty, codes: usize, scales: usize| {
            let (codes, scales) = (&bundles[codes..], &bundles[scales..]);
            let (k, stride) = (layout.neurons, self.bytes);
            Rows::spread(ty, neurons, layout.dim, codes, scales, k, stride)
        };
        let down = rows(layout.down, p.down_codes, p.down_scales);
        BundleParts {
            gate: rows(layout.gate, 0, p.gate_scales),
            up: rows(layout.up, p.up_codes, p.up_scales),
            down: if layout.down_is_zipped() {
                down.zipped()
            } else {
                down.in_order()
            },
        }
    }

    /// Neurons of a bundle.
    #[inline]
    pub const fn neurons(&self) -> usize {
        self.layout.neurons
    }

    /// Codes and scales of the gate row of neuron `index` of one bundle.
    #[inline]
    pub fn gate_row<'a>(&self, bundle: &'a [u8], index: usize) -> (&'a [u8], &'a [u8]) {
        self.row(
            bundle,
            self.layout.gate,
            [0, self.places.gate_scales],
            index,
        )
    }

    /// The same of its up row.
    #[inline]
    pub fn up_row<'a>(&self, bundle: &'a [u8], index: usize) -> (&'a [u8], &'a [u8]) {
        let at = [self.places.up_codes, self.places.up_scales];
        self.row(bundle, self.layout.up, at, index)
    }

    /// The same of its down column, which is not zipped.
    #[inline]
    pub fn down_row<'a>(&self, bundle: &'a [u8], index: usize) -> (&'a [u8], &'a [u8]) {
        debug_assert!(!self.layout.down_is_zipped());
        let at = [self.places.down_codes, self.places.down_scales];
        self.row(bundle, self.layout.down, at, index)
    }

    #[inline]
    fn row<'a>(
        &self,
        bundle: &'a [u8],
        ty: WeightType,
        [codes, scales]: [usize; 2],
        index: usize,
    ) -> (&'a [u8], &'a [u8]) {
        assert!(index < self.layout.neurons && bundle.len() == self.bytes);
        let (code, scale) = (
            ty.code_bytes(self.layout.dim),
            ty.scale_bytes(self.layout.dim),
        );
        let of = |at: usize, bytes: usize| &bundle[at + index * bytes..][..bytes];
        (of(codes, code), of(scales, scale))
    }

    /// The first parts of `bundles`, which follow each other, without what fills them up.
    #[inline]
    pub fn firsts<'a>(&self, bundles: &'a [u8]) -> Soon<'a> {
        Soon::stretches(bundles, self.bytes, self.places.down_scales_end)
    }

    /// Their codes of the up rows.
    #[inline]
    pub fn up_codes<'a>(&self, bundles: &'a [u8]) -> Soon<'a> {
        let (start, end) = (self.places.up_codes, self.places.down_codes);
        Soon::stretches(&bundles[start..], self.bytes, end - start)
    }

    /// Their codes of the down columns.
    #[inline]
    pub fn down_codes<'a>(&self, bundles: &'a [u8]) -> Soon<'a> {
        let (start, end) = (self.places.down_codes, self.places.down_codes_end);
        Soon::stretches(&bundles[start..], self.bytes, end - start)
    }

    /// Codes of the outputs `cols`, which begin at a pair of blocks, of the zipped down columns of
    /// one bundle; nothing of others.
    #[inline]
    pub fn down_strip<'a>(&self, bundle: &'a [u8], cols: &Range<usize>) -> Soon<'a> {
        if !self.layout.down_is_zipped() {
            return Soon::default();
        }
        let pair_bytes = self.layout.neurons * self.layout.down.code_bytes(2 * BLOCK);
        let codes = &bundle[self.places.down_codes..self.places.down_codes_end];
        let end = (cols.end.div_ceil(2 * BLOCK) * pair_bytes).min(codes.len());
        Soon::from(&codes[cols.start / (2 * BLOCK) * pair_bytes..end])
    }
}

impl BundleLayout {
    /// Where everything stands if parts begin at multiples of `align`.
    const fn places(&self, align: usize) -> Places {
        let (k, dim) = (self.neurons, self.dim);
        let gate_scales = k * self.gate.code_bytes(dim);
        let up_scales = gate_scales + k * self.gate.scale_bytes(dim);
        let down_scales = up_scales + k * self.up.scale_bytes(dim);
        let down_scales_end = down_scales + k * self.down.scale_bytes(dim);
        let up_codes = (down_scales_end + CRC_BYTES).next_multiple_of(align);
        let down_codes = up_codes + k * self.up.code_bytes(dim);
        let down_codes_end = down_codes + k * self.down.code_bytes(dim);
        Places {
            gate_scales,
            up_scales,
            down_scales,
            down_scales_end,
            up_codes,
            down_codes,
            down_codes_end,
        }
    }

    /// Where the parts stand that are read one after the other.
    pub const fn parts(&self) -> PartRanges {
        let p = self.places(PAGE_BYTES);
        PartRanges {
            first: 0..p.up_codes,
            up_codes: p.up_codes..p.down_codes,
            down_codes: p.down_codes..p.down_codes_end,
        }
    }

    /// Bytes of the first part.
    pub const fn first_bytes(&self) -> usize {
        self.places(PAGE_BYTES).up_codes
    }

    /// Bytes of a bundle in the image.
    pub const fn bytes(&self) -> usize {
        self.reader().bytes
    }

    /// Bytes of a bundle in memory.
    pub const fn packed_bytes(&self) -> usize {
        self.packed_reader().bytes
    }

    /// True if the codes of the down columns are zipped: bundles of a whole group, whose columns
    /// are only used together.
    pub const fn down_is_zipped(&self) -> bool {
        self.neurons == GROUP && self.down.is_quantized()
    }

    /// Bytes of a bundle that are weights.
    pub const fn weight_bytes(&self) -> usize {
        let dim = self.dim;
        let row = self.gate.row_bytes(dim) + self.up.row_bytes(dim) + self.down.row_bytes(dim);
        self.neurons * row
    }

    /// The matrices' rows of a whole bundle.
    pub fn view<'a>(&self, bundle: &'a [u8]) -> BundleParts<'a> {
        self.reader().view(bundle)
    }

    /// For many views.
    pub const fn reader(&self) -> BundleReader {
        self.reader_of(PAGE_BYTES)
    }

    /// For views of bundles as they stay in memory.
    pub const fn packed_reader(&self) -> BundleReader {
        self.reader_of(LINE_BYTES)
    }

    const fn reader_of(&self, align: usize) -> BundleReader {
        let places = self.places(align);
        BundleReader {
            layout: *self,
            places,
            bytes: places.down_codes_end.next_multiple_of(align),
        }
    }

    /// Copies a bundle of the image into the place that it has in memory.
    pub fn pack(&self, bundle: &[u8], packed: &mut [u8]) {
        let (first, rest) = bundle.split_at(self.first_bytes());
        self.pack_first(first, packed);
        self.pack_rest(rest, packed);
    }

    /// The same of the first part: its rows, and the checksum of the rest.
    pub fn pack_first(&self, first: &[u8], packed: &mut [u8]) {
        let end = self.places(LINE_BYTES).down_scales_end;
        packed[..end].copy_from_slice(&first[..end]);
        packed[end..end + CRC_BYTES].copy_from_slice(&first[first.len() - CRC_BYTES..]);
    }

    /// The same of the second part.
    pub fn pack_rest(&self, rest: &[u8], packed: &mut [u8]) {
        let p = self.places(LINE_BYTES);
        let codes = &mut packed[p.up_codes..p.down_codes_end];
        codes.copy_from_slice(&rest[..codes.len()]);
    }

    /// True if `rest` is the second part that belongs to the first part that was packed.
    pub fn rest_fits(&self, packed: &[u8], rest: &[u8], crc32c: fn(u32, &[u8]) -> u32) -> bool {
        crc32c(0, rest) == u32_at(packed, self.places(LINE_BYTES).down_scales_end)
    }

    /// Puts neuron `index`'s rows, codes and scales of each matrix, in their places.
    ///
    /// # Panics
    /// As [`BundleLayout::put_row`].
    pub fn put_neuron(&self, bundle: &mut [u8], index: usize, rows: [(&[u8], &[u8]); 3]) {
        for (which, row) in FfnMatrix::ALL.into_iter().zip(rows) {
            self.put_row(bundle, index, which, row);
        }
    }

    /// Puts codes and scales of neuron `index`'s row of one matrix in their places. Those of a down
    /// column are in order; where they stand zipped, they are zipped here.
    ///
    /// # Panics
    /// If there is no such neuron, or a length does not fit.
    pub fn put_row(
        &self,
        bundle: &mut [u8],
        index: usize,
        which: FfnMatrix,
        (codes, scales): (&[u8], &[u8]),
    ) {
        assert!(index < self.neurons, "neuron {index} of {}", self.neurons);
        let p = self.places(PAGE_BYTES);
        let (ty, codes_at, scales_at) = match which {
            FfnMatrix::Gate => (self.gate, 0, p.gate_scales),
            FfnMatrix::Up => (self.up, p.up_codes, p.up_scales),
            FfnMatrix::Down => (self.down, p.down_codes, p.down_scales),
        };
        let (code, scale) = (ty.code_bytes(self.dim), ty.scale_bytes(self.dim));
        let all_codes = &mut bundle[codes_at..][..self.neurons * code];
        if which == FfnMatrix::Down && self.down_is_zipped() {
            zip_row(ty, self.dim, index, codes, all_codes);
        } else {
            all_codes[index * code..][..code].copy_from_slice(codes);
        }
        bundle[scales_at + index * scale..][..scale].copy_from_slice(scales);
    }

    /// Writes the checksums of a finished bundle that will lie at `offset`; returns the first
    /// part's, which covers all. `crc32c` is the kernel that computes them.
    pub fn seal(&self, bundle: &mut [u8], offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> u32 {
        let (first, rest) = bundle.split_at_mut(self.first_bytes());
        let at = first.len() - CRC_BYTES;
        put_u32(first, at, crc32c(0, rest));
        let crc = crc32c(checksum_of_offset(offset, crc32c), &first[..at + 4]);
        put_u32(first, at + 4, crc);
        crc
    }

    /// True if this is the bundle that belongs at `offset`, and both its checksums are right.
    pub fn is_intact(&self, bundle: &[u8], offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> bool {
        let (first, rest) = bundle.split_at(self.first_bytes());
        let rest_crc = u32_at(first, first.len() - CRC_BYTES);
        self.first_is_intact(first, offset, crc32c) && crc32c(0, rest) == rest_crc
    }

    /// The same of the first part alone.
    pub fn first_is_intact(
        &self,
        first: &[u8],
        offset: u64,
        crc32c: fn(u32, &[u8]) -> u32,
    ) -> bool {
        let at = first.len() - CRC_BYTES;
        let seed = checksum_of_offset(offset, crc32c);
        crc32c(seed, &first[..at + 4]) == u32_at(first, at + 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PAPER: 4-bit bundles of a 4,096-wide model are two pages, the gate in the first (F1, F2).
    #[test]
    fn a_4bit_neuron_of_4096_is_two_pages() {
        let ty = WeightType::Q4;
        let layout = BundleLayout {
            dim: 4096,
            neurons: 1,
            gate: ty,
            up: ty,
            down: ty,
        };
        assert_eq!((layout.first_bytes(), layout.bytes()), (4096, 8192));
    }

    #[test]
    fn down_columns_of_a_whole_group_are_zipped_and_read_back() {
        let (gate, up, down) = (WeightType::F16, WeightType::Q4, WeightType::Q8);
        let layout = |neurons| BundleLayout {
            dim: 96,
            neurons,
            gate,
            up,
            down,
        };
        for layout in [layout(16), layout(GROUP)] {
            let mut bundle = vec![0u8; layout.bytes()];
            let codes = |index: usize| [index as u8 * 3 + 1; 96];
            for index in 0..layout.neurons {
                let row = (&codes(index)[..], &[7; 6][..]);
                layout.put_row(&mut bundle, index, FfnMatrix::Down, row);
            }
            let view = layout.view(&bundle);
            let (at, mut got) = (layout.parts().down_codes.start, [0; 96]);
            assert_eq!(view.down.are_zipped(), layout.neurons == GROUP);
            // Neurons side by side, or one after the other.
            let second = if view.down.are_zipped() { 4 } else { 1 };
            assert_eq!(bundle[at..at + 2], [1, second]);
            for index in 0..layout.neurons {
                view.down.copy_codes(index, &mut got);
                assert_eq!(got, codes(index));
            }
        }
    }

    #[test]
    fn every_part_reads_back_and_every_byte_is_checked() {
        let (gate, up, down) = (WeightType::Q4O, WeightType::Q4, WeightType::Q8);
        let layout = BundleLayout {
            dim: 64,
            neurons: 2,
            gate,
            up,
            down,
        };
        let mut bundle = [0u8; 8192];
        assert_eq!(layout.bytes(), bundle.len());
        for index in 0..2u8 {
            layout.put_neuron(
                &mut bundle,
                index as usize,
                [
                    (&[1 + index; 32], &[11 + index; 8]),
                    (&[3 + index; 32], &[13 + index; 4]),
                    (&[5 + index; 64], &[15 + index; 4]),
                ],
            );
        }
        let crc32c = tessera_kernels::Kernels::SCALAR.crc32c;
        layout.seal(&mut bundle, 4096, crc32c);
        let parts = layout.view(&bundle);
        for index in 0..2 {
            let step = index as u8;
            assert_eq!(parts.gate.codes(index), [1 + step; 32]);
            assert_eq!(parts.up.scales(index), [13 + step; 4]);
            assert_eq!(parts.down.codes(index), [5 + step; 64]);
            assert_eq!(parts.down.scales(index), [15 + step; 4]);
        }
        assert!(layout.is_intact(&bundle, 4096, crc32c));

        let mut packed = [0; 320];
        assert_eq!(layout.packed_bytes(), packed.len());
        layout.pack(&bundle, &mut packed);
        let here = layout.packed_reader().view(&packed);
        for index in 0..2 {
            for (here, there) in [
                (here.gate, parts.gate),
                (here.up, parts.up),
                (here.down, parts.down),
            ] {
                assert_eq!(here.codes(index), there.codes(index));
                assert_eq!(here.scales(index), there.scales(index));
            }
        }
        assert!(layout.rest_fits(&packed, &bundle[4096..], crc32c));
        assert!(!layout.rest_fits(&packed, &bundle[..4096], crc32c));
        assert!(!layout.is_intact(&bundle, 0, crc32c));
        for at in 0..bundle.len() {
            bundle[at] ^= 1;
            assert!(!layout.is_intact(&bundle, 4096, crc32c), "byte {at}");
            bundle[at] ^= 1;
        }
    }
}
