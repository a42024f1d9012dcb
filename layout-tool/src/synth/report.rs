//! What was made, for people and for programs.

use std::fmt;
use std::time::Duration;

use super::image::Written;
use crate::pack::view;
use crate::size;
use crate::summary::{KindSummary, Table, kinds};

/// What was made.
#[derive(Debug, Clone, PartialEq)]
pub struct SynthReport {
    /// Name of the model.
    pub name: String,
    /// Size of the file.
    pub bytes: u64,
    /// What an image has besides.
    pub image: Option<ImageReport>,
    /// How long it took.
    pub elapsed: Duration,
}

/// What is said of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageReport {
    /// Bytes and types of each kind of section.
    pub kinds: Vec<KindSummary>,
    /// Share of the neurons that was to be active for a token.
    pub activation_share: f64,
    /// Share of a token's active neurons that the process has active for the token before it.
    pub overlap: f64,
    /// Least and mean recall of the predictors.
    pub recall: [f32; 2],
    /// Least and mean precision of the predictors.
    pub precision: [f32; 2],
}

/// The least and the mean.
fn least_and_mean(values: impl Iterator<Item = f32> + Clone) -> [f32; 2] {
    let count = values.clone().count().max(1) as f32;
    let least = values.clone().fold(f32::INFINITY, f32::min);
    [least, values.sum::<f32>() / count]
}

impl SynthReport {
    pub(super) fn of_gguf(name: &str, bytes: u64, elapsed: Duration) -> Self {
        SynthReport {
            name: name.to_owned(),
            bytes,
            image: None,
            elapsed,
        }
    }

    pub(super) fn of_image(written: &Written, share: f64, elapsed: Duration) -> Self {
        let image = view(&written.head);
        let qualities = written.qualities.iter();
        SynthReport {
            name: image.superblock().name().to_owned(),
            bytes: image.superblock().image_bytes,
            image: Some(ImageReport {
                kinds: kinds(&image),
                activation_share: share,
                overlap: written.overlap,
                recall: least_and_mean(qualities.clone().map(|quality| quality.recall)),
                precision: least_and_mean(qualities.map(|quality| quality.precision)),
            }),
            elapsed,
        }
    }
}

impl fmt::Display for SynthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(image) = &self.image {
            writeln!(f, "{}", Table(&image.kinds, self.bytes))?;
            writeln!(
                f,
                "{:.1} % of the neurons active for a token, {:.1} % of them for the one before too",
                100.0 * image.activation_share,
                100.0 * image.overlap
            )?;
            writeln!(
                f,
                "predictors: recall {:.4} (least {:.4}), precision {:.3} (least {:.3})",
                image.recall[1], image.recall[0], image.precision[1], image.precision[0]
            )?;
        }
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{}: {} ({} bytes) in {seconds:.1} s, {} a second",
            self.name,
            size::text(self.bytes),
            size::grouped(self.bytes),
            size::text((self.bytes as f64 / seconds.max(1e-3)) as u64),
        )
    }
}
