//! Why an image was refused.

use crate::shape::ShapeError;

/// Why an image was refused. Each variant says where and holds both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum FormatError {
    /// The file does not begin with the magic.
    NotAnImage,
    /// The image was written for another version of the format.
    Version {
        /// Version found.
        have: u32,
        /// Version this build reads.
        want: u32,
    },
    /// The file, or the part of it that was read, is too short.
    Truncated {
        /// Bytes there are.
        have_bytes: u64,
        /// Bytes needed.
        need_bytes: u64,
    },
    /// The superblock's checksum is wrong.
    SuperblockChecksum,
    /// The section table's checksum is wrong.
    TableChecksum,
    /// A hyper-parameter is out of range.
    Shape(ShapeError),
    /// The table has too many or too few entries for the shape.
    EntryCount {
        /// Entries there are.
        have: u32,
        /// Entries the shape needs.
        need: u32,
    },
    /// An entry is not of the kind (or layer, or expert) that belongs at its place.
    EntryKind {
        /// Index in the table.
        entry: u32,
        /// Kind found.
        have: u16,
        /// Kind that belongs there.
        want: u16,
    },
    /// A number of an entry does not follow from the shape.
    EntryField {
        /// Index in the table.
        entry: u32,
        /// Name of the field.
        what: &'static str,
        /// Value found.
        have: u64,
        /// Value that follows from the shape.
        want: u64,
    },
    /// A section is not aligned, or lies outside the image, or before the one that precedes it.
    EntryPlace {
        /// Index in the table.
        entry: u32,
        /// Offset found.
        offset: u64,
        /// Size found.
        bytes: u64,
    },
    /// A weight type's number is not known to this build.
    WeightType {
        /// Index in the table.
        entry: u32,
        /// The number.
        number: u8,
    },
}

impl From<ShapeError> for FormatError {
    fn from(error: ShapeError) -> Self {
        Self::Shape(error)
    }
}

impl core::fmt::Display for FormatError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::NotAnImage => write!(
                f,
                "not a Tessera image (wrong magic): layout-tool pack makes one of a model"
            ),
            Self::Version { have, want } => {
                write!(
                    f,
                    "image of format version {have}, this build reads version {want}: pack it again"
                )
            }
            Self::Truncated {
                have_bytes,
                need_bytes,
            } => {
                write!(
                    f,
                    "image of {have_bytes} bytes, {need_bytes} are needed: it was cut short"
                )
            }
            Self::SuperblockChecksum => write!(f, "the superblock's checksum is wrong"),
            Self::TableChecksum => write!(f, "the section table's checksum is wrong"),
            Self::Shape(error) => write!(f, "superblock: {error}"),
            Self::EntryCount { have, need } => {
                write!(f, "section table: {have} entries, the shape needs {need}")
            }
            Self::EntryKind { entry, have, want } => {
                write!(
                    f,
                    "section table entry {entry}: kind {have} where {want} belongs"
                )
            }
            Self::EntryField {
                entry,
                what,
                have,
                want,
            } => {
                write!(
                    f,
                    "section table entry {entry}: {what} is {have}, the shape gives {want}"
                )
            }
            Self::EntryPlace {
                entry,
                offset,
                bytes,
            } => {
                write!(
                    f,
                    "section table entry {entry}: {bytes} bytes at {offset} are misplaced"
                )
            }
            Self::WeightType { entry, number } => {
                write!(
                    f,
                    "section table entry {entry}: unknown weight type {number}"
                )
            }
        }
    }
}

impl core::error::Error for FormatError {}
