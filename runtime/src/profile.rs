//! What a device can do, in plain numbers: measured by `tessera probe`, or a cautious default.

use heapless::Vec;

use crate::limits::{
    LANES_MAX, PROFILE_BLOCKS_MAX as BLOCKS_MAX, PROFILE_DEPTHS_MAX as DEPTHS_MAX,
    PROFILE_RANGES_MAX as RANGES_MAX,
};

mod check;
#[cfg(test)]
mod tests;

pub use check::{Place, ProfileError};

/// Flash, cores and memory of one device. [`DeviceProfile::validate`] is what makes it usable:
/// every function below it relies on the checks made there.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceProfile {
    /// The flash.
    pub flash: FlashProfile,
    /// The lanes, the one that owns the flash queue first.
    pub lanes: Vec<LaneProfile, LANES_MAX>,
    /// Bytes a second that 1, 2, … lanes together read from memory with the decode kernels; as many
    /// as lanes.
    pub dram_bytes_per_s: Vec<f64, LANES_MAX>,
    /// What a fork-join over 1, 2, … lanes adds to its work; as many as lanes.
    pub join_ns: Vec<f64, LANES_MAX>,
}

/// Speed of direct reads.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashProfile {
    /// Bytes a second of sequential reads of 1 MiB, several in flight.
    pub sequential_bytes_per_s: f64,
    /// Sizes of the random reads that were measured, in bytes, ascending.
    pub blocks_bytes: Vec<u32, BLOCKS_MAX>,
    /// Reads in flight, ascending.
    pub depths: Vec<u32, DEPTHS_MAX>,
    /// CPU time that a read of each size costs, submission and completion together.
    pub cpu_ns_per_read: Vec<f64, BLOCKS_MAX>,
    /// Random reads over address ranges of several sizes, ascending.
    pub ranges: Vec<RangeProfile, RANGES_MAX>,
}

/// Random reads over one address range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RangeProfile {
    /// Size of the range.
    pub range_bytes: u64,
    /// Bytes a second (blocks, depths).
    pub bytes_per_s: [[f64; DEPTHS_MAX]; BLOCKS_MAX],
}

/// What one lane computes with the decode kernels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaneProfile {
    /// Multiply-adds a second on 4-bit rows in the core's own cache.
    pub multiply_adds_per_s: f64,
    /// Bytes a second of 4-bit rows from memory, this lane alone.
    pub rows_bytes_per_s: f64,
    /// Multiply-adds a second of attention on keys and values in half floats, a few hundred
    /// positions.
    pub attention_multiply_adds_per_s: f64,
}

/// Where `x` lies between ascending `points`: the index below, and how far it is to the next.
/// Before the first and past the last point, that point.
fn bracket(points: &[u32], x: f64) -> (usize, f64) {
    let above = points.iter().position(|&point| f64::from(point) > x);
    match above {
        Some(0) => (0, 0.0),
        Some(index) => {
            let (low, high) = (f64::from(points[index - 1]), f64::from(points[index]));
            (index - 1, (x - low) / (high - low))
        }
        None => (points.len() - 1, 0.0),
    }
}

/// The value at `(index, part)` of [`bracket`], where `at` gives those of the points.
fn between((index, part): (usize, f64), at: impl Fn(usize) -> f64) -> f64 {
    let low = at(index);
    if part > 0.0 {
        low + (at(index + 1) - low) * part
    } else {
        low
    }
}

impl FlashProfile {
    /// Random reads a second of `block_bytes` each, `depth` in flight, over `range_bytes`.
    ///
    /// - Between two depths the time that a read is in flight (depth over reads a second: Little's
    ///   law) is taken to be linear in the depth: level while the device has room for more reads,
    ///   rising once it is saturated. A depth past the measured ones is as the deepest.
    /// - Between two sizes the time a read takes of the device is linear in the size: a command and
    ///   its bytes. Reads smaller than the smallest cost as much as that; reads larger than the
    ///   largest move as many bytes a second as that.
    /// - The range is the smallest measured one that holds `range_bytes`, or the largest.
    pub fn reads_per_s(&self, block_bytes: f64, depth: f64, range_bytes: f64) -> f64 {
        let range = self.range(range_bytes);
        let depths = bracket(&self.depths, depth);
        let blocks = bracket(&self.blocks_bytes, block_bytes);
        let read_s = between(blocks, |block| {
            let bytes = f64::from(self.blocks_bytes[block]);
            let in_flight_s = between(depths, |index| {
                f64::from(self.depths[index]) * bytes / range.bytes_per_s[block][index]
            });
            in_flight_s / self.clamp_depth(depth)
        });
        let largest_bytes = f64::from(self.blocks_bytes[self.blocks_bytes.len() - 1]);
        1.0 / (read_s * (block_bytes / largest_bytes).max(1.0))
    }

    /// Bytes a second of the same reads.
    pub fn bytes_per_s(&self, block_bytes: f64, depth: f64, range_bytes: f64) -> f64 {
        block_bytes * self.reads_per_s(block_bytes, depth, range_bytes)
    }

    /// The measured depth at which reads of `block_bytes` are fastest; of equals the lowest.
    pub fn best_depth(&self, block_bytes: f64, range_bytes: f64) -> u32 {
        let mut best = (0.0, self.depths[0]);
        for &depth in &self.depths {
            let reads = self.reads_per_s(block_bytes, f64::from(depth), range_bytes);
            if reads > best.0 {
                best = (reads, depth);
            }
        }
        best.1
    }

    /// CPU time of a read of `block_bytes`, linear between the measured sizes and level outside.
    pub fn cpu_ns(&self, block_bytes: f64) -> f64 {
        let blocks = bracket(&self.blocks_bytes, block_bytes);
        between(blocks, |block| self.cpu_ns_per_read[block])
    }

    fn clamp_depth(&self, depth: f64) -> f64 {
        let last = f64::from(self.depths[self.depths.len() - 1]);
        depth.clamp(f64::from(self.depths[0]), last)
    }

    fn range(&self, range_bytes: f64) -> &RangeProfile {
        let holds = |range: &&RangeProfile| range.range_bytes as f64 >= range_bytes;
        let last = self.ranges.len() - 1;
        self.ranges.iter().find(holds).unwrap_or(&self.ranges[last])
    }
}

impl DeviceProfile {
    /// Bytes a second that `lanes` lanes read from memory; more lanes than known read as all known.
    pub fn dram(&self, lanes: usize) -> f64 {
        self.dram_bytes_per_s[self.known(lanes) - 1]
    }

    /// Multiply-adds a second of the first `lanes` lanes together, of those that are known.
    pub fn multiply_adds_per_s(&self, lanes: usize) -> f64 {
        let lanes = &self.lanes[..self.known(lanes)];
        lanes.iter().map(|lane| lane.multiply_adds_per_s).sum()
    }

    /// Multiply-adds of attention a second of the first `lanes` lanes together, of those that are
    /// known.
    pub fn attention_multiply_adds_per_s(&self, lanes: usize) -> f64 {
        let lanes = &self.lanes[..self.known(lanes)];
        let speeds = lanes.iter().map(|lane| lane.attention_multiply_adds_per_s);
        speeds.sum()
    }

    /// What a fork-join over `lanes` lanes costs.
    pub fn join_ns(&self, lanes: usize) -> f64 {
        self.join_ns[self.known(lanes) - 1]
    }

    /// `lanes`, at least 1 and at most as many as were measured.
    pub fn known(&self, lanes: usize) -> usize {
        lanes.clamp(1, self.lanes.len())
    }
}

/// Megabytes a second of the default's random reads: rows for blocks of 4, 8, 16, 64, 256 and
/// 1,024 KiB, columns for 1, 4, 16 and 64 in flight.
const DEFAULT_MB_PER_S: [[u32; 4]; 6] = [
    [30, 100, 200, 250],
    [55, 180, 350, 420],
    [100, 300, 550, 650],
    [300, 700, 1000, 1100],
    [700, 1200, 1500, 1500],
    [1200, 1600, 1700, 1700],
];

impl Default for DeviceProfile {
    /// A phone with UFS 3.1 flash and four fast cores, on the cautious side: about half of what
    /// PowerInfer-2 (arXiv 2406.06282, section 2.3) reports of UFS 4.0.
    fn default() -> Self {
        let mut range = RangeProfile {
            range_bytes: 1 << 30,
            bytes_per_s: [[0.0; DEPTHS_MAX]; BLOCKS_MAX],
        };
        for (row, speeds) in range.bytes_per_s.iter_mut().zip(DEFAULT_MB_PER_S) {
            for (speed, mb) in row.iter_mut().zip(speeds) {
                *speed = f64::from(mb) * 1e6;
            }
        }
        let lane = LaneProfile {
            multiply_adds_per_s: 25e9,
            rows_bytes_per_s: 10e9,
            attention_multiply_adds_per_s: 3e9,
        };
        DeviceProfile {
            flash: FlashProfile {
                sequential_bytes_per_s: 1.7e9,
                blocks_bytes: Vec::from_array([4, 8, 16, 64, 256, 1024].map(|kib| kib << 10)),
                depths: Vec::from_array([1, 4, 16, 64]),
                cpu_ns_per_read: Vec::from_array([10e3, 10e3, 11e3, 14e3, 25e3, 60e3]),
                ranges: Vec::from_array([range]),
            },
            lanes: Vec::from_array([lane; 4]),
            dram_bytes_per_s: Vec::from_array([12e9, 20e9, 26e9, 30e9]),
            join_ns: Vec::from_array([100.0, 2e3, 3e3, 4e3]),
        }
    }
}
