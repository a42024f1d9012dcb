//! Reading a whole image: every checksum, every padding byte, and the weights against their source.

mod against;
mod comparison;
mod small;
mod units;

use std::fmt;
use std::path::{Path, PathBuf};

use tessera_kernels::Kernels;
use tessera_runtime::format::{Image, SUPERBLOCK_BYTES, SectionKind};

use crate::image_file::{ImageError, ImageFile};
use crate::pack::{PackError, Progress, image_id};
use crate::parallel;
use crate::source::SourceError;

pub use against::compare;
pub use comparison::{Comparison, KindComparison, Mismatch};
use units::{Run, runs};

/// Why an image could not be verified. That it is damaged is a result, not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyError {
    /// The image cannot be read, or its head is damaged.
    Image(ImageError),
    /// The model cannot be read.
    Source(SourceError),
    /// The model holds weights that no image can be made from.
    Weights(PackError),
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Image(error) => error.fmt(f),
            Self::Source(error) => error.fmt(f),
            Self::Weights(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for VerifyError {}

impl From<ImageError> for VerifyError {
    fn from(error: ImageError) -> Self {
        Self::Image(error)
    }
}

impl From<SourceError> for VerifyError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl From<PackError> for VerifyError {
    fn from(error: PackError) -> Self {
        match error {
            PackError::Source(error) => Self::Source(error),
            error => Self::Weights(error),
        }
    }
}

/// What is wrong with some bytes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A checksum does not fit them.
    Checksum,
    /// They have no meaning and are not zero.
    Padding,
    /// The id in the superblock is not that of the contents.
    ImageId,
}

/// Damaged bytes of an image.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// First byte of the unit, or of the padding.
    pub offset: u64,
    /// Section, layer, tile or bundle.
    pub place: String,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.fault {
            Fault::Checksum => "checksum wrong",
            Fault::Padding => "padding is not zero",
            Fault::ImageId => "the image id is not that of the contents",
        };
        write!(f, "{} at byte {}: {what}", self.place, self.offset)
    }
}

/// What reading a whole image showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    /// The image.
    pub path: PathBuf,
    /// Bytes read.
    pub image_bytes: u64,
    /// Checksums checked.
    pub units: usize,
    /// All damage, in file order.
    pub damages: Vec<Damage>,
}

/// Damaged places that are named; the others are counted.
const NAMED_MAX: usize = 20;

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        if self.damages.is_empty() {
            let (bytes, units) = (crate::size::text(self.image_bytes), self.units);
            return write!(f, "{path}: {bytes}, all {units} checksums are right");
        }
        for damage in self.damages.iter().take(NAMED_MAX) {
            writeln!(f, "{damage}")?;
        }
        if self.damages.len() > NAMED_MAX {
            writeln!(f, "and {} more", self.damages.len() - NAMED_MAX)?;
        }
        let (count, s) = (
            self.damages.len(),
            if self.damages.len() == 1 { "" } else { "s" },
        );
        write!(
            f,
            "{path}: {count} damaged place{s}, copy or pack the image again"
        )
    }
}

/// Reads a whole image and checks every byte that can be checked.
///
/// # Errors
/// If the image cannot be read, or its head is not that of an image.
pub fn verify(
    path: &Path,
    threads: Option<usize>,
    progress: Progress<'_>,
) -> Result<VerifyReport, VerifyError> {
    let file = ImageFile::open(path)?;
    let image = file.image();
    let image_bytes = image.superblock().image_bytes;
    let runs = runs(&image);
    let crc32c = Kernels::best().crc32c;
    let done = std::sync::atomic::AtomicU64::new(0);
    let threads = threads.unwrap_or_else(parallel::threads).max(1);
    let checked = parallel::in_order(
        threads,
        runs.len(),
        Vec::new,
        |buffer: &mut Vec<u8>, index| {
            let run: &Run = &runs[index];
            buffer.resize(run.bytes as usize, 0);
            file.read_at(run.offset, buffer)?;
            let checked = run.check(&image, buffer, crc32c);
            let before = done.fetch_add(run.bytes, std::sync::atomic::Ordering::Relaxed);
            progress(before + run.bytes, image_bytes);
            Ok::<_, VerifyError>(checked)
        },
    )?;
    let mut damages = head_damages(&image, file.head());
    let mut crcs = Vec::new();
    let mut units = 2;
    for checked in checked {
        units += checked.units;
        crcs.extend(checked.unit_crcs);
        damages.extend(checked.damages);
    }
    damages.sort();
    // Where units are damaged the id cannot be right, and says nothing more.
    if damages.is_empty() && image_id(file.head(), crcs) != image.superblock().image_id {
        let place = "superblock".to_owned();
        damages.push(Damage {
            offset: 0,
            place,
            fault: Fault::ImageId,
        });
    }
    progress(image_bytes, image_bytes);
    Ok(VerifyReport {
        path: path.to_owned(),
        image_bytes,
        units,
        damages,
    })
}

/// Bytes of superblock and table that a reader ignores.
fn head_damages(image: &Image<'_>, head: &[u8]) -> Vec<Damage> {
    let mut damages = Vec::new();
    let mut written = [0; SUPERBLOCK_BYTES];
    image.superblock().write(&mut written);
    let mut fault = |place: &str, offset: u64| {
        let place = place.to_owned();
        damages.push(Damage {
            offset,
            place,
            fault: Fault::Padding,
        });
    };
    if written[..] != head[..SUPERBLOCK_BYTES] {
        fault("superblock", 0);
    }
    let start = image.superblock().table_offset as usize;
    let entry_bytes = tessera_runtime::format::ENTRY_BYTES;
    for (index, entry) in head[start..].chunks_exact(entry_bytes).enumerate() {
        let mut written = [0; tessera_runtime::format::ENTRY_BYTES];
        image.section(index).write(&mut written);
        if written[..] != *entry {
            fault(
                &format!("section table, entry {index}"),
                (start + index * entry_bytes) as u64,
            );
        }
    }
    damages
}

/// Name of a section in a report.
fn section_name(kind: u16) -> &'static str {
    SectionKind::from_u16(kind).map_or("unknown section", SectionKind::name)
}
