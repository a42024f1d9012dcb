//! What was packed, for people and for programs.

use std::fmt;
use std::time::Duration;

use tessera_kernels::{Loss, WeightType};
use tessera_runtime::format::Image;

use super::down::relative_error;
use crate::size;
use crate::summary::{KindSummary, kinds};

/// The down columns of one feed-forward section.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DownReport {
    /// Layer.
    pub layer: usize,
    /// Expert; 0 in a model without experts.
    pub expert: usize,
    /// Type that was taken.
    pub ty: WeightType,
    /// What rounding to it lost.
    pub loss: Loss,
}

/// What was packed.
#[derive(Debug, Clone, PartialEq)]
pub struct PackReport {
    /// Name of the model.
    pub name: String,
    /// Id of the image.
    pub image_id: [u8; 16],
    /// Size of the image.
    pub image_bytes: u64,
    /// Bytes and types of each kind of section.
    pub kinds: Vec<KindSummary>,
    /// Down columns of each feed-forward section, in file order.
    pub down: Vec<DownReport>,
    /// Experts of a layer; 0 for a model without.
    pub n_experts: usize,
    /// Neurons of a bundle, and of a cluster.
    pub bundle_neurons: usize,
    /// Neurons of a cluster.
    pub cluster_neurons: usize,
    /// What the user should know, one sentence each.
    pub notes: Vec<String>,
    /// How long it took.
    pub elapsed: Duration,
}

impl PackReport {
    pub(super) fn new(
        image: &Image<'_>,
        losses: Vec<Loss>,
        notes: Vec<String>,
        elapsed: Duration,
    ) -> Self {
        let (shape, superblock) = (image.shape(), image.superblock());
        let n_ffns = shape.n_ffns();
        let down = losses.into_iter().enumerate().map(|(index, loss)| {
            let (layer, expert) = (index / n_ffns, index % n_ffns);
            DownReport {
                layer,
                expert,
                ty: image.ffn(layer, expert).bundle.down,
                loss,
            }
        });
        PackReport {
            name: superblock.name().to_owned(),
            image_id: superblock.image_id,
            image_bytes: superblock.image_bytes,
            kinds: kinds(image),
            down: down.collect(),
            n_experts: shape.n_experts,
            bundle_neurons: shape.bundle_neurons,
            cluster_neurons: shape.cluster_neurons,
            notes,
            elapsed,
        }
    }

    /// The loss of all down columns together.
    pub fn down_loss(&self) -> Loss {
        self.down
            .iter()
            .fold(Loss::default(), |sum, down| sum + down.loss)
    }

    fn fmt_down(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "down columns, relative RMS error of rounding them anew:")?;
        let n_layers = self.down.last().map_or(0, |last| last.layer + 1);
        for layer in 0..n_layers {
            let of_layer = || self.down.iter().filter(|down| down.layer == layer);
            let loss = of_layer().fold(Loss::default(), |sum, down| sum + down.loss);
            let mut types: Vec<&str> = of_layer().map(|down| down.ty.name()).collect();
            types.dedup();
            let end = if layer % 4 == 3 || layer + 1 == n_layers {
                "\n"
            } else {
                "   "
            };
            let (types, error) = (types.join("/"), 100.0 * relative_error(loss));
            write!(f, "  {layer:>3} {types:<4} {error:>6.3} %{end}")?;
        }
        writeln!(
            f,
            "  all      {:>6.3} %",
            100.0 * relative_error(self.down_loss())
        )
    }
}

impl fmt::Display for PackReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        self.fmt_down(f)?;
        writeln!(
            f,
            "{}",
            crate::summary::Table(&self.kinds, self.image_bytes)
        )?;
        let seconds = self.elapsed.as_secs_f64();
        write!(
            f,
            "{} ({} bytes) in {seconds:.1} s, {} a second; bundles of {}, clusters of {} neurons",
            size::text(self.image_bytes),
            size::grouped(self.image_bytes),
            size::text((self.image_bytes as f64 / seconds.max(1e-3)) as u64),
            self.bundle_neurons,
            self.cluster_neurons,
        )
    }
}
