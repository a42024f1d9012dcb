//! What a profile found, for people.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use tessera_runtime::format::{PredictorLayout, Quality, SectionKind, Statistics};

use crate::image_file::{ImageError, ImageFile};
use crate::size;

/// One feed-forward section.
#[derive(Debug, Clone, PartialEq)]
pub struct SectionReport {
    /// Layer.
    pub layer: usize,
    /// Expert; 0 in a model without experts.
    pub expert: usize,
    /// Tokens that it served.
    pub tokens: u64,
    /// Share of the neurons that are active.
    pub active_share: f32,
    /// Magnitude below which neurons may be skipped; 0 if there is none.
    pub threshold: f32,
    /// Rank, quality and bytes of the predictor.
    pub predictor: Option<(usize, Quality, usize)>,
}

/// A profile.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileReport {
    /// Id of the new image.
    pub image_id: [u8; 16],
    /// Its size.
    pub image_bytes: u64,
    /// Tokens of the text.
    pub tokens: usize,
    /// Experts of a layer; 0 for a model without.
    pub n_experts: usize,
    /// Feed-forward sections, in file order.
    pub sections: Vec<SectionReport>,
    /// What the user should know, one sentence each.
    pub notes: Vec<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl SectionReport {
    /// What the sections `statistics` and `predictor` say, of `neurons` neurons in a model of
    /// width `dim`.
    pub(super) fn new(
        (layer, expert): (usize, usize),
        (dim, neurons): (usize, usize),
        statistics: &[u8],
        predictor: Option<&[u8]>,
    ) -> Self {
        let statistics = Statistics::new_checked(statistics, neurons);
        let (tokens, threshold, active_share) = statistics.map_or((0, 0.0, 0.0), |s| {
            (s.tokens(), s.threshold(), s.threshold_share())
        });
        let predictor = predictor.and_then(|bytes| {
            let layout = PredictorLayout::parse(bytes, dim, neurons).ok()?;
            Some((layout.rank, Quality::of(bytes), bytes.len()))
        });
        SectionReport {
            layer,
            expert,
            tokens,
            active_share,
            threshold,
            predictor,
        }
    }

    /// Those of an image; none where it was not calibrated.
    ///
    /// # Errors
    /// If the image cannot be read.
    pub fn read(file: &ImageFile) -> Result<Vec<Self>, ImageError> {
        let image = file.image();
        let shape = image.shape();
        let mut all = Vec::new();
        for index in 0..shape.n_layers * shape.n_ffns() {
            let (layer, expert) = (index / shape.n_ffns(), index % shape.n_ffns());
            let data = |kind| {
                let section = image.find_of(kind, layer, expert);
                section.map(|s| file.section_data(&s)).transpose()
            };
            let Some(statistics) = data(SectionKind::Statistics)? else {
                continue;
            };
            let predictor = data(SectionKind::Predictor)?;
            let sizes = (shape.dim, shape.ffn_dim);
            all.push(Self::new(
                (layer, expert),
                sizes,
                &statistics,
                predictor.as_deref(),
            ));
        }
        Ok(all)
    }

    /// Everything with stable keys.
    pub fn json(&self) -> Value {
        let mut value = json!({
            "layer": self.layer,
            "expert": self.expert,
            "tokens": self.tokens,
            "active_share": self.active_share,
            "threshold": self.threshold,
        });
        if let Some((rank, quality, bytes)) = self.predictor {
            value["predictor_rank"] = rank.into();
            value["predictor_recall"] = quality.recall.into();
            value["predictor_precision"] = quality.precision.into();
            value["predictor_bytes"] = bytes.into();
        }
        value
    }
}

/// A table of sections of a model with so many experts.
pub struct Table<'a>(pub &'a [SectionReport], pub usize);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layer expert   tokens   active  threshold  rank   recall  precision  predictor bytes"
        )?;
        for section in self.0 {
            let expert = match self.1 {
                0 => "-".to_owned(),
                _ => section.expert.to_string(),
            };
            let threshold = match section.threshold > 0.0 {
                true => format!("{:.3e}", section.threshold),
                false => "-".to_owned(),
            };
            let active = 100.0 * section.active_share;
            let (layer, tokens) = (section.layer, section.tokens);
            write!(
                f,
                "\n{layer:>5} {expert:>6} {tokens:>8} {active:>6.2} % {threshold:>10}"
            )?;
            match &section.predictor {
                None => write!(f, "{:>6}", "-")?,
                Some((rank, quality, bytes)) => write!(
                    f,
                    "{rank:>6} {:>6.2} % {:>8.2} % {:>16}",
                    100.0 * quality.recall,
                    100.0 * quality.precision,
                    size::grouped(*bytes as u64)
                )?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Table(&self.sections, self.n_experts))?;
        write!(
            f,
            "image {}, {}: {} tokens in {:.1} s",
            crate::inspect::hex(&self.image_id),
            size::text(self.image_bytes),
            self.tokens,
            self.elapsed.as_secs_f64()
        )
    }
}
