//! AArch64: NEON, and NEON with the dot-product instructions.
//!
//! The intrinsics of the latter are not stable yet, so `sdot` is inline assembly.
#![allow(unsafe_code)]

use crate::dispatch::Kernels;

mod crc;
mod neon;

/// True if the CPU (or, without `std`, the build) has this feature.
macro_rules! has {
    ($feature:tt) => {{
        #[cfg(any(test, feature = "std"))]
        let has = std::arch::is_aarch64_feature_detected!($feature);
        #[cfg(not(any(test, feature = "std")))]
        let has = cfg!(target_feature = $feature);
        has
    }};
}

/// The tables that this CPU can run, the fastest first.
pub(super) fn tables() -> [Option<Kernels>; 2] {
    let neon = has!("neon");
    let crc32c = if has!("crc") {
        crc::crc32c
    } else {
        crate::crc::crc32c
    };
    [
        (neon && has!("dotprod")).then_some(Kernels {
            crc32c,
            ..neondot::TABLE
        }),
        neon.then_some(Kernels {
            crc32c,
            ..neon_only::TABLE
        }),
    ]
}

mod neon_only {
    use super::neon::{Mull, Neon};
    crate::arch::table::table! {
        "neon", "neon", Neon<Mull>, Neon<Mull>, crate::crc::crc32c
    }
}

mod neondot {
    use super::neon::{Neon, Sdot};
    crate::arch::table::table! {
        "neondot", "neon,dotprod", Neon<Sdot>, Neon<Sdot>, crate::crc::crc32c
    }
}
