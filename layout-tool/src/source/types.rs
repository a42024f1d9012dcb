//! Types that stored weights can have.

/// How a source tensor is stored. The names are ggml's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// 4 bits around 8, blocks of 32.
    Q4_0,
    /// 4 bits with a minimum, blocks of 32.
    Q4_1,
    /// 5 bits around 16, blocks of 32.
    Q5_0,
    /// 5 bits with a minimum, blocks of 32.
    Q5_1,
    /// 8 bits, blocks of 32.
    Q8_0,
    /// 2 bits, super-blocks of 256.
    Q2K,
    /// 3 bits, super-blocks of 256.
    Q3K,
    /// 4 bits, super-blocks of 256.
    Q4K,
    /// 5 bits, super-blocks of 256.
    Q5K,
    /// 6 bits, super-blocks of 256.
    Q6K,
    /// 4 bits that index a table of 16 values, blocks of 32.
    Iq4Nl,
}

impl SourceType {
    /// Every type that can be read, in ggml's order but for BF16.
    pub const ALL: [SourceType; 14] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
    ];

    /// The type with this number in a GGUF file, if it can be read.
    pub const fn from_ggml(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            20 => Self::Iq4Nl,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// ggml's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
        }
    }

    /// Weights that are stored together; a row is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of one row of `cols` weights; `None` if they are no whole blocks, or too many.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The names of all types that can be read, for error messages.
    pub fn list() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

/// ggml's name for a tensor type number, whether it can be read or not.
pub(crate) fn ggml_type_name(id: u32) -> &'static str {
    if let Some(ty) = SourceType::from_ggml(id) {
        return ty.name();
    }
    match id {
        4 => "Q4_2 (removed)",
        5 => "Q4_3 (removed)",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4 (removed)",
        32 => "Q4_0_4_8 (removed)",
        33 => "Q4_0_8_8 (removed)",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4 (removed)",
        37 => "IQ4_NL_4_8 (removed)",
        38 => "IQ4_NL_8_8 (removed)",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => "unknown",
    }
}

#[test]
fn a_row_is_a_whole_number_of_blocks() {
    assert_eq!(SourceType::Q4_0.row_bytes(64), Some(36));
    assert_eq!(SourceType::Q4_0.row_bytes(48), None);
    assert_eq!(SourceType::Q6K.row_bytes(576), None);
    assert_eq!(SourceType::Q8_0.row_bytes(usize::MAX & !31), None);
    assert_eq!(SourceType::F32.row_bytes(usize::MAX), None);
    for id in 0..64 {
        if let Some(ty) = SourceType::from_ggml(id) {
            assert_eq!(ggml_type_name(id), ty.name());
        }
    }
}
