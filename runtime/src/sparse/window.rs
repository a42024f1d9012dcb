//! State of the clusters that are worked on side by side.

use core::ops::Range;

use spin::mutex::SpinMutex;

use super::cluster::{Cluster, NOWHERE};
use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::limits::JOBS_MAX;
use crate::shape::Shape;

/// Memory for the clusters of one window.
pub struct Window<'m> {
    masks: &'m mut [u8],
    places: &'m mut [u32],
    gates: &'m mut [f32],
}

/// Neurons of a window.
fn neurons(shape: &Shape) -> usize {
    shape.cluster_neurons * shape.n_clusters().min(JOBS_MAX)
}

/// Bytes of the state of a window of passes of up to `tokens` tokens.
pub fn bytes(shape: &Shape, tokens: usize) -> usize {
    let neurons = neurons(shape);
    carved_bytes(neurons)
        + carved_bytes(neurons / shape.bundle_neurons * size_of::<u32>())
        + carved_bytes(neurons * tokens * size_of::<f32>())
}

impl<'m> Window<'m> {
    /// Carves the memory of passes of up to `tokens` tokens.
    pub fn take(arena: &mut Arena<'m>, shape: &Shape, tokens: usize) -> Result<Self, OutOfMemory> {
        let neurons = neurons(shape);
        Ok(Window {
            masks: arena.take(neurons)?,
            places: arena.take(neurons / shape.bundle_neurons)?,
            gates: arena.take(neurons * tokens)?,
        })
    }

    /// The clusters with these indices in their section, nothing known of them yet; `partials` has
    /// room for the sum of each (dim, tokens).
    pub fn clusters<'a>(
        &'a mut self,
        shape: &Shape,
        indices: Range<usize>,
        tokens: usize,
        partials: &'a mut [f32],
    ) -> heapless::Vec<SpinMutex<Cluster<'a>>, JOBS_MAX> {
        let (full, k) = (shape.cluster_neurons, shape.bundle_neurons);
        let pieces = self
            .masks
            .chunks_mut(full)
            .zip(self.places.chunks_mut(full / k))
            .zip(self.gates.chunks_mut(full * tokens))
            .zip(partials.chunks_exact_mut(shape.dim * tokens));
        let cluster = |(index, (((masks, places), gates), partial)): (usize, Pieces<'a>)| {
            let neurons = shape.cluster_len(index);
            let places = &mut places[..neurons / k];
            places.fill(NOWHERE);
            SpinMutex::new(Cluster {
                first: index * full,
                masks: &mut masks[..neurons],
                places,
                gates: &mut gates[..neurons * tokens],
                partial,
            })
        };
        indices.zip(pieces).map(cluster).collect()
    }
}

/// Masks, places, gates and partial sum of one cluster.
type Pieces<'a> = (
    ((&'a mut [u8], &'a mut [u32]), &'a mut [f32]),
    &'a mut [f32],
);
