use super::*;

/// Distance in units of the last place of `want`.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    let exponent = (rounded.abs().to_bits() >> 23).max(1) as i32;
    let ulp = 2f64.powi(exponent - 127 - 23);
    (f64::from(got) - want).abs() / ulp
}

#[test]
fn exp_is_within_its_stated_error() {
    let mut worst = 0f64;
    for bits in (0..u32::MAX).step_by(9973) {
        let x = f32::from_bits(bits);
        if x.is_finite() && x.abs() < 88.7 {
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
    }
    assert!(worst < 1.5, "{worst} ulp");
    for x in (0..20_000).map(|i| -87.0 - i as f32 * 1e-3) {
        assert!(ulps(exp(x), f64::from(x).exp()) <= 1.5, "{x}: {}", exp(x));
    }
}

#[test]
fn exp_at_the_borders() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(89.0), f32::INFINITY);
    assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp(-104.0).to_bits(), 0);
    assert!(exp(-103.0) > 0.0);
    assert!(exp(88.72) < f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn tanh_is_within_its_stated_error() {
    for i in -40_000..40_000 {
        let x = i as f32 * 5e-4;
        let error = (f64::from(tanh(x)) - f64::from(x).tanh()).abs();
        assert!(error < 2f64.powi(-22), "{x}: {error}");
    }
    assert_eq!(tanh(f32::INFINITY), 1.0);
    assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
    assert!(tanh(f32::NAN).is_nan());
}

#[test]
fn relu_keeps_nan() {
    assert_eq!(relu(-0.0).to_bits(), 0);
    assert_eq!(relu(-1.0).to_bits(), 0);
    assert_eq!(relu(2.5), 2.5);
    assert!(relu(f32::NAN).is_nan());
}

#[test]
fn sqrt_is_correctly_rounded() {
    for bits in (0..0x7f80_0000u32).step_by(4099) {
        let x = f32::from_bits(bits);
        assert_eq!(sqrt(x).to_bits(), x.sqrt().to_bits(), "{x}");
    }
    for x in [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::MAX,
    ] {
        assert_eq!(sqrt(x).to_bits(), x.sqrt().to_bits(), "{x}");
    }
    assert!(sqrt(-1.0).is_nan());
    assert!(sqrt(f32::NAN).is_nan());
}

#[test]
fn sin_cos_are_within_their_stated_error() {
    let mut worst = 0f64;
    for i in 0..400_000 {
        let x = match i % 4 {
            0 => f64::from(i) * 25.0,
            1 => f64::from(i) * -7.3e-5,
            2 => f64::from(i) * core::f64::consts::FRAC_PI_2,
            _ => f64::from(i) * 0.731_058_578,
        };
        let (sin, cos) = sin_cos(x);
        worst = worst.max(ulps(sin, x.sin())).max(ulps(cos, x.cos()));
    }
    assert!(worst < 0.51, "{worst} ulp");
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
    let (sin, cos) = sin_cos(f64::INFINITY);
    assert!(sin.is_nan() && cos.is_nan());
}

#[test]
fn f16_conversions_are_exact() {
    for bits in 0..=u16::MAX {
        let want = half::f16::from_bits(bits);
        let got = f16_to_f32(bits);
        if want.is_nan() {
            assert!(got.is_nan());
        } else {
            assert_eq!(got.to_bits(), want.to_f32().to_bits(), "{bits:#x}");
            assert_eq!(f32_to_f16(got), bits, "{bits:#x}");
        }
    }
    for bits in (0..u32::MAX).step_by(1021) {
        let x = f32::from_bits(bits);
        let want = half::f16::from_f32_const(x);
        let got = f32_to_f16(x);
        if x.is_nan() {
            assert!(half::f16::from_bits(got).is_nan());
        } else {
            assert_eq!(got, want.to_bits(), "{x}");
        }
    }
}

#[test]
fn rounding_is_half_to_even() {
    for (x, want) in [
        (0.5, 0),
        (1.5, 2),
        (-0.5, 0),
        (-2.5, -2),
        (126.5, 126),
        (-126.7, -127),
    ] {
        assert_eq!(round_to_i32(x), want, "{x}");
    }
    assert_eq!(round_to_i32(f32::NAN), 0);
}
