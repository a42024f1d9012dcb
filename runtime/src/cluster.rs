//! One cluster of neurons for one token, on one lane.

use core::ops::Range;

use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows};

use crate::format::{BundleParts, FfnMap};
use crate::weights::Ready;
use crate::work::Lane;

/// A feed-forward section whose clusters are ready, and what they are run with.
pub struct Clusters<'a> {
    /// The section's bundles.
    pub map: FfnMap,
    /// Their bytes.
    pub ready: &'a Ready<'a>,
    /// Arithmetic.
    pub kernels: &'a Kernels,
    /// From gate and up to the hidden value.
    pub activation: Activation,
    /// The token.
    pub x: &'a Activations<'a>,
}

impl<'a> Clusters<'a> {
    /// The bundle whose first neuron is `neuron`: its bytes and its rows.
    pub fn bundle(&self, neuron: usize) -> (&'a [u8], BundleParts<'a>) {
        let layout = &self.map.bundle;
        let bytes = self
            .ready
            .bytes(self.map.bundle_offset(neuron), layout.bytes());
        (bytes, layout.view(bytes))
    }

    /// `partial` (dim,) = down sum of `neurons`, in index order.
    ///
    /// Each product asks memory for what the next one reads: the parts of a bundle lie apart, and
    /// a part is too short for the hardware to notice that it is read in order.
    pub fn run(&self, neurons: Range<usize>, lane: &mut Lane<'_>, partial: &mut [f32]) {
        let (k, len) = (self.map.bundle.neurons, neurons.len());
        let parts = self.map.bundle.parts();
        let (gate, up) = lane.floats.split_at_mut(len);
        let up = &mut up[..len];
        for (start, neuron) in (0..len).zip(neurons.clone()).step_by(k) {
            let (bytes, rows) = self.bundle(neuron);
            let after = if neuron + k < neurons.end {
                &self.bundle(neuron + k).0[parts.first.clone()]
            } else {
                &self.bundle(neurons.start).0[parts.down_codes.clone()]
            };
            let gate_rows = rows.gate.then(&bytes[parts.up_codes.clone()]);
            (self.kernels.matvec)(&gate_rows, self.x, &mut gate[start..start + k]);
            (self.kernels.matvec)(&rows.up.then(after), self.x, &mut up[start..start + k]);
        }
        (self.kernels.gated)(self.activation, gate, up);
        partial.fill(0.0);
        for (start, neuron) in (0..len).zip(neurons.clone()).step_by(GROUP) {
            let mut rows = NeuronRows::new(self.map.bundle.down, self.map.bundle.dim);
            let mut alive: heapless::Vec<f32, GROUP> = heapless::Vec::new();
            self.push_alive(neuron, &gate[start..start + GROUP], &mut rows, &mut alive);
            if neuron + GROUP < neurons.end {
                rows.then(&self.bundle(neuron + GROUP).0[parts.down_codes.clone()]);
            } else if neurons.end < self.map.neurons
                && self.ready.is_ready(self.map.bundle_offset(neurons.end))
            {
                rows.then(&self.bundle(neurons.end).0[parts.first.clone()]);
            }
            (self.kernels.down_group)(&rows, &alive, partial, lane.bytes);
        }
    }

    /// Adds the neurons of one group whose hidden value is not zero.
    fn push_alive(
        &self,
        first: usize,
        hidden: &[f32],
        rows: &mut NeuronRows<'a>,
        alive: &mut heapless::Vec<f32, GROUP>,
    ) {
        let k = self.map.bundle.neurons;
        for (index, hidden) in hidden.chunks_exact(k).enumerate() {
            if hidden.iter().all(|&h| h == 0.0) {
                continue;
            }
            let down = self.bundle(first + index * k).1.down;
            for (neuron, &h) in hidden.iter().enumerate() {
                if h != 0.0 {
                    rows.push(down.codes(neuron), down.scales(neuron));
                    let _ = alive.push(h);
                }
            }
        }
    }
}
