//! What is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use tessera_kernels::attention::{clear, finish, merge, state_len};
use tessera_kernels::kv::{HEAD_DIM_MAX, KvRowsMut};
use tessera_kernels::{GROUP, NeuronRows, QUANTIZE_SCRATCH_BYTES};

#[track_caller]
pub(super) fn refuses(kernels: &Kernels, call: impl FnOnce()) {
    assert!(
        catch_unwind(AssertUnwindSafe(call)).is_err(),
        "{} took it",
        kernels.name
    );
}

#[track_caller]
fn takes_if(kernels: &Kernels, is_taken: bool, call: impl FnOnce()) {
    let taken = catch_unwind(AssertUnwindSafe(call)).is_ok();
    assert_eq!(taken, is_taken, "{}", kernels.name);
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
            (k.matmul)(&view, &x.view(), &mut [0.0; 7], &mut scratch(96))
        });
        refuses(&k, || {
            (k.matmul)(&view, &x.view(), &mut [0.0; 8], &mut [0; 100])
        });
        let floats = Activations::new(2, 96, &x.x, &[], &[], &[]);
        refuses(&k, || {
            (k.matmul)(&view, &floats, &mut [0.0; 8], &mut scratch(96))
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
            (k.gated)(tessera_kernels::Activation::Relu, &mut [0.0; 8], &[0.0; 7])
        });
        refuses(&k, || (k.to_f16)(&[0.0; 8], &mut [0; 7]));
        for ty in [WeightType::F32, WeightType::Q8, WeightType::Q4K] {
            let (mut codes, mut scales) = (vec![0; ty.code_bytes(256)], vec![0; 16]);
            let mut scratch = [0; QUANTIZE_SCRATCH_BYTES - 1];
            let scales = &mut scales[..ty.scale_bytes(256)];
            refuses(&k, || {
                (k.quantize_rows)(ty, 256, &[0.0; 256], &mut codes, scales, &mut scratch);
            });
        }
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
        refuses(&k, || {
            (k.matmul)(&rows, &in_order, &mut [0.0; 4], &mut scratch(512))
        });
        // A panel takes one token as well.
        let (mut one, mut other) = ([0.0; 4], [0.0; 4]);
        (k.matmul)(&rows, &x.tiled(), &mut one, &mut scratch(512));
        (k.matmul)(&rows, &x.view(), &mut other, &mut scratch(512));
        assert_same(&one, &other, k.name);
    }
    let many = Inputs::random(&mut random, FEW_TOKENS + 1, 32);
    refuses(&Kernels::SCALAR, || {
        _ = many.plain().with_interleaved(&many.interleaved);
    });
}

#[test]
fn down_sums_refuse_what_does_not_fit() {
    let mut random = Random::new(42);
    let w = Matrix::random(&mut random, WeightType::Q8, 4, 192);
    let mut rows = NeuronRows::new(WeightType::Q8, 192);
    rows.extend(&w.view().in_order());
    for k in Kernels::available() {
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 3], &mut [0.0; 192], &mut scratch(192))
        });
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 4], &mut [0.0; 191], &mut scratch(192))
        });
        refuses(&k, || {
            (k.down_group)(&rows, &[1.0; 4], &mut [0.0; 192], &mut [])
        });
        for range in [32..192, 0..96, 64..256] {
            let mut acc = vec![0.0; range.len() * 2];
            let mut scratch = scratch(192);
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
        tessera_kernels::Soon::stretches(&[0; 100], 50, 51);
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
        tessera_kernels::pack_codes(WeightType::F32, 32, &[0; 32], &mut [0; 128])
    });
    refuses(&k, || {
        tessera_kernels::quantize_row(WeightType::Q8, &[0.0; 32], &mut [0; 32], &mut []);
    });
}

#[test]
fn rows_have_columns_and_no_row_is_past_the_end() {
    let k = Kernels::SCALAR;
    refuses(&k, || _ = Rows::new(WeightType::Q8, 0, 0, &[], &[]));
    refuses(&k, || {
        _ = Rows::spread(WeightType::F32, 1, 0, &[], &[], 1, 0)
    });
    refuses(&k, || _ = NeuronRows::new(WeightType::Q4, 0));
    let (codes, scales) = ([0; GROUP * 32], [0; GROUP * 2]);
    let all = Rows::new(WeightType::Q8, GROUP, 32, &codes, &scales);
    for rows in [all.slice(0, 2), all.slice(0, 2).in_order()] {
        refuses(&k, || rows.copy_codes(2, &mut [0; 32]));
        refuses(&k, || rows.dequantize(2, &mut [0.0; 32]));
    }
    for rows in [all, all.in_order(), all.zipped()] {
        refuses(&k, || rows.copy_codes(GROUP, &mut [0; 32]));
        refuses(&k, || rows.copy_codes(0, &mut [0; 31]));
        refuses(&k, || rows.dequantize(GROUP, &mut [0.0; 32]));
        refuses(&k, || rows.dequantize(0, &mut [0.0; 31]));
    }
}

#[test]
fn zipped_rows_are_whole_groups() {
    let (codes, scales) = ([0; 64 * 32], [0; 64 * 32]);
    let rows = |count| {
        Rows::new(
            WeightType::Q8,
            count,
            32,
            &codes[..count * 32],
            &scales[..count * 2],
        )
    };
    let k = Kernels::SCALAR;
    refuses(&k, || _ = rows(48).zipped());
    refuses(&k, || {
        _ = Rows::spread(WeightType::Q8, GROUP, 32, &codes, &scales, 8, 256).zipped();
    });
    refuses(&k, || {
        _ = Rows::new(WeightType::F32, GROUP, 8, &codes[..GROUP * 32], &[]).zipped();
    });
    let two = rows(64).zipped();
    assert_eq!(two.slice(GROUP, GROUP).rows(), GROUP);
    refuses(&k, || _ = two.slice(8, GROUP));
    refuses(&k, || _ = two.slice(0, 40));

    let (ty, cols) = (WeightType::Q8, 32);
    let mut group = NeuronRows::new(ty, cols);
    group.push(&codes[..32], &scales[..2]);
    refuses(&k, || group.extend(&two.slice(0, GROUP)));
    let mut group = NeuronRows::new(ty, cols);
    refuses(&k, || group.extend(&two));
    refuses(&k, || {
        tessera_kernels::zip_row(WeightType::F32, 8, 0, &codes[..32], &mut [0; 1024])
    });
    refuses(&k, || {
        tessera_kernels::zip_row(ty, cols, GROUP, &codes[..32], &mut [0; 1024])
    });
    refuses(&k, || {
        tessera_kernels::zip_row(ty, cols, 0, &codes[..31], &mut [0; 1024])
    });
    refuses(&k, || {
        tessera_kernels::zip_row(ty, cols, 0, &codes[..32], &mut [0; 1023])
    });
}

fn group_of<'a>(rows: Rows<'a>) -> NeuronRows<'a> {
    let mut group = NeuronRows::new(rows.ty(), rows.cols());
    group.extend(&rows);
    group
}

#[test]
fn groups_know_the_order_of_their_rows() {
    let mut random = Random::new(45);
    for ty in WeightType::ALL {
        let w = Matrix::random(&mut random, ty, GROUP, 256);
        let x = Inputs::random(&mut random, 1, 256);
        let is_float = !ty.is_quantized();
        let orders = [w.view(), w.view().in_order()].into_iter();
        for (rows, is_multiplied) in orders.zip([true, false]) {
            let rows = group_of(rows);
            for k in Kernels::available() {
                let dot = || (k.dot_group)(&rows, &x.view(), &mut [0.0; GROUP]);
                takes_if(&k, is_float || is_multiplied, dot);
                let down = || {
                    let mut scratch = scratch(256);
                    (k.down_group)(&rows, &[1.0; GROUP], &mut [0.0; 256], &mut scratch);
                };
                takes_if(&k, is_float || !is_multiplied, down);
                let down_many = || {
                    let (mut acc, mut scratch) = ([0.0; 512], scratch(256));
                    (k.down_group_many)(&rows, 0..256, 2, &[1.0; 64], &mut acc, &mut scratch);
                };
                takes_if(&k, is_float || !is_multiplied, down_many);
            }
        }
        let mut mixed = NeuronRows::new(ty, 256);
        mixed.extend(&w.view().slice(0, 2));
        takes_if(&Kernels::SCALAR, is_float, || {
            mixed.extend(&w.view().in_order().slice(2, 2))
        });
        if ty.is_quantized() {
            let zipped = group_of(w.view().zipped());
            for k in Kernels::available() {
                refuses(&k, || (k.dot_group)(&zipped, &x.view(), &mut [0.0; GROUP]));
            }
        }
    }
}

#[test]
fn attention_refuses_what_does_not_fit() {
    let k = Kernels::SCALAR;
    refuses(&k, || clear(8, &mut [0.0; state_len(8) + 1]));
    refuses(&k, || {
        merge(8, &mut [0.0; state_len(8)], &[0.0; state_len(8) - 1])
    });
    refuses(&k, || {
        merge(8, &mut [0.0; state_len(16)], &[0.0; state_len(8)])
    });
    refuses(&k, || finish(8, &[1.0; state_len(16)], &mut [0.0; 8]));
    refuses(&k, || finish(8, &[1.0; state_len(8)], &mut [0.0; 9]));
    // Widths are filled up: what was added is left out.
    finish(8, &[1.0; state_len(8)], &mut [0.0; 5]);

    let wide = [0.0; HEAD_DIM_MAX + 8];
    let (mut floats, mut halves) = (vec![0.0; 8 * wide.len()], vec![0; 8 * wide.len()]);
    let (mut codes, mut scales) = (vec![0; 8 * wide.len()], [0.0; 8]);
    refuses(&k, || KvRowsMut::F32(&mut floats).put_key(&k, 0, &wide));
    refuses(&k, || KvRowsMut::F16(&mut halves).put_key(&k, 0, &wide));
    refuses(&k, || {
        KvRowsMut::Q8(&mut codes, &mut scales).put_key(&k, 0, &wide)
    });
}
