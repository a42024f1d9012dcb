//! What a profile found, for people.

use std::fmt;
use std::time::Duration;

use tessera_runtime::format::Quality;

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

impl fmt::Display for ProfileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "layer expert   tokens   active  threshold  rank   recall  precision  predictor bytes"
        )?;
        for section in &self.sections {
            let expert = match self.n_experts {
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
                "{layer:>5} {expert:>6} {tokens:>8} {active:>6.2} % {threshold:>10}"
            )?;
            match &section.predictor {
                None => writeln!(f, "{:>6}", "-")?,
                Some((rank, quality, bytes)) => writeln!(
                    f,
                    "{rank:>6} {:>6.2} % {:>8.2} % {:>16}",
                    100.0 * quality.recall,
                    100.0 * quality.precision,
                    size::grouped(*bytes as u64)
                )?,
            }
        }
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
