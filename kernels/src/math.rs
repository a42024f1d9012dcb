//! `exp`, `tanh`, `sqrt`, `sin`, `cos` without std. Multiply and add only, each rounded by itself,
//! so that every instruction set can repeat them bit for bit.

// Constants stand as they were published.
#![allow(clippy::excessive_precision)]

/// Adding and subtracting this rounds an f32 below 2^22 to an integer, half to even.
pub(crate) const ROUND: f32 = 12_582_912.0;
/// Below this a block is all zeros: 2^-100.
pub(crate) const TINY: f32 = f32::from_bits((127 - 100) << 23);

/// The numbers of [`exp`], for the vector forms.
pub(crate) mod exp_constants {
    /// Above this the result is infinite.
    pub const HIGH: f32 = 89.0;
    /// Below this the result is zero.
    pub const LOW: f32 = -104.0;
    /// ln 2 in two parts; a multiple of the first up to 2^10 is exact.
    pub const LN2_HIGH: f32 = 0.693_359_4;
    pub const LN2_LOW: f32 = -2.121_944_4e-4;
    /// `(exp(r) - 1 - r) / r^2`, highest power first (Cephes, `expf`).
    pub const POLY: [f32; 6] = [
        1.987_569_1e-4,
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5.000_000_1e-1,
    ];
}

/// The numbers of `gelu_tanh`: `sqrt(2/pi)` and `sqrt(2/pi) * 0.044715`.
pub(crate) const GELU: [f32; 2] = [0.797_884_56, 0.035_677_407];

/// `e^x` within 1.5 ulp (2^-149 where the result is subnormal); NaN, infinities and underflow to
/// zero as expected.
///
/// Cephes' `expf`: `x = k ln 2 + r`, a polynomial of degree 7 in `r`, times `2^k` in two steps.
pub fn exp(x: f32) -> f32 {
    use exp_constants::*;
    let x = if HIGH < x { HIGH } else { x };
    let x = if LOW > x { LOW } else { x };
    let shifted = x * core::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = POLY[0];
    for c in &POLY[1..] {
        p = p * r + c;
    }
    let y = (p * (r * r) + r) + 1.0;
    let k = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = k >> 1;
    (y * power_of_two(half)) * power_of_two(k - half)
}

/// `2^k` for `k` in -126..=127; other `k` (they come from NaN only) give some float.
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// `tanh(x) = 1 - 2 / (exp(2x) + 1)`, within 2^-22 (absolute).
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(x + x) + 1.0)
}

/// `x / (1 + exp(-x))`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `(0.5 x) * (1 + tanh(x * (c0 + c1 * (x * x))))`: GELU in its tanh form.
pub fn gelu_tanh(x: f32) -> f32 {
    let inner = x * (GELU[0] + GELU[1] * (x * x));
    (0.5 * x) * (1.0 + tanh(inner))
}

/// `x` where it is above zero or NaN, else 0.
pub fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

/// Square root, correctly rounded: the integer root of the scaled significand, and a sticky bit.
pub fn sqrt(x: f32) -> f32 {
    if x.is_nan() || x == 0.0 || x == f32::INFINITY {
        return x;
    }
    if x < 0.0 {
        return f32::NAN;
    }
    let (x, down) = if x < f32::MIN_POSITIVE {
        (x * 16_777_216.0, 12)
    } else {
        (x, 0)
    };
    let bits = x.to_bits();
    let exponent = (bits >> 23) as i32 - 127 - 23;
    let odd = exponent & 1;
    let significand = u64::from((bits & 0x007f_ffff) | 0x0080_0000) << odd;
    let scaled = significand << 26;
    let root = scaled.isqrt();
    let sticky = u64::from(root * root != scaled);
    ((root << 1) | sticky) as f32 * power_of_two((exponent - odd) / 2 - 14 - down)
}

/// Nearest integer, half to even, as `f32::round_ties_even` gives; 0 for NaN. `|x| < 2^22`.
pub(crate) fn round_to_i32(x: f32) -> i32 {
    if x.is_nan() {
        0
    } else {
        (x + ROUND).to_bits().wrapping_sub(ROUND.to_bits()) as i32
    }
}

/// Sine and cosine of `x` (radians, `|x| <= 10^7`), within 0.51 ulp of f32.
///
/// Reduced by pi/2 in three parts, then fdlibm's kernels in f64. NaN for what is not finite.
pub fn sin_cos(x: f64) -> (f32, f32) {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const PARTS: [f64; 3] = [
        1.570796325802803,
        9.920935774287987e-10,
        2.2517417741562176e-18,
    ];
    let shifted = x * core::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = ((x - n * PARTS[0]) - n * PARTS[1]) - n * PARTS[2];
    let (sin, cos) = (sin_kernel(r), cos_kernel(r));
    let (sin, cos) = match shifted.to_bits() & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    };
    (sin as f32, cos as f32)
}

/// `sin(r)` for `|r| <= pi/4` (fdlibm, `k_sin.c`).
fn sin_kernel(r: f64) -> f64 {
    const S: [f64; 6] = [
        1.58969099521155010221e-10,
        -2.50507602534068634195e-08,
        2.75573137070700676789e-06,
        -1.98412698298579493134e-04,
        8.33333333332248946124e-03,
        -1.66666666666666324348e-01,
    ];
    let z = r * r;
    let mut p = S[0];
    for c in &S[1..] {
        p = p * z + c;
    }
    r + (r * z) * p
}

/// `cos(r)` for `|r| <= pi/4` (fdlibm, `k_cos.c`).
fn cos_kernel(r: f64) -> f64 {
    const C: [f64; 6] = [
        -1.13596475577881948265e-11,
        2.08757232129817482790e-09,
        -2.75573143513906633035e-07,
        2.48015872894767294178e-05,
        -1.38888888888741095749e-03,
        4.16666666666666019037e-02,
    ];
    let z = r * r;
    let mut p = C[0];
    for c in &C[1..] {
        p = p * z + c;
    }
    (1.0 - 0.5 * z) + (z * z) * p
}

/// f16 bits to f32, exact.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent is 112 too small; multiplying mends it, for subnormals too.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(scaled.to_bits() | special | sign)
}

/// f32 to f16 bits, half to even; NaN stays NaN.
pub fn f32_to_f16(x: f32) -> u16 {
    let sign = (x.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let half = if magnitude > 0x7f80_0000 {
        0x7e00 | (magnitude >> 13) as u16 & 0x3ff
    } else if magnitude >= 0x4780_0000 {
        0x7c00
    } else if magnitude < 0x3880_0000 {
        // Subnormal in f16: adding 0.5 rounds at the right bit.
        ((f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits()) as u16
    } else {
        let odd = (magnitude >> 13) & 1;
        ((magnitude - (112 << 23) + 0xfff + odd) >> 13) as u16
    };
    sign | half
}

#[cfg(test)]
mod tests;
