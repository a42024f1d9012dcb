//! What makes a profile usable: every number finite, positive where it divides, in order.

use super::{DeviceProfile, FlashProfile};
use crate::limits::LANES_MAX;

/// The name of a number in a profile, and its indices where it stands in lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Place {
    /// Its name.
    pub name: &'static str,
    /// The first `indices` count.
    index: [usize; 3],
    indices: usize,
}

impl Place {
    /// A number that stands alone.
    pub const fn new(name: &'static str) -> Self {
        Place {
            name,
            index: [0; 3],
            indices: 0,
        }
    }

    /// Element `index` of the list that this names.
    pub const fn at(mut self, index: usize) -> Self {
        self.index[self.indices] = index;
        self.indices += 1;
        self
    }
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)?;
        for index in &self.index[..self.indices] {
            write!(f, "[{index}]")?;
        }
        Ok(())
    }
}

/// Why a profile was refused.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ProfileError {
    /// A number is not finite, or outside of what can be.
    OutOfRange {
        /// Which.
        place: Place,
        /// Its value.
        value: f64,
        /// The least allowed.
        min: f64,
        /// The largest allowed.
        max: f64,
    },
    /// A number is no larger than the one before it in a list that must rise.
    NotAscending {
        /// Which.
        place: Place,
        /// Its value.
        value: f64,
        /// That of the one before.
        before: f64,
    },
    /// A list is empty, too long, or not as long as the one that it belongs to.
    Count {
        /// Which list.
        place: Place,
        /// Its length.
        have: usize,
        /// The least allowed.
        min: usize,
        /// The largest allowed.
        max: usize,
    },
}

impl core::fmt::Display for ProfileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::OutOfRange {
                place,
                value,
                min,
                max,
            } => write!(f, "{place} is {value}, it must be from {min} to {max}"),
            Self::NotAscending {
                place,
                value,
                before,
            } => write!(
                f,
                "{place} is {value}, it must be more than the {before} before it"
            ),
            Self::Count {
                place,
                have,
                min,
                max,
            } if min == max => write!(f, "{place} has {have} values, it must have {min}"),
            Self::Count {
                place,
                have,
                min,
                max,
            } => write!(
                f,
                "{place} has {have} values, it must have from {min} to {max}"
            ),
        }
    }
}

impl core::error::Error for ProfileError {}

/// Refuses a value that is not between `min` and `max`, NaN included.
pub(super) fn check(place: Place, value: f64, min: f64, max: f64) -> Result<(), ProfileError> {
    if value >= min && value <= max {
        return Ok(());
    }
    Err(ProfileError::OutOfRange {
        place,
        value,
        min,
        max,
    })
}

/// Refuses a list of `have` values if there must be from `min` to `max`.
pub(super) fn count(
    name: &'static str,
    have: usize,
    min: usize,
    max: usize,
) -> Result<(), ProfileError> {
    if (min..=max).contains(&have) {
        return Ok(());
    }
    let place = Place::new(name);
    Err(ProfileError::Count {
        place,
        have,
        min,
        max,
    })
}

/// Refuses values that do not rise, or that are outside of `min` to `max`.
fn ascending(
    name: &'static str,
    values: impl Iterator<Item = f64>,
    min: f64,
    max: f64,
) -> Result<(), ProfileError> {
    let mut last = None;
    for (index, value) in values.enumerate() {
        let place = Place::new(name).at(index);
        check(place, value, min, max)?;
        if let Some(before) = last.filter(|&before| before >= value) {
            return Err(ProfileError::NotAscending {
                place,
                value,
                before,
            });
        }
        last = Some(value);
    }
    Ok(())
}

/// Speeds of devices that exist or might, in bytes a second.
const BYTES_PER_S: (f64, f64) = (1e3, 1e13);
/// Multiply-adds a second.
const MULTIPLY_ADDS_PER_S: (f64, f64) = (1e6, 1e15);
/// Nanoseconds of one small thing.
const COST_NS: (f64, f64) = (0.0, 1e9);

impl DeviceProfile {
    /// Checks every number and the length of every list.
    ///
    /// # Errors
    /// [`ProfileError`], which says where, the value, and what is allowed.
    pub fn validate(&self) -> Result<(), ProfileError> {
        self.flash.validate()?;
        let lanes = self.lanes.len();
        count("lanes", lanes, 1, LANES_MAX)?;
        let (min, max) = MULTIPLY_ADDS_PER_S;
        for (index, lane) in self.lanes.iter().enumerate() {
            let place = Place::new("lanes.multiply_adds_per_s").at(index);
            check(place, lane.multiply_adds_per_s, min, max)?;
            let place = Place::new("lanes.attention_multiply_adds_per_s").at(index);
            check(place, lane.attention_multiply_adds_per_s, min, max)?;
            let place = Place::new("lanes.rows_bytes_per_s").at(index);
            check(place, lane.rows_bytes_per_s, BYTES_PER_S.0, BYTES_PER_S.1)?;
        }
        for (name, values, (min, max)) in [
            ("dram.bytes_per_s", &self.dram_bytes_per_s, BYTES_PER_S),
            ("dram.join_ns", &self.join_ns, COST_NS),
        ] {
            count(name, values.len(), lanes, lanes)?;
            for (index, &value) in values.iter().enumerate() {
                check(Place::new(name).at(index), value, min, max)?;
            }
        }
        Ok(())
    }
}

impl FlashProfile {
    fn validate(&self) -> Result<(), ProfileError> {
        let (min, max) = BYTES_PER_S;
        let place = Place::new("flash.sequential_bytes_per_s");
        check(place, self.sequential_bytes_per_s, min, max)?;
        let blocks = self.blocks_bytes.len();
        count(
            "flash.blocks_bytes",
            blocks,
            1,
            self.blocks_bytes.capacity(),
        )?;
        count("flash.depths", self.depths.len(), 1, self.depths.capacity())?;
        count("flash.ranges", self.ranges.len(), 1, self.ranges.capacity())?;
        let sizes = self.blocks_bytes.iter().map(|&bytes| f64::from(bytes));
        ascending("flash.blocks_bytes", sizes, 512.0, 1e9)?;
        let depths = self.depths.iter().map(|&depth| f64::from(depth));
        ascending("flash.depths", depths, 1.0, 4096.0)?;
        let ranges = self.ranges.iter().map(|range| range.range_bytes as f64);
        ascending("flash.ranges.range_bytes", ranges, 4096.0, 1e15)?;
        let name = "flash.cpu_ns_per_read";
        count(name, self.cpu_ns_per_read.len(), blocks, blocks)?;
        for (index, &value) in self.cpu_ns_per_read.iter().enumerate() {
            check(Place::new(name).at(index), value, COST_NS.0, COST_NS.1)?;
        }
        for (index, range) in self.ranges.iter().enumerate() {
            let place = Place::new("flash.ranges.bytes_per_s").at(index);
            for (block, row) in range.bytes_per_s[..blocks].iter().enumerate() {
                for (depth, &value) in row[..self.depths.len()].iter().enumerate() {
                    check(place.at(block).at(depth), value, min, max)?;
                }
            }
        }
        Ok(())
    }
}
