//! What lanes compute of one cold cluster: Pred, GC and UDC.

use core::ops::{Deref, Range};

use tessera_hal::Slots;
use tessera_hal::slots::SlotRead;
use tessera_kernels::{Activation, Activations, GROUP, Kernels, NeuronRows};

use crate::cluster::runs;
use crate::format::{BundleReader, FfnMap, Predictor};
use crate::product::multiply;
use crate::work::Lane;

use super::foresight::Ahead;
use super::recency;

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
    /// Bundles that tokens need.
    pub n_needed: usize,
    /// (bundles,): which they are, in ascending order.
    pub needed: &'a mut [u32],
    /// (bundles,): where each of them stands.
    pub places: &'a mut [u32],
    /// (neurons, tokens): scores, then gate products; of one token at last hidden values.
    pub gates: &'a mut [f32],
    /// (dim, tokens): its down sum.
    pub partial: &'a mut [f32],
}

impl Cluster<'_> {
    /// Notes which bundles are needed, `k` neurons each: those of which a mask is set.
    fn list_needed(&mut self, k: usize) {
        self.n_needed = 0;
        for (bundle, masks) in self.masks.chunks_exact(k).enumerate() {
            self.needed[self.n_needed] = bundle as u32;
            self.places[self.n_needed] = NOWHERE;
            self.n_needed += usize::from(masks.iter().any(|&mask| mask != 0));
        }
    }

    /// Notes the needed bundles, `k` neurons each, in `ages`, those of the section's bundles.
    pub fn note_needed(&self, ages: &mut [u8], k: usize) {
        let ages = &mut ages[self.first / k..];
        for &bundle in &self.needed[..self.n_needed] {
            ages[bundle as usize] = 0;
        }
    }

    /// Where `bundle` is in the list of those that are needed.
    pub fn position(&self, bundle: usize) -> Option<usize> {
        let needed = &self.needed[..self.n_needed];
        needed.binary_search(&(bundle as u32)).ok()
    }

    /// Where those of the needed bundles end that follow the one at `at` and whose neurons are of
    /// its group.
    pub fn group_end(&self, at: usize, k: usize) -> usize {
        let group = |bundle: u32| bundle as usize * k / GROUP;
        let first = group(self.needed[at]);
        let mut others = self.needed[at..self.n_needed].iter();
        let count = others.position(|&bundle| group(bundle) != first);
        count.map_or(self.n_needed, |count| at + count)
    }

    /// True if a token needs a neuron of bundle `bundle` of this cluster; `k` neurons a bundle.
    pub fn needs(&self, bundle: usize, k: usize) -> bool {
        self.masks[bundle * k..][..k].iter().any(|&mask| mask != 0)
    }
}

/// A section, and what its clusters are computed with.
pub struct Stages<'a> {
    /// Its bundles.
    pub map: FfnMap,
    /// How they stand in memory.
    pub reader: BundleReader,
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
    /// Which neurons a token needs.
    pub predictor: &'a Second<'a>,
    /// Which neurons it is likely to need in the next section.
    pub next: Option<&'a Second<'a>>,
    /// Passes since each bundle of the section was needed; empty where that does not matter.
    pub ages: &'a [u8],
    /// The same of the next section.
    pub next_ages: &'a [u8],
}

/// A predictor whose first layer is computed.
pub struct Second<'a> {
    /// The predictor.
    pub predictor: Predictor<'a>,
    /// What its first layer gave: inputs of its second layer (tokens, rank).
    pub low: Activations<'a>,
    /// Score that neurons must exceed whose bundles are taken to be in flash.
    pub absent_score: f32,
}

impl Second<'_> {
    /// Scores that neurons of the bundles from `first` on must exceed to be needed, bundle by
    /// bundle; `ages` are those of the section's, if any are kept.
    fn least(&self, ages: &[u8], first: usize) -> impl Iterator<Item = f32> {
        let least = |age: &u8| match recency::is_near(*age) {
            true => 0.0,
            false => self.absent_score,
        };
        let ages = ages.iter().skip(first);
        ages.map(least).chain(core::iter::repeat(0.0))
    }
}

/// The bytes of a bundle, kept from being evicted by their user.
pub enum Held<'a> {
    /// It never leaves memory.
    Resident(&'a [u8]),
    /// The slot, and how many of its bytes are the bundle's.
    Slot(SlotRead<'a>, usize),
}

impl Deref for Held<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Held::Resident(bytes) => bytes,
            Held::Slot(slot, bytes) => &slot[..*bytes],
        }
    }
}

impl<'a> Stages<'a> {
    fn tokens(&self) -> usize {
        self.x.tokens()
    }

    /// Keeps a needed bundle, which has its place, from being evicted.
    pub fn hold(&self, cluster: &Cluster<'_>, at: usize) -> Held<'a> {
        let bundle = cluster.needed[at] as usize;
        let bytes = self.reader.run_bytes(self.map.bundle.neurons);
        match cluster.places[at] {
            RESIDENT => {
                let index = cluster.first / self.map.bundle.neurons + bundle;
                Held::Resident(&self.resident[index * bytes..][..bytes])
            }
            place => {
                assert!(place < AWAITED, "bundle {bundle} has place {place:#x}");
                Held::Slot(self.slots.read(place as usize), bytes)
            }
        }
    }

    /// Pred: `masks` of the cluster.
    #[inline(never)]
    pub fn predict(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        let first = cluster.first;
        let bias = self.scores(self.predictor, first, cluster.gates, lane.bytes);
        let (k, tokens) = (self.map.bundle.neurons, self.tokens());
        let masks = cluster.masks.chunks_exact_mut(k);
        let bundles = masks.zip(cluster.gates.chunks_exact(k * tokens));
        let bundles = bundles
            .zip(bias.chunks_exact(k))
            .zip(self.predictor.least(self.ages, first / k));
        for (((masks, scores), bias), least) in bundles {
            let neurons = masks.iter_mut().zip(scores.chunks_exact(tokens)).zip(bias);
            for ((mask, scores), bias) in neurons {
                let bits = scores.iter().rev();
                *mask = bits.fold(0, |mask, score| mask << 1 | u8::from(score + bias > least));
            }
        }
        cluster.list_needed(self.map.bundle.neurons);
    }

    /// Scores (neurons, tokens) from neuron `first` on, without the bias, which is returned.
    fn scores<'p>(
        &self,
        second: &Second<'p>,
        first: usize,
        out: &mut [f32],
        scratch: &mut [u8],
    ) -> &'p [f32] {
        let neurons = out.len() / self.tokens();
        let Second { predictor, low, .. } = second;
        let rows = predictor.second.slice(first, neurons);
        multiply(self.kernels, &rows, low, out, scratch);
        &predictor.bias[first..first + neurons]
    }

    /// Notes which bundles of a cluster of the next section a token is likely to need.
    #[inline(never)]
    pub fn foresee(&self, ahead: &mut Ahead<'_>, lane: &mut Lane<'_>) {
        let Some(next) = self.next else { return };
        let (k, tokens) = (self.map.bundle.neurons, self.tokens());
        let at_once = lane.floats.len() / (GROUP * tokens) * GROUP / k;
        let mut first = ahead.first;
        let mut least = next.least(self.next_ages, first / k);
        for likely in ahead.likely.chunks_mut(at_once) {
            let scores = &mut lane.floats[..likely.len() * k * tokens];
            let bias = self.scores(next, first, scores, lane.bytes);
            let bundles = scores.chunks_exact(k * tokens).zip(bias.chunks_exact(k));
            for ((likely, (scores, bias)), least) in likely.iter_mut().zip(bundles).zip(&mut least)
            {
                let mut all = scores.chunks_exact(tokens).zip(bias);
                let any = all.any(|(scores, bias)| scores.iter().any(|score| score + bias > least));
                *likely = u8::from(any);
            }
            first += likely.len() * k;
        }
        ahead.is_known = true;
    }

    /// GC: gate products of the needed neurons; those that are dead for all tokens are no longer
    /// needed.
    #[inline(never)]
    pub fn gate(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        if self.tokens() == 1 {
            return self.gate_one(cluster, lane);
        }
        let (k, tokens) = (self.map.bundle.neurons, self.tokens());
        let reader = &self.reader;
        for at in 0..cluster.n_needed {
            let bytes = self.hold(cluster, at);
            let rows = reader.view(&bytes).gate;
            let first = cluster.needed[at] as usize * k;
            for run in runs(first..first + k, |neuron| cluster.masks[neuron] != 0) {
                let rows = rows.slice(run.start - first, run.len());
                let out = &mut cluster.gates[run.start * tokens..run.end * tokens];
                multiply(self.kernels, &rows, self.x, out, lane.bytes);
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
    pub fn bury(&self, mask: &mut u8, gates: &mut [f32]) {
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
    #[inline(never)]
    pub fn finish(&self, cluster: &mut Cluster<'_>, lane: &mut Lane<'_>) {
        cluster.partial.fill(0.0);
        if self.tokens() == 1 {
            return self.finish_one(cluster, lane);
        }
        let mut at = 0;
        while at < cluster.n_needed {
            let end = cluster.group_end(at, self.map.bundle.neurons);
            self.finish_group(cluster, at..end, lane);
            at = end;
        }
    }

    fn finish_group(&self, cluster: &mut Cluster<'_>, group: Range<usize>, lane: &mut Lane<'_>) {
        let (layout, tokens) = (&self.map.bundle, self.tokens());
        let (k, reader) = (layout.neurons, &self.reader);
        let mut held: heapless::Vec<(usize, Held<'_>), GROUP> = heapless::Vec::new();
        for at in group {
            let bundle = cluster.needed[at] as usize;
            if cluster.needs(bundle, k) {
                let _ = held.push((bundle, self.hold(cluster, at)));
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
                rows = rows.then(reader.up_codes(next));
            }
            let first = bundle * k;
            for run in runs(first..first + k, |neuron| cluster.masks[neuron] != 0) {
                let at = alive.len() * tokens;
                let len = run.len() * tokens;
                gate[at..at + len].copy_from_slice(&cluster.gates[run.start * tokens..][..len]);
                let rows = rows.slice(run.start - first, run.len());
                let out = &mut up[at..at + len];
                multiply(self.kernels, &rows, self.x, out, lane.bytes);
                alive.extend(run.map(|neuron| (index as u8, (neuron - first) as u8)));
            }
        }
        let len = alive.len() * tokens;
        (self.kernels.gated)(self.activation, &mut gate[..len], &up[..len]);
        let mut rows = NeuronRows::new(layout.down, layout.dim);
        let hidden = if layout.down_is_zipped() {
            rows.extend(&reader.view(&held[0].1).down);
            let hidden = &mut up[..GROUP * tokens];
            hidden.fill(0.0);
            for (gate, (_, neuron)) in gate.chunks_exact(tokens).zip(&alive) {
                hidden[*neuron as usize * tokens..][..tokens].copy_from_slice(gate);
            }
            &*hidden
        } else {
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
            &gate[..count * tokens]
        };
        let (many, scratch) = (self.kernels.down_group_many, &mut *lane.bytes);
        many(
            &rows,
            0..layout.dim,
            tokens,
            hidden,
            cluster.partial,
            scratch,
        );
    }
}
