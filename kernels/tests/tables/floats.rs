//! Kernels on floats.

use super::*;
use tessera_kernels::activation::Activation;

const ACTIVATIONS: [Activation; 4] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::ReluBoth,
];

/// Any floats: mostly ordinary, some of any bits.
fn wild(random: &mut Random, len: usize) -> Vec<f32> {
    let any = |random: &mut Random| match random.below(4) {
        0 => f32::from_bits(random.bits()),
        1 => random.normal() * 40.0,
        _ => random.normal(),
    };
    (0..len).map(|_| any(random)).collect()
}

#[test]
fn quantize_agrees() {
    let mut random = Random::new(31);
    for round in 0..200 {
        let mut x = random.floats(96);
        match round % 8 {
            0 => x = wild(&mut random, 96),
            1 => x[40] = f32::NAN,
            2 => x[40] = f32::NEG_INFINITY,
            3 => x.fill(0.0),
            4 => x.iter_mut().for_each(|x| *x *= 1e-31),
            // Ties: the codes are halves.
            5 => {
                x.iter_mut().for_each(|x| *x = (*x * 60.0).round() + 0.5);
                (x[0], x[32], x[64]) = (127.0, -127.0, 127.0);
            }
            _ => {}
        }
        let (mut q, mut s, mut t) = ([0i8; 96], [0f32; 3], [0; 3]);
        (Kernels::SCALAR.quantize)(&x, &mut q, &mut s, &mut t);
        for kernels in tables() {
            let (mut q2, mut s2, mut t2) = ([0i8; 96], [0f32; 3], [0; 3]);
            (kernels.quantize)(&x, &mut q2, &mut s2, &mut t2);
            assert_eq!((q2, t2), (q, t), "{} {x:?}", kernels.name);
            assert_same(&s2, &s, kernels.name);
        }
    }
}

#[test]
fn dots_agree() {
    let mut random = Random::new(32);
    for len in [0, 1, 5, 8, 31, 32, 33, 64, 100, 128, 576] {
        let (a, b) = (random.floats(len), random.floats(len));
        let want = (Kernels::SCALAR.dot)(&a, &b);
        for kernels in tables() {
            assert_same(&[(kernels.dot)(&a, &b)], &[want], kernels.name);
        }
    }
}

#[test]
fn to_q8_agrees_and_is_near() {
    let mut random = Random::new(37);
    for round in 0..200 {
        let len = [8, 16, 32, 40, 64, 128, 256][round % 7];
        let mut x = random.floats(len);
        match round % 5 {
            0 => x = wild(&mut random, len),
            1 => x[len / 2] = [f32::NAN, f32::INFINITY, 1e30][random.below(3)],
            2 => x.iter_mut().for_each(|x| *x *= 1e-31),
            _ => {}
        }
        let mut want = vec![0; len];
        let scale = (Kernels::SCALAR.to_q8)(&x, &mut want);
        if round % 5 > 2 {
            for (x, code) in x.iter().zip(&want) {
                assert!((x - scale * f32::from(*code)).abs() <= scale * 0.5001);
            }
        }
        for kernels in tables() {
            let mut got = vec![0; len];
            assert_same(&[(kernels.to_q8)(&x, &mut got)], &[scale], kernels.name);
            assert_eq!(got, want, "{} {x:?}", kernels.name);
        }
    }
}

#[test]
fn rmsnorm_agrees() {
    let mut random = Random::new(33);
    for len in [1, 8, 31, 64, 576, 1000] {
        let (x, weight) = (random.floats(len), random.floats(len));
        let (mut want, mut got) = (vec![0.0; len], vec![0.0; len]);
        (Kernels::SCALAR.rmsnorm)(&x, &weight, 1e-5, &mut want);
        for kernels in tables() {
            (kernels.rmsnorm)(&x, &weight, 1e-5, &mut got);
            assert_same(&got, &want, kernels.name);
        }
    }
}

#[test]
fn rmsnorm_quantize_is_both_in_turn() {
    let mut random = Random::new(38);
    for (round, len) in [32, 64, 96, 576, 1536]
        .into_iter()
        .cycle()
        .take(20)
        .enumerate()
    {
        let (mut x, weight) = (random.floats(len), random.floats(len));
        match round / 5 {
            1 => x = wild(&mut random, len),
            2 => x[len / 2] = f32::NAN,
            3 => x[..32].fill(0.0),
            _ => {}
        }
        let (mut want, mut q) = (vec![0.0; len], vec![0; len]);
        let (mut scales, mut sums) = (vec![0.0; len / 32], vec![0; len / 32]);
        (Kernels::SCALAR.rmsnorm)(&x, &weight, 1e-5, &mut want);
        (Kernels::SCALAR.quantize)(&want, &mut q, &mut scales, &mut sums);
        for kernels in Kernels::available() {
            let (mut got, mut q2) = (vec![1.0; len], vec![1; len]);
            let (mut s2, mut t2) = (vec![1.0; len / 32], vec![1; len / 32]);
            (kernels.rmsnorm_quantize)(&x, &weight, 1e-5, &mut got, &mut q2, &mut s2, &mut t2);
            assert_same(&got, &want, kernels.name);
            assert_same(&s2, &scales, kernels.name);
            assert_eq!(
                (q2, t2),
                (q.clone(), sums.clone()),
                "{} {len}",
                kernels.name
            );
        }
    }
}

#[test]
fn softmax_agrees_and_sums_to_one() {
    let mut random = Random::new(34);
    for len in [1, 7, 8, 9, 40, 333] {
        let mut x: Vec<f32> = random.floats(len).iter().map(|x| x * 20.0).collect();
        if len == 40 {
            x[3] = f32::NEG_INFINITY;
        }
        let mut want = x.clone();
        (Kernels::SCALAR.softmax)(&mut want);
        assert!((want.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        for kernels in tables() {
            let mut got = x.clone();
            (kernels.softmax)(&mut got);
            assert_same(&got, &want, kernels.name);
            let mut poisoned = x.clone();
            poisoned[len / 2] = f32::NAN;
            (kernels.softmax)(&mut poisoned);
            assert!(
                poisoned.iter().all(|x| x.is_nan()),
                "{} {len}",
                kernels.name
            );
        }
    }
}

#[test]
fn gated_agrees() {
    let mut random = Random::new(35);
    for act in ACTIVATIONS {
        for len in [1, 8, 13, 4000] {
            let (mut gate, up) = (wild(&mut random, len), wild(&mut random, len));
            gate[0] = [-0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY][random.below(4)];
            let mut want = gate.clone();
            (Kernels::SCALAR.gated)(act, &mut want, &up);
            for kernels in tables() {
                let mut got = gate.clone();
                (kernels.gated)(act, &mut got, &up);
                assert_same(&got, &want, &format!("{} {act:?}", kernels.name));
            }
        }
    }
}

/// `gated` with `up = 1` and ordinary gates is `exp` in disguise: densely against the scalar one.
#[test]
fn exp_agrees_densely() {
    let gate: Vec<f32> = (0..200_000)
        .map(|i| (i as f32 - 100_000.0) * 1.1e-3)
        .collect();
    let up = vec![1.0; gate.len()];
    let mut want = gate.clone();
    (Kernels::SCALAR.gated)(Activation::Silu, &mut want, &up);
    for kernels in tables() {
        let mut got = gate.clone();
        (kernels.gated)(Activation::Silu, &mut got, &up);
        assert_same(&got, &want, kernels.name);
    }
}

#[test]
fn to_f16_agrees() {
    let mut random = Random::new(36);
    for len in [1, 8, 100, 10_000] {
        let x = wild(&mut random, len);
        let (mut want, mut got) = (vec![0; len], vec![0; len]);
        (Kernels::SCALAR.to_f16)(&x, &mut want);
        for kernels in tables() {
            (kernels.to_f16)(&x, &mut got);
            for i in 0..len {
                let nan = x[i].is_nan() && half::f16::from_bits(got[i]).is_nan();
                assert!(got[i] == want[i] || nan, "{} {}", kernels.name, x[i]);
            }
        }
    }
}
