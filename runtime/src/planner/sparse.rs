//! The demand of plans that read only the neurons which are active.
//!
//! What a model's calibration says of all its feed-forward sections is summed up in one curve of
//! misses. A split of the memory (how many bundles of each section stay, how many slots its cache
//! has) and a way of reading then give the bytes and reads of a token.

use super::Demand;
use crate::cache::PolicyKind;
use crate::format::{CACHES, PREFIXES, Statistics};
use crate::profile::DeviceProfile;

/// Which neurons a token computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum NeuronChoice {
    /// Those that a predictor names: bundles of the others are not looked at.
    Predicted,
    /// Those whose gate says so (`exact`, `threshold`): the gate of every neuron is computed.
    Gated,
}

/// Where a model's neurons lie, and how a token chooses among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Which neurons are computed.
    pub choice: NeuronChoice,
    /// Feed-forward sections in the image: layers, times experts.
    pub sections: u32,
    /// Sections that one token uses: layers, times experts used.
    pub sections_used: u32,
    /// Bundles of a section.
    pub bundles: u32,
    /// Neurons of a bundle.
    pub bundle_neurons: u32,
    /// Bytes of a bundle's first part, with the gate rows: whole pages.
    pub first_bytes: u32,
    /// Bytes of a bundle on flash: whole pages.
    pub bundle_bytes: u32,
    /// Bytes of a bundle in memory.
    pub kept_bytes: u32,
    /// Scattered reads that may be in flight at once.
    pub depth_max: u32,
    /// Which bundle leaves the cache.
    pub policy: PolicyKind,
    /// Bundles that one read may span.
    pub run_max: u32,
    /// Multiply-adds of one row: the width of the residual stream.
    pub row_multiply_adds: u32,
    /// Of the bundles that are fetched because they may be active, the share whose gate says that
    /// they are: the others' second part need not be read.
    pub alive_share: f64,
}

/// How memory for neurons is split, and how the missing ones are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Split {
    /// Bundles of each section that always stay: its first.
    pub prefix_bundles: u32,
    /// Cache slots of each section, one bundle each.
    pub cache_bundles: u32,
    /// First parts are read first, and second parts only of bundles that are alive.
    pub two_phase: bool,
    /// Up to so many bundles between two missing ones are read with them.
    pub gap_bundles: u32,
}

/// A model as the planner sees it: plain numbers only.
#[derive(Debug, Clone, PartialEq)]
pub struct SparseModel {
    /// Where its neurons lie.
    pub layout: Layout,
    /// Active neurons a token that are not in memory, summed over the sections that it uses: by
    /// hot prefix in eighths and cache in 32nds of a section.
    pub misses: [[f32; CACHES]; PREFIXES],
    /// What a token asks for before and after its feed-forward neurons: a phase of its own.
    pub rest: Demand,
    /// What it asks for keys and values: a phase of its own.
    pub attention: Demand,
    /// What it asks for along with them, such as predictors.
    pub section: Demand,
    /// Bytes of memory for everything but neurons.
    pub fixed_bytes: u64,
    /// Every section that was added has statistics.
    pub is_known: bool,
}

/// Where a share from 0 to 1 lies in steps of `1 / (points - 1)`.
fn step(share: f64, points: usize) -> (usize, f64) {
    let at = share.clamp(0.0, 1.0) * (points - 1) as f64;
    let low = (at as usize).min(points - 2);
    (low, at - low as f64)
}

impl SparseModel {
    /// A model of which no section was added yet.
    pub fn new(layout: Layout, rest: Demand, fixed_bytes: u64) -> Self {
        SparseModel {
            layout,
            misses: [[0.0; CACHES]; PREFIXES],
            rest,
            attention: Demand::default(),
            section: Demand::default(),
            fixed_bytes,
            is_known: true,
        }
    }

    /// Adds a section of which nothing is known: every neuron may be active.
    pub fn add_unknown(&mut self, used_share: f32) {
        self.is_known = false;
        let neurons = (self.layout.bundles * self.layout.bundle_neurons) as f32;
        for (prefix, row) in self.misses.iter_mut().enumerate() {
            let cold = 1.0 - prefix as f32 / (PREFIXES - 1) as f32;
            for (cache, sum) in row.iter_mut().enumerate() {
                let absent = cold - cache as f32 / (CACHES - 1) as f32;
                *sum += used_share * neurons * absent.max(0.0);
            }
        }
    }

    /// Adds a section that a token uses with probability `used_share`: 1, or of an expert the share
    /// of the experts that are used.
    pub fn add(&mut self, statistics: &Statistics<'_>, used_share: f32) {
        for (prefix, row) in self.misses.iter_mut().enumerate() {
            for (cache, sum) in row.iter_mut().enumerate() {
                *sum += used_share * statistics.misses(prefix, cache);
            }
        }
    }

    /// Active neurons a token outside of memory, between the points of the curve linearly.
    pub fn misses(&self, prefix_share: f64, cache_share: f64) -> f64 {
        let (prefix, across) = step(prefix_share, PREFIXES);
        let (cache, along) = step(cache_share, CACHES);
        let row = |prefix: usize| {
            let row = &self.misses[prefix];
            let (low, high) = (f64::from(row[cache]), f64::from(row[cache + 1]));
            low + (high - low) * along
        };
        row(prefix) + (row(prefix + 1) - row(prefix)) * across
    }

    /// Active neurons a token outside of prefix and cache, under the cache's policy.
    ///
    /// The curve is that of a cache of the least recently used. A cache by frequency does as well
    /// as one that holds the most frequent bundles of the cold ones for good, where that is better:
    /// and those are the next after the prefix, since bundles are ordered by frequency.
    fn missing(&self, prefix_share: f64, cache_share: f64) -> f64 {
        let recent = self.misses(prefix_share, cache_share);
        match self.layout.policy {
            PolicyKind::Lru => recent,
            PolicyKind::Frequency => recent.min(self.misses(prefix_share + cache_share, 0.0)),
        }
    }

    /// Active neurons a token that a split keeps nowhere.
    pub fn missing_of(&self, split: &Split) -> f64 {
        let share = |bundles: u32| f64::from(bundles) / f64::from(self.layout.bundles);
        self.missing(share(split.prefix_bundles), share(split.cache_bundles))
    }

    /// Bytes of memory that a split takes; `None` past 64 bits.
    pub fn memory_bytes(&self, split: &Split) -> Option<u64> {
        let layout = &self.layout;
        let bundles = u64::from(split.prefix_bundles) + u64::from(split.cache_bundles);
        bundles
            .checked_mul(u64::from(layout.sections))?
            .checked_mul(u64::from(layout.kept_bytes))?
            .checked_add(self.fixed_bytes)
    }

    /// The phases of a token when memory is split so: the rest of the model, attention to its
    /// context, and its neurons.
    pub fn phases(&self, split: &Split, profile: &DeviceProfile) -> [Demand; 3] {
        [self.rest, self.attention, self.demand(split, profile)]
    }

    /// What a token asks for its neurons when memory is split so.
    ///
    /// With predictors, hot and cold neurons alike are computed only where they are predicted;
    /// without, gates of all are, and up rows of hot ones. Where missing bundles lie among the cold
    /// ones is taken to be random, so of a density `q` of them one in `(1 - q)^(gap + 1)` begins a
    /// read of its own, and the gaps that are read through have the mean length of a geometric
    /// distribution cut at `gap`.
    pub fn demand(&self, split: &Split, profile: &DeviceProfile) -> Demand {
        let layout = &self.layout;
        let share = |bundles: u32| f64::from(bundles) / f64::from(layout.bundles);
        let prefix = share(split.prefix_bundles);
        let neurons_a_bundle = f64::from(layout.bundle_neurons);
        let used = f64::from(layout.sections_used);
        let missing = self.missing_of(split) / neurons_a_bundle;
        let cold_bundles = used * f64::from(layout.bundles - split.prefix_bundles);
        let reads = match layout.choice {
            NeuronChoice::Predicted => self.predicted_reads(split, missing, cold_bundles),
            NeuronChoice::Gated => {
                let absent = cold_bundles - used * f64::from(split.cache_bundles);
                self.gated_reads(split, missing, absent.max(0.0))
            }
        };
        let rows = self.rows(split, prefix);
        let row_bytes = f64::from(layout.kept_bytes) / (3.0 * neurons_a_bundle);
        let flash_bytes = reads.sequential_bytes + reads.random_bytes;
        let flash_reads = reads.random_reads + reads.sequential_reads;
        let mean_bytes = flash_bytes / flash_reads.max(1.0);
        let range_bytes = f64::from(layout.sections)
            * f64::from(layout.bundles - split.prefix_bundles)
            * f64::from(layout.bundle_bytes);
        let section = &self.section;
        Demand {
            flash_sequential_bytes: section.flash_sequential_bytes + reads.sequential_bytes,
            flash_sequential_reads: section.flash_sequential_reads + reads.sequential_reads,
            flash_random_reads: section.flash_random_reads + reads.random_reads,
            flash_random_bytes: section.flash_random_bytes + reads.random_bytes,
            flash_depth: f64::from(layout.depth_max)
                .min(reads.random_reads / used)
                .max(1.0),
            flash_range_bytes: range_bytes.max(section.flash_range_bytes),
            flash_waits: section.flash_waits + reads.waits,
            dram_bytes: section.dram_bytes + rows * row_bytes + flash_bytes,
            dram_scattered_bytes: match layout.choice {
                NeuronChoice::Predicted => rows * row_bytes,
                NeuronChoice::Gated => 0.0,
            },
            multiply_adds: section.multiply_adds + rows * f64::from(layout.row_multiply_adds),
            reads_cpu_ns: section.reads_cpu_ns + flash_reads * profile.flash.cpu_ns(mean_bytes),
            ..*section
        }
    }

    /// Rows of gate, up and down that a token computes.
    fn rows(&self, split: &Split, prefix: f64) -> f64 {
        let layout = &self.layout;
        let active = self.misses(0.0, 0.0);
        match layout.choice {
            NeuronChoice::Predicted => active * (1.0 + 2.0 * layout.alive_share),
            NeuronChoice::Gated => {
                let neurons = f64::from(layout.sections_used) * f64::from(layout.bundle_neurons);
                let hot = neurons * f64::from(split.prefix_bundles);
                let all = neurons * f64::from(layout.bundles);
                all + hot + active + self.misses(prefix, 0.0)
            }
        }
    }

    /// Reads of `missing` bundles out of `cold` ones.
    fn predicted_reads(&self, split: &Split, missing: f64, cold: f64) -> Reads {
        let layout = &self.layout;
        let (first, whole) = (
            f64::from(layout.first_bytes),
            f64::from(layout.bundle_bytes),
        );
        // A section without a miss has nothing to wait for.
        let waits = missing.min(f64::from(layout.sections_used));
        if split.two_phase {
            let alive = missing * layout.alive_share;
            return Reads {
                random_reads: missing + alive,
                random_bytes: missing * first + alive * (whole - first),
                waits: 2.0 * waits,
                ..Reads::default()
            };
        }
        let density = if cold > 0.0 {
            (missing / cold).min(1.0)
        } else {
            0.0
        };
        // `apart` is the chance that at least so many bundles lie before the next missing one.
        let (mut apart, mut through) = (1.0 - density, 0.0);
        for length in 1..=split.gap_bundles {
            through += f64::from(length) * density * apart;
            apart *= 1.0 - density;
        }
        Reads {
            random_reads: (missing * apart)
                .max(missing * (1.0 + through) / f64::from(layout.run_max))
                .max(waits),
            random_bytes: missing * (1.0 + through) * whole,
            waits,
            ..Reads::default()
        }
    }

    /// Reads where the gates of `absent` bundles are needed, and all of `missing` ones.
    fn gated_reads(&self, split: &Split, missing: f64, absent: f64) -> Reads {
        let layout = &self.layout;
        let (first, whole) = (
            f64::from(layout.first_bytes),
            f64::from(layout.bundle_bytes),
        );
        if !split.two_phase {
            let sequential_bytes = absent * whole;
            return Reads {
                sequential_bytes,
                sequential_reads: sequential_bytes / SEQUENTIAL_READ_BYTES,
                ..Reads::default()
            };
        }
        let waits = absent.min(f64::from(layout.sections_used));
        Reads {
            random_reads: absent + missing,
            random_bytes: absent * first + missing * (whole - first),
            waits: 2.0 * waits,
            ..Reads::default()
        }
    }
}

/// Bytes of a long sequential read.
const SEQUENTIAL_READ_BYTES: f64 = 1048576.0;

/// What a token reads of its neurons.
#[derive(Debug, Clone, Copy, Default)]
struct Reads {
    sequential_bytes: f64,
    sequential_reads: f64,
    random_reads: f64,
    random_bytes: f64,
    waits: f64,
}
