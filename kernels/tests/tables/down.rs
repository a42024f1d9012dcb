//! `down_group` and `down_group_many`.

use super::*;
use tessera_kernels::NeuronRows;

fn group<'a>(w: &'a Matrix, neurons: impl IntoIterator<Item = usize>) -> NeuronRows<'a> {
    let view = w.view();
    let mut rows = NeuronRows::new(w.ty, w.cols);
    for n in neurons {
        rows.push(view.codes(n), view.scales(n));
    }
    rows
}

/// The codes of a whole group, zipped.
fn zipped_codes(w: &Matrix) -> Vec<u8> {
    let (view, mut zipped) = (w.view(), vec![0; w.codes.len()]);
    for n in 0..w.rows {
        tessera_kernels::zip_row(w.ty, w.cols, n, view.codes(n), &mut zipped);
    }
    zipped
}

/// A whole group, zipped.
fn whole_group<'a>(w: &'a Matrix, zipped: &'a [u8]) -> NeuronRows<'a> {
    let mut rows = NeuronRows::new(w.ty, w.cols);
    rows.extend(&Rows::new(w.ty, w.rows, w.cols, zipped, &w.scales).zipped());
    rows
}

/// About half of the values are zero.
fn sparse(random: &mut Random, len: usize) -> Vec<f32> {
    (0..len)
        .map(|_| {
            if random.below(2) == 0 {
                0.0
            } else {
                random.normal()
            }
        })
        .collect()
}

fn down(kernels: &Kernels, rows: &NeuronRows<'_>, h: &[f32], acc: &[f32]) -> Vec<f32> {
    let mut acc = acc.to_vec();
    (kernels.down_group)(rows, h, &mut acc, &mut scratch(rows.cols()));
    acc
}

#[test]
fn down_group_agrees_and_dead_neurons_may_be_left_out() {
    let mut random = Random::new(21);
    for ty in WeightType::ALL {
        for cols in COLS {
            let cols = cols_of(ty, cols);
            for count in [0, 1, 2, 3, 4, 5, 8, 13, 31, 32] {
                let w = Matrix::random(&mut random, ty, count, cols);
                let acc: Vec<f32> = random.floats(cols);
                let h = sparse(&mut random, count);
                let all = group(&w, 0..count);
                let want = down(&Kernels::SCALAR, &all, &h, &acc);
                let alive = (0..count).filter(|&n| h[n] != 0.0);
                let some = group(&w, alive.clone());
                let some_h: Vec<f32> = alive.map(|n| h[n]).collect();
                for kernels in Kernels::available() {
                    let what = format!("{} {ty:?} {count}x{cols}", kernels.name);
                    assert_same(&down(&kernels, &all, &h, &acc), &want, &what);
                    assert_same(&down(&kernels, &some, &some_h, &acc), &want, &what);
                }
            }
        }
    }
}

#[test]
fn down_group_many_is_down_group_for_each_token() {
    let mut random = Random::new(22);
    for ty in WeightType::ALL {
        for (cols, count) in [(32, 3), (96, 32), (288, 17), (576, 32)] {
            let cols = cols_of(ty, cols);
            for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 24, 25, 128] {
                let w = Matrix::random(&mut random, ty, count, cols);
                let rows = group(&w, 0..count);
                let h = sparse(&mut random, count * tokens);
                let acc: Vec<f32> = random.floats(cols * tokens);
                let start = if cols > 200 { 128 } else { 0 };
                let end = if cols > 400 { 320 } else { cols };
                let mut want = vec![0.0; (end - start) * tokens];
                for t in 0..tokens {
                    let h: Vec<f32> = (0..count).map(|n| h[n * tokens + t]).collect();
                    let acc: Vec<f32> = (0..cols).map(|i| acc[i * tokens + t]).collect();
                    let one = down(&Kernels::SCALAR, &rows, &h, &acc);
                    for i in start..end {
                        want[(i - start) * tokens + t] = one[i];
                    }
                }
                for kernels in Kernels::available() {
                    let mut got = acc[start * tokens..end * tokens].to_vec();
                    let mut scratch = scratch(end - start);
                    (kernels.down_group_many)(
                        &rows,
                        start..end,
                        tokens,
                        &h,
                        &mut got,
                        &mut scratch,
                    );
                    let what = format!("{} {ty:?} {count}x{cols} {tokens}", kernels.name);
                    assert_same(&got, &want, &what);
                }
            }
        }
    }
}

/// Values with some quads all zero; the last of `tokens` is all zero.
fn with_dead_quads(random: &mut Random, tokens: usize) -> Vec<f32> {
    let mut h = sparse(random, 32 * tokens);
    for neurons in h.chunks_mut(4 * tokens) {
        if random.below(3) == 0 {
            neurons.fill(0.0);
        }
    }
    h.iter_mut()
        .skip(tokens - 1)
        .step_by(tokens)
        .for_each(|h| *h = 0.0);
    h
}

#[test]
fn zipped_groups_give_the_same_sums() {
    let mut random = Random::new(25);
    for ty in QUANTIZED {
        for cols in COLS {
            let cols = cols_of(ty, cols);
            let w = Matrix::random(&mut random, ty, 32, cols);
            let codes = zipped_codes(&w);
            let (rows, zipped) = (group(&w, 0..32), whole_group(&w, &codes));
            let acc = random.floats(cols);
            let mut h = with_dead_quads(&mut random, 2);
            h.truncate(32);
            for value in [1.0, 1e38, f32::INFINITY, f32::NAN] {
                h[9] *= value;
                let want = down(&Kernels::SCALAR, &rows, &h, &acc);
                for kernels in Kernels::available() {
                    let what = format!("{} {ty:?} {cols} {value}", kernels.name);
                    assert_same(&down(&kernels, &zipped, &h, &acc), &want, &what);
                }
            }
            for tokens in [1, 2, 7, 16, 33] {
                let h = with_dead_quads(&mut random, tokens);
                for range in [0..cols, cols / 128 * 64..cols] {
                    let acc = random.floats(range.len() * tokens);
                    let sums = |kernels: &Kernels, rows: &NeuronRows<'_>| {
                        let (mut acc, range) = (acc.clone(), range.clone());
                        let mut scratch = scratch(range.len());
                        (kernels.down_group_many)(rows, range, tokens, &h, &mut acc, &mut scratch);
                        acc
                    };
                    let want = sums(&Kernels::SCALAR, &rows);
                    for kernels in Kernels::available() {
                        let what = format!("{} {ty:?} {range:?} {tokens}", kernels.name);
                        assert_same(&sums(&kernels, &zipped), &want, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn zipped_rows_give_their_weights() {
    let mut random = Random::new(26);
    for ty in QUANTIZED {
        let cols = cols_of(ty, 96);
        let w = Matrix::random(&mut random, ty, 32, cols);
        let codes = zipped_codes(&w);
        let zipped = Rows::new(ty, 32, cols, &codes, &w.scales).zipped();
        let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
        let mut copy = vec![0; ty.code_bytes(cols)];
        for n in 0..32 {
            w.view().in_order().dequantize(n, &mut want);
            zipped.dequantize(n, &mut got);
            assert_same(&got, &want, ty.name());
            zipped.copy_codes(n, &mut copy);
            assert_eq!(copy, w.view().codes(n), "{ty:?} {n}");
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    for ty in QUANTIZED {
        let cols = cols_of(ty, 96);
        for low in [false, true] {
            for h in [[1.0; 32], [-1.0; 32]] {
                let w = Matrix::extreme(ty, 32, cols, low);
                let codes = zipped_codes(&w);
                let (rows, zipped) = (group(&w, 0..32), whole_group(&w, &codes));
                let want = down(&Kernels::SCALAR, &rows, &h, &vec![0.0; cols]);
                for kernels in tables() {
                    let what = format!("{} {ty:?} {low}", kernels.name);
                    let got = down(&kernels, &rows, &h, &vec![0.0; cols]);
                    assert_same(&got, &want, &what);
                    let got = down(&kernels, &zipped, &h, &vec![0.0; cols]);
                    assert_same(&got, &want, &what);
                    let many: Vec<f32> = h.iter().flat_map(|&h| [h; 20]).collect();
                    let mut got = vec![0.0; cols * 20];
                    let mut scratch = scratch(cols);
                    (kernels.down_group_many)(&rows, 0..cols, 20, &many, &mut got, &mut scratch);
                    for i in 0..cols {
                        assert_same(&got[i * 20..][..20], &[want[i]; 20], &what);
                    }
                }
            }
        }
    }
}

#[test]
fn nan_and_infinities_agree() {
    let mut random = Random::new(23);
    for ty in WeightType::ALL {
        let cols = cols_of(ty, 96);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, 1e-38] {
            let w = Matrix::random(&mut random, ty, 32, cols);
            let rows = group(&w, 0..32);
            let mut h = random.floats(32);
            h[9] = value;
            let want = down(&Kernels::SCALAR, &rows, &h, &vec![1.0; cols]);
            assert!(!value.is_nan() || want.iter().all(|y| y.is_nan()));
            for kernels in tables() {
                let what = format!("{} {ty:?} {value}", kernels.name);
                assert_same(&down(&kernels, &rows, &h, &vec![1.0; cols]), &want, &what);
                let many: Vec<f32> = h.iter().flat_map(|&h| [h; 3]).collect();
                let mut got = vec![1.0; cols * 3];
                (kernels.down_group_many)(&rows, 0..cols, 3, &many, &mut got, &mut scratch(cols));
                for i in 0..cols {
                    assert_same(&got[i * 3..][..3], &[want[i]; 3], &what);
                }
            }
        }
    }
}

/// A group's sum is near what weights and activations say in f64.
#[test]
fn down_sums_are_sums() {
    let mut random = Random::new(24);
    for ty in WeightType::ALL {
        let cols = cols_of(ty, 64);
        let w = Matrix::random(&mut random, ty, 32, cols);
        let h = random.floats(32);
        let got = down(&Kernels::SCALAR, &group(&w, 0..32), &h, &vec![0.0; cols]);
        let (mut want, mut size) = (vec![0f64; cols], vec![0f64; cols]);
        for (n, h) in h.iter().enumerate() {
            let mut row = vec![0.0; cols];
            let view = w.view();
            tessera_kernels::dequantize_row(ty, cols, view.codes(n), view.scales(n), &mut row);
            for i in 0..cols {
                want[i] += f64::from(row[i]) * f64::from(*h);
                size[i] += (f64::from(row[i]) * f64::from(*h)).abs();
            }
        }
        for i in 0..cols {
            let error = (f64::from(got[i]) - want[i]).abs();
            assert!(error < 0.02 * size[i], "{ty:?} {i}: {} {}", got[i], want[i]);
        }
    }
}
