//! One piece of memory from the system: the region that everything else is carved from.

#![allow(unsafe_code)]

use core::ops::{Deref, DerefMut};
use core::{mem, ptr, slice};

use super::sys;

/// Regions begin at a multiple of this: large enough for huge pages and for every device.
pub const REGION_ALIGN_BYTES: usize = 2 << 20;

/// Why there is no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum RegionError {
    /// A region has at least one byte.
    Empty,
    /// More than the address space could hold.
    TooLarge {
        /// Bytes asked for.
        need_bytes: usize,
    },
    /// The system refused.
    Refused {
        /// Bytes asked for.
        need_bytes: usize,
        /// The system's error number.
        errno: i32,
    },
}

impl core::fmt::Display for RegionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Empty => write!(f, "a region of 0 bytes"),
            Self::TooLarge { need_bytes } => {
                write!(
                    f,
                    "a region of {need_bytes} bytes is more than there are addresses"
                )
            }
            Self::Refused { need_bytes, errno } => {
                let why = nix::errno::Errno::from_raw(errno).desc();
                write!(
                    f,
                    "the system refused a region of {need_bytes} bytes: {why}"
                )
            }
        }
    }
}

impl core::error::Error for RegionError {}

/// Zeroed private memory; a page of it takes no RAM until it is first written.
///
/// Having one proves that no one else refers to these bytes. It is unmapped on drop, unless
/// [`Region::into_static`] made it permanent, which devices that write to memory by themselves
/// need.
#[derive(Debug)]
pub struct Region {
    start: *mut u8,
    bytes: usize,
    map_start: *mut u8,
    map_bytes: usize,
}

// SAFETY: a `Region` owns its mapping as a `Box<[u8]>` owns its memory.
unsafe impl Send for Region {}
// SAFETY: shared access is reading only, by `Deref`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps exactly `bytes` bytes, [`REGION_ALIGN_BYTES`] aligned.
    ///
    /// # Errors
    /// [`RegionError`] when `bytes` is 0 or the system has no room.
    pub fn new(bytes: usize) -> Result<Self, RegionError> {
        if bytes == 0 {
            return Err(RegionError::Empty);
        }
        let map_bytes = bytes
            .checked_add(REGION_ALIGN_BYTES)
            .filter(|&map_bytes| map_bytes <= isize::MAX as usize)
            .ok_or(RegionError::TooLarge { need_bytes: bytes })?;
        let map_start = sys::map_anonymous(map_bytes).map_err(|errno| RegionError::Refused {
            need_bytes: bytes,
            errno,
        })?;
        let pad_bytes = map_start.align_offset(REGION_ALIGN_BYTES);
        assert!(pad_bytes <= REGION_ALIGN_BYTES);
        // SAFETY: `pad_bytes + bytes` is within the mapping of `map_bytes`.
        let start = unsafe { map_start.add(pad_bytes) };
        Ok(Region {
            start,
            bytes,
            map_start,
            map_bytes,
        })
    }

    /// Asks for huge pages, which spare address translation when weights are scanned. A request
    /// only: RAM is then taken in steps of 2 MiB where the system grants it. True if it listened.
    pub fn advise_huge_pages(&mut self) -> bool {
        let huge_bytes = self.bytes - self.bytes % REGION_ALIGN_BYTES;
        // SAFETY: the range is inside our own mapping, and the advice changes no contents.
        huge_bytes > 0
            && unsafe { libc::madvise(self.start.cast(), huge_bytes, libc::MADV_HUGEPAGE) == 0 }
    }

    /// Makes the memory permanent: it is never unmapped.
    pub fn into_static(self) -> &'static mut [u8] {
        let region = mem::ManuallyDrop::new(self);
        // SAFETY: the mapping is ours alone, `bytes` long, initialised (zeroed by the kernel), and
        // since `drop` will not run it lives as long as the process.
        unsafe { slice::from_raw_parts_mut(region.start, region.bytes) }
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is mapped, initialised and ours for `bytes` bytes.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        assert!(!ptr::eq(self.map_start, ptr::null()));
        // SAFETY: this is the mapping made in `new`, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.map_start.cast(), self.map_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::{DontNeed, memory};
    use crate::reclaim::Reclaim;

    #[test]
    fn a_region_is_aligned_zeroed_and_exact() {
        for bytes in [1, 4096, 5000, (3 << 20) + 1] {
            let mut region = Region::new(bytes).unwrap();
            assert_eq!(region.len(), bytes);
            assert!(region.as_ptr().addr().is_multiple_of(REGION_ALIGN_BYTES));
            for os_page in [4 << 10, 16 << 10, 64 << 10] {
                assert!(region.as_ptr().addr().is_multiple_of(os_page));
            }
            assert!(region.iter().all(|&byte| byte == 0));
            region[bytes - 1] = 7;
            let memory = region.into_static();
            assert_eq!(memory[bytes - 1], 7);
        }
    }

    #[test]
    fn errors_say_how_much() {
        assert_eq!(Region::new(0).unwrap_err(), RegionError::Empty);
        let need_bytes = usize::MAX;
        assert_eq!(
            Region::new(need_bytes).unwrap_err(),
            RegionError::TooLarge { need_bytes }
        );
        let need_bytes = isize::MAX as usize / 2;
        let error = Region::new(need_bytes).unwrap_err();
        assert_eq!(
            error,
            RegionError::Refused {
                need_bytes,
                errno: libc::ENOMEM
            }
        );
        assert!(error.to_string().contains("refused a region of"), "{error}");
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let before_bytes = memory::resident_bytes().unwrap();
        let mut region = Region::new(512 << 20).unwrap();
        region.advise_huge_pages();
        let after_bytes = memory::resident_bytes().unwrap();
        assert!(
            after_bytes < before_bytes + (256 << 20),
            "{before_bytes} {after_bytes}"
        );
    }

    #[test]
    fn what_is_given_back_is_not_resident_and_can_be_used_again() {
        let mut region = Region::new(8 << 20).unwrap();
        region.fill(7);
        let page_bytes = DontNeed.page_bytes();
        assert!(page_bytes.is_power_of_two() && page_bytes >= 4096);
        let (kept, given) = region.split_at_mut(page_bytes);
        let resident = |bytes: &[u8]| {
            let mut pages = vec![0u8; bytes.len().div_ceil(page_bytes)];
            // SAFETY: the range is mapped, and `pages` has a byte for each of its pages.
            let status = unsafe {
                let start = bytes.as_ptr().cast_mut().cast();
                libc::mincore(start, bytes.len(), pages.as_mut_ptr())
            };
            assert_eq!(status, 0);
            pages.iter().filter(|&&page| page & 1 == 1).count()
        };
        assert_eq!(resident(given), given.len() / page_bytes);
        assert!(DontNeed.give_back(given));
        assert_eq!(resident(given), 0);
        assert!(kept.iter().all(|&byte| byte == 7));
        given.fill(9);
        assert_eq!(resident(given), given.len() / page_bytes);
        assert!(!DontNeed.give_back(&mut given[1..]), "no page begins there");
        // The kernel would take all of a page of which a part is given.
        assert!(!DontNeed.give_back(&mut given[..1]), "no page ends there");
        assert!(given.iter().all(|&byte| byte == 9));
    }
}
