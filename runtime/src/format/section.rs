//! Entries of the section table.

use tessera_kernels::WeightType;

use super::field::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Size of an entry.
pub const ENTRY_BYTES: usize = 64;
/// Layer or expert of a section that has none.
pub const NO_INDEX: u16 = u16::MAX;

/// What a section holds. The numbers are part of the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u16)]
pub enum SectionKind {
    /// Norms, biases, routers, rotary frequencies: f32, see [`super::VectorsLayout`].
    Vectors = 1,
    /// One row a token, absent where the lm_head serves.
    Embedding = 2,
    /// Query projection of a layer.
    AttnQ = 3,
    /// Key projection of a layer.
    AttnK = 4,
    /// Value projection of a layer.
    AttnV = 5,
    /// Output projection of a layer.
    AttnO = 6,
    /// Bundles of a layer's feed-forward network, or of one of its experts.
    Ffn = 7,
    /// Output matrix, one row a token.
    LmHead = 8,
    /// `tokenizer.json`, UTF-8.
    Tokenizer = 9,
    /// Jinja chat template, UTF-8.
    ChatTemplate = 10,
    /// Activation statistics of a feed-forward section, see [`super::Statistics`].
    Statistics = 11,
    /// Activation predictor of a feed-forward section, see [`super::PredictorLayout`].
    Predictor = 12,
    /// A plan (reserved).
    Plan = 13,
    /// A copy of hot clusters in an NPU's own layout (reserved).
    NpuCopy = 14,
    /// Which neuron of the model stands in each place of a feed-forward section: u32 each.
    NeuronOrder = 15,
}

impl SectionKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [SectionKind; 15] = [
        Self::Vectors,
        Self::Embedding,
        Self::AttnQ,
        Self::AttnK,
        Self::AttnV,
        Self::AttnO,
        Self::Ffn,
        Self::LmHead,
        Self::Tokenizer,
        Self::ChatTemplate,
        Self::Statistics,
        Self::Predictor,
        Self::Plan,
        Self::NpuCopy,
        Self::NeuronOrder,
    ];

    /// The kind with this number.
    pub fn from_u16(number: u16) -> Option<Self> {
        Self::ALL.get((number as usize).checked_sub(1)?).copied()
    }

    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vectors => "vectors",
            Self::Embedding => "embedding",
            Self::AttnQ => "attention q",
            Self::AttnK => "attention k",
            Self::AttnV => "attention v",
            Self::AttnO => "attention o",
            Self::Ffn => "ffn",
            Self::LmHead => "lm_head",
            Self::Tokenizer => "tokenizer",
            Self::ChatTemplate => "chat template",
            Self::Statistics => "statistics",
            Self::Predictor => "predictor",
            Self::Plan => "plan",
            Self::NpuCopy => "npu copy",
            Self::NeuronOrder => "neuron order",
        }
    }

    /// Sections whose contents are one run of bytes with one checksum in the table.
    pub const fn is_blob(self) -> bool {
        matches!(
            self,
            Self::Vectors
                | Self::Tokenizer
                | Self::ChatTemplate
                | Self::Statistics
                | Self::Predictor
                | Self::Plan
                | Self::NpuCopy
                | Self::NeuronOrder
        )
    }

    /// Multiple at which a section of this kind begins.
    pub const fn align_bytes(self) -> u64 {
        match self {
            Self::AttnK | Self::AttnV | Self::AttnO => super::PAGE_BYTES as u64,
            _ => super::SECTION_ALIGN_BYTES,
        }
    }
}

/// One entry of the section table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// What it holds (a number, since newer images may have kinds that this build skips).
    pub kind: u16,
    /// Layer, or [`NO_INDEX`].
    pub layer: u16,
    /// Expert, or [`NO_INDEX`].
    pub expert: u16,
    /// Where it begins.
    pub offset: u64,
    /// Its size, whole pages.
    pub bytes: u64,
    /// Rows of the matrix; neurons of a feed-forward section.
    pub rows: u32,
    /// Columns of the matrix; width of the residual stream for a feed-forward section.
    pub cols: u32,
    /// Numbers of the weight types: of the matrix; of gate, up and down.
    pub types: [u8; 3],
    /// Rows of a tile; neurons of a bundle.
    pub unit_rows: u32,
    /// Bytes of a full tile, or of a bundle.
    pub unit_bytes: u32,
    /// Bytes of a bundle's first part; 0 for a matrix.
    pub first_bytes: u32,
    /// Bytes of a blob without its padding; 0 else.
    pub data_bytes: u64,
    /// CRC-32C of a blob's `data_bytes`; 0 else.
    pub crc: u32,
}

impl Section {
    /// An entry with nothing but its name and place.
    pub fn new(kind: SectionKind, layer: u16, expert: u16, offset: u64, bytes: u64) -> Self {
        Section {
            kind: kind as u16,
            layer,
            expert,
            offset,
            bytes,
            rows: 0,
            cols: 0,
            types: [0; 3],
            unit_rows: 0,
            unit_bytes: 0,
            first_bytes: 0,
            data_bytes: 0,
            crc: 0,
        }
    }

    /// Reads an entry; any 64 bytes are one.
    pub fn parse(bytes: &[u8]) -> Self {
        Section {
            kind: u16_at(bytes, 0),
            layer: u16_at(bytes, 2),
            expert: u16_at(bytes, 4),
            offset: u64_at(bytes, 8),
            bytes: u64_at(bytes, 16),
            rows: u32_at(bytes, 24),
            cols: u32_at(bytes, 28),
            types: [bytes[32], bytes[33], bytes[34]],
            unit_rows: u32_at(bytes, 36),
            unit_bytes: u32_at(bytes, 40),
            first_bytes: u32_at(bytes, 44),
            data_bytes: u64_at(bytes, 48),
            crc: u32_at(bytes, 56),
        }
    }

    /// Writes the entry; the inverse of [`Section::parse`].
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[..ENTRY_BYTES].fill(0);
        put_u16(bytes, 0, self.kind);
        put_u16(bytes, 2, self.layer);
        put_u16(bytes, 4, self.expert);
        put_u64(bytes, 8, self.offset);
        put_u64(bytes, 16, self.bytes);
        put_u32(bytes, 24, self.rows);
        put_u32(bytes, 28, self.cols);
        bytes[32..35].copy_from_slice(&self.types);
        put_u32(bytes, 36, self.unit_rows);
        put_u32(bytes, 40, self.unit_bytes);
        put_u32(bytes, 44, self.first_bytes);
        put_u64(bytes, 48, self.data_bytes);
        put_u32(bytes, 56, self.crc);
    }

    /// Weight type `index` of the entry.
    pub fn weight_type(&self, index: usize) -> Option<WeightType> {
        WeightType::from_u8(self.types[index])
    }
}
