//! Predicts what a plan will do on a device, and which part of the device holds it back.
//!
//! A token is a [`Demand`]: bytes from flash, bytes from memory, arithmetic, and steps that nothing
//! can overlap. [`predict`] sets them against a [`DeviceProfile`]. `dense` makes the demand of
//! today's plans, which compute all neurons; `sparse` makes, and chooses, those of plans that
//! read only neurons that are active. Everything here is a pure function of plain numbers.
//!
//! # The model
//!
//! Flash, memory and arithmetic run side by side, so the slowest of them takes the time; what
//! happens on one lane, or between two forks, is added:
//!
//! ```text
//! flash   = sequential bytes / stream's share of sequential speed + random reads / reads a second
//! dram    = (bytes + rows of single neurons again) / speed of so many lanes
//! compute = multiply-adds / speed of so many lanes + CPU time of reads and checksums / lanes;
//!           those of attention have a speed of their own
//! serial  = joins * join time + additions on one lane + waits * time of one read
//! token   = max(flash, dram, compute) + serial
//! ```
//!
//! Where a token has phases that follow each other (attention, then neurons that are read when a
//! predictor has named them), each phase takes the time of its own slowest part: what that is more
//! than the slowest of the sums is stated as `apart`.

use crate::profile::DeviceProfile;

mod choice;
mod dense;
mod image;
mod search;
mod sparse;
#[cfg(test)]
mod tests;

pub use choice::{ColdChoice, ColdWish, choose_cold};
pub use dense::{attention_demand, dense_demand};
pub use image::{sparse_model, split_of};
pub use search::{SearchError, SearchLimits, SparsePlan, Wanted, best_plan};
pub use sparse::{Layout, NeuronChoice, SparseModel, Split};

/// What one token asks of a device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// Bytes read from flash in long sequential reads.
    pub flash_sequential_bytes: f64,
    /// Number of those reads.
    pub flash_sequential_reads: f64,
    /// Reads from flash at scattered places.
    pub flash_random_reads: f64,
    /// Bytes of all of them; their mean is the block size.
    pub flash_random_bytes: f64,
    /// Scattered reads in flight at once.
    pub flash_depth: f64,
    /// Bytes of flash over which they are scattered.
    pub flash_range_bytes: f64,
    /// Times that nothing can be done until a scattered read has arrived.
    pub flash_waits: f64,
    /// Bytes that lanes read from memory.
    pub dram_bytes: f64,
    /// Of these, rows of single neurons, wherever they stand.
    pub dram_scattered_bytes: f64,
    /// Multiply-adds of products.
    pub multiply_adds: f64,
    /// Multiply-adds of attention, with keys and values that are floats.
    pub attention_multiply_adds: f64,
    /// CPU time of submitting, completing and checking reads, in nanoseconds of one lane.
    pub reads_cpu_ns: f64,
    /// Fork-joins.
    pub joins: f64,
    /// Floats that one lane adds up while the others wait.
    pub serial_floats: f64,
}

impl Demand {
    /// Bytes of a scattered read, on average; 0 if there is none.
    pub fn flash_block_bytes(&self) -> f64 {
        if self.flash_random_reads > 0.0 {
            self.flash_random_bytes / self.flash_random_reads
        } else {
            0.0
        }
    }
}

/// What holds a token back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Bound {
    /// Reading from flash.
    Flash,
    /// Reading from memory.
    Dram,
    /// Arithmetic.
    Compute,
}

impl Bound {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Bound::Flash => "flash",
            Bound::Dram => "dram",
            Bound::Compute => "compute",
        }
    }
}

/// Nanoseconds that each part of a token would take alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Flash.
    pub flash_ns: f64,
    /// Memory.
    pub dram_ns: f64,
    /// Arithmetic, and the CPU's part of reading.
    pub compute_ns: f64,
    /// What phases that follow each other add to the slowest of these.
    pub apart_ns: f64,
    /// What nothing overlaps.
    pub serial_ns: f64,
}

impl Terms {
    /// The slowest of those that run side by side; of equals the first.
    pub fn bound(&self) -> (Bound, f64) {
        let mut slowest = (Bound::Flash, self.flash_ns);
        for (bound, ns) in [
            (Bound::Dram, self.dram_ns),
            (Bound::Compute, self.compute_ns),
        ] {
            if ns > slowest.1 {
                slowest = (bound, ns);
            }
        }
        slowest
    }

    /// Time of a token.
    pub fn token_ns(&self) -> f64 {
        self.bound().1 + self.apart_ns + self.serial_ns
    }
}

/// What a plan will do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Tokens a second of decode.
    pub tokens_per_s: f64,
    /// What holds it back.
    pub bound: Bound,
    /// The parts.
    pub terms: Terms,
}

/// Floats that one lane adds in a nanosecond, from a cache that another lane wrote.
const SERIAL_FLOATS_PER_NS: f64 = 2.0;

/// Of the flash's sequential speed, what the weight stream gets while lanes compute: 85 to 88 % in
/// four runs of two models with 28 to 60 % of the weights in memory.
const STREAM_SHARE: f64 = 0.87;

/// Of the memory's speed, what rows of single neurons get, few of which are active in a group: 355
/// MB a token of a 7B shape took 17 ms on a device with 45 GB/s, on two lanes.
const SCATTERED_SHARE: f64 = 0.5;

/// Predicts tokens a second for a demand on so many lanes.
pub fn predict(profile: &DeviceProfile, demand: &Demand, lanes: usize) -> Prediction {
    predict_phases(profile, &[*demand], lanes)
}

/// The same for phases that follow each other.
pub fn predict_phases(profile: &DeviceProfile, phases: &[Demand], lanes: usize) -> Prediction {
    let mut terms = Terms {
        flash_ns: 0.0,
        dram_ns: 0.0,
        compute_ns: 0.0,
        apart_ns: 0.0,
        serial_ns: 0.0,
    };
    let mut slowest_ns = 0.0;
    for demand in phases {
        let phase = phase_terms(profile, demand, lanes);
        slowest_ns += phase.bound().1;
        terms.flash_ns += phase.flash_ns;
        terms.dram_ns += phase.dram_ns;
        terms.compute_ns += phase.compute_ns;
        terms.serial_ns += phase.serial_ns;
    }
    terms.apart_ns = slowest_ns - terms.bound().1;
    Prediction {
        tokens_per_s: 1e9 / terms.token_ns(),
        bound: terms.bound().0,
        terms,
    }
}

fn phase_terms(profile: &DeviceProfile, demand: &Demand, lanes: usize) -> Terms {
    let lanes = profile.known(lanes);
    let flash = &profile.flash;
    let (block_bytes, range_bytes) = (demand.flash_block_bytes(), demand.flash_range_bytes);
    let mut flash_s = demand.flash_sequential_bytes / (STREAM_SHARE * flash.sequential_bytes_per_s);
    let mut waits_s = 0.0;
    if demand.flash_random_reads > 0.0 {
        let reads_per_s = |depth| flash.reads_per_s(block_bytes, depth, range_bytes);
        flash_s += demand.flash_random_reads / reads_per_s(demand.flash_depth);
        waits_s = demand.flash_waits / reads_per_s(1.0);
    }
    let slower_bytes = demand.dram_scattered_bytes * (1.0 / SCATTERED_SHARE - 1.0);
    let compute_s = demand.multiply_adds / profile.multiply_adds_per_s(lanes)
        + demand.attention_multiply_adds / profile.attention_multiply_adds_per_s(lanes);
    Terms {
        flash_ns: flash_s * 1e9,
        dram_ns: (demand.dram_bytes + slower_bytes) / profile.dram(lanes) * 1e9,
        compute_ns: compute_s * 1e9 + demand.reads_cpu_ns / lanes as f64,
        apart_ns: 0.0,
        serial_ns: demand.joins * profile.join_ns(lanes)
            + demand.serial_floats / SERIAL_FLOATS_PER_NS
            + waits_s * 1e9,
    }
}
