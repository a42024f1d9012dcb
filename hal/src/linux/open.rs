//! Opens an image the fastest way that this machine allows, and says which way that was.

use core::ops::Range;
use std::path::Path;

use super::LinuxFlash;
use super::direct::BufferedWhy;
use super::flash_pread::PreadFlash;
use super::flash_uring::UringFlash;
use super::report::IoReport;
use super::source::Source;

/// Reads in flight that a device can be opened for.
pub const DEPTH_MAX: usize = 1024;

/// Reader threads that a device can be opened with.
pub const READERS_MAX: usize = 64;

/// Whether to use something that not every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// If it works.
    #[default]
    Auto,
    /// Do without.
    Never,
    /// Refuse to open if it does not work.
    Require,
}

/// Addresses whose memory is pinned when the device is opened, so that reads into it cost less.
///
/// It must stay mapped as long as the device lives; the region made permanent does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixedRange(pub(crate) Range<usize>);

impl FixedRange {
    /// The addresses of `memory`.
    pub fn of(memory: &[u8]) -> Self {
        let start = memory.as_ptr().expose_provenance();
        FixedRange(start..start + memory.len())
    }
}

/// How to open an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenOptions {
    /// io_uring; otherwise reader threads. On Android `Auto` means `Never`: a sandbox there may
    /// end the process for asking.
    pub uring: Choice,
    /// Reads past the page cache; otherwise through it, and dropped from it afterwards.
    pub direct: Choice,
    /// Reads in flight at once, 1 to [`DEPTH_MAX`].
    pub depth: usize,
    /// Reader threads where there is no io_uring, 1 to [`READERS_MAX`].
    pub readers: usize,
    /// Pages of buffered reads stay in the page cache: memory outside the budget, for comparisons
    /// with programs that map their files.
    pub keep_cached: bool,
    /// Memory to register with io_uring. A request: if refused, reads work all the same.
    pub fixed: Option<FixedRange>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            uring: Choice::Auto,
            direct: Choice::Auto,
            depth: 32,
            readers: 4,
            keep_cached: false,
            fixed: None,
        }
    }
}

/// Why an image could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum OpenError {
    /// The options ask for a depth that there is not.
    Depth {
        /// Reads in flight asked for.
        depth: usize,
    },
    /// The options ask for a number of reader threads that there is not.
    Readers {
        /// Threads asked for.
        readers: usize,
    },
    /// The system did not open or examine the file.
    Open {
        /// The system's error number.
        errno: i32,
    },
    /// Neither a file nor a block device.
    NotAFile,
    /// More than 2^32 pages.
    TooLarge {
        /// Size of the file.
        size_bytes: u64,
    },
    /// The path named another file a moment later.
    Changed,
    /// Direct reads are required, and there are none.
    Direct(BufferedWhy),
    /// io_uring is required, and there is none.
    Uring {
        /// The system's error number.
        errno: i32,
    },
    /// A reader thread could not be started.
    Threads {
        /// The system's error number.
        errno: i32,
    },
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = |errno: i32| nix::errno::Errno::from_raw(errno).desc();
        match *self {
            Self::Depth { depth } => write!(f, "queue depth {depth} is not in 1 to {DEPTH_MAX}"),
            Self::Readers { readers } => {
                write!(f, "{readers} reader threads are not in 1 to {READERS_MAX}")
            }
            Self::Open { errno } => write!(f, "{}", text(errno)),
            Self::NotAFile => write!(f, "neither a file nor a block device"),
            Self::TooLarge { size_bytes } => {
                write!(f, "{size_bytes} bytes are more than 2^32 pages")
            }
            Self::Changed => write!(f, "the file was replaced while being opened"),
            Self::Direct(why) => write!(f, "direct reads are required, but: {why}"),
            Self::Uring { errno } => {
                write!(f, "io_uring is required, but: {}", text(errno))
            }
            Self::Threads { errno } => write!(f, "no thread for reading: {}", text(errno)),
        }
    }
}

impl core::error::Error for OpenError {}

/// Opens the image at `path`, and says how it will be read.
///
/// Nothing that is missing on this machine is an error unless `options` require it.
pub fn open(path: &Path, options: &OpenOptions) -> Result<(LinuxFlash, IoReport), OpenError> {
    if !(1..=DEPTH_MAX).contains(&options.depth) {
        return Err(OpenError::Depth {
            depth: options.depth,
        });
    }
    if !(1..=READERS_MAX).contains(&options.readers) {
        return Err(OpenError::Readers {
            readers: options.readers,
        });
    }
    let (source, buffered) = Source::open(path, options.direct)?;
    let source = source.keep_cached(options.keep_cached);
    let mut report = IoReport::new(options.depth, &source, buffered);
    let ring_wanted = match options.uring {
        Choice::Never => false,
        Choice::Auto => !cfg!(target_os = "android"),
        Choice::Require => true,
    };
    let source = if ring_wanted {
        match UringFlash::new(source, options.depth, options.fixed.as_ref()) {
            Ok(flash) => {
                report.uring = true;
                report.registered_buffers = flash.has_registered_buffers();
                return Ok((LinuxFlash::uring(flash), report));
            }
            Err((errno, _)) if options.uring == Choice::Require => {
                return Err(OpenError::Uring { errno });
            }
            Err((errno, source)) => {
                report.uring_errno = Some(errno);
                source
            }
        }
    } else {
        source
    };
    let readers = options.readers.min(options.depth);
    let flash = PreadFlash::new(source, options.depth, readers)
        .map_err(|errno| OpenError::Threads { errno })?;
    report.readers = flash.readers();
    Ok((LinuxFlash::pread(flash), report))
}
