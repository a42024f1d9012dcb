//! An image on disk: its head checked, its sections read at offsets.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tessera_kernels::Kernels;
use tessera_runtime::format::{FormatError, Image, SUPERBLOCK_BYTES, Section, SectionKind};

/// Why an image cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageError {
    /// The operating system refused to open or read it.
    Io {
        /// The image.
        path: PathBuf,
        /// What it said.
        message: String,
    },
    /// Its first bytes are not those of an image that this build can read.
    Format {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: FormatError,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, message } => write!(f, "{}: {message}", path.display()),
            Self::Format { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ImageError {}

/// An open image whose superblock and table were checked.
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    file: File,
    head: Vec<u8>,
    file_bytes: u64,
}

impl ImageFile {
    /// Opens an image and checks its head.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let io = |error: std::io::Error| ImageError::Io {
            path: path.to_owned(),
            message: error.to_string(),
        };
        let format = |error| ImageError::Format {
            path: path.to_owned(),
            error,
        };
        let file = crate::regular::open(path).map_err(io)?;
        let file_bytes = file.metadata().map_err(io)?.len();
        let mut head = vec![0; file_bytes.min(SUPERBLOCK_BYTES as u64) as usize];
        file.read_exact_at(&mut head, 0).map_err(io)?;
        let head_bytes = Image::head_bytes(&head, file_bytes).map_err(format)?;
        head.resize(head_bytes as usize, 0);
        file.read_exact_at(&mut head, 0).map_err(io)?;
        Image::new_checked(&head, file_bytes).map_err(format)?;
        Ok(ImageFile {
            path: path.to_owned(),
            file,
            head,
            file_bytes,
        })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Superblock and table.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The checked view of the head.
    pub fn image(&self) -> Image<'_> {
        match Image::new_checked(&self.head, self.file_bytes) {
            Ok(image) => image,
            Err(error) => unreachable!("{error}, but the head was checked when it was read"),
        }
    }

    /// An error of this image.
    pub(crate) fn bad(&self, message: String) -> ImageError {
        ImageError::Io {
            path: self.path.clone(),
            message,
        }
    }

    /// The contents of a section that is a blob, checked.
    ///
    /// # Errors
    /// [`ImageError::Io`]; also where its checksum is wrong.
    pub fn section_data(&self, section: &Section) -> Result<Vec<u8>, ImageError> {
        let mut data = vec![0; section.data_bytes as usize];
        self.read_at(section.offset, &mut data)?;
        if (Kernels::best().crc32c)(0, &data) != section.crc {
            let name = SectionKind::from_u16(section.kind).map_or("section", SectionKind::name);
            return Err(self.bad(format!("the checksum of the {name} is wrong")));
        }
        Ok(data)
    }

    /// The contents of the first section of a kind, checked, if the image has it.
    ///
    /// # Errors
    /// As [`ImageFile::section_data`].
    pub fn blob(&self, kind: SectionKind) -> Result<Option<Vec<u8>>, ImageError> {
        let section = self.image().find(kind);
        section
            .map(|section| self.section_data(&section))
            .transpose()
    }

    /// Fills `out` from byte `offset` on.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ImageError> {
        self.file
            .read_exact_at(out, offset)
            .map_err(|error| ImageError::Io {
                path: self.path.clone(),
                message: error.to_string(),
            })
    }
}
