//! What an image says of the sparsity of its activations: predictors and statistics.

use std::fmt;

use serde_json::{Map, Value};
use tessera_runtime::format::{
    BATCHES, Image, PredictorError, PredictorLayout, Quality, Section, SectionKind, Statistics,
    StatisticsError,
};

use crate::image_file::{ImageError, ImageFile};
use crate::size;

/// A predictor or statistics that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SparsityError {
    /// They cannot be read.
    Image(ImageError),
    /// A predictor is none of its section.
    Predictor {
        /// Layer.
        layer: usize,
        /// Expert; 0 in a model without experts.
        expert: usize,
        /// What is wrong.
        error: PredictorError,
    },
    /// Statistics are none of their section.
    Statistics {
        /// Layer.
        layer: usize,
        /// Expert; 0 in a model without experts.
        expert: usize,
        /// What is wrong.
        error: StatisticsError,
    },
}

impl fmt::Display for SparsityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Predictor {
                layer,
                expert,
                error,
            } => write!(
                f,
                "layer {layer}, expert {expert}: {error}; pack the model again"
            ),
            Self::Statistics {
                layer,
                expert,
                error,
            } => write!(
                f,
                "layer {layer}, expert {expert}: {error}; pack the model again"
            ),
        }
    }
}

impl std::error::Error for SparsityError {}

impl From<ImageError> for SparsityError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

/// One predictor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictorSummary {
    /// Sizes and types.
    pub layout: PredictorLayout,
    /// How well it does.
    pub quality: Quality,
}

/// One section's statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatisticsSummary {
    /// Tokens they were taken of.
    pub tokens: u64,
    /// Magnitude below which a neuron may be skipped; 0 for none.
    pub threshold: f32,
    /// Share of the neurons that are not below it.
    pub threshold_share: f32,
    /// Mean frequency of the neurons, for batches of 1 to 8 tokens.
    pub frequencies: [f32; BATCHES],
}

/// All predictors and statistics of an image, in file order of their feed-forward sections.
/// Sections that have none are left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sparsity {
    /// Predictors.
    pub predictors: Vec<PredictorSummary>,
    /// Statistics.
    pub statistics: Vec<StatisticsSummary>,
}

/// Reads all predictors' headers and all statistics.
///
/// # Errors
/// [`SparsityError`].
pub fn sparsity(file: &ImageFile) -> Result<Sparsity, SparsityError> {
    let image = file.image();
    let mut all = Sparsity::default();
    for (layer, expert) in sections(&image) {
        if let Some(section) = image.find_of(SectionKind::Predictor, layer, expert) {
            let bytes = read(file, &section)?;
            let (dim, neurons) = (image.shape().dim, image.shape().ffn_dim);
            let parsed = PredictorLayout::parse(&bytes, dim, neurons);
            let layout = parsed.map_err(|error| SparsityError::Predictor {
                layer,
                expert,
                error,
            })?;
            let quality = Quality::of(&bytes);
            all.predictors.push(PredictorSummary { layout, quality });
        }
        if let Some(section) = image.find_of(SectionKind::Statistics, layer, expert) {
            let bytes = read(file, &section)?;
            let checked = Statistics::new_checked(&bytes, image.shape().ffn_dim);
            let statistics = checked.map_err(|error| SparsityError::Statistics {
                layer,
                expert,
                error,
            })?;
            let neurons = image.shape().ffn_dim;
            let mean = |batch: usize| {
                let all = (0..neurons).map(|neuron| f64::from(statistics.frequency(batch, neuron)));
                (all.sum::<f64>() / neurons as f64) as f32
            };
            all.statistics.push(StatisticsSummary {
                tokens: statistics.tokens(),
                threshold: statistics.threshold(),
                threshold_share: statistics.threshold_share(),
                frequencies: std::array::from_fn(|index| mean(index + 1)),
            });
        }
    }
    Ok(all)
}

fn sections(image: &Image<'_>) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (layers, experts) = (image.shape().n_layers, image.shape().n_ffns());
    (0..layers).flat_map(move |layer| (0..experts).map(move |expert| (layer, expert)))
}

fn read(file: &ImageFile, section: &Section) -> Result<Vec<u8>, SparsityError> {
    let mut bytes = vec![0; section.data_bytes as usize];
    file.read_at(section.offset, &mut bytes)?;
    Ok(bytes)
}

/// Least and mean.
fn range(values: impl Iterator<Item = f32> + Clone) -> (f32, f32) {
    let count = values.clone().count().max(1) as f32;
    let least = values.clone().fold(f32::INFINITY, f32::min);
    (least, values.sum::<f32>() / count)
}

impl Sparsity {
    /// Everything with stable keys; empty without predictors and statistics.
    pub fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let mut put = |key: &str, values: Vec<Value>| {
            if !values.is_empty() {
                map.insert(key.into(), values.into());
            }
        };
        let predictors = || self.predictors.iter();
        put(
            "predictor_rank",
            predictors().map(|p| p.layout.rank.into()).collect(),
        );
        put(
            "predictor_bytes",
            predictors().map(|p| p.layout.bytes().into()).collect(),
        );
        for (key, value) in [
            (
                "predictor_recall",
                (|quality| quality.recall) as fn(&Quality) -> f32,
            ),
            ("predictor_precision", |quality| quality.precision),
            ("active_share", |quality| quality.active_share),
        ] {
            let values = predictors().map(|p| value(&p.quality).into());
            put(key, values.collect());
        }
        let statistics = || self.statistics.iter();
        put(
            "statistics_tokens",
            statistics().map(|s| s.tokens.into()).collect(),
        );
        put(
            "activation_threshold",
            statistics().map(|s| s.threshold.into()).collect(),
        );
        put(
            "threshold_share",
            statistics().map(|s| s.threshold_share.into()).collect(),
        );
        let frequencies = statistics().map(|s| s.frequencies.to_vec().into());
        put("frequency_by_batch", frequencies.collect());
        map
    }
}

impl fmt::Display for Sparsity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(PredictorSummary { layout, .. }) = self.predictors.first() {
            let bytes = self.predictors.iter().map(|p| p.layout.bytes() as u64);
            let ranks = self.predictors.iter().map(|p| p.layout.rank);
            let least = ranks.clone().min().unwrap_or(0);
            let rank = match ranks.max() {
                Some(most) if most != least => format!("{least} to {most}"),
                _ => least.to_string(),
            };
            let of = |value: fn(&Quality) -> f32| {
                range(self.predictors.iter().map(move |p| value(&p.quality)))
            };
            let recall = of(|quality| quality.recall);
            let precision = of(|quality| quality.precision);
            write!(
                f,
                "predictors of rank {rank} ({}, {}): {}, recall {:.4} (least {:.4}), precision \
                 {:.3} (least {:.3}), {:.1} % of the neurons active",
                layout.first.name(),
                layout.second.name(),
                size::text(bytes.sum()),
                recall.1,
                recall.0,
                precision.1,
                precision.0,
                100.0 * of(|quality| quality.active_share).1
            )?;
        }
        if let Some(first) = self.statistics.first() {
            if !self.predictors.is_empty() {
                writeln!(f)?;
            }
            let batch = |batch: usize| {
                100.0 * range(self.statistics.iter().map(|s| s.frequencies[batch - 1])).1
            };
            write!(
                f,
                "statistics of {} tokens: of the neurons {:.1} % are active for a token, {:.1} % \
                 for some of four, {:.1} % of eight",
                first.tokens,
                batch(1),
                batch(4),
                batch(8)
            )?;
            if first.threshold > 0.0 {
                let share = range(self.statistics.iter().map(|s| s.threshold_share)).1;
                write!(f, "; {:.1} % above the threshold", 100.0 * share)?;
            }
        }
        Ok(())
    }
}
