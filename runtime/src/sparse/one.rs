//! GC and UDC of one token: rows of the neurons that it needs are taken together, wherever they
//! stand, so that each product asks memory for the rows after those that it computes.

use core::ops::Range;

use tessera_kernels::{GROUP, NeuronRows, WeightType};

use super::cluster::{Cluster, Held, Stages};
use crate::format::{BundleLayout, BundleReader};
use crate::work::Lane;

/// Some neurons of a cluster, and the bundles that they are in.
struct Picked<'a> {
    held: heapless::Vec<Held<'a>, GROUP>,
    /// Each neuron's bundle in `held`, and its index in the cluster.
    neurons: heapless::Vec<(u8, u32), GROUP>,
}

/// Codes and scales of one neuron's row in its bundle.
type RowOf = for<'r> fn(&BundleReader, &'r [u8], usize) -> (&'r [u8], &'r [u8]);

impl Picked<'_> {
    /// Their rows of one of the three matrices.
    fn rows(
        &self,
        reader: &BundleReader,
        ty: WeightType,
        dim: usize,
        row: RowOf,
    ) -> NeuronRows<'_> {
        let mut rows = NeuronRows::new(ty, dim);
        for &(held, neuron) in &self.neurons {
            let index = neuron as usize % reader.neurons();
            let (codes, scales) = row(reader, &self.held[held as usize], index);
            rows.push(codes, scales);
        }
        rows
    }

    /// Their down columns; of a group that is zipped all.
    fn down_rows(&self, reader: &BundleReader, layout: &BundleLayout) -> NeuronRows<'_> {
        if !layout.down_is_zipped() {
            return self.rows(reader, layout.down, layout.dim, BundleReader::down_row);
        }
        let mut rows = NeuronRows::new(layout.down, layout.dim);
        rows.extend(&reader.view(&self.held[0]).down);
        rows
    }
}

impl<'a> Stages<'a> {
    /// The next neurons that are `wanted`, at most a group, of the needed bundles `bundles`, which
    /// then begin after theirs.
    fn pick(
        &self,
        cluster: &Cluster<'_>,
        bundles: &mut Range<usize>,
        wanted: impl Fn(usize) -> bool,
    ) -> Option<Picked<'a>> {
        let k = self.map.bundle.neurons;
        let (mut held, mut neurons) = (heapless::Vec::new(), heapless::Vec::new());
        while neurons.len() + k <= GROUP
            && let Some(at) = bundles.next()
        {
            let first = cluster.needed[at] as usize * k;
            let before = neurons.len();
            for neuron in (first..first + k).filter(|&neuron| wanted(neuron)) {
                let _ = neurons.push((held.len() as u8, neuron as u32));
            }
            if neurons.len() > before {
                let _ = held.push(self.hold(cluster, at));
            }
        }
        (!neurons.is_empty()).then_some(Picked { held, neurons })
    }

    /// GC of one token.
    #[inline(never)]
    pub fn gate_one(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        let (layout, mut range) = (self.map.bundle, 0..cluster.n_needed);
        while let Some(picked) = self.pick(cluster, &mut range, |neuron| cluster.masks[neuron] != 0)
        {
            let rows = picked.rows(
                &self.reader,
                layout.gate,
                layout.dim,
                BundleReader::gate_row,
            );
            let out = &mut lane.floats[..picked.neurons.len()];
            (self.kernels.dot_group)(&rows, self.x, out);
            for (&(_, neuron), &gate) in picked.neurons.iter().zip(&*out) {
                let neuron = neuron as usize;
                cluster.gates[neuron] = gate;
                self.bury(
                    &mut cluster.masks[neuron],
                    &mut cluster.gates[neuron..=neuron],
                );
            }
        }
    }

    /// UDC of one token.
    #[inline(never)]
    pub fn finish_one(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        let layout = self.map.bundle;
        let (gates, ups) = lane.floats.split_at_mut(cluster.masks.len());
        let (mut range, mut alive) = (0..cluster.n_needed, 0);
        while let Some(picked) = self.pick(cluster, &mut range, |neuron| cluster.masks[neuron] != 0)
        {
            let rows = picked.rows(&self.reader, layout.up, layout.dim, BundleReader::up_row);
            let places = alive..alive + picked.neurons.len();
            (self.kernels.dot_group)(&rows, self.x, &mut ups[places.clone()]);
            for (gate, &(_, neuron)) in gates[places].iter_mut().zip(&picked.neurons) {
                *gate = cluster.gates[neuron as usize];
            }
            alive += picked.neurons.len();
        }
        (self.kernels.gated)(self.activation, &mut gates[..alive], &ups[..alive]);
        let (k, mut hidden) = (layout.neurons, gates[..alive].iter());
        for &bundle in &cluster.needed[..cluster.n_needed] {
            for neuron in bundle as usize * k..(bundle as usize + 1) * k {
                if cluster.masks[neuron] != 0 {
                    let value = hidden.next().expect("one value for each that is alive");
                    cluster.gates[neuron] = *value;
                }
            }
        }
        // Groups are those of the whole section: the rounding of a group is part of its sum.
        let mut at = 0;
        while at < cluster.n_needed {
            let mut range = at..cluster.group_end(at, k);
            at = range.end;
            let wanted = |neuron: usize| cluster.masks[neuron] != 0 && cluster.gates[neuron] != 0.0;
            let Some(picked) = self.pick(cluster, &mut range, wanted) else {
                continue;
            };
            let rows = picked.down_rows(&self.reader, &layout);
            let hidden = &mut gates[..rows.len()];
            hidden.fill(0.0);
            for (at, &(_, neuron)) in picked.neurons.iter().enumerate() {
                let neuron = neuron as usize;
                // A zipped group is whole.
                let at = if layout.down_is_zipped() {
                    neuron % GROUP
                } else {
                    at
                };
                hidden[at] = cluster.gates[neuron];
            }
            (self.kernels.down_group)(&rows, hidden, cluster.partial, lane.bytes);
        }
    }
}
