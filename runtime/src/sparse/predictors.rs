//! The predictors of all feed-forward sections, in memory.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Activations;

use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::format::{Image, PredictorError, PredictorLayout, Quality, SectionKind};
use crate::limits::{FEW_TOKENS_MAX, JOBS_MAX, PREDICTOR_RANK_MAX};
use crate::product::{Machine, multiply};
use crate::weights::{Weights, WeightsError};
use crate::work::{Inputs, Lanes};

use super::SparseSizes;
use super::cluster::Second;

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
    /// See [`SparseSizes::absent_loss_pml`].
    absent_loss_pml: u16,
    /// For the section that is computed, and for the next.
    rooms: [Room<'m>; 2],
}

/// Room for what a predictor's first layer gives.
struct Room<'m> {
    /// Its output (rank, tokens).
    outputs: &'m mut [f32],
    /// The same as inputs of the second layer.
    inputs: Inputs<'m>,
}

impl<'m> Room<'m> {
    fn take(arena: &mut Arena<'m>, rank: usize) -> Result<Self, OutOfMemory> {
        Ok(Room {
            outputs: arena.take(rank * FEW_TOKENS_MAX)?,
            inputs: Inputs::take(arena, FEW_TOKENS_MAX, rank)?,
        })
    }
}

/// Bytes of both rooms for predictors of this rank.
pub fn room_bytes(rank: usize) -> usize {
    let outputs = carved_bytes(rank * FEW_TOKENS_MAX * size_of::<f32>());
    2 * (outputs + Inputs::bytes(FEW_TOKENS_MAX, rank))
}

impl<'m> Predictors<'m> {
    /// Carves room for those of `image`.
    pub fn take(
        arena: &mut Arena<'m>,
        image: &Image<'_>,
        sizes: &SparseSizes,
    ) -> Result<Self, OutOfMemory> {
        let (shape, rank) = (image.shape(), sizes.rank);
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
            bytes: arena.take(sizes.predictor_bytes)?,
            absent_loss_pml: sizes.absent_loss_pml,
            rooms: [Room::take(arena, rank)?, Room::take(arena, rank)?],
        })
    }

    /// Reads and checks every predictor.
    ///
    /// # Errors
    /// One that cannot be read, or is damaged, or wrong; [`PredictorError::NoCuts`].
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
            PredictorLayout::parse(bytes, shape.dim, shape.ffn_dim)
                .and_then(
                    |_| match self.absent_loss_pml > 0 && Quality::of(bytes).cuts.is_none() {
                        true => Err(PredictorError::NoCuts),
                        false => Ok(()),
                    },
                )
                .map_err(|error| WeightsError::Predictor {
                    layer: layer as u32,
                    expert: expert as u32,
                    error,
                })?;
        }
        Ok(())
    }

    /// First layers of the predictors of a section and, if it is looked ahead to, of another one:
    /// each section's index and its tokens.
    pub fn begin<C: Cores, K>(
        &mut self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        neurons: usize,
        now: (usize, &Activations<'_>),
        next: Option<(usize, &Activations<'_>)>,
    ) -> (Second<'_>, Option<Second<'_>>) {
        match next {
            None => {
                let [now] = self.first_layers(machine, lanes, neurons, [now]);
                (now, None)
            }
            Some(next) => {
                let [now, next] = self.first_layers(machine, lanes, neurons, [now, next]);
                (now, Some(next))
            }
        }
    }

    #[inline(never)]
    fn first_layers<C: Cores, K, const N: usize>(
        &mut self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        neurons: usize,
        sections: [(usize, &Activations<'_>); N],
    ) -> [Second<'_>; N] {
        let (starts, bytes) = (&*self.starts, &*self.bytes);
        let predictors = sections.map(|(section, x)| {
            let bytes = &bytes[starts[section] as usize..starts[section + 1] as usize];
            match PredictorLayout::parse(bytes, x.cols(), neurons) {
                Ok(layout) => {
                    let cuts = Quality::of(bytes).cuts;
                    let score = cuts.map_or(0.0, |cuts| cuts.score(self.absent_loss_pml));
                    (layout.rank, layout.view(bytes), score)
                }
                Err(error) => panic!("the predictor was checked: {error}"),
            }
        });
        let mut jobs: heapless::Vec<_, JOBS_MAX> = heapless::Vec::new();
        for (which, room) in self.rooms[..N].iter_mut().enumerate() {
            let (rank, tokens) = (predictors[which].0, sections[which].1.tokens());
            let per_job = (N * rank).div_ceil(JOBS_MAX).next_multiple_of(8);
            let outputs = room.outputs[..rank * tokens].chunks_mut(per_job * tokens);
            jobs.extend(
                outputs
                    .enumerate()
                    .map(|(i, out)| (which, i * per_job, out)),
            );
        }
        machine
            .cores
            .for_each(&mut jobs, &|lane, (which, first, out)| {
                let x = sections[*which].1;
                let rows = predictors[*which].1.first;
                let rows = rows.slice(*first, out.len() / x.tokens());
                multiply(machine.kernels, &rows, x, out, lanes[lane].lock().bytes);
            });
        drop(jobs);
        for (which, room) in self.rooms[..N].iter_mut().enumerate() {
            let (rank, tokens) = (predictors[which].0, sections[which].1.tokens());
            let (outputs, one) = (&*room.outputs, tessera_hal::OneLane);
            let fill = |t: usize, row: &mut [f32]| {
                for (r, value) in row.iter_mut().enumerate() {
                    *value = outputs[r * tokens + t];
                }
            };
            let inputs = &mut room.inputs;
            inputs.fill_rows(&one, machine.kernels, tokens, rank, &fill);
        }
        let rooms = &self.rooms;
        core::array::from_fn(|which| {
            let (rank, predictor, absent_score) = predictors[which];
            Second {
                predictor,
                low: rooms[which].inputs.view(sections[which].1.tokens(), rank),
                absent_score,
            }
        })
    }
}
