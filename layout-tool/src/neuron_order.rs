//! Where the neurons of a re-ordered section come from.

use tessera_runtime::format::{BundleLayout, SectionKind};

use crate::image_file::{ImageError, ImageFile};

/// For each place of a section, the neuron of the model that stands there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NeuronOrder {
    /// Empty: the model's own order.
    from: Vec<u32>,
}

impl NeuronOrder {
    /// The order of a section of an image; the model's own where the image says nothing.
    ///
    /// # Errors
    /// If it cannot be read, or is no permutation.
    pub fn read(file: &ImageFile, layer: usize, expert: usize) -> Result<Self, ImageError> {
        let image = file.image();
        let Some(section) = image.find_of(SectionKind::NeuronOrder, layer, expert) else {
            return Ok(NeuronOrder::default());
        };
        let bytes = file.section_data(&section)?;
        let words = bytes.as_chunks().0.iter();
        let from: Vec<u32> = words.map(|word| u32::from_le_bytes(*word)).collect();
        let mut seen = vec![false; image.shape().ffn_dim];
        let fresh = from.iter().all(|&neuron| {
            let seen = seen.get_mut(neuron as usize);
            seen.is_some_and(|seen| !std::mem::replace(seen, true))
        });
        if !fresh || from.len() != seen.len() {
            let message = format!("the neuron order of layer {layer} is no permutation");
            return Err(file.bad(message));
        }
        Ok(NeuronOrder { from })
    }

    /// This order, and then `order` of what stands there.
    pub fn then(&self, order: &[u32]) -> NeuronOrder {
        let from = match self.from.is_empty() {
            true => order.to_vec(),
            false => order.iter().map(|&at| self.from[at as usize]).collect(),
        };
        NeuronOrder { from }
    }

    /// The section's bytes: a u32 for each neuron.
    pub fn bytes(&self) -> Vec<u8> {
        self.from
            .iter()
            .flat_map(|from| from.to_le_bytes())
            .collect()
    }

    /// The place of each of the model's neurons; `None` where it is the neuron's own index.
    pub fn places(&self) -> Option<Vec<u32>> {
        if self.from.is_empty() {
            return None;
        }
        let mut places = vec![0; self.from.len()];
        for (place, &from) in self.from.iter().enumerate() {
            places[from as usize] = place as u32;
        }
        Some(places)
    }
}

/// Fills bundles `to` with the neurons `neurons` of bundles `from`, codes and scales as they are.
/// Checksums are left to the caller.
pub fn gather(layout: &BundleLayout, from: &[u8], neurons: &[u32], to: &mut [u8]) {
    let (k, bytes) = (layout.neurons, layout.bytes());
    let mut down = vec![0; layout.down.code_bytes(layout.dim)];
    let bundles = to.chunks_exact_mut(bytes).zip(neurons.chunks_exact(k));
    for (to, neurons) in bundles {
        for (index, &neuron) in neurons.iter().enumerate() {
            let (bundle, row) = (neuron as usize / k, neuron as usize % k);
            let parts = layout.view(&from[bundle * bytes..][..bytes]);
            parts.down.copy_codes(row, &mut down);
            let [gate, up] = [parts.gate, parts.up].map(|rows| (rows.codes(row), rows.scales(row)));
            layout.put_neuron(to, index, [gate, up, (&down, parts.down.scales(row))]);
        }
    }
}
