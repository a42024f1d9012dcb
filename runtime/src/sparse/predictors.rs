//! The predictors of all feed-forward sections, in memory.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Activations;

use crate::arena::{Arena, OutOfMemory};
use crate::format::{Image, Predictor, PredictorLayout, SectionKind};
use crate::limits::{FEW_TOKENS_MAX, JOBS_MAX, PREDICTOR_RANK_MAX};
use crate::product::Machine;
use crate::weights::{Weights, WeightsError};
use crate::work::{Inputs, Lanes};

/// Predictors begin at multiples of this in memory.
const ALIGN_BYTES: usize = 64;

/// Bytes that all predictors of `image` take in memory, and a bound of their rank. `None` if a
/// section has none.
pub fn sizes(image: &Image<'_>) -> Option<(usize, usize)> {
    let shape = image.shape();
    let (mut bytes, mut rank) = (0usize, 0);
    for layer in 0..shape.n_layers {
        for expert in 0..shape.n_ffns() {
            let section = image.find_of(SectionKind::Predictor, layer, expert)?;
            let data_bytes = usize::try_from(section.data_bytes).ok()?;
            bytes = bytes.checked_add(data_bytes.next_multiple_of(ALIGN_BYTES))?;
            // No type has less than half a byte a weight.
            rank = rank.max(data_bytes / (shape.dim / 2).max(1));
        }
    }
    Some((bytes, rank.min(PREDICTOR_RANK_MAX)))
}

/// All predictors, and room for what their first layer gives.
pub struct Predictors<'m> {
    /// Where each begins in `bytes`; one more for the end.
    starts: &'m mut [u64],
    bytes: &'m mut [u8],
    /// First layer's output (rank, tokens).
    outputs: &'m mut [f32],
    /// The same as inputs of the second layer.
    inputs: Inputs<'m>,
}

impl<'m> Predictors<'m> {
    /// Carves room for those of `image`.
    pub fn take(
        arena: &mut Arena<'m>,
        image: &Image<'_>,
        bytes: usize,
        rank: usize,
    ) -> Result<Self, OutOfMemory> {
        let shape = image.shape();
        let sections = shape.n_layers * shape.n_ffns();
        let starts = arena.take(sections + 1)?;
        let mut at = 0;
        for (index, start) in starts.iter_mut().enumerate() {
            *start = at as u64;
            let (layer, expert) = (index / shape.n_ffns(), index % shape.n_ffns());
            if let Some(section) = image.find_of(SectionKind::Predictor, layer, expert) {
                at += (section.data_bytes as usize).next_multiple_of(ALIGN_BYTES);
            }
        }
        Ok(Predictors {
            starts,
            bytes: arena.take(bytes)?,
            outputs: arena.take(rank * FEW_TOKENS_MAX)?,
            inputs: Inputs::take(arena, FEW_TOKENS_MAX, rank)?,
        })
    }

    /// Reads and checks every predictor.
    pub fn load<'f, F: Flash<'f>>(
        &mut self,
        weights: &mut Weights<'f, F>,
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        let shape = *weights.image.shape();
        for section in 0..self.starts.len() - 1 {
            let (layer, expert) = (section / shape.n_ffns(), section % shape.n_ffns());
            let entry = weights.image.find_of(SectionKind::Predictor, layer, expert);
            let Some(entry) = entry else {
                panic!("layer {layer}, expert {expert} has no predictor")
            };
            let start = self.starts[section] as usize;
            let bytes = &mut self.bytes[start..start + entry.data_bytes as usize];
            weights.read_blob(&entry, bytes, clock)?;
            let parsed = PredictorLayout::parse(bytes, shape.dim, shape.ffn_dim);
            parsed.map_err(|error| WeightsError::Predictor {
                layer: layer as u32,
                expert: expert as u32,
                error,
            })?;
        }
        Ok(())
    }

    /// First layer of the predictor of `section` for the tokens `x`: the predictor, and the inputs
    /// of its second layer (tokens, rank).
    pub fn begin<C: Cores, K>(
        &mut self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        section: usize,
        neurons: usize,
        x: &Activations<'_>,
    ) -> (Predictor<'_>, Activations<'_>) {
        let start = self.starts[section] as usize;
        let bytes = &self.bytes[start..self.starts[section + 1] as usize];
        let layout = match PredictorLayout::parse(bytes, x.cols(), neurons) {
            Ok(layout) => layout,
            Err(error) => panic!("the predictor was checked: {error}"),
        };
        let predictor = layout.view(bytes);
        let (rank, tokens) = (layout.rank, x.tokens());
        let outputs = &mut self.outputs[..rank * tokens];
        let per_job = rank.div_ceil(JOBS_MAX).next_multiple_of(8);
        let mut jobs: heapless::Vec<_, JOBS_MAX> =
            outputs.chunks_mut(per_job * tokens).enumerate().collect();
        machine.cores.for_each(&mut jobs, &|lane, (index, out)| {
            let rows = predictor.first.slice(*index * per_job, out.len() / tokens);
            if tokens == 1 {
                (machine.kernels.matvec)(&rows, x, out);
            } else {
                (machine.kernels.matmul)(&rows, x, out, lanes[lane].lock().bytes);
            }
        });
        drop(jobs);
        let (outputs, one) = (&*outputs, tessera_hal::OneLane);
        self.inputs
            .fill_rows(&one, machine.kernels, tokens, rank, &|t, row| {
                for (r, value) in row.iter_mut().enumerate() {
                    *value = outputs[r * tokens + t];
                }
            });
        (predictor, self.inputs.view(tokens, rank))
    }
}
