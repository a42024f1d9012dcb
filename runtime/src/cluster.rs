//! One cluster of neurons for one token, on one lane.

use core::ops::Range;

use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows};

use crate::format::FfnMap;
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
    /// The bytes of the bundles of `neurons`, which are of one cluster.
    fn bytes(&self, neurons: Range<usize>) -> &'a [u8] {
        let bytes = self.map.run_bytes(neurons.len());
        self.ready
            .bytes(self.map.bundle_offset(neurons.start), bytes)
    }

    /// `partial` (dim,) = down sum of `neurons`, in index order. `next` is the neuron that this
    /// lane is likely to begin with afterwards.
    ///
    /// Each product asks memory for what the next one reads: the parts of a bundle lie apart, and
    /// a part is too short for the hardware to notice that it is read in order.
    pub fn run(
        &self,
        neurons: Range<usize>,
        next: Option<usize>,
        lane: &mut Lane<'_>,
        partial: &mut [f32],
    ) {
        let (k, parts) = (self.map.bundle.neurons, self.map.bundle.parts());
        let (mut gate, mut up) = ([0.0; GROUP], [0.0; GROUP]);
        let mut groups = self
            .bytes(neurons)
            .chunks_exact(self.map.run_bytes(GROUP))
            .peekable();
        partial.fill(0.0);
        while let Some(group) = groups.next() {
            let mut bundles = group.chunks_exact(self.map.bundle.bytes()).peekable();
            let first = &group[..self.map.bundle.bytes()];
            let outs = gate.chunks_exact_mut(k).zip(up.chunks_exact_mut(k));
            for (gate, up) in outs {
                let Some(bytes) = bundles.next() else { break };
                let rows = self.map.bundle.view(bytes);
                let after = match bundles.peek() {
                    Some(next) => &next[parts.first.clone()],
                    None => &first[parts.down_codes.clone()],
                };
                let gate_rows = rows.gate.then(&bytes[parts.up_codes.clone()]);
                (self.kernels.matvec)(&gate_rows, self.x, gate);
                (self.kernels.matvec)(&rows.up.then(after), self.x, up);
            }
            (self.kernels.gated)(self.activation, &mut gate, &up);
            let mut rows = NeuronRows::new(self.map.bundle.down, self.map.bundle.dim);
            let mut alive: heapless::Vec<f32, GROUP> = heapless::Vec::new();
            self.push_alive(group, &gate, &mut rows, &mut alive);
            let next = groups
                .peek()
                .copied()
                .or_else(|| next.map(|neuron| self.bytes(neuron..neuron + k)));
            if let Some(next) = next {
                rows.then(&next[parts.first.clone()]);
            }
            (self.kernels.down_group)(&rows, &alive, partial, lane.bytes);
        }
    }

    /// Adds the neurons of one group whose hidden value is not zero.
    fn push_alive(
        &self,
        group: &'a [u8],
        hidden: &[f32],
        rows: &mut NeuronRows<'a>,
        alive: &mut heapless::Vec<f32, GROUP>,
    ) {
        let (k, layout) = (self.map.bundle.neurons, &self.map.bundle);
        let bundles = group.chunks_exact(layout.bytes());
        for (bundle, hidden) in bundles.zip(hidden.chunks_exact(k)) {
            if hidden.iter().all(|&h| h == 0.0) {
                continue;
            }
            let down = layout.view(bundle).down;
            for (neuron, &h) in hidden.iter().enumerate() {
                if h != 0.0 {
                    rows.push(down.codes(neuron), down.scales(neuron));
                    let _ = alive.push(h);
                }
            }
        }
    }
}
