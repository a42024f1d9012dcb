//! Kernels over the traits of [`super::simd`], each exactly as the crate docs define it.

mod ahead;
pub(crate) mod attend;
mod attend_values;
pub(crate) mod ceiling;
mod coefficients;
pub(crate) mod dot_group;
pub(crate) mod down;
pub(crate) mod down_many;
mod down_zipped;
mod few;
pub(crate) mod float;
pub(crate) mod gated;
pub(crate) mod matmul;
pub(crate) mod matvec;
mod panel;
pub(crate) mod quantize;

/// Calls a kernel compiled for the quantised type `$ty`.
macro_rules! by_type {
    ($ty:expr, $($path:ident)::+::<$($s:ident),+>($($arg:expr),* $(,)?)) => {{
        use crate::arch::simd::{Q4, Q4K, Q4O, Q5, Q6, Q8};
        match $ty {
            crate::WeightType::Q8 => $($path)::+::<$($s,)+ Q8>($($arg),*),
            crate::WeightType::Q6 => $($path)::+::<$($s,)+ Q6>($($arg),*),
            crate::WeightType::Q5 => $($path)::+::<$($s,)+ Q5>($($arg),*),
            crate::WeightType::Q4K => $($path)::+::<$($s,)+ Q4K>($($arg),*),
            crate::WeightType::Q4 => $($path)::+::<$($s,)+ Q4>($($arg),*),
            _ => $($path)::+::<$($s,)+ Q4O>($($arg),*),
        }
    }};
}
use by_type;
