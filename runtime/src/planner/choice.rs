//! How the cold segment is used: what the caller asked for, and for the rest what predicts best.

use super::{SearchLimits, SparseModel, SparsePlan, Wanted, best_plan};
use crate::cache::PolicyKind;
use crate::limits::COLD_READS_MAX;
use crate::plan::{ColdOptions, Without};
use crate::profile::DeviceProfile;

/// What the caller asked for of [`ColdOptions`]; `None` leaves the choice to the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ColdWish {
    /// Which bundle is given up.
    pub policy: Option<PolicyKind>,
    /// Per cent of the memory for neurons that go to the resident prefix.
    pub hot_pct: Option<usize>,
    /// Gates are read first.
    pub two_phase: Option<bool>,
    /// Bundles that may lie between two that one read brings.
    pub gap: Option<usize>,
    /// Reads in flight.
    pub reads: Option<usize>,
    /// Reads in flight up to which more are begun for the next layer.
    pub guesses: Option<usize>,
    /// See [`ColdOptions::absent_loss_pml`].
    pub absent_loss_pml: u16,
    /// What is left out, for comparison.
    pub without: Without,
}

/// Options, and where they come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColdChoice {
    /// The options.
    pub options: ColdOptions,
    /// True where the planner chose what was not asked for; else that is the default.
    pub planned: bool,
}

impl ColdWish {
    /// What was asked for, and for the rest `options`.
    pub fn or(&self, options: ColdOptions) -> ColdOptions {
        ColdOptions {
            policy: self.policy.unwrap_or(options.policy),
            hot_pct: self.hot_pct.unwrap_or(options.hot_pct),
            two_phase: self.two_phase.unwrap_or(options.two_phase),
            gap: self.gap.unwrap_or(options.gap),
            reads: self.reads.unwrap_or(options.reads),
            guesses: self.guesses.unwrap_or(options.guesses),
            absent_loss_pml: self.absent_loss_pml,
            without: self.without,
        }
    }

    fn wanted(&self) -> Wanted {
        // A neuron in several commands is always read in two phases.
        let two_phase = match self.without.bundles {
            true => Some(true),
            false => self.two_phase,
        };
        Wanted {
            hot_pct: self.hot_pct.map(|pct| pct.min(100) as u32),
            two_phase,
            gap_bundles: self.gap.map(|gap| gap as u32),
        }
    }
}

/// The options with which `model` is predicted to decode fastest in `limits.memory_bytes` (the
/// limits' wishes are replaced by `wish`). Where nothing is known of the neurons' use, or no split
/// fits, the defaults: half of the memory for neurons is prefix, bundles are read whole.
pub fn choose_cold(
    model: &SparseModel,
    profile: &DeviceProfile,
    limits: &SearchLimits,
    wish: &ColdWish,
) -> ColdChoice {
    let limits = SearchLimits {
        wanted: wish.wanted(),
        ..*limits
    };
    let default = ColdOptions::default();
    match best_plan(model, profile, &limits) {
        Ok(plan) if model.is_known => ColdChoice {
            options: wish.or(options_of(&plan, profile)),
            planned: true,
        },
        _ => ColdChoice {
            options: wish.or(default),
            planned: false,
        },
    }
}

fn options_of(plan: &SparsePlan, profile: &DeviceProfile) -> ColdOptions {
    let (split, neurons) = (&plan.split, &plan.phases[1]);
    let (prefix, cache) = (split.prefix_bundles as usize, split.cache_bundles as usize);
    let default = ColdOptions::default();
    let reads = match neurons.flash_random_reads > 0.0 {
        true => profile
            .flash
            .best_depth(neurons.flash_block_bytes(), neurons.flash_range_bytes)
            as usize,
        false => default.reads,
    };
    ColdOptions {
        hot_pct: (100 * prefix + (prefix + cache) / 2) / (prefix + cache).max(1),
        two_phase: split.two_phase,
        gap: split.gap_bundles as usize,
        reads: reads.clamp(1, COLD_READS_MAX),
        ..default
    }
}
