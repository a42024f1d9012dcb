//! Weight types and the bytes they take.

/// Columns that share one scale.
pub const BLOCK: usize = 32;

/// Columns that share one pair of f16 scales in the super-block types.
pub const SUPER_BLOCK: usize = 256;

/// Consecutive neurons whose down products share one 8-bit rounding (see the crate docs).
pub const GROUP: usize = 32;

/// Outputs of a strip of [`down_group_many`](crate::Kernels::down_group_many) are a multiple of
/// this, but for the last ones: codes stand in pairs of blocks.
pub const STRIP: usize = 2 * BLOCK;

/// How weights are stored. The numbers are part of the image format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum WeightType {
    /// 32-bit floats: the reference path.
    F32 = 0,
    /// IEEE half floats.
    F16 = 1,
    /// 8-bit symmetric, one f16 scale a block.
    Q8 = 2,
    /// 4-bit symmetric around 8, one f16 scale a block.
    Q4 = 3,
    /// 4-bit with offset: f16 scale and f16 minimum a block.
    Q4O = 4,
    /// 6-bit symmetric around 32, one f16 scale a block.
    Q6 = 5,
    /// 5-bit symmetric around 16, one f16 scale a block.
    Q5 = 6,
    /// 4-bit with offset in super-blocks: two f16 for 256 columns, a 6-bit scale and a 6-bit
    /// minimum a block.
    Q4K = 7,
}

impl WeightType {
    /// All types, in the order of their numbers.
    pub const ALL: [WeightType; 8] = [
        Self::F32,
        Self::F16,
        Self::Q8,
        Self::Q4,
        Self::Q4O,
        Self::Q6,
        Self::Q5,
        Self::Q4K,
    ];

    /// The type with this number in an image.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            2 => Some(Self::Q8),
            3 => Some(Self::Q4),
            4 => Some(Self::Q4O),
            5 => Some(Self::Q6),
            6 => Some(Self::Q5),
            7 => Some(Self::Q4K),
            _ => None,
        }
    }

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4 => "q4",
            Self::Q4O => "q4o",
            Self::Q6 => "q6",
            Self::Q5 => "q5",
            Self::Q4K => "q4k",
        }
    }

    /// True for the types whose activations are rounded to 8 bits.
    pub const fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16)
    }

    /// True for the types whose weights are `d * q + m`.
    pub const fn has_offset(self) -> bool {
        matches!(self, Self::Q4O | Self::Q4K)
    }

    /// What the columns of a row are a multiple of.
    pub const fn cols_multiple(self) -> usize {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q4K => SUPER_BLOCK,
            _ => BLOCK,
        }
    }

    /// Bytes of one row's codes; `cols` is a multiple of [`WeightType::cols_multiple`].
    pub const fn code_bytes(self, cols: usize) -> usize {
        match self {
            Self::F32 => cols * 4,
            Self::F16 => cols * 2,
            Self::Q8 => cols,
            Self::Q4 | Self::Q4O | Self::Q4K => cols.div_ceil(2 * BLOCK) * BLOCK,
            Self::Q5 => cols.div_ceil(2 * BLOCK) * (BLOCK + BLOCK / 4),
            Self::Q6 => cols.div_ceil(2 * BLOCK) * (BLOCK + BLOCK / 2),
        }
    }

    /// Bytes of one row's scales (and minima).
    pub const fn scale_bytes(self, cols: usize) -> usize {
        match self {
            Self::F32 | Self::F16 => 0,
            Self::Q8 | Self::Q4 | Self::Q5 | Self::Q6 | Self::Q4K => cols / BLOCK * 2,
            Self::Q4O => cols / BLOCK * 4,
        }
    }

    /// Bytes of one row, codes and scales.
    pub const fn row_bytes(self, cols: usize) -> usize {
        self.code_bytes(cols) + self.scale_bytes(cols)
    }
}
