//! AArch64: NEON.

use crate::dispatch::Kernels;

/// The tables that this CPU can run, the fastest first.
pub(super) fn tables() -> [Option<Kernels>; 0] {
    []
}
