//! State of the clusters that are worked on side by side.

use core::ops::Range;

use spin::mutex::SpinMutex;

use super::cluster::Cluster;
use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::limits::JOBS_MAX;
use crate::shape::Shape;

/// Memory for the clusters of one window.
pub struct Window<'m> {
    masks: &'m mut [u8],
    needed: &'m mut [u32],
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
        + 2 * carved_bytes(neurons / shape.bundle_neurons * size_of::<u32>())
        + carved_bytes(neurons * tokens * size_of::<f32>())
}

impl<'m> Window<'m> {
    /// Carves the memory of passes of up to `tokens` tokens.
    pub fn take(arena: &mut Arena<'m>, shape: &Shape, tokens: usize) -> Result<Self, OutOfMemory> {
        let neurons = neurons(shape);
        Ok(Window {
            masks: arena.take(neurons)?,
            needed: arena.take(neurons / shape.bundle_neurons)?,
            places: arena.take(neurons / shape.bundle_neurons)?,
            gates: arena.take(neurons * tokens)?,
        })
    }

    /// The clusters with these indices in their section, nothing known of them yet; `partials` has
    /// room for the sum of each (dim, tokens).
    #[inline(never)]
    pub fn clusters<'a>(
        &'a mut self,
        shape: &Shape,
        indices: Range<usize>,
        tokens: usize,
        partials: &'a mut [f32],
    ) -> heapless::Vec<SpinMutex<Cluster<'a>>, JOBS_MAX> {
        let (full, k) = (shape.cluster_neurons, shape.bundle_neurons);
        let mut masks = self.masks.chunks_mut(full);
        let mut needed = self.needed.chunks_mut(full / k);
        let mut places = self.places.chunks_mut(full / k);
        let mut gates = self.gates.chunks_mut(full * tokens);
        let partials = partials.chunks_exact_mut(shape.dim * tokens);
        let clusters = indices.zip(partials).map_while(|(index, partial)| {
            let neurons = shape.cluster_len(index);
            Some(SpinMutex::new(Cluster {
                first: index * full,
                masks: &mut masks.next()?[..neurons],
                n_needed: 0,
                needed: needed.next()?,
                places: places.next()?,
                gates: &mut gates.next()?[..neurons * tokens],
                partial,
            }))
        });
        clusters.collect()
    }
}
