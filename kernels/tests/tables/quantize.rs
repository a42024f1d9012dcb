//! Weights to blocks: the vector forms against the scalar one, and what it costs.

use super::*;
use tessera_kernels::{Loss, QUANTIZE_SCRATCH_BYTES};

struct Rounded {
    codes: Vec<u8>,
    scales: Vec<u8>,
    loss: Loss,
}

fn round(kernels: &Kernels, ty: WeightType, cols: usize, x: &[f32]) -> Rounded {
    let rows = x.len() / cols;
    let mut codes = vec![0xa5; rows * ty.code_bytes(cols)];
    let mut scales = vec![0xa5; rows * ty.scale_bytes(cols)];
    let mut scratch = vec![0xa5; QUANTIZE_SCRATCH_BYTES];
    let loss = (kernels.quantize_rows)(ty, cols, x, &mut codes, &mut scales, &mut scratch);
    Rounded {
        codes,
        scales,
        loss,
    }
}

#[test]
fn quantize_rows_agrees() {
    let mut random = Random::new(61);
    for round_index in 0..64 {
        for (rows, cols) in [(1, 32usize), (3, 96), (2, 256), (5, 288), (0, 64), (2, 576)] {
            let mut x = random.floats(rows * cols.next_multiple_of(256));
            match round_index % 8 {
                0 => x.iter_mut().for_each(|x| *x *= 1e-7),
                1 => x.iter_mut().for_each(|x| *x *= 1e5),
                2 => x.iter_mut().for_each(|x| *x = x.round() * 0.5),
                3 => x.iter_mut().for_each(|x| *x = x.powi(9)),
                // Zeros of both signs, and blocks of one value.
                4 => x
                    .iter_mut()
                    .for_each(|x| *x = if *x < 0.0 { -0.0 } else { 0.0 }),
                5 => x.chunks_mut(32).for_each(|x| x.fill(x[0])),
                6 => x
                    .iter_mut()
                    .for_each(|x| *x = f32::from_bits(random.bits() & 0xbfff_ffff)),
                _ => {}
            }
            for ty in WeightType::ALL {
                let cols = cols_of(ty, cols);
                let x = &x[..rows * cols];
                let want = round(&Kernels::SCALAR, ty, cols, x);
                for kernels in tables() {
                    let got = round(&kernels, ty, cols, x);
                    let what = format!("{} {ty:?} {round_index} {rows} x {cols}", kernels.name);
                    assert_eq!(got.scales, want.scales, "{what}");
                    assert_eq!(got.codes, want.codes, "{what}");
                    assert_eq!(got.loss, want.loss, "{what}");
                }
            }
        }
    }
}

/// The loss is the one that the stored row shows.
#[test]
fn loss_is_that_of_the_row() {
    let x = Random::new(62).floats(768);
    for ty in WeightType::ALL {
        let rounded = round(&Kernels::best(), ty, 768, &x);
        let mut back = vec![0.0; 768];
        tessera_kernels::dequantize_row(ty, 768, &rounded.codes, &rounded.scales, &mut back);
        let pairs = || x.iter().zip(&back);
        let error: f64 = pairs().map(|(x, y)| f64::from(x - y).powi(2)).sum();
        let total: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((rounded.loss.error - error).abs() <= 1e-5 * error, "{ty:?}");
        assert!((rounded.loss.total - total).abs() <= 1e-5 * total, "{ty:?}");
    }
}
