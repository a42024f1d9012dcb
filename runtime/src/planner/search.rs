//! Which split of the memory, and which way of reading, gives the most tokens a second.

use super::{Demand, NeuronChoice, Prediction, SparseModel, Split, predict_phases};
use crate::limits::COLD_RUN_MAX;
use crate::profile::DeviceProfile;

/// What a split must be like; `None` leaves the choice to the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// Per cent of the memory for neurons that is prefix.
    pub hot_pct: Option<u32>,
    /// First parts are read first.
    pub two_phase: Option<bool>,
    /// Bundles that may lie between two that are read together.
    pub gap_bundles: Option<u32>,
}

/// What a search may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchLimits {
    /// Bytes of memory for everything.
    pub memory_bytes: u64,
    /// Cache slots that each section needs at least, so that its reads have a place to go.
    pub cache_bundles_min: u32,
    /// Lanes.
    pub lanes: usize,
    /// What the split must be like.
    pub wanted: Wanted,
}

/// A split that fits, and what it will do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparsePlan {
    /// The split.
    pub split: Split,
    /// Bytes of memory that it takes.
    pub memory_bytes: u64,
    /// What a token asks for: the rest of the model, then its neurons.
    pub phases: [Demand; 3],
    /// What that takes.
    pub prediction: Prediction,
}

/// Why there is no split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum SearchError {
    /// The memory is too small.
    Memory {
        /// Bytes offered.
        have_bytes: u64,
        /// The smallest number that would do.
        need_bytes: u64,
    },
}

impl core::fmt::Display for SearchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self::Memory {
            have_bytes,
            need_bytes,
        } = self;
        write!(
            f,
            "{have_bytes} bytes of memory are too few for this model's neurons, \
             {need_bytes} is the least"
        )
    }
}

impl core::error::Error for SearchError {}

/// Steps in which prefix and cache of a section are tried.
const PREFIX_STEPS: u32 = 64;
const CACHE_STEPS: u32 = 256;
/// Gaps that are tried, in bundles.
const GAPS: [u32; 6] = [0, 1, 2, 4, 8, COLD_RUN_MAX as u32 - 2];

/// The split of at most `limits.memory_bytes` with the most predicted tokens a second; of equals
/// the one with the least memory.
///
/// The splits that are tried for some memory are also tried for any larger one: more memory never
/// makes the prediction worse. What is left over is less than one step of the cache.
///
/// # Errors
/// [`SearchError`], which names the smallest memory that would do.
pub fn best_plan(
    model: &SparseModel,
    profile: &DeviceProfile,
    limits: &SearchLimits,
) -> Result<SparsePlan, SearchError> {
    let bundles = model.layout.bundles;
    let cache_min = limits.cache_bundles_min.min(bundles);
    let mut best: Option<SparsePlan> = None;
    for prefix_step in 0..=PREFIX_STEPS {
        let prefix_bundles = share(bundles, prefix_step, PREFIX_STEPS);
        // A prefix that is everything needs no cache.
        let cold_bundles = bundles - prefix_bundles;
        for cache_step in 0..=CACHE_STEPS {
            let cache_bundles = share(bundles, cache_step, CACHE_STEPS)
                .max(cache_min)
                .min(cold_bundles);
            let split = Split {
                prefix_bundles,
                cache_bundles,
                ..Split::default()
            };
            let fits = |bytes: &u64| *bytes <= limits.memory_bytes;
            let Some(memory_bytes) = model.memory_bytes(&split).filter(fits) else {
                break;
            };
            if limits.wanted.allows(&split) {
                best_way(model, profile, limits, split, memory_bytes, &mut best);
            }
            if cache_bundles == cold_bundles {
                break;
            }
        }
    }
    let least = Split {
        cache_bundles: cache_min,
        ..Split::default()
    };
    best.ok_or(SearchError::Memory {
        have_bytes: limits.memory_bytes,
        need_bytes: model.memory_bytes(&least).unwrap_or(u64::MAX),
    })
}

impl Wanted {
    /// True where the shares of `split` are as wanted, up to a step of the search.
    fn allows(&self, split: &Split) -> bool {
        let all = u64::from(split.prefix_bundles) + u64::from(split.cache_bundles);
        let off = |pct: u32| {
            let (have, want) = (u64::from(split.prefix_bundles) * 100, all * u64::from(pct));
            have.abs_diff(want)
        };
        self.hot_pct.is_none_or(|pct| off(pct) <= 2 * all)
    }
}

/// Puts the best way of reading with this split of the memory into `best`, if it is better.
fn best_way(
    model: &SparseModel,
    profile: &DeviceProfile,
    limits: &SearchLimits,
    split: Split,
    memory_bytes: u64,
    best: &mut Option<SparsePlan>,
) {
    for split in ways(model.layout.choice, split, limits.wanted) {
        let phases = model.phases(&split, profile);
        let prediction = predict_phases(profile, &phases, limits.lanes);
        let plan = SparsePlan {
            split,
            memory_bytes,
            phases,
            prediction,
        };
        if best.is_none_or(|best| is_better(&plan, &best)) {
            *best = Some(plan);
        }
    }
}

fn share(bundles: u32, step: u32, steps: u32) -> u32 {
    (u64::from(bundles) * u64::from(step) / u64::from(steps)) as u32
}

fn is_better(plan: &SparsePlan, best: &SparsePlan) -> bool {
    let (new, old) = (plan.prediction.tokens_per_s, best.prediction.tokens_per_s);
    new > old || (new == old && plan.memory_bytes < best.memory_bytes)
}

/// The ways of reading that are tried for a split of the memory. A neuron's second part lies
/// between the first parts of two neighbours, so only reads of whole bundles are merged.
fn ways(choice: NeuronChoice, split: Split, wanted: Wanted) -> impl Iterator<Item = Split> {
    let gaps = match choice {
        NeuronChoice::Predicted => &GAPS[..],
        NeuronChoice::Gated => &GAPS[..1],
    };
    // One that was asked for is tried alone.
    let asked = wanted.gap_bundles.into_iter();
    let tried = gaps
        .iter()
        .copied()
        .filter(move |_| wanted.gap_bundles.is_none());
    let merged = asked.chain(tried).map(move |gap_bundles| Split {
        gap_bundles,
        ..split
    });
    let two_phase = Split {
        two_phase: true,
        ..split
    };
    merged
        .chain([two_phase])
        .filter(move |split| wanted.two_phase.is_none_or(|two| two == split.two_phase))
}
