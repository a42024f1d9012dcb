//! One cluster of neurons for a few tokens, on one lane.

mod threshold;

use core::ops::Range;

use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows, Rows};

use crate::format::{BundleReader, FfnMap};
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
    /// The tokens.
    pub x: &'a Activations<'a>,
}

impl<'a> Clusters<'a> {
    /// The bytes of the bundles of `neurons`, which are of one cluster.
    fn bytes(&self, neurons: Range<usize>) -> &'a [u8] {
        let bytes = self.map.run_bytes(neurons.len());
        self.ready
            .bytes(self.map.bundle_offset(neurons.start), bytes)
    }

    /// `partial` (dim, tokens) = down sum of `neurons`, in index order. `next` is the neuron that
    /// this lane is likely to begin with afterwards.
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
        let (layout, parts) = (&self.map.bundle, self.map.bundle.parts());
        let (k, tokens, reader) = (layout.neurons, self.x.tokens(), layout.reader());
        let (gate, up) = lane.floats.split_at_mut(GROUP * tokens);
        let up = &mut up[..GROUP * tokens];
        let mut groups = self
            .bytes(neurons)
            .chunks_exact(self.map.run_bytes(GROUP))
            .peekable();
        partial.fill(0.0);
        while let Some(group) = groups.next() {
            let mut bundles = group.chunks_exact(layout.bytes()).peekable();
            let first = &group[..layout.bytes()];
            let outs = gate
                .chunks_exact_mut(k * tokens)
                .zip(up.chunks_exact_mut(k * tokens));
            for (gate, up) in outs {
                let Some(bytes) = bundles.next() else { break };
                let rows = reader.view(bytes);
                let after = match bundles.peek() {
                    Some(next) => &next[parts.first.clone()],
                    None => &first[parts.down_codes.clone()],
                };
                let gate_rows = rows.gate.then(&bytes[parts.up_codes.clone()]);
                self.product(&gate_rows, gate, lane.bytes);
                self.product(&rows.up.then(after), up, lane.bytes);
            }
            (self.kernels.gated)(self.activation, gate, up);
            let mut rows = NeuronRows::new(layout.down, layout.dim);
            let alive = keep_alive(&reader, k, tokens, group, gate, &mut rows);
            let next = groups
                .peek()
                .copied()
                .or_else(|| next.map(|neuron| self.bytes(neuron..neuron + k)));
            if let Some(next) = next {
                rows.then(&next[parts.first.clone()]);
            }
            self.down(&rows, &gate[..alive * tokens], partial, lane.bytes);
        }
    }

    /// Adds the down columns `rows`, times `hidden` (neurons, tokens), to `partial`.
    fn down(&self, rows: &NeuronRows<'_>, hidden: &[f32], partial: &mut [f32], scratch: &mut [u8]) {
        let tokens = self.x.tokens();
        if tokens == 1 {
            (self.kernels.down_group)(rows, hidden, partial, scratch);
        } else {
            let cols = 0..self.map.bundle.dim;
            (self.kernels.down_group_many)(rows, cols, tokens, hidden, partial, scratch);
        }
    }

    /// `out` (rows, tokens) = rows times every token.
    fn product(&self, rows: &Rows<'_>, out: &mut [f32], scratch: &mut [u8]) {
        if self.x.tokens() == 1 {
            (self.kernels.matvec)(rows, self.x, out);
        } else {
            (self.kernels.matmul)(rows, self.x, out, scratch);
        }
    }
}

/// Takes the neurons of a group that are alive for any token: their down columns to `rows`, their
/// hidden values (neurons, tokens) to the front of `hidden`. Returns how many they are.
fn keep_alive<'a>(
    reader: &BundleReader,
    k: usize,
    tokens: usize,
    group: &'a [u8],
    hidden: &mut [f32],
    rows: &mut NeuronRows<'a>,
) -> usize {
    let mut alive = 0;
    let bundle_bytes = group.len() / (GROUP / k);
    for (index, bundle) in group.chunks_exact(bundle_bytes).enumerate() {
        let first = index * k * tokens;
        let values = &hidden[first..][..k * tokens];
        if values.iter().all(|&h| h == 0.0) {
            continue;
        }
        let down = reader.view(bundle).down;
        if alive == index * k && values.iter().all(|&h| h != 0.0) {
            rows.extend(&down);
            alive += k;
            continue;
        }
        for neuron in 0..k {
            let from = first + neuron * tokens..first + (neuron + 1) * tokens;
            if hidden[from.clone()].iter().any(|&h| h != 0.0) {
                rows.push(down.codes(neuron), down.scales(neuron));
                hidden.copy_within(from, alive * tokens);
                alive += 1;
            }
        }
    }
    alive
}
