//! Clusters of models that have no zeros: neurons whose activated gate is small are skipped.
//!
//! A neuron with `|act(gate)|` below the section's threshold is taken for dead, before its up row
//! is read (CATS, 2024). Each token decides for itself, so a token's result does not depend on
//! those beside it.

use core::ops::Range;

use tessera_kernels::{GROUP, NeuronRows};

use super::{Clusters, keep_alive};
use crate::work::Lane;

impl Clusters<'_> {
    /// `partial` (dim, tokens) = down sum of those of `neurons` that reach `threshold`, in index
    /// order.
    pub fn run_above(
        &self,
        threshold: f32,
        neurons: Range<usize>,
        lane: &mut Lane<'_>,
        partial: &mut [f32],
    ) {
        let (layout, parts) = (&self.map.bundle, self.map.bundle.parts());
        let (k, tokens, reader) = (layout.neurons, self.x.tokens(), layout.reader());
        let (gate, rest) = lane.floats.split_at_mut(GROUP * tokens);
        let (up, levels) = rest.split_at_mut(GROUP * tokens);
        let levels = &mut levels[..GROUP * tokens];
        partial.fill(0.0);
        for group in self.bytes(neurons).chunks_exact(self.map.run_bytes(GROUP)) {
            let mut bundles = group.chunks_exact(layout.bytes()).peekable();
            for out in gate.chunks_exact_mut(k * tokens) {
                let Some(bytes) = bundles.next() else { break };
                let next = bundles.peek().map(|next| &next[parts.first.clone()]);
                let rows = reader.view(bytes).gate;
                let rows = rows.then(next.unwrap_or(&group[parts.up_codes.clone()]));
                self.product(&rows, out, lane.bytes);
            }
            levels.copy_from_slice(gate);
            up.fill(1.0);
            (self.kernels.gated)(self.activation, levels, up);
            let mut needed = 0u32;
            for (index, (gate, level)) in gate.iter_mut().zip(levels.iter()).enumerate() {
                // A NaN is needed: it must be seen.
                if level.abs() < threshold {
                    *gate = 0.0;
                } else {
                    needed |= 1 << (index / tokens);
                }
            }
            for (index, bytes) in group.chunks_exact(layout.bytes()).enumerate() {
                let rows = reader.view(bytes).up;
                for run in runs(needed, index * k..(index + 1) * k) {
                    let out = &mut up[run.start * tokens..run.end * tokens];
                    let rows = rows.slice(run.start - index * k, run.len());
                    self.product(&rows, out, lane.bytes);
                }
            }
            (self.kernels.gated)(self.activation, gate, up);
            lane.active += u64::from(needed.count_ones());
            lane.all += GROUP as u64;
            let mut rows = NeuronRows::new(layout.down, layout.dim);
            let alive = keep_alive(&reader, k, tokens, group, gate, &mut rows);
            self.down(&rows, &gate[..alive * tokens], partial, lane.bytes);
        }
    }
}

/// Runs of bits that are set, among those of `range`.
fn runs(bits: u32, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    core::iter::from_fn(move || {
        let start = (at..range.end).find(|&bit| bits >> bit & 1 == 1)?;
        let end = (start..range.end)
            .find(|&bit| bits >> bit & 1 == 0)
            .unwrap_or(range.end);
        at = end;
        Some(start..end)
    })
}
