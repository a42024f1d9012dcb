//! Memory that goes back to the system for a while, its addresses kept.

/// Gives pages back whose contents nobody needs any more.
pub trait Reclaim {
    /// Pages are given back whole; a power of two.
    fn page_bytes(&self) -> usize;

    /// The contents of `pages`, which begin and end at pages, are forgotten: others may use the
    /// memory until it is written again. What is read before that is any bytes.
    ///
    /// False where the system keeps the memory; then nothing is lost but the contents.
    fn give_back(&mut self, pages: &mut [u8]) -> bool;
}

/// Keeps all memory: for systems where there is nobody to give it to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepAll;

impl Reclaim for KeepAll {
    fn page_bytes(&self) -> usize {
        1
    }

    fn give_back(&mut self, _pages: &mut [u8]) -> bool {
        false
    }
}
