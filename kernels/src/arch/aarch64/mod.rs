//! AArch64: NEON, NEON with the dot-product instructions, and with those of 8-bit matrices too.
//!
//! The intrinsics of the latter two are not stable yet, so `sdot` and `smmla` are inline assembly.
#![allow(unsafe_code)]

use crate::dispatch::Kernels;

mod codes;
mod crc;
mod mmla;
mod neon;
mod shuffle;

/// True if the CPU (or, without `std`, the build) has this feature.
macro_rules! has {
    ($feature:tt) => {{
        #[cfg(feature = "std")]
        let has = std::arch::is_aarch64_feature_detected!($feature);
        #[cfg(not(feature = "std"))]
        let has = cfg!(target_feature = $feature);
        has
    }};
}

/// The tables that this CPU can run, the fastest first.
pub(super) fn tables() -> [Option<Kernels>; 3] {
    let neon = has!("neon");
    let dotprod = neon && has!("dotprod");
    let crc32c = if has!("crc") {
        crc::crc32c
    } else {
        crate::crc::crc32c
    };
    [
        (dotprod && has!("i8mm")).then_some(Kernels {
            crc32c,
            ..neoni8mm::TABLE
        }),
        dotprod.then_some(Kernels {
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

/// As `neondot`, but for products of several tokens.
mod neoni8mm {
    use super::mmla;
    use super::neon::{Mmla, Neon};
    use crate::arch::generic;
    use crate::dispatch::{Arithmetic, Kernels};
    use crate::view::{Activations, Rows};

    pub(super) const TABLE: Kernels = Kernels {
        name: "neoni8mm",
        matmul,
        ceiling,
        ..super::neondot::TABLE
    };

    fn ceiling(of: Arithmetic, rounds: usize) -> usize {
        match of {
            // SAFETY: reached through `TABLE` only, whose owner saw the CPU's bits.
            Arithmetic::Bytes => unsafe { mmla::ceiling(rounds) },
            Arithmetic::Floats => (super::neondot::TABLE.ceiling)(of, rounds),
        }
    }

    crate::arch::table::entries! {
        "neon,dotprod,i8mm", Neon<Mmla>, Neon<Mmla>;
        fn matmul(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8])
            = generic::matmul::matmul::<narrow, wide>;
    }
}
