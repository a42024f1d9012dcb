//! Feed-forward networks of a few tokens by neuron clusters: only what a token needs is read and
//! computed.
//!
//! A predictor names the neurons of a section that the tokens may activate; the bundles of those
//! stand in the resident prefix or in slots of the cold segment, or are read. Lanes take whatever
//! stage of whatever cluster is ready ([`crate::pipeline`]); one of them owns the flash queue
//! ([`owner`]). Each cluster sums its neurons in index order, clusters are added in cluster order:
//! the result depends neither on the order of completions nor on who computed what.

mod admission;
mod arrivals;
mod books;
mod cluster;
mod foresight;
mod guess;
mod idle;
mod one;
mod owner;
mod predictors;
mod reads;
mod recency;
mod shrink;
mod team;
mod window;

use core::sync::atomic::AtomicBool;

use spin::mutex::SpinMutex;
use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Activations;

pub use books::{Cold, ColdSizes};
use predictors::Predictors;
pub use predictors::sizes as predictor_sizes;
pub use recency::Recency;
pub use window::bytes as window_bytes;

use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::format::Image;
use crate::limits::JOBS_MAX;
use crate::partials::add_in_order;
use crate::pipeline::Pipeline;
use crate::product::Machine;
use crate::shape::Shape;
use crate::weights::{Weights, WeightsError};
use crate::work::Lanes;

use cluster::Stages;
use foresight::Foresight;
use owner::{Owner, Place};
use team::Team;
use window::Window;

/// Sizes of everything that sparse passes need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SparseSizes {
    /// Tokens of a sparse pass, at most [`FEW_TOKENS_MAX`].
    pub tokens: usize,
    /// Clusters of each section that never leave memory: a prefix.
    pub hot_clusters: usize,
    /// Bytes of all predictors.
    pub predictor_bytes: usize,
    /// Bound of their rank.
    pub rank: usize,
    /// See [`ColdOptions::absent_loss_pml`](crate::plan::ColdOptions::absent_loss_pml).
    pub absent_loss_pml: u16,
    /// The cold segment.
    pub cold: ColdSizes,
}

impl SparseSizes {
    /// Bytes of predictors and of what their first layers give.
    pub fn predictors_bytes(&self, shape: &Shape) -> usize {
        let sections = shape.n_layers * shape.n_ffns();
        carved_bytes((sections + 1) * size_of::<u64>())
            + carved_bytes(self.predictor_bytes)
            + predictors::room_bytes(self.rank)
            + match self.cold.guesses {
                0 => 0,
                _ => foresight::bytes(shape),
            }
            + match self.absent_loss_pml {
                0 => 0,
                _ => recency::bytes(self.cold.n_bundles),
            }
    }
}

/// Memory of sparse passes.
pub struct Sparse<'m> {
    sizes: SparseSizes,
    predictors: Predictors<'m>,
    /// Slots and books; the bytes of the cold segment.
    pub cold: Cold<'m>,
    window: Window<'m>,
    foresight: Option<Foresight<'m>>,
    recency: Option<Recency<'m>>,
}

/// One section to compute.
pub struct Section<'a> {
    /// Layer.
    pub layer: usize,
    /// Expert, 0 in a model without experts.
    pub expert: usize,
    /// The tokens (tokens, dim).
    pub x: &'a Activations<'a>,
}

impl<'m> Sparse<'m> {
    /// Carves everything.
    pub fn take(
        arena: &mut Arena<'m>,
        image: &Image<'_>,
        sizes: SparseSizes,
    ) -> Result<Self, OutOfMemory> {
        Ok(Sparse {
            sizes,
            predictors: Predictors::take(arena, image, &sizes)?,
            cold: Cold::take(arena, sizes.cold)?,
            window: Window::take(arena, image.shape(), sizes.tokens)?,
            foresight: match sizes.cold.guesses {
                0 => None,
                _ => Some(Foresight::take(arena, image.shape())?),
            },
            recency: match sizes.absent_loss_pml {
                0 => None,
                _ => Some(Recency::take(arena, sizes.cold.n_bundles)?),
            },
        })
    }

    /// Reads the predictors.
    ///
    /// # Errors
    /// Those that cannot be read, or are damaged.
    pub fn load<'f, F: Flash<'f>>(
        &mut self,
        weights: &mut Weights<'f, F>,
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        self.predictors.load(weights, clock)
    }

    /// Of bundles that were needed lately, if it matters which they are.
    pub fn recency(&mut self) -> Option<&mut Recency<'m>> {
        self.recency.as_mut()
    }

    /// A pass begins.
    pub fn begin_pass(&mut self) {
        if let Some(recency) = &mut self.recency {
            recency.begin_pass();
        }
        if let Some(foresight) = &mut self.foresight {
            foresight.begin_pass();
        }
        let cache = &mut self.cold.books.cache;
        cache.next_pass();
        if self.sizes.cold.without.cache {
            let limit = cache.slots();
            cache.set_limit(0);
            cache.set_limit(limit);
        }
    }

    /// Before a section that is not the last one: the residual stream `x` (tokens, dim) as it is,
    /// and the weight of the next section's norm.
    pub fn look_ahead<C: Cores, K>(
        &mut self,
        machine: &Machine<'_, C, K>,
        x: &[f32],
        weight: &[f32],
        eps: f32,
    ) {
        if let Some(foresight) = &mut self.foresight {
            foresight.expect(machine.cores, machine.kernels, x, weight, eps);
        }
    }

    /// `sum` (dim, tokens) = the section on its tokens. `partials` has room for a window of
    /// clusters (clusters, dim, tokens).
    ///
    /// # Errors
    /// Weights that cannot be read; nothing is in flight then, and no slot is held.
    #[inline(never)]
    pub fn run<'f, F: Flash<'f>, C: Cores, K: Clock>(
        &mut self,
        machine: &Machine<'_, C, K>,
        weights: &mut Weights<'f, F>,
        lanes: &Lanes<'_>,
        section: &Section<'_>,
        partials: &mut [f32],
        sum: &mut [f32],
    ) -> Result<(), WeightsError> {
        let shape = *weights.image.shape();
        let (map, x) = (weights.image.ffn(section.layer, section.expert), section.x);
        let index = section.layer * shape.n_ffns() + section.expert;
        let prefix = self.sizes.hot_clusters * shape.cluster_neurons;
        let prefix = prefix.min(shape.ffn_dim);
        let (image, stream, resident) = weights.split(&map, prefix);
        let (mut worth, mut expected) = match &mut self.foresight {
            Some(foresight) => foresight.begin(index, shape.dim),
            None => (None, None),
        };
        let next = expected.as_ref().map(|next| (next.section, &next.x));
        let predictors = &mut self.predictors;
        let (predictor, next) = predictors.begin(machine, lanes, map.neurons, (index, x), next);
        let n_bundles = shape.ffn_dim / shape.bundle_neurons;
        let (ages, next_ages) = match &mut self.recency {
            Some(recency) => recency.of(index, n_bundles),
            None => Default::default(),
        };
        let map_of = |section: usize| image.ffn(section / shape.n_ffns(), section % shape.n_ffns());
        let place = Place::new(&shape, index, prefix, &map_of, machine.kernels.crc32c);
        let overlaps = !self.sizes.cold.without.pipeline;
        sum.fill(0.0);
        let at_once = (partials.len() / sum.len()).min(JOBS_MAX);
        let mut from = 0;
        while from < shape.n_clusters() {
            let to = (from + at_once).min(shape.n_clusters());
            let stages = Stages {
                map,
                reader: resident.reader,
                resident: resident.bytes,
                slots: &self.cold.slots,
                kernels: machine.kernels,
                activation: shape.activation,
                x,
                predictor: &predictor,
                next: next.as_ref(),
                ages,
                next_ages,
            };
            let clusters = self.window.clusters(&shape, from..to, x.tokens(), partials);
            let first_cold = from.max(self.sizes.hot_clusters);
            let (ahead, guesses) = match &mut expected {
                Some(next) => next.clusters(&shape, first_cold..to),
                None => Default::default(),
            };
            let pipeline = Pipeline::new(clusters.len(), ahead.len(), overlaps);
            let pipeline = SpinMutex::new(pipeline);
            let cold = (&mut self.cold.books, &self.cold.slots);
            let owner = Owner {
                clusters: &clusters,
                ahead: &ahead,
                guesses,
                worth: worth.as_deref_mut(),
                first_bundle: from * place.cluster_bundles,
                ..Owner::new(&mut *stream, cold, &place, &pipeline)
            };
            if let Some(error) = compute(machine, lanes, &stages, owner) {
                return Err(error.named(&image));
            }
            if !ages.is_empty() {
                let k = shape.bundle_neurons;
                clusters
                    .iter()
                    .for_each(|one| one.lock().note_needed(ages, k));
            }
            drop(clusters);
            let partials = &partials[..(to - from) * sum.len()];
            add_in_order(machine.cores, partials, sum);
            from = to;
        }
        Ok(())
    }
}

/// Takes the clusters of `owner` through all stages, on all lanes. Why they are not finished, if
/// they are not.
fn compute<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    lanes: &Lanes<'_>,
    stages: &Stages<'_>,
    owner: Owner<'_, '_, '_, '_, 'm, F>,
) -> Option<WeightsError> {
    let (pipeline, clusters, ahead) = (owner.pipeline, owner.clusters, owner.ahead);
    let owner = SpinMutex::new(owner);
    let team = Team {
        pipeline,
        clusters,
        ahead,
        stages,
        owner: &owner,
        owner_lane: 0,
        owner_is_here: AtomicBool::new(false),
        clock: machine.clock,
    };
    team.run(machine.cores, lanes);
    owner.into_inner().close(machine.clock)
}
