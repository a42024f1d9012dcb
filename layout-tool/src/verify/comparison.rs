//! How close an image is to its source.

use std::fmt;

use tessera_kernels::{Loss, Rows, WeightType};

use crate::pack::{Fidelity, relative_error};
use crate::source::SourceType;

/// Relative RMS error of rounded weights beyond which they are not those of the source.
const ROUNDED_MAX: f64 = 0.25;
/// The same where only scales were rounded.
const CODES_MAX: f64 = 0.002;

/// Weights that play one part and were stored in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KindComparison {
    /// Which matrices.
    pub name: &'static str,
    /// How the source stores them.
    pub from: SourceType,
    /// How the image does.
    pub to: WeightType,
    /// How close they should be.
    pub fidelity: Fidelity,
    /// Number of weights.
    pub weights: u64,
    /// Weights that are not the same float.
    pub unequal: u64,
    /// Largest difference.
    pub max_error: f32,
    /// Squared differences.
    pub loss: Loss,
}

/// Something in which image and source differ and should not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mismatch {
    /// A hyper-parameter or a special token.
    Field(&'static str),
    /// Norms, biases, routers, rotary frequencies: the first that differs, of all.
    Vectors {
        /// Index of the float.
        index: usize,
    },
    /// A text.
    Text(&'static str),
    /// Neurons past those of the source are not zero.
    PaddingNeurons,
    /// Weights are not as close as they should be.
    Weights {
        /// Which matrices.
        name: &'static str,
        /// Weights that are not the same float.
        unequal: u64,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(what) => write!(f, "{what} is not that of the source"),
            Self::Vectors { index } => {
                write!(f, "float {index} of the vectors is not that of the source")
            }
            Self::Text(what) => write!(f, "the {what} is not that of the source"),
            Self::PaddingNeurons => write!(f, "neurons that the source lacks are not zero"),
            Self::Weights { name, unequal } => {
                write!(
                    f,
                    "{unequal} weights of {name} are further from the source than rounding"
                )
            }
        }
    }
}

/// An image beside its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// How close weights are.
    pub kinds: Vec<KindComparison>,
    /// What should not be; empty where the image is that of the source.
    pub mismatches: Vec<Mismatch>,
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "weights        source  image        count    unequal  max error  RMS, relative"
        )?;
        for kind in &self.kinds {
            let exact = if kind.unequal == 0 {
                "exact".to_owned()
            } else {
                kind.unequal.to_string()
            };
            writeln!(
                f,
                "{:<14} {:<7} {:<5} {:>12} {exact:>10} {:>10.3e} {:>9.4} %",
                kind.name,
                kind.from.name(),
                kind.to.name(),
                kind.weights,
                kind.max_error,
                100.0 * relative_error(kind.loss)
            )?;
        }
        for mismatch in &self.mismatches {
            writeln!(f, "{mismatch}")?;
        }
        let end = if self.mismatches.is_empty() {
            "the image is that of the source"
        } else {
            "the image is not that of the source, pack it again"
        };
        write!(f, "{end}")
    }
}

impl KindComparison {
    /// No weights yet.
    pub(super) fn new(
        name: &'static str,
        from: SourceType,
        to: WeightType,
        fidelity: Fidelity,
    ) -> Self {
        let loss = Loss::default();
        KindComparison {
            name,
            from,
            to,
            fidelity,
            weights: 0,
            unequal: 0,
            max_error: 0.0,
            loss,
        }
    }

    /// Adds rows `range` of the image; `want` has the weights of all its rows in the source.
    pub(super) fn add_rows(
        &mut self,
        rows: &Rows<'_>,
        range: std::ops::Range<usize>,
        want: &[f32],
        have: &mut Vec<f32>,
    ) {
        have.resize(rows.cols(), 0.0);
        for row in range {
            let want = &want[row * rows.cols()..][..rows.cols()];
            rows.dequantize(row, have);
            self.loss.add_row(want, have);
            self.weights += want.len() as u64;
            for (want, have) in want.iter().zip(&*have) {
                self.unequal += u64::from(want != have);
                self.max_error = self.max_error.max((want - have).abs());
            }
        }
    }

    /// Adds another piece of the same kind; true if it is of the same kind.
    pub(super) fn add(&mut self, other: &KindComparison) -> bool {
        let same = (self.name, self.from, self.to) == (other.name, other.from, other.to);
        if same {
            self.weights += other.weights;
            self.unequal += other.unequal;
            self.max_error = self.max_error.max(other.max_error);
            self.loss = self.loss + other.loss;
        }
        same
    }

    /// True if the weights are as close to the source as they should be.
    pub fn is_good(&self) -> bool {
        match self.fidelity {
            Fidelity::Exact => self.unequal == 0,
            Fidelity::Codes => relative_error(self.loss) <= CODES_MAX,
            Fidelity::Rounded => relative_error(self.loss) <= ROUNDED_MAX,
        }
    }
}
