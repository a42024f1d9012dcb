use super::*;
use crate::testing::Random;

fn round_trip(ty: WeightType, x: &[f32]) -> Vec<f32> {
    let mut codes = vec![0; ty.code_bytes(x.len())];
    let mut scales = vec![0; ty.scale_bytes(x.len())];
    quantize_row(ty, x, &mut codes, &mut scales);
    let mut back = vec![0.0; x.len()];
    dequantize_row(ty, x.len(), &codes, &scales, &mut back);
    back
}

fn error(x: &[f32], back: &[f32]) -> f64 {
    x.iter()
        .zip(back)
        .map(|(a, b)| f64::from(a - b).powi(2))
        .sum()
}

/// Every weight gets the nearest code of its block's scale, and the scale is about the one that
/// maps the largest magnitude to the last code.
#[test]
fn codes_are_the_nearest() {
    let mut random = Random::new(7);
    for round in 0..50 {
        let x: Vec<f32> = (0..96)
            .map(|_| random.normal() * 1.3f32.powi(round - 10))
            .collect();
        for (ty, last) in [
            (WeightType::Q8, 127.0),
            (WeightType::Q6, 32.0),
            (WeightType::Q5, 16.0),
            (WeightType::Q4, 8.0),
        ] {
            let (mut codes, mut scales) = ([0; 96], [0; 6]);
            let codes = &mut codes[..ty.code_bytes(96)];
            quantize_row(ty, &x, codes, &mut scales);
            let mut back = [0.0; 96];
            dequantize_row(ty, 96, codes, &scales, &mut back);
            for (block, (x, back)) in x.chunks(32).zip(back.chunks(32)).enumerate() {
                let d = scale_at(&scales, block);
                let top = x.iter().fold(0f32, |top, x| top.max(x.abs()));
                assert!(
                    (top / d.abs() / last - 1.0).abs()
                        < 0.001 + if ty == WeightType::Q8 { 0.0 } else { 0.15 },
                    "{ty:?} {top} {d}"
                );
                let (low, high) = code_range(ty);
                for (x, back) in x.iter().zip(back) {
                    let nearest = clamp(x / d, low, high) * d;
                    assert!(
                        (nearest - back).abs() <= 0.5001 * d.abs(),
                        "{ty:?} {x} {back}"
                    );
                }
            }
        }
        assert_eq!(round_trip(WeightType::F32, &x), x);
    }
}

/// `Q4_0` of ggml: the largest magnitude maps to -8 and nothing is searched.
fn plain_q4(x: &[f32; 32]) -> f64 {
    let top = x
        .iter()
        .copied()
        .max_by(|a, b| a.abs().total_cmp(&b.abs()))
        .unwrap();
    let d = top / -8.0;
    let back: Vec<f32> = x
        .iter()
        .map(|x| (x / d + 8.5).clamp(0.0, 15.0).floor())
        .map(|q| (q - 8.0) * d)
        .collect();
    error(x, &back)
}

#[test]
fn the_search_loses_less_than_the_plain_scale_on_average() {
    let mut random = Random::new(3);
    let (mut searched, mut plain, mut offset) = (0.0, 0.0, 0.0);
    for _ in 0..500 {
        let x: [f32; 32] = core::array::from_fn(|_| random.normal());
        searched += error(&x, &round_trip(WeightType::Q4, &x));
        offset += error(&x, &round_trip(WeightType::Q4O, &x));
        plain += plain_q4(&x);
    }
    // Below 0.9 where all weights count the same.
    assert!(searched < 0.95 * plain, "{searched} {plain}");
    assert!(offset < searched, "{offset} {searched}");
}

#[test]
fn exact_blocks_stay_exact() {
    let codes: [f32; 32] = core::array::from_fn(|i| (i % 16) as f32);
    let q4: Vec<f32> = codes.iter().map(|q| 0.25 * (q - 8.0)).collect();
    assert_eq!(round_trip(WeightType::Q4, &q4), q4);
    let q4o: Vec<f32> = codes.iter().map(|q| 0.25 * q + 3.5).collect();
    assert_eq!(round_trip(WeightType::Q4O, &q4o), q4o);
    let q4k: Vec<f32> = (0..256)
        .map(|i| (0.5 * (i / 32 * 8 + 7) as f32) * codes[i % 32] - 4.5 * (i / 32) as f32)
        .collect();
    assert_eq!(round_trip(WeightType::Q4K, &q4k), q4k);
    let q5: Vec<f32> = (0..32).map(|i| -0.5 * (i - 16) as f32).collect();
    assert_eq!(round_trip(WeightType::Q5, &q5), q5);
    let q6: Vec<f32> = (0..32).map(|i| -0.5 * (2 * i - 32) as f32).collect();
    assert_eq!(round_trip(WeightType::Q6, &q6), q6);
}

#[test]
fn zeros_and_constants() {
    for ty in WeightType::ALL {
        assert_eq!(round_trip(ty, &[0.0; 256]), [0.0; 256], "{ty:?}");
    }
    assert_eq!(round_trip(WeightType::Q4O, &[-0.75; 32]), [-0.75; 32]);
    let big = round_trip(WeightType::Q4, &[1e9; 32]);
    assert!(big.iter().all(|x| x.is_finite()));
}
