//! Device profiles as TOML files.
//!
//! The file holds the numbers of [`DeviceProfile`] under the same names, and in `[measured]` what
//! they were measured with, which nothing is computed from and which may be left out.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize, Serializer};
use tessera_runtime::profile::{
    DeviceProfile, FlashProfile, LaneProfile, Place, ProfileError, RangeProfile,
};

/// Version of the file's format.
pub const PROFILE_VERSION: u32 = 1;
/// A profile is a few thousand bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A number, written without a point where it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Number(pub f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0.fract() == 0.0 && self.0.abs() < 9e15;
        match whole {
            true => serializer.serialize_i64(self.0 as i64),
            false => serializer.serialize_f64(self.0),
        }
    }
}

fn numbers(values: &[f64]) -> Vec<Number> {
    values.iter().copied().map(Number).collect()
}

/// A profile's file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// What the numbers were measured with.
    pub measured: Option<Measured>,
    /// The flash.
    pub flash: FlashSection,
    /// Memory and fork-joins.
    pub dram: DramSection,
    /// The lanes, the one that owns the flash queue first.
    pub lanes: Vec<LaneSection>,
}

/// What a profile was measured with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The program.
    pub tool: String,
    /// How the test file was read, as a key and in words.
    pub io_path: String,
    #[allow(missing_docs)]
    pub io: String,
    /// The kernels.
    pub kernels: String,
    /// The folder of the test file.
    pub folder: String,
    /// Size of the test file.
    pub test_file_bytes: u64,
    /// Time that it all took.
    pub seconds: Number,
    /// The same random reads, submitted by each core in turn.
    pub issuing_cores: Vec<IssuingCore>,
}

/// Random reads submitted by one core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct IssuingCore {
    pub core: u16,
    pub block_bytes: u64,
    pub depth: u32,
    pub bytes_per_s: Number,
    pub cpu_ns_per_read: Number,
}

/// See [`FlashProfile`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct FlashSection {
    pub sequential_bytes_per_s: Number,
    pub blocks_bytes: Vec<Number>,
    pub depths: Vec<Number>,
    pub cpu_ns_per_read: Vec<Number>,
    pub ranges: Vec<RangeSection>,
}

/// See [`RangeProfile`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RangeSection {
    pub range_bytes: Number,
    /// A row for each block, a column for each depth.
    pub bytes_per_s: Vec<Vec<Number>>,
}

/// Memory and fork-joins with 1, 2, … lanes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct DramSection {
    pub bytes_per_s: Vec<Number>,
    pub join_ns: Vec<Number>,
}

/// See [`LaneProfile`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LaneSection {
    /// The core that it sat on when it was measured.
    pub core: Option<u16>,
    pub multiply_adds_per_s: Number,
    pub rows_bytes_per_s: Number,
    /// Absent from profiles of earlier versions: then in the built-in profile's proportion.
    pub attention_multiply_adds_per_s: Option<Number>,
}

impl LaneSection {
    fn attention_multiply_adds_per_s(&self) -> f64 {
        let usual = &DeviceProfile::default().lanes[0];
        let share = usual.attention_multiply_adds_per_s / usual.multiply_adds_per_s;
        self.attention_multiply_adds_per_s
            .map_or(share * self.multiply_adds_per_s.0, |speed| speed.0)
    }
}

impl ProfileFile {
    /// The file of a profile; nothing is said of what it was measured with.
    pub fn new(profile: &DeviceProfile) -> Self {
        let flash = &profile.flash;
        let (blocks, depths) = (flash.blocks_bytes.len(), flash.depths.len());
        let whole = |values: &[u32]| values.iter().map(|&value| Number(value.into())).collect();
        let range = |range: &RangeProfile| RangeSection {
            range_bytes: Number(range.range_bytes as f64),
            bytes_per_s: range.bytes_per_s[..blocks]
                .iter()
                .map(|row| numbers(&row[..depths]))
                .collect(),
        };
        let lane = |lane: &LaneProfile| LaneSection {
            core: None,
            multiply_adds_per_s: Number(lane.multiply_adds_per_s),
            rows_bytes_per_s: Number(lane.rows_bytes_per_s),
            attention_multiply_adds_per_s: Some(Number(lane.attention_multiply_adds_per_s)),
        };
        ProfileFile {
            version: PROFILE_VERSION,
            measured: None,
            flash: FlashSection {
                sequential_bytes_per_s: Number(flash.sequential_bytes_per_s),
                blocks_bytes: whole(&flash.blocks_bytes),
                depths: whole(&flash.depths),
                cpu_ns_per_read: numbers(&flash.cpu_ns_per_read),
                ranges: flash.ranges.iter().map(range).collect(),
            },
            dram: DramSection {
                bytes_per_s: numbers(&profile.dram_bytes_per_s),
                join_ns: numbers(&profile.join_ns),
            },
            lanes: profile.lanes.iter().map(lane).collect(),
        }
    }

    /// The profile, every number checked.
    ///
    /// # Errors
    /// A sentence that says where, the value, and what is allowed.
    pub fn profile(&self) -> Result<DeviceProfile> {
        ensure!(
            self.version == PROFILE_VERSION,
            "version is {}, this program reads version {PROFILE_VERSION}",
            self.version
        );
        let flash = &self.flash;
        let blocks_bytes = list("flash.blocks_bytes", &flash.blocks_bytes, whole)?;
        let depths = list("flash.depths", &flash.depths, whole)?;
        let mut ranges = heapless::Vec::new();
        for (index, range) in flash.ranges.iter().enumerate() {
            let range = range_profile(index, range, blocks_bytes.len(), depths.len())?;
            if ranges.push(range).is_err() {
                bail!(
                    "flash.ranges has {} entries, it must have at most {}",
                    flash.ranges.len(),
                    ranges.capacity()
                );
            }
        }
        let lane = |_, lane: &LaneSection| {
            Ok(LaneProfile {
                multiply_adds_per_s: lane.multiply_adds_per_s.0,
                rows_bytes_per_s: lane.rows_bytes_per_s.0,
                attention_multiply_adds_per_s: lane.attention_multiply_adds_per_s(),
            })
        };
        let profile = DeviceProfile {
            flash: FlashProfile {
                sequential_bytes_per_s: flash.sequential_bytes_per_s.0,
                blocks_bytes,
                depths,
                cpu_ns_per_read: list("flash.cpu_ns_per_read", &flash.cpu_ns_per_read, plain)?,
                ranges,
            },
            lanes: list("lanes", &self.lanes, lane)?,
            dram_bytes_per_s: list("dram.bytes_per_s", &self.dram.bytes_per_s, plain)?,
            join_ns: list("dram.join_ns", &self.dram.join_ns, plain)?,
        };
        profile.validate()?;
        Ok(profile)
    }

    /// The profile that a text holds.
    ///
    /// # Errors
    /// A sentence, with the line where it is no such TOML.
    pub fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start]);
            let line = before.matches('\n').count() + 1;
            let message = error.message().replace('\n', ", ");
            anyhow!("line {line}: {message}")
        })
    }

    /// Reads and checks the profile at `path`.
    pub fn read(path: &Path) -> Result<DeviceProfile> {
        let name = || path.display().to_string();
        let cannot = || format!("cannot read {}", path.display());
        let file = layout_tool::regular::open(path).with_context(cannot)?;
        let bytes = file.metadata().with_context(cannot)?.len();
        if bytes > FILE_BYTES_MAX {
            bail!(
                "{} has {bytes} bytes, no profile has more than {FILE_BYTES_MAX}",
                name()
            );
        }
        let text = std::io::read_to_string(file).with_context(cannot)?;
        let file = ProfileFile::parse(&text).with_context(name)?;
        file.profile().with_context(name)
    }

    /// As TOML.
    pub fn text(&self) -> Result<String> {
        Ok(toml::to_string(self)?)
    }
}

fn range_profile(
    index: usize,
    range: &RangeSection,
    blocks: usize,
    depths: usize,
) -> Result<RangeProfile> {
    let place = Place::new("flash.ranges.range_bytes").at(index);
    let range_bytes = range.range_bytes.0;
    ensure!(
        range_bytes >= 0.0 && range_bytes.fract() == 0.0,
        "{place} is {range_bytes}, it must be a whole number of bytes"
    );
    let mut profile = RangeProfile {
        range_bytes: range_bytes as u64,
        bytes_per_s: Default::default(),
    };
    let name = Place::new("flash.ranges.bytes_per_s").at(index);
    let rows = range.bytes_per_s.len();
    ensure!(
        rows == blocks,
        "{name} has {rows} rows, it must have {blocks}, one for each of flash.blocks_bytes"
    );
    for (block, (to, row)) in profile
        .bytes_per_s
        .iter_mut()
        .zip(&range.bytes_per_s)
        .enumerate()
    {
        ensure!(
            row.len() == depths,
            "{} has {} values, it must have {depths}, one for each of flash.depths",
            name.at(block),
            row.len()
        );
        for (to, value) in to.iter_mut().zip(row) {
            *to = value.0;
        }
    }
    Ok(profile)
}

/// A list of at most `N` elements, each made by `make` from its place and value.
fn list<T, U, const N: usize>(
    name: &'static str,
    values: &[T],
    make: impl Fn(Place, &T) -> Result<U>,
) -> Result<heapless::Vec<U, N>> {
    let mut list = heapless::Vec::new();
    for (index, value) in values.iter().enumerate() {
        if list.push(make(Place::new(name).at(index), value)?).is_err() {
            return Err(ProfileError::Count {
                place: Place::new(name),
                have: values.len(),
                min: 1,
                max: N,
            }
            .into());
        }
    }
    Ok(list)
}

fn plain(_: Place, value: &Number) -> Result<f64> {
    Ok(value.0)
}

fn whole(place: Place, value: &Number) -> Result<u32> {
    let value = value.0;
    ensure!(
        (0.0..=f64::from(u32::MAX)).contains(&value) && value.fract() == 0.0,
        "{place} is {value}, it must be a whole number from 0 to {}",
        u32::MAX
    );
    Ok(value as u32)
}

#[cfg(test)]
mod tests;
