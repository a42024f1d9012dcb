//! Whether a file can be read directly, past the page cache: decided from what the kernel says
//! and from what a trial read shows, never from the name of a file system or from writes.

use crate::page::PAGE_BYTES;

/// What the kernel says about direct reads of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DioSupport {
    /// Nothing: an older kernel, or a file system that does not tell.
    Unknown,
    /// Direct reads do not work here.
    Refused,
    /// They work with these alignments, of the buffer and of offset and length.
    Aligned {
        /// Alignment of the buffer's address.
        mem_bytes: u32,
        /// Alignment of offset and length.
        offset_bytes: u32,
    },
}

/// Why a file is read through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum BufferedWhy {
    /// The options asked for it.
    Asked,
    /// The image is smaller than a page.
    TooSmall,
    /// Opening the file with `O_DIRECT` failed.
    OpenRefused {
        /// The system's error number.
        errno: i32,
    },
    /// `statx` says that this file has no direct reads.
    Unsupported,
    /// The device needs a coarser alignment than pages have.
    Alignment {
        /// The alignment it needs.
        need_bytes: u32,
    },
    /// A direct read of one page failed.
    TrialRefused {
        /// The system's error number.
        errno: i32,
    },
}

impl core::fmt::Display for BufferedWhy {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Asked => write!(f, "as asked"),
            Self::TooSmall => write!(f, "smaller than a page"),
            Self::OpenRefused { errno } => {
                write!(
                    f,
                    "O_DIRECT refused: {}",
                    nix::errno::Errno::from_raw(errno).desc()
                )
            }
            Self::Unsupported => write!(f, "no direct reads on this file system"),
            Self::Alignment { need_bytes } => {
                write!(f, "direct reads need {need_bytes}-byte alignment")
            }
            Self::TrialRefused { errno } => {
                write!(
                    f,
                    "direct read refused: {}",
                    nix::errno::Errno::from_raw(errno).desc()
                )
            }
        }
    }
}

/// The alignment that buffers of direct reads need, or why there are none.
///
/// `trial` reads one page into a buffer aligned to a page.
pub(crate) fn judge(
    said: DioSupport,
    trial: impl FnOnce() -> Result<(), i32>,
) -> Result<usize, BufferedWhy> {
    let align_bytes = match said {
        DioSupport::Refused => return Err(BufferedWhy::Unsupported),
        DioSupport::Unknown => PAGE_BYTES as usize,
        DioSupport::Aligned {
            mem_bytes,
            offset_bytes,
        } => {
            for need_bytes in [mem_bytes, offset_bytes] {
                if need_bytes as u64 > PAGE_BYTES || !need_bytes.is_power_of_two() {
                    return Err(BufferedWhy::Alignment { need_bytes });
                }
            }
            mem_bytes as usize
        }
    };
    trial().map_err(|errno| BufferedWhy::TrialRefused { errno })?;
    Ok(align_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that refuses reads whose offset, length or address are not aligned its way.
    fn device(offset: u64, address: u64, length: u64) -> impl FnOnce() -> Result<(), i32> {
        let fits = |need_bytes: u64| PAGE_BYTES.is_multiple_of(need_bytes);
        let accepted = fits(offset) && fits(address) && fits(length);
        move || if accepted { Ok(()) } else { Err(libc::EINVAL) }
    }

    #[test]
    fn fine_alignments_are_direct_and_coarse_ones_are_buffered() {
        let aligned = |mem_bytes, offset_bytes| DioSupport::Aligned {
            mem_bytes,
            offset_bytes,
        };
        let cases = [
            (aligned(4, 512), Ok(4)),
            (aligned(512, 512), Ok(512)),
            (aligned(512, 4096), Ok(512)),
            (aligned(4096, 512), Ok(4096)),
            (
                aligned(16384, 512),
                Err(BufferedWhy::Alignment { need_bytes: 16384 }),
            ),
            (
                aligned(512, 16384),
                Err(BufferedWhy::Alignment { need_bytes: 16384 }),
            ),
            (
                aligned(512, 65536),
                Err(BufferedWhy::Alignment { need_bytes: 65536 }),
            ),
            (
                aligned(512, 520),
                Err(BufferedWhy::Alignment { need_bytes: 520 }),
            ),
            (DioSupport::Refused, Err(BufferedWhy::Unsupported)),
            (DioSupport::Unknown, Ok(4096)),
        ];
        for (said, want) in cases {
            assert_eq!(judge(said, || Ok(())), want, "{said:?}");
        }
    }

    #[test]
    fn a_kernel_that_says_nothing_is_tried() {
        for need_bytes in [512, 4096, 16384, 65536] {
            for (offset, address, length) in
                [(need_bytes, 1, 1), (1, need_bytes, 1), (1, 1, need_bytes)]
            {
                let got = judge(DioSupport::Unknown, device(offset, address, length));
                let refused = BufferedWhy::TrialRefused {
                    errno: libc::EINVAL,
                };
                let want = if need_bytes > PAGE_BYTES {
                    Err(refused)
                } else {
                    Ok(4096)
                };
                assert_eq!(got, want, "{need_bytes}");
            }
        }
    }

    #[test]
    fn a_kernel_that_is_wrong_is_found_out() {
        let said = DioSupport::Aligned {
            mem_bytes: 512,
            offset_bytes: 512,
        };
        let why = judge(said, || Err(libc::EIO)).unwrap_err();
        assert_eq!(why, BufferedWhy::TrialRefused { errno: libc::EIO });
        assert_eq!(why.to_string(), "direct read refused: I/O error");
    }
}
