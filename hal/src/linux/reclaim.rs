//! Pages that the kernel takes back at once.

use super::sys;
use crate::reclaim::Reclaim;

/// Gives private memory back with `MADV_DONTNEED`; it is zeroed when it is touched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DontNeed;

impl Reclaim for DontNeed {
    fn page_bytes(&self) -> usize {
        sys::page_bytes()
    }

    fn give_back(&mut self, pages: &mut [u8]) -> bool {
        sys::forget(pages)
    }
}
