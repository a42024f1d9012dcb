//! From the activity of a section to its order, statistics and predictor.

use tessera_kernels::Rows;
use tessera_runtime::format::{BundleParts, FfnMap, Statistics, StatisticsSource};

use super::activity::Activity;
use super::curve::misses;
use super::error::ProfileError;
use super::frequency::frequencies;
use super::order::order;
use super::predictor;
use super::report::SectionReport;
use crate::image_file::ImageFile;

/// What was found out about one section.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Index in the image of the neuron in each place.
    pub order: Vec<u32>,
    /// Statistics section, in the new order.
    pub statistics: Vec<u8>,
    /// Predictor section, in the new order.
    pub predictor: Option<Vec<u8>>,
}

/// What is asked for besides order and statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// Threshold of the section; 0 for none.
    pub threshold: f32,
    /// Recall of a predictor.
    pub recall: Option<f32>,
}

impl Found {
    /// Analyses the section at `map` of `file`.
    ///
    /// # Errors
    /// If the image cannot be read.
    pub fn new(
        file: &ImageFile,
        map: &FfnMap,
        activity: &Activity,
        wanted: Wanted,
    ) -> Result<Self, ProfileError> {
        let order = order(activity);
        let activity = activity.reordered(&order);
        let source = StatisticsSource {
            tokens: activity.rows() as u64,
            threshold: wanted.threshold,
            threshold_share: activity.active_share() as f32,
            frequencies: &frequencies(&activity),
            misses: &misses(&activity, map.bundle.neurons),
        };
        let mut statistics = vec![0; Statistics::bytes(map.neurons)];
        source.write(map.neurons, &mut statistics);
        let predictor = match wanted.recall {
            None => None,
            Some(recall) => {
                let gate = gate(file, map, &order)?;
                let neuron_bytes = map.bundle.weight_bytes() / map.bundle.neurons;
                predictor::fit(&activity, gate, recall, neuron_bytes)
            }
        };
        Ok(Found {
            order,
            statistics,
            predictor,
        })
    }

    /// The payload of a record.
    pub fn store(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for neuron in &self.order {
            bytes.extend(neuron.to_le_bytes());
        }
        bytes.extend(&self.statistics);
        bytes.extend(self.predictor.iter().flatten());
        bytes
    }

    /// The reverse of [`Found::store`], for a section of `neurons` neurons.
    pub fn parse(bytes: &[u8], neurons: usize) -> Option<Self> {
        let (order, rest) = bytes.split_at_checked(4 * neurons)?;
        let (statistics, predictor) = rest.split_at_checked(Statistics::bytes(neurons))?;
        let order = order.as_chunks().0.iter();
        Some(Found {
            order: order.map(|word| u32::from_le_bytes(*word)).collect(),
            statistics: statistics.to_vec(),
            predictor: (!predictor.is_empty()).then(|| predictor.to_vec()),
        })
    }

    /// What of it is shown.
    pub fn report(&self, layer: usize, expert: usize, dim: usize) -> SectionReport {
        let sizes = (dim, self.order.len());
        let predictor = self.predictor.as_deref();
        SectionReport::new((layer, expert), sizes, &self.statistics, predictor)
    }
}

/// Calls `see(neuron, parts, index)` for each neuron of a section, in the image's order: it is
/// neuron `index` of the bundle that `parts` show.
fn each_neuron(
    file: &ImageFile,
    map: &FfnMap,
    mut see: impl FnMut(usize, &BundleParts<'_>, usize),
) -> Result<(), ProfileError> {
    let mut bytes = vec![0; map.bundle.bytes()];
    for first in (0..map.neurons).step_by(map.bundle.neurons) {
        file.read_at(map.bundle_offset(first), &mut bytes)?;
        let parts = map.bundle.view(&bytes);
        (0..map.bundle.neurons).for_each(|index| see(first + index, &parts, index));
    }
    Ok(())
}

fn floats(rows: &Rows<'_>, row: usize, out: &mut [f32]) {
    rows.dequantize(row, out);
}

/// Gate rows (neurons, dim), neuron `order[i]` in place `i`.
fn gate(file: &ImageFile, map: &FfnMap, order: &[u32]) -> Result<Vec<f32>, ProfileError> {
    let dim = map.bundle.dim;
    let mut place = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        place[from as usize] = to;
    }
    let mut gate = vec![0.0; map.neurons * dim];
    each_neuron(file, map, |neuron, parts, index| {
        let out = &mut gate[place[neuron] * dim..][..dim];
        floats(&parts.gate, index, out);
    })?;
    Ok(gate)
}

/// `|down|^2` of each neuron.
///
/// # Errors
/// If the image cannot be read.
pub fn down_norms(file: &ImageFile, map: &FfnMap) -> Result<Vec<f32>, ProfileError> {
    let mut row = vec![0.0; map.bundle.dim];
    let mut norms = vec![0.0; map.neurons];
    each_neuron(file, map, |neuron, parts, index| {
        floats(&parts.down, index, &mut row);
        norms[neuron] = row.iter().map(|weight| weight * weight).sum();
    })?;
    Ok(norms)
}
