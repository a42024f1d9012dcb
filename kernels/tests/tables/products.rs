//! `matvec` and `matmul`.

use super::*;
use tessera_kernels::{GROUP, NeuronRows, Soon};

fn matvec(kernels: &Kernels, w: &Rows<'_>, x: &Inputs) -> Vec<f32> {
    let mut out = vec![f32::NAN; w.rows()];
    (kernels.matvec)(w, &x.view(), &mut out);
    out
}

fn matmul(kernels: &Kernels, w: &Rows<'_>, x: &Activations<'_>) -> Vec<f32> {
    let mut out = vec![f32::NAN; w.rows() * x.tokens()];
    let mut scratch = scratch(w.cols());
    // Not aligned, as a caller's bytes may be.
    scratch.push(0);
    (kernels.matmul)(w, x, &mut out, &mut scratch[1..]);
    out
}

#[test]
fn matvec_agrees() {
    let mut random = Random::new(11);
    for ty in WeightType::ALL {
        for cols in COLS {
            let cols = cols_of(ty, cols);
            for rows in [1, 2, 3, 4, 5, 7, 9, 16, 33] {
                let w = Matrix::random(&mut random, ty, rows, cols);
                let x = Inputs::random(&mut random, 1, cols);
                let want = matvec(&Kernels::SCALAR, &w.view(), &x);
                for kernels in tables() {
                    let what = format!("{} {ty:?} {rows}x{cols}", kernels.name);
                    assert_same(&matvec(&kernels, &w.view(), &x), &want, &what);
                }
            }
        }
    }
}

#[test]
fn dot_group_is_matvec_of_rows_that_stand_anywhere() {
    let mut random = Random::new(13);
    for ty in WeightType::ALL {
        for cols in COLS {
            let cols = cols_of(ty, cols);
            let w = Matrix::random(&mut random, ty, GROUP, cols);
            let x = Inputs::random(&mut random, 1, cols);
            let want = matvec(&Kernels::SCALAR, &w.view(), &x);
            for len in [0, 1, 2, 3, 4, 7, GROUP] {
                // Backwards: rows need not be in order.
                let rows: Vec<usize> = (0..GROUP).rev().take(len).collect();
                let mut group = NeuronRows::new(ty, cols);
                rows.iter()
                    .for_each(|&row| group.push(w.view().codes(row), w.view().scales(row)));
                group.then(&w.codes[..]);
                let want: Vec<f32> = rows.iter().map(|&row| want[row]).collect();
                for kernels in tables() {
                    let mut out = vec![f32::NAN; len];
                    (kernels.dot_group)(&group, &x.view(), &mut out);
                    assert_same(
                        &out,
                        &want,
                        &format!("{} {ty:?} {len}x{cols}", kernels.name),
                    );
                }
            }
        }
    }
}

/// The bundles of `k` rows each that an image cuts a matrix into: codes and scales side by side.
fn bundled(w: &Matrix, k: usize, stride: usize) -> Vec<u8> {
    let mut bytes = vec![0x5a; w.rows / k * stride];
    for (run, bytes) in bytes.chunks_exact_mut(stride).enumerate() {
        let (code, scale) = (k * w.ty.code_bytes(w.cols), k * w.ty.scale_bytes(w.cols));
        bytes[..code].copy_from_slice(&w.codes[run * code..][..code]);
        bytes[code..][..scale].copy_from_slice(&w.scales[run * scale..][..scale]);
    }
    bytes
}

#[test]
fn rows_may_be_spread_and_ask_for_others() {
    let mut random = Random::new(17);
    for ty in WeightType::ALL {
        for (cols, rows, k) in [(32, 8, 1), (576, 12, 4), (256, 32, 2), (288, 32, 32)] {
            let cols = cols_of(ty, cols);
            let w = Matrix::random(&mut random, ty, rows, cols);
            let stride = (k * ty.row_bytes(cols)).next_multiple_of(64) + 64;
            let bytes = bundled(&w, k, stride);
            let scales = &bytes[k * ty.code_bytes(cols)..];
            let spread = Rows::spread(ty, rows, cols, &bytes, scales, k, stride);
            let soon = Soon::stretches(&bytes, stride, stride - 64);
            let x = Inputs::random(&mut random, 3, cols);
            let one = Inputs::random(&mut random, 1, cols);
            for kernels in Kernels::available() {
                let what = format!("{} {ty:?} {rows}x{cols} in runs of {k}", kernels.name);
                let want = matmul(&Kernels::SCALAR, &w.view(), &x.view());
                assert_same(
                    &matmul(&kernels, &spread.then(soon), &x.view()),
                    &want,
                    &what,
                );
                let want = matvec(&Kernels::SCALAR, &w.view(), &one);
                assert_same(&matvec(&kernels, &spread.then(soon), &one), &want, &what);
                let part = spread.slice(rows - k, k);
                assert_same(&matvec(&kernels, &part, &one), &want[rows - k..], &what);
            }
        }
    }
}

/// A slice of one run and a half has rows that lie apart.
#[test]
fn a_slice_may_end_within_a_run() {
    let mut random = Random::new(18);
    let k = GROUP / 2;
    for (ty, cols) in [
        (WeightType::Q4, 64),
        (WeightType::Q8, 128),
        (WeightType::Q5, 256),
    ] {
        let w = Matrix::random(&mut random, ty, 2 * k, cols);
        let x = Inputs::random(&mut random, 1, cols);
        let stride = k * ty.row_bytes(cols) + 64;
        let bytes = bundled(&w, k, stride);
        let scales = &bytes[k * ty.code_bytes(cols)..];
        let part = Rows::spread(ty, 2 * k, cols, &bytes, scales, k, stride).slice(0, k + k / 2);
        let want = matvec(&Kernels::SCALAR, &w.view().slice(0, part.rows()), &x);
        // There is just room for them.
        let mut group = NeuronRows::new(ty, cols);
        group.extend(&w.view().slice(0, k / 2));
        group.extend(&part);
        let want_group = [&want[..k / 2], &want].concat();
        for kernels in Kernels::available() {
            let what = format!("{} {ty:?} {cols}", kernels.name);
            assert_same(&matvec(&kernels, &part, &x), &want, &what);
            let mut out = vec![f32::NAN; group.len()];
            (kernels.dot_group)(&group, &x.view(), &mut out);
            assert_same(&out, &want_group, &what);
        }
    }
}

#[test]
fn float_rows_need_no_whole_blocks() {
    let mut random = Random::new(12);
    for ty in [WeightType::F32, WeightType::F16] {
        for cols in [1, 7, 31, 33, 100] {
            let w = Matrix::random(&mut random, ty, 5, cols);
            let x = random.floats(3 * cols);
            let x = Activations::new(3, cols, &x, &[], &[], &[]);
            let mut want = vec![0.0; 15];
            (Kernels::SCALAR.matmul)(&w.view(), &x, &mut want, &mut scratch(cols));
            for kernels in tables() {
                let mut got = vec![0.0; 15];
                (kernels.matmul)(&w.view(), &x, &mut got, &mut scratch(cols));
                assert_same(&got, &want, &format!("{} {ty:?} {cols}", kernels.name));
            }
        }
    }
}

#[test]
fn matmul_is_matvec_for_each_token() {
    let mut random = Random::new(13);
    for ty in WeightType::ALL {
        for (cols, rows) in [(32, 3), (96, 17), (576, 40), (288, 8)] {
            let cols = cols_of(ty, cols);
            for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 128, 131] {
                let w = Matrix::random(&mut random, ty, rows, cols);
                let x = Inputs::random(&mut random, tokens, cols);
                let mut want = vec![0.0; rows * tokens];
                for token in 0..tokens {
                    let one = Inputs::of(x.x[token * cols..][..cols].to_vec(), 1);
                    for (row, y) in matvec(&Kernels::SCALAR, &w.view(), &one).iter().enumerate() {
                        want[row * tokens + token] = *y;
                    }
                }
                for kernels in Kernels::available() {
                    let what = format!("{} {ty:?} {rows}x{cols} {tokens}", kernels.name);
                    for x in [x.view(), x.tiled()] {
                        assert_same(&matmul(&kernels, &w.view(), &x), &want, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    for ty in QUANTIZED {
        let cols = cols_of(ty, 288);
        for low in [false, true] {
            for sign in [1.0, -1.0] {
                let w = Matrix::extreme(ty, 5, cols, low);
                let x = Inputs::of(vec![sign; cols * 5], 5);
                assert!(x.q.iter().all(|q| q.abs() == 127));
                let want = matmul(&Kernels::SCALAR, &w.view(), &x.view());
                for kernels in tables() {
                    let what = format!("{} {ty:?} {low} {sign}", kernels.name);
                    for x in [x.view(), x.tiled()] {
                        assert_same(&matmul(&kernels, &w.view(), &x), &want, &what);
                    }
                    let one = Inputs::of(vec![sign; cols], 1);
                    assert_same(&matvec(&kernels, &w.view(), &one), &[want[0]; 5], &what);
                }
            }
        }
    }
}

#[test]
fn nan_reaches_the_output() {
    let mut random = Random::new(14);
    for ty in WeightType::ALL {
        let cols = cols_of(ty, 288);
        for kernels in Kernels::available() {
            let mut w = Matrix::random(&mut random, ty, 18, cols);
            let mut floats = random.floats(5 * cols);
            w.poison(2, 8);
            floats[3 * cols + 100] = f32::NAN;
            let x = Inputs::of(floats, 5);
            for x in [x.view(), x.tiled()] {
                for (i, y) in matmul(&kernels, &w.view(), &x).into_iter().enumerate() {
                    let poisoned = i / 5 == 2 || i % 5 == 3;
                    assert_eq!(y.is_nan(), poisoned, "{} {ty:?} {i}", kernels.name);
                }
            }
            let one = Inputs::random(&mut random, 1, cols);
            for (row, y) in matvec(&kernels, &w.view(), &one).into_iter().enumerate() {
                assert_eq!(y.is_nan(), row == 2, "{} {ty:?} {row}", kernels.name);
            }
        }
    }
}

#[test]
fn infinities_agree() {
    let mut random = Random::new(15);
    for ty in WeightType::ALL {
        let cols = cols_of(ty, 96);
        let w = Matrix::random(&mut random, ty, 9, cols);
        let mut floats = random.floats(4 * cols);
        floats[40] = f32::INFINITY;
        floats[96] = f32::NEG_INFINITY;
        floats[200] = 3e38;
        let x = Inputs::of(floats, 4);
        let want = matmul(&Kernels::SCALAR, &w.view(), &x.view());
        for kernels in tables() {
            let what = format!("{} {ty:?}", kernels.name);
            for x in [x.view(), x.tiled()] {
                assert_same(&matmul(&kernels, &w.view(), &x), &want, &what);
            }
        }
    }
}

/// The products are near what the weights and inputs say in f64.
#[test]
fn products_are_products() {
    let mut random = Random::new(16);
    for ty in WeightType::ALL {
        let cols = cols_of(ty, 576);
        let w = Matrix::random(&mut random, ty, 1, cols);
        let x = Inputs::random(&mut random, 1, cols);
        let mut weights = vec![0.0; cols];
        w.view().dequantize(0, &mut weights);
        let pairs = || {
            weights
                .iter()
                .zip(&x.x)
                .map(|(w, x)| f64::from(*w) * f64::from(*x))
        };
        let want: f64 = pairs().sum();
        let size: f64 = pairs().map(f64::abs).sum();
        let got = f64::from(matvec(&Kernels::SCALAR, &w.view(), &x)[0]);
        assert!((got - want).abs() < 2e-3 * size, "{ty:?}: {got} {want}");
    }
}
