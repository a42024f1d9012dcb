//! One cluster of neurons for a few tokens, on one lane.

mod threshold;

use core::ops::Range;

use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows, Rows, Soon};

use crate::format::{Bundles, FfnMap};
use crate::product::multiply;
use crate::weights::Ready;
use crate::work::Lane;

/// Most tokens whose down sums are cheaper one by one than side by side in a vector's lanes.
const APART_TOKENS_MAX: usize = 4;

/// True if the partial sums of so many tokens are kept apart, (tokens, dim) instead of (dim,
/// tokens): each then is added to as if its token were alone.
pub fn are_apart(map: &FfnMap, tokens: usize) -> bool {
    map.bundle.down_is_zipped() && (2..=APART_TOKENS_MAX).contains(&tokens)
}

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
    /// The bundles of `neurons`, which are of one cluster.
    fn bundles(&self, neurons: Range<usize>) -> Bundles<'a> {
        self.ready.bundles(&self.map, neurons.start, neurons.len())
    }

    /// `partial` (dim, tokens), or as [`are_apart`] says, = down sum of `neurons`, in index order.
    /// `next` is the neuron that this lane is likely to begin with afterwards.
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
        let (layout, tokens) = (&self.map.bundle, self.x.tokens());
        let Bundles { reader, bytes } = self.bundles(neurons);
        let (gate, up) = lane.floats.split_at_mut(GROUP * tokens);
        let up = &mut up[..GROUP * tokens];
        let mut groups = bytes.chunks_exact(reader.run_bytes(GROUP)).peekable();
        partial.fill(0.0);
        while let Some(group) = groups.next() {
            let rows = reader.view(group);
            let gate_rows = rows.gate.then(reader.up_codes(group));
            multiply(self.kernels, &gate_rows, self.x, gate, lane.bytes);
            let up_rows = rows.up.then(reader.down_codes(group));
            multiply(self.kernels, &up_rows, self.x, up, lane.bytes);
            (self.kernels.gated)(self.activation, gate, up);
            let mut down = NeuronRows::new(layout.down, layout.dim);
            let alive = keep_alive(&rows.down, tokens, gate, &mut down);
            match (groups.peek(), next) {
                (Some(next), _) => down.then(reader.firsts(next)),
                (None, Some(neuron)) => {
                    let next = self.bundles(neuron..neuron + GROUP);
                    down.then(next.reader.firsts(next.bytes));
                }
                (None, None) => {}
            }
            self.down(&down, &gate[..alive * tokens], partial, lane.bytes);
        }
    }

    /// Adds the down columns `rows`, times `hidden` (neurons, tokens), to `partial`.
    fn down(&self, rows: &NeuronRows<'_>, hidden: &[f32], partial: &mut [f32], scratch: &mut [u8]) {
        let tokens = self.x.tokens();
        if tokens == 1 {
            (self.kernels.down_group)(rows, hidden, partial, scratch);
        } else if are_apart(&self.map, tokens) {
            let mut rows = *rows;
            for (t, partial) in partial.chunks_exact_mut(self.map.bundle.dim).enumerate() {
                let mut h = [0.0; GROUP];
                for (h, of_tokens) in h.iter_mut().zip(hidden.chunks_exact(tokens)) {
                    *h = of_tokens[t];
                }
                let h = &h[..hidden.len() / tokens];
                (self.kernels.down_group)(&rows, h, partial, scratch);
                // Asked for once.
                rows.then(Soon::default());
            }
        } else {
            let cols = 0..self.map.bundle.dim;
            (self.kernels.down_group_many)(rows, cols, tokens, hidden, partial, scratch);
        }
    }
}

/// Runs of neighbours for which `wanted` holds, in `range`.
pub fn runs(
    range: Range<usize>,
    wanted: impl Fn(usize) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    core::iter::from_fn(move || {
        let start = (at..range.end).find(|&index| wanted(index))?;
        let end = (start..range.end)
            .find(|&index| !wanted(index))
            .unwrap_or(range.end);
        at = end;
        Some(start..end)
    })
}

/// Takes the neurons of a group that are alive for any token: their down columns to `rows`, their
/// hidden values (neurons, tokens) to the front of `hidden`. Returns how many they are. Zipped
/// columns are taken together.
fn keep_alive<'a>(
    down: &Rows<'a>,
    tokens: usize,
    hidden: &mut [f32],
    rows: &mut NeuronRows<'a>,
) -> usize {
    let hidden = &mut hidden[..down.rows() * tokens];
    if hidden.iter().all(|&h| h == 0.0) {
        return 0;
    }
    if down.are_zipped() || hidden.iter().all(|&h| h != 0.0) {
        rows.extend(down);
        return down.rows();
    }
    let mut alive = 0;
    for neuron in 0..down.rows() {
        let values = neuron * tokens..(neuron + 1) * tokens;
        if hidden[values.clone()].iter().any(|&h| h != 0.0) {
            rows.push(down.codes(neuron), down.scales(neuron));
            hidden.copy_within(values, alive * tokens);
            alive += 1;
        }
    }
    alive
}
