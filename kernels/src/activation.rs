//! Activation functions of gated feed-forward layers.

/// How gate and up outputs become the input of the down projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(u8)]
pub enum Activation {
    /// `silu(gate) * up`, `silu(z) = z / (1 + exp(-z))`.
    Silu = 0,
    /// `gelu_tanh(gate) * up`.
    GeluTanh = 1,
    /// `relu(gate) * up`.
    Relu = 2,
    /// `relu(gate) * relu(up)` (Bamboo, TurboSparse).
    ReluBoth = 3,
}

impl Activation {
    /// The activation with this number in an image.
    pub const fn from_u8(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Silu),
            1 => Some(Self::GeluTanh),
            2 => Some(Self::Relu),
            3 => Some(Self::ReluBoth),
            _ => None,
        }
    }

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::GeluTanh => "gelu_tanh",
            Self::Relu => "relu",
            Self::ReluBoth => "relu_both",
        }
    }
}
