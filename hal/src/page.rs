//! Flash pages: an index, a count and a size are different things.

/// Flash is read in pages of this many bytes.
pub const PAGE_BYTES: u64 = 4096;

/// Position of a page in the image: an index, not a byte offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PageIndex(pub u32);

/// Number of pages: a count, not an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct PageCount(pub u32);

impl PageIndex {
    /// Where the page begins, in bytes from the start of the image.
    pub const fn offset_bytes(self) -> u64 {
        self.0 as u64 * PAGE_BYTES
    }
}

impl PageCount {
    /// Pages that hold `size_bytes`, the last one perhaps in part; `None` past 16 TiB.
    pub const fn covering(size_bytes: u64) -> Option<Self> {
        let count = size_bytes.div_ceil(PAGE_BYTES);
        if count <= u32::MAX as u64 {
            Some(PageCount(count as u32))
        } else {
            None
        }
    }

    /// Size in bytes.
    pub const fn size_bytes(self) -> u64 {
        self.0 as u64 * PAGE_BYTES
    }
}
