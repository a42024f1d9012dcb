//! The tables of each instruction set: kernels written once over [`simd`]'s traits, and the
//! intrinsics behind those traits.
// One index walks over several small arrays of vectors; iterators over them would need closures.
#![allow(clippy::needless_range_loop)]

use crate::dispatch::Kernels;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod generic;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod simd;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod table;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64::tables as native;
#[cfg(target_arch = "x86_64")]
use x86_64::tables as native;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn native() -> [Option<Kernels>; 0] {
    []
}

/// The tables that this CPU can run, the fastest first.
pub(crate) fn tables() -> impl Iterator<Item = Kernels> {
    native().into_iter().flatten()
}
