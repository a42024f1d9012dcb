//! x86-64: AVX2, AVX-VNNI and AVX-512 with VNNI.
//!
//! FMA is never enabled: multiply and add are rounded separately.
#![allow(unsafe_code)]

use crate::dispatch::Kernels;

mod crc;
mod shuffle;
mod wide;
mod ymm;
mod zmm;

/// True if the CPU (or, without `std`, the build) has all these features.
macro_rules! has {
    ($($feature:tt),+) => {{
        #[cfg(feature = "std")]
        let all = $(std::arch::is_x86_feature_detected!($feature))&&+;
        #[cfg(not(feature = "std"))]
        let all = $(cfg!(target_feature = $feature))&&+;
        all
    }};
}

/// The tables that this CPU can run, the fastest first.
pub(super) fn tables() -> [Option<Kernels>; 3] {
    let avx2 = has!("avx2", "f16c", "sse4.2");
    let avxvnni = avx2 && has!("avxvnni");
    let avx512vnni = avx2 && has!("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni");
    [
        avx512vnni.then_some(avx512vnni::TABLE),
        avxvnni.then_some(avxvnni::TABLE),
        avx2.then_some(avx2::TABLE),
    ]
}

mod avx2 {
    use super::ymm::{Maddubs, Ymm};
    crate::arch::table::table! {
        "avx2", "avx2,f16c", Ymm<Maddubs>, Ymm<Maddubs>, super::crc::crc32c
    }
}

mod avxvnni {
    use super::ymm::{Vnni, Ymm};
    crate::arch::table::table! {
        "avxvnni", "avx2,f16c,avxvnni", Ymm<Vnni>, Ymm<Vnni>, super::crc::crc32c
    }
}

mod avx512vnni {
    use super::ymm::{Vnni512, Ymm};
    use super::zmm::Zmm;
    crate::arch::table::table! {
        "avx512vnni", "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni",
        Ymm<Vnni512>, Zmm, super::crc::crc32c
    }
}
