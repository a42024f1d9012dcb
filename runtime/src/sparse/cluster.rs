//! What lanes compute of one cold cluster: Pred, GC and UDC.

use core::ops::{Deref, Range};

use tessera_hal::Slots;
use tessera_hal::slots::SlotRead;
use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows, Rows};

use crate::format::{FfnMap, Predictor};
use crate::work::Lane;

/// Place of a bundle that no token needs.
pub const NOWHERE: u32 = u32::MAX;
/// Place of a bundle that never leaves memory.
pub const RESIDENT: u32 = u32::MAX - 1;
/// Set in the place of a bundle that is still being read; the rest is its slot.
pub const AWAITED: u32 = 1 << 31;

/// What is known of one cluster while its section is computed.
pub struct Cluster<'a> {
    /// Its first neuron.
    pub first: usize,
    /// (neurons,): bit `t` is set where token `t` needs the neuron.
    pub masks: &'a mut [u8],
    /// (bundles,): where each stands.
    pub places: &'a mut [u32],
    /// (neurons, tokens): scores, then gate products.
    pub gates: &'a mut [f32],
    /// (dim, tokens): its down sum.
    pub partial: &'a mut [f32],
}

impl Cluster<'_> {
    /// True if a token needs a neuron of bundle `bundle` of this cluster; `k` neurons a bundle.
    pub fn needs(&self, bundle: usize, k: usize) -> bool {
        self.masks[bundle * k..][..k].iter().any(|&mask| mask != 0)
    }
}

/// A section, and what its clusters are computed with.
pub struct Stages<'a> {
    /// Its bundles.
    pub map: FfnMap,
    /// Those that never leave memory: a prefix.
    pub resident: &'a [u8],
    /// Those in the cache.
    pub slots: &'a Slots<'a>,
    /// Arithmetic.
    pub kernels: &'a Kernels,
    /// From gate and up to the hidden value.
    pub activation: Activation,
    /// The tokens.
    pub x: &'a Activations<'a>,
    /// Which neurons a token needs; `None`: all.
    pub predictor: Option<(Predictor<'a>, Activations<'a>)>,
}

/// The bytes of a bundle, kept from being evicted by their user.
enum Held<'a> {
    Resident(&'a [u8]),
    Slot(SlotRead<'a>),
}

impl Deref for Held<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Held::Resident(bytes) => bytes,
            Held::Slot(bytes) => bytes,
        }
    }
}

/// Runs of neighbours for which `wanted` holds, in `range`.
fn runs(range: Range<usize>, wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = Range<usize>> {
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

impl<'a> Stages<'a> {
    fn tokens(&self) -> usize {
        self.x.tokens()
    }

    fn hold(&self, cluster: &Cluster<'_>, bundle: usize) -> Held<'a> {
        let bytes = self.map.bundle.bytes();
        match cluster.places[bundle] {
            RESIDENT => {
                let index = cluster.first / self.map.bundle.neurons + bundle;
                Held::Resident(&self.resident[index * bytes..][..bytes])
            }
            place => {
                assert!(place < AWAITED, "bundle {bundle} has place {place:#x}");
                Held::Slot(self.slots.read(place as usize))
            }
        }
    }

    fn product(&self, rows: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8]) {
        if x.tokens() == 1 {
            (self.kernels.matvec)(rows, x, out);
        } else {
            (self.kernels.matmul)(rows, x, out, scratch);
        }
    }

    /// Pred: `masks` of the cluster.
    pub fn predict(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        let tokens = self.tokens();
        let neurons = cluster.masks.len();
        let Some((predictor, low)) = &self.predictor else {
            return cluster.masks.fill(u8::MAX >> (8 - tokens));
        };
        let rows = predictor.second.slice(cluster.first, neurons);
        self.product(&rows, low, cluster.gates, lane.bytes);
        let bias = &predictor.bias[cluster.first..][..neurons];
        let scores = cluster.gates.chunks_exact(tokens);
        for ((mask, scores), bias) in cluster.masks.iter_mut().zip(scores).zip(bias) {
            let bits = scores.iter().rev();
            *mask = bits.fold(0, |mask, score| mask << 1 | u8::from(score + bias > 0.0));
        }
    }

    /// GC: gate products of the needed neurons; those that are dead for all tokens are no longer
    /// needed.
    pub fn gate(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        let (k, tokens) = (self.map.bundle.neurons, self.tokens());
        let reader = self.map.bundle.reader();
        let bundles = cluster.places.len();
        let next_needed = |cluster: &Cluster<'_>, from: usize| {
            (from..bundles).find(|&bundle| cluster.places[bundle] != NOWHERE)
        };
        let mut next = next_needed(cluster, 0).map(|bundle| (bundle, self.hold(cluster, bundle)));
        while let Some((bundle, bytes)) = next {
            next = next_needed(cluster, bundle + 1).map(|next| (next, self.hold(cluster, next)));
            let mut rows = reader.view(&bytes).gate;
            if let Some((_, next)) = &next {
                rows = rows.then(&next[self.map.bundle.parts().first]);
            }
            let first = bundle * k;
            for run in runs(first..first + k, |neuron| cluster.masks[neuron] != 0) {
                let rows = rows.slice(run.start - first, run.len());
                let out = &mut cluster.gates[run.start * tokens..run.end * tokens];
                self.product(&rows, self.x, out, lane.bytes);
            }
            let masks = &mut cluster.masks[first..first + k];
            let gates = cluster.gates[first * tokens..].chunks_exact_mut(tokens);
            for (mask, gates) in masks.iter_mut().zip(gates) {
                self.bury(mask, gates);
            }
        }
    }

    /// Gate products (tokens,) of one neuron that a token does not need are zero; a neuron that is
    /// dead for all tokens is needed no longer.
    fn bury(&self, mask: &mut u8, gates: &mut [f32]) {
        let relu = matches!(self.activation, Activation::Relu | Activation::ReluBoth);
        let mut alive = false;
        for (t, gate) in gates.iter_mut().enumerate() {
            if *mask >> t & 1 == 0 {
                *gate = 0.0;
            } else {
                // A NaN is alive: it must be seen.
                alive |= !(relu && *gate <= 0.0);
            }
        }
        if !alive {
            *mask = 0;
        }
    }

    /// UDC: `partial` = the down sum of the alive neurons, in index order.
    pub fn finish(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        cluster.partial.fill(0.0);
        for start in (0..cluster.masks.len()).step_by(GROUP) {
            self.finish_group(cluster, start, lane);
        }
    }

    fn finish_group(&self, cluster: &mut Cluster<'_>, start: usize, lane: &mut Lane<'_>) {
        let (layout, tokens) = (&self.map.bundle, self.tokens());
        let (k, reader) = (layout.neurons, layout.reader());
        let mut held: heapless::Vec<(usize, Held<'_>), GROUP> = heapless::Vec::new();
        for bundle in start / k..(start + GROUP) / k {
            if cluster.places[bundle] != NOWHERE && cluster.needs(bundle, k) {
                let _ = held.push((bundle, self.hold(cluster, bundle)));
            }
        }
        if held.is_empty() {
            return;
        }
        let (gate, up) = lane.floats.split_at_mut(GROUP * tokens);
        let mut alive: heapless::Vec<(u8, u8), GROUP> = heapless::Vec::new();
        for (index, (bundle, bytes)) in held.iter().enumerate() {
            let mut rows = reader.view(bytes).up;
            if let Some((_, next)) = held.get(index + 1) {
                rows = rows.then(&next[layout.parts().up_codes]);
            }
            let first = bundle * k;
            for run in runs(first..first + k, |neuron| cluster.masks[neuron] != 0) {
                let at = alive.len() * tokens;
                let len = run.len() * tokens;
                gate[at..at + len].copy_from_slice(&cluster.gates[run.start * tokens..][..len]);
                let rows = rows.slice(run.start - first, run.len());
                self.product(&rows, self.x, &mut up[at..at + len], lane.bytes);
                alive.extend(run.map(|neuron| (index as u8, (neuron - first) as u8)));
            }
        }
        let len = alive.len() * tokens;
        (self.kernels.gated)(self.activation, &mut gate[..len], &up[..len]);
        let mut rows = NeuronRows::new(layout.down, layout.dim);
        let mut count = 0;
        for (index, &(bundle, neuron)) in alive.iter().enumerate() {
            let from = index * tokens..(index + 1) * tokens;
            if gate[from.clone()].iter().any(|&h| h != 0.0) {
                let down = reader.view(&held[bundle as usize].1).down;
                rows.push(down.codes(neuron as usize), down.scales(neuron as usize));
                gate.copy_within(from, count * tokens);
                count += 1;
            }
        }
        let hidden = &gate[..count * tokens];
        if tokens == 1 {
            (self.kernels.down_group)(&rows, hidden, cluster.partial, lane.bytes);
        } else {
            let cols = 0..layout.dim;
            let (many, scratch) = (self.kernels.down_group_many, &mut *lane.bytes);
            many(&rows, cols, tokens, hidden, cluster.partial, scratch);
        }
    }
}
