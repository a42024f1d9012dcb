//! A system that takes memory back, and lets whoever still reads it notice.

use super::faults::POISON;
use crate::reclaim::Reclaim;

/// Overwrites what is given back, and counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poisoning {
    page_bytes: usize,
    /// Bytes that were given back so far.
    pub given_bytes: usize,
}

impl Poisoning {
    /// With pages of this size.
    ///
    /// # Panics
    /// When it is not a power of two.
    pub fn new(page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two(), "pages of {page_bytes} bytes");
        Poisoning {
            page_bytes,
            given_bytes: 0,
        }
    }
}

impl Reclaim for Poisoning {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn give_back(&mut self, pages: &mut [u8]) -> bool {
        let at = pages.as_ptr().addr();
        assert!(at.is_multiple_of(self.page_bytes) && pages.len().is_multiple_of(self.page_bytes));
        pages.fill(POISON);
        self.given_bytes += pages.len();
        true
    }
}
