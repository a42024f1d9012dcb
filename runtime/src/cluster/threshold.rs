//! Clusters of models that have no zeros: neurons whose activated gate is small are skipped.
//!
//! A neuron with `|act(gate)|` below the section's threshold is taken for dead, before its up row
//! is read (CATS, 2024). Each token decides for itself, so a token's result does not depend on
//! those beside it.

use core::ops::Range;

use tessera_kernels::{GROUP, NeuronRows};

use super::{Clusters, keep_alive, runs};
use crate::format::Bundles;
use crate::product::multiply;
use crate::work::Lane;

/// Where more neurons of a group than this are needed, one product of all is cheaper than products
/// of those that are.
const WHOLE_ABOVE: u32 = GROUP as u32 / 2;

impl Clusters<'_> {
    /// `partial` (dim, tokens), or as [`are_apart`](super::are_apart) says, = down sum of those of
    /// `neurons` that reach `threshold`, in index order.
    pub fn run_above(
        &self,
        threshold: f32,
        neurons: Range<usize>,
        lane: &mut Lane<'_>,
        partial: &mut [f32],
    ) {
        let (layout, tokens) = (&self.map.bundle, self.x.tokens());
        let k = layout.neurons;
        let Bundles { reader, bytes } = self.bundles(neurons);
        let (gate, rest) = lane.floats.split_at_mut(GROUP * tokens);
        let (up, levels) = rest.split_at_mut(GROUP * tokens);
        let levels = &mut levels[..GROUP * tokens];
        partial.fill(0.0);
        for group in bytes.chunks_exact(reader.run_bytes(GROUP)) {
            let rows = reader.view(group);
            let gate_rows = rows.gate.then(reader.up_codes(group));
            multiply(self.kernels, &gate_rows, self.x, gate, lane.bytes);
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
            if needed.count_ones() > WHOLE_ABOVE {
                let up_rows = rows.up.then(reader.down_codes(group));
                multiply(self.kernels, &up_rows, self.x, up, lane.bytes);
            } else {
                for (index, bytes) in group.chunks_exact(reader.run_bytes(k)).enumerate() {
                    let rows = reader.view(bytes).up;
                    let wanted = |neuron: usize| needed >> neuron & 1 == 1;
                    for run in runs(index * k..(index + 1) * k, wanted) {
                        let out = &mut up[run.start * tokens..run.end * tokens];
                        let rows = rows.slice(run.start - index * k, run.len());
                        multiply(self.kernels, &rows, self.x, out, lane.bytes);
                    }
                }
            }
            (self.kernels.gated)(self.activation, gate, up);
            lane.active += u64::from(needed.count_ones());
            lane.all += GROUP as u64;
            let mut down = NeuronRows::new(layout.down, layout.dim);
            let alive = keep_alive(&rows.down, tokens, gate, &mut down);
            self.down(&down, &gate[..alive * tokens], partial, lane.bytes);
        }
    }
}
