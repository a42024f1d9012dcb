//! What is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::NeuronRows;

#[track_caller]
pub(super) fn refuses(kernels: &Kernels, call: impl FnOnce()) {
    assert!(
        catch_unwind(AssertUnwindSafe(call)).is_err(),
        "{} took it",
        kernels.name
    );
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let mut random = Random::new(41);
    let w = Matrix::random(&mut random, WeightType::Q4, 4, 96);
    let x = Inputs::random(&mut random, 2, 96);
    let one = Inputs::random(&mut random, 1, 64);
    for k in Kernels::available() {
        let view = w.view();
        refuses(&k, || (k.matvec)(&view, &x.view(), &mut [0.0; 8]));
        refuses(&k, || (k.matvec)(&view, &one.view(), &mut [0.0; 4]));
        refuses(&k, || {
            (k.matmul)(&view, &x.view(), &mut [0.0; 7], &mut scratch(96, 2))
        });
        refuses(&k, || {
            (k.matmul)(&view, &x.view(), &mut [0.0; 8], &mut [0; 100])
        });
        let floats = Activations::new(2, 96, &x.x, &[], &[], &[]);
        refuses(&k, || {
            (k.matmul)(&view, &floats, &mut [0.0; 8], &mut scratch(96, 2))
        });
        refuses(&k, || {
            (k.quantize)(&[0.0; 33], &mut [0; 33], &mut [0.0], &mut [0])
        });
        refuses(&k, || {
            (k.quantize)(&[0.0; 32], &mut [0; 32], &mut [], &mut [0])
        });
        refuses(&k, || {
            (k.dot)(&[0.0; 3], &[0.0; 4]);
        });
        refuses(&k, || {
            (k.to_q8)(&[0.0; 9], &mut [0; 9]);
        });
        refuses(&k, || (k.rmsnorm)(&[0.0; 8], &[0.0; 9], 0.0, &mut [0.0; 8]));
        refuses(&k, || {
            (k.gated)(crate::Activation::Relu, &mut [0.0; 8], &[0.0; 7])
        });
        refuses(&k, || (k.to_f16)(&[0.0; 8], &mut [0; 7]));
    }
}

#[test]
fn products_want_rows_and_one_token_interleaved() {
    let mut random = Random::new(44);
    let w = Matrix::random(&mut random, WeightType::Q4, 4, 512);
    let x = Inputs::random(&mut random, 1, 512);
    let in_order = Activations::new(1, 512, &x.x, &x.q, &x.scales, &x.sums);
    let mut group = NeuronRows::new(w.ty, w.cols);
    group.extend(&w.view());
    for k in Kernels::available() {
        let rows = w.view();
        refuses(&k, || (k.matvec)(&rows, &in_order, &mut [0.0; 4]));
        refuses(&k, || (k.dot_group)(&group, &in_order, &mut [0.0; 4]));
        let down = rows.in_order();
        refuses(&k, || (k.matvec)(&down, &x.view(), &mut [0.0; 4]));
        // A panel takes one token in either order.
        let (mut one, mut other) = ([0.0; 4], [0.0; 4]);
        (k.matmul)(&rows, &in_order, &mut one, &mut scratch(512, 1));
        (k.matmul)(&rows, &x.view(), &mut other, &mut scratch(512, 1));
        assert_same(&one, &other, k.name);
    }
}

#[test]
fn down_sums_refuse_what_does_not_fit() {
    let mut random = Random::new(42);
    let w = Matrix::random(&mut random, WeightType::Q8, 4, 192);
    let mut rows = NeuronRows::new(WeightType::Q8, 192);
    rows.extend(&w.view());
    for k in Kernels::available() {
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 3], &mut [0.0; 192], &mut scratch(192, 1))
        });
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 4], &mut [0.0; 191], &mut scratch(192, 1))
        });
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 4], &mut [0.0; 192], &mut [])
        });
        for range in [32..192, 0..96, 64..256] {
            let mut acc = vec![0.0; range.len() * 2];
            let mut scratch = scratch(192, 2);
            refuses(&k, || {
                (k.down_group_many)(&rows, range, 2, &[1.0; 8], &mut acc, &mut scratch);
            });
        }
    }
}

#[test]
fn views_refuse_what_does_not_fit() {
    let spread = |rows, run_rows, bytes: usize| {
        let codes = vec![0; bytes];
        let ty = WeightType::Q4;
        Rows::spread(ty, rows, 64, &codes, &codes[32..], run_rows, 128).rows()
    };
    assert_eq!(spread(2, 1, 128 + 36), 2);
    for (rows, run_rows, bytes) in [(2, 1, 128 + 35), (3, 2, 1024), (3, 3, 1024)] {
        refuses(&Kernels::SCALAR, || _ = spread(rows, run_rows, bytes));
    }
    refuses(&Kernels::SCALAR, || {
        crate::Soon::stretches(&[0; 100], 50, 51);
    });
    let k = Kernels::SCALAR;
    refuses(&k, || {
        Rows::new(WeightType::Q4, 1, 33, &[0; 32], &[0; 2]);
    });
    refuses(&k, || {
        Rows::new(WeightType::Q4, 1, 64, &[0; 31], &[0; 4]);
    });
    refuses(&k, || {
        NeuronRows::new(WeightType::Q4, 64).push(&[0; 32], &[0; 2])
    });
    refuses(&k, || {
        crate::pack_codes(WeightType::F32, 32, &[0; 32], &mut [0; 128])
    });
    refuses(&k, || {
        crate::quantize_row(WeightType::Q8, &[0.0; 32], &mut [0; 32], &mut []);
    });
}
