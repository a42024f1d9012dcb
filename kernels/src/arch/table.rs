//! From generic kernels to a table of plain functions.

/// Makes `TABLE: Kernels` of kernels compiled with `$features`, over the vectors `$narrow` (eight
/// lanes) and `$wide` (any).
///
/// Whoever hands `TABLE` out has seen the CPU's bits; no function of it can be reached otherwise.
macro_rules! table {
    ($name:literal, $features:literal, $narrow:ty, $wide:ty, $crc32c:path) => {
        use core::ops::Range;

        use crate::activation::Activation;
        use crate::arch::generic;
        use crate::attention::{Queries, Segment};
        use crate::block::WeightType;
        use crate::dispatch::{Arithmetic, Kernels};
        use crate::neurons::NeuronRows;
        use crate::quantize::Loss;
        use crate::view::{Activations, Rows};

        pub(super) const TABLE: Kernels = Kernels {
            name: $name,
            quantize,
            quantize_rows,
            matvec,
            matmul,
            dot_group,
            down_group,
            down_group_many,
            dot,
            attend,
            to_q8,
            rmsnorm,
            rmsnorm_quantize,
            softmax,
            gated,
            to_f16,
            crc32c: $crc32c,
            ceiling,
        };

        crate::arch::table::entries! {
            $features, $narrow, $wide;
            fn quantize(x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [i32])
                = generic::float::quantize::<narrow>;
            fn quantize_rows(
                ty: WeightType,
                cols: usize,
                x: &[f32],
                codes: &mut [u8],
                scales: &mut [u8],
                scratch: &mut [u8]
            ) -> Loss = generic::quantize::quantize_rows::<narrow, wide>;
            fn matvec(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32])
                = generic::matvec::matvec::<narrow>;
            fn matmul(w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32], scratch: &mut [u8])
                = generic::matmul::matmul::<narrow, wide>;
            fn dot_group(w: &NeuronRows<'_>, x: &Activations<'_>, out: &mut [f32])
                = generic::dot_group::dot_group::<narrow>;
            fn down_group(w: &NeuronRows<'_>, h: &[f32], acc: &mut [f32], scratch: &mut [u8])
                = generic::down::down_group::<narrow, wide>;
            fn down_group_many(
                w: &NeuronRows<'_>,
                cols: Range<usize>,
                tokens: usize,
                h: &[f32],
                acc: &mut [f32],
                scratch: &mut [u8]
            ) = generic::down_many::down_group_many::<narrow, wide>;
            fn dot(a: &[f32], b: &[f32]) -> f32 = generic::float::dot::<narrow>;
            fn attend(
                segment: &Segment<'_>,
                queries: &Queries<'_>,
                states: &mut [f32],
                work: &mut [f32]
            ) = generic::attend::attend::<narrow>;
            fn to_q8(x: &[f32], codes: &mut [i8]) -> f32 = generic::float::to_q8::<narrow>;
            fn rmsnorm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32])
                = generic::float::rmsnorm::<narrow>;
            fn rmsnorm_quantize(
                x: &[f32],
                weight: &[f32],
                eps: f32,
                out: &mut [f32],
                q: &mut [i8],
                scales: &mut [f32],
                sums: &mut [i32]
            ) = generic::float::rmsnorm_quantize::<narrow>;
            fn softmax(x: &mut [f32]) = generic::gated::softmax::<narrow>;
            fn gated(act: Activation, gate: &mut [f32], up: &[f32])
                = generic::gated::gated::<narrow>;
            fn to_f16(x: &[f32], out: &mut [u16]) = generic::float::to_f16::<narrow>;
            fn ceiling(of: Arithmetic, rounds: usize) -> usize
                = generic::ceiling::ceiling::<wide>;
        }
    };
}

/// For each line a safe function around one compiled with the instruction set.
macro_rules! entries {
    ($features:literal, $narrow:ty, $wide:ty;) => {};
    ($features:literal, $narrow:ty, $wide:ty;
     fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?
        = $($path:ident)::+::<$($kind:ident),+>; $($rest:tt)*) => {
        fn $name($($arg: $ty),*) $(-> $ret)? {
            #[target_feature(enable = $features)]
            fn body($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is compiled for the instruction set, so it is there.
                $($path)::+($(unsafe { crate::arch::table::token!($kind, $narrow, $wide) },)+
                    $($arg),*)
            }
            // SAFETY: reached through `TABLE` only, whose owner saw the CPU's bits.
            unsafe { body($($arg),*) }
        }
        crate::arch::table::entries! { $features, $narrow, $wide; $($rest)* }
    };
}

/// A value of the narrow or the wide vector type.
macro_rules! token {
    (narrow, $narrow:ty, $wide:ty) => {
        <$narrow>::new()
    };
    (wide, $narrow:ty, $wide:ty) => {
        <$wide>::new()
    };
}

pub(super) use {entries, table, token};
