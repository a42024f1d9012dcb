//! Weights to blocks: each lane is a block, so that the sums of a search need no reduction.

use bytemuck::{cast_slice, cast_slice_mut, must_cast_ref};

use super::by_type;
use super::panel::carve;
use crate::arch::simd::{Q4O, Q5, Q6, Q8, Simd, Simd8};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::math::{ROUND, TINY};
use crate::quantize::search::{
    AT_ONCE, Q4_BASE, Q4_STEPS, Q4O_HIGH, Q4O_STEPS, Q5_STEPS, Q6_STEPS,
};
use crate::quantize::{
    CUT_OFF, F16_MAX, Loss, Place, code_range, store_floats, store_super_blocks, zero_code,
};

/// See [`crate::Kernels::quantize_rows`].
#[inline(always)]
pub(crate) fn quantize_rows<P: Simd8, S: Simd>(
    p: P,
    s: S,
    ty: WeightType,
    cols: usize,
    x: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
    scratch: &mut [u8],
) -> Loss {
    check::quantize_rows(ty, cols, x, codes, scales);
    check::quantize_scratch(scratch);
    match ty {
        WeightType::F32 | WeightType::F16 => return store_floats(ty, x, codes),
        WeightType::Q4K => return store_super_blocks(x, codes, scales),
        _ => {}
    }
    let mut scratch = scratch;
    let lanes = Lanes::<S>::carve(&mut scratch);
    by_type!(ty, rows::<P, S>(p, s, ty, cols, x, codes, scales, lanes))
}

/// `LANES` blocks, column by column.
struct Lanes<'a, S: Simd> {
    /// Weights.
    x: &'a mut [S::Floats; BLOCK],
    /// The same, normalised; later codes.
    v: &'a mut [S::Floats; BLOCK],
    /// Codes of each block as they are stored.
    stored: &'a mut [[u8; BLOCK]],
}

/// Scale and minimum of each lane.
struct Fit<S: Simd> {
    d: S::F,
    m: S::F,
}

#[inline(always)]
fn rows<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    ty: WeightType,
    cols: usize,
    x: &[f32],
    codes: &mut [u8],
    scales: &mut [u8],
    lanes: Lanes<'_, S>,
) -> Loss {
    let mut lanes = lanes;
    let mut loss = Loss::default();
    let mut place = Place::new(ty, cols);
    for x in x.as_chunks::<BLOCK>().0.chunks(S::LANES) {
        lanes.load(p, x);
        let [min, max] = lanes.range(s);
        let zero = s.splat(0.0);
        let fit = match TY {
            Q8 => Fit {
                d: s.div(s.max(max, s.sub(zero, min)), s.splat(127.0)),
                m: zero,
            },
            Q4O => lanes.with_offset(s, min, max),
            Q5 => lanes.symmetric::<16, false>(s, min, max, &Q5_STEPS),
            Q6 => lanes.symmetric::<32, false>(s, min, max, &Q6_STEPS),
            _ => lanes.symmetric::<8, true>(s, min, max, &Q4_STEPS),
        };
        let (d, d_halves) = to_f16(p, s, s.add(fit.d, zero));
        let (m, m_halves) = to_f16(p, s, fit.m);
        let [error, total] = lanes.encode::<P, TY>(p, s, ty, Fit { d, m });
        let (error, total) = (s.to_floats(error), s.to_floats(total));
        let (error, total) = (floats::<S>(&error), floats::<S>(&total));
        for block in 0..x.len() {
            loss.error += f64::from(error[block]);
            loss.total += f64::from(total[block]);
            place.put(&lanes.stored[block], codes);
            place.put_scales([d_halves[block], m_halves[block]], scales);
            place.next();
        }
    }
    loss
}

impl<'a, S: Simd> Lanes<'a, S> {
    #[inline(always)]
    fn carve(scratch: &mut &'a mut [u8]) -> Self {
        Lanes {
            x: &mut carve::<S::Floats>(scratch, BLOCK).as_chunks_mut().0[0],
            v: &mut carve::<S::Floats>(scratch, BLOCK).as_chunks_mut().0[0],
            stored: carve(scratch, S::LANES),
        }
    }

    /// Turns up to `LANES` blocks; the other lanes are zeros.
    #[inline(always)]
    fn load<P: Simd8>(&mut self, p: P, x: &[[f32; BLOCK]]) {
        let turned: &mut [f32] = cast_slice_mut(&mut self.x[..]);
        for half in 0..S::LANES / 8 {
            for part in 0..BLOCK / 8 {
                let mut rows = [p.zero_v(); 8];
                for i in 0..8 {
                    if let Some(x) = x.get(8 * half + i) {
                        let parts = must_cast_ref::<[f32; BLOCK], [[u8; 32]; 4]>(x);
                        rows[i] = p.bytes(&parts[part]);
                    }
                }
                let columns = p.transpose8(rows);
                for i in 0..8 {
                    let at = (8 * part + i) * S::LANES + 8 * half;
                    p.store_at(p.floats_of(columns[i]), turned, at);
                }
            }
        }
    }

    /// Smallest and largest weight, after cutting off what is too large.
    #[inline(always)]
    fn range(&mut self, s: S) -> [S::F; 2] {
        let (low, high) = (s.splat(-CUT_OFF), s.splat(CUT_OFF));
        let (mut min, mut max) = (high, low);
        for x in self.x.iter_mut() {
            let cut = s.min(s.max(s.floats(x), low), high);
            *x = s.to_floats(cut);
            (min, max) = (s.min(min, cut), s.max(max, cut));
        }
        [min, max]
    }

    /// `v = (x - offset) * inverse`; returns the sum.
    #[inline(always)]
    fn normalise(&mut self, s: S, offset: S::F, inverse: S::F) -> S::F {
        let mut sum = s.splat(0.0);
        for i in 0..BLOCK {
            let v = s.mul(s.sub(s.floats(&self.x[i]), offset), inverse);
            self.v[i] = s.to_floats(v);
            sum = s.add(sum, v);
        }
        sum
    }

    /// The scalar `search::symmetric`, lane by lane.
    #[inline(always)]
    fn symmetric<const ZERO: i32, const WEIGHED: bool>(
        &mut self,
        s: S,
        min: S::F,
        max: S::F,
        steps: &[f32; 16],
    ) -> Fit<S> {
        let zero = s.splat(0.0);
        let negated = s.sub(zero, min);
        let extreme = select(s, s.less(negated, max), max, min);
        let tiny = s.less(s.max(negated, max), s.splat(TINY));
        let inverse = without(s, tiny, s.div(s.splat(1.0), extreme));
        self.normalise(s, zero, inverse);
        let (low, high) = (s.splat(-ZERO as f32), s.splat((ZERO - 1) as f32));
        let (mut best, mut d) = (zero, zero);
        for steps in steps.as_chunks::<AT_ONCE>().0 {
            let (mut qv, mut qq) = ([zero; AT_ONCE], [zero; AT_ONCE]);
            for v in self.v.iter() {
                let v = s.floats(v);
                let w = s.add(s.mul(v, v), s.splat(Q4_BASE));
                for k in 0..AT_ONCE {
                    let q = nearest(s, s.mul(v, s.splat(steps[k])), low, high);
                    let wq = if WEIGHED { s.mul(w, q) } else { q };
                    qv[k] = s.add(qv[k], s.mul(wq, v));
                    qq[k] = s.add(qq[k], s.mul(wq, q));
                }
            }
            for k in 0..AT_ONCE {
                let fit = s.div(qv[k], qq[k]);
                let score = s.mul(fit, qv[k]);
                let better = s.less(best, score);
                best = select(s, better, score, best);
                d = select(s, better, fit, d);
            }
        }
        Fit {
            d: s.mul(d, extreme),
            m: zero,
        }
    }

    /// The scalar `search::with_offset`, lane by lane.
    #[inline(always)]
    fn with_offset(&mut self, s: S, min: S::F, max: S::F) -> Fit<S> {
        let (zero, one, high) = (s.splat(0.0), s.splat(1.0), s.splat(Q4O_HIGH));
        let n = s.splat(BLOCK as f32);
        let width = s.sub(max, min);
        let tiny = s.less(width, s.splat(TINY));
        let sv = self.normalise(s, min, without(s, tiny, s.div(one, width)));
        let (mut best, mut d, mut m) = (zero, s.splat(1.0 / Q4O_HIGH), zero);
        for steps in Q4O_STEPS.as_chunks::<AT_ONCE>().0 {
            let (mut sq, mut qq, mut qv) = ([zero; AT_ONCE], [zero; AT_ONCE], [zero; AT_ONCE]);
            for v in self.v.iter() {
                let v = s.floats(v);
                for k in 0..AT_ONCE {
                    let shift = s.splat(0.5 * (Q4O_HIGH - steps[k]));
                    let scaled = s.add(s.mul(v, s.splat(steps[k])), shift);
                    let q = nearest(s, scaled, zero, high);
                    sq[k] = s.add(sq[k], q);
                    qq[k] = s.add(qq[k], s.mul(q, q));
                    qv[k] = s.add(qv[k], s.mul(q, v));
                }
            }
            for k in 0..AT_ONCE {
                let inverse = s.div(one, s.sub(s.mul(n, qq[k]), s.mul(sq[k], sq[k])));
                let fit_d = s.sub(s.mul(n, qv[k]), s.mul(sq[k], sv));
                let fit_m = s.sub(s.mul(sv, qq[k]), s.mul(sq[k], qv[k]));
                let (fit_d, fit_m) = (s.mul(fit_d, inverse), s.mul(fit_m, inverse));
                let score = s.add(s.mul(fit_d, qv[k]), s.mul(fit_m, sv));
                let better = s.less(best, score);
                best = select(s, better, score, best);
                d = select(s, better, fit_d, d);
                m = select(s, better, fit_m, m);
            }
        }
        Fit {
            d: s.mul(d, width),
            m: s.add(s.mul(m, width), min),
        }
    }

    /// Codes against the scales as stored; returns the squared error and the squared weights.
    #[inline(always)]
    fn encode<P: Simd8, const TY: u8>(
        &mut self,
        p: P,
        s: S,
        ty: WeightType,
        fit: Fit<S>,
    ) -> [S::F; 2] {
        let zero = s.splat(0.0);
        let (low, high) = code_range(ty);
        let (low, high) = (s.splat(low), s.splat(high));
        let shift = s.splat_w(zero_code(ty));
        // A scale is zero, or far from it.
        let none = s.less(s.max(fit.d, s.sub(zero, fit.d)), s.splat(TINY));
        let inverse = without(s, none, s.div(s.splat(1.0), fit.d));
        let (mut error, mut total) = (zero, zero);
        for quad in 0..BLOCK / 4 {
            let mut words = [s.splat_w(0); 4];
            for i in 0..4 {
                let x = s.floats(&self.x[4 * quad + i]);
                let q = nearest(s, s.mul(s.sub(x, fit.m), inverse), low, high);
                let rest = s.sub(x, s.add(s.mul(q, fit.d), fit.m));
                error = s.add(error, s.mul(rest, rest));
                total = s.add(total, s.mul(x, x));
                words[i] = s.add_w(s.round(q), shift);
            }
            self.v[quad] = s.to_floats(s.floats_of(s.quad(words)));
        }
        let quads: &[f32] = cast_slice(&self.v[..]);
        for half in 0..S::LANES / 8 {
            let mut rows = [p.zero_v(); 8];
            for quad in 0..8 {
                let row = &quads[quad * S::LANES + 8 * half..].as_chunks::<8>().0[0];
                rows[quad] = p.bytes(must_cast_ref(row));
            }
            let blocks = p.transpose8(rows);
            for i in 0..8 {
                self.stored[8 * half + i] = p.to_bytes(blocks[i]);
            }
        }
        [error, total]
    }
}

/// The nearest code of `low..=high`.
#[inline(always)]
fn nearest<S: Simd>(s: S, a: S::F, low: S::F, high: S::F) -> S::F {
    let inside = s.min(s.max(a, low), high);
    s.sub(s.add(inside, s.splat(ROUND)), s.splat(ROUND))
}

/// `a` where `mask`, else `b`.
#[inline(always)]
fn select<S: Simd>(s: S, mask: S::W, a: S::F, b: S::F) -> S::F {
    s.as_floats(s.or_w(s.and_w(mask, s.bits(a)), s.and_not_w(mask, s.bits(b))))
}

/// Zero where `mask`, else `a`.
#[inline(always)]
fn without<S: Simd>(s: S, mask: S::W, a: S::F) -> S::F {
    s.as_floats(s.and_not_w(mask, s.bits(a)))
}

#[inline(always)]
fn floats<S: Simd>(floats: &S::Floats) -> &[f32] {
    cast_slice(core::slice::from_ref(floats))
}

/// The nearest f16 of each lane, and its bits.
#[inline(always)]
fn to_f16<P: Simd8, S: Simd>(p: P, s: S, a: S::F) -> (S::F, [u16; 16]) {
    let mut values = s.to_floats(s.min(s.max(a, s.splat(-F16_MAX)), s.splat(F16_MAX)));
    let mut halves = [0; 16];
    let lanes: &mut [f32] = cast_slice_mut(core::slice::from_mut(&mut values));
    let (lanes, halves8) = (lanes.as_chunks_mut().0, halves.as_chunks_mut::<8>().0);
    for (lanes, halves) in lanes.iter_mut().zip(halves8) {
        *halves = p.to_halves(p.floats(lanes));
        *lanes = p.to_floats(p.halves(must_cast_ref(halves)));
    }
    (s.floats(&values), halves)
}
