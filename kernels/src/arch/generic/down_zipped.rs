//! Down sums of one token over a whole group whose rows are zipped: one stream of codes, each
//! vector of which is multiplied as it stands.
#![allow(unsafe_code)]

use super::ahead::Ahead;
use super::coefficients::{Coefficients, SCALES_AHEAD_BYTES};
use crate::arch::simd::{Q5, Q6, Q8, Simd, Simd8, code_bytes};
use crate::block::BLOCK;
use crate::neurons::NeuronRows;
use crate::zip::{QUAD, QUADS};

/// Adds the group's down sum to `acc`; `codes` are those of `w`.
#[inline(always)]
pub(super) fn quantized<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &NeuronRows<'_>,
    codes: &[u8],
    h: &[f32],
    acc: &mut [f32],
) {
    let blocks = w.cols() / BLOCK;
    let alive = Alive::new(h);
    let mut next = Ahead::new(w.soon(), blocks.div_ceil(2));
    let pair_bytes = QUADS * QUAD * code_bytes::<TY>(2);
    let mut pairs = codes.chunks(pair_bytes);
    for (stretch, acc) in acc.chunks_mut(S::LANES * BLOCK).enumerate() {
        // The last blocks again, where there are not as many more as lanes.
        let first = (stretch * S::LANES).min(blocks.saturating_sub(S::LANES));
        let ahead = first * 2 + SCALES_AHEAD_BYTES;
        let coefficients = if blocks >= S::LANES {
            Coefficients::new::<S, TY, false>(s, w, h, first, ahead)
        } else {
            Coefficients::new::<S, TY, true>(s, w, h, first, ahead)
        };
        let lanes = (stretch * S::LANES - first..).step_by(2);
        for ((acc, pair), lane) in acc.chunks_mut(2 * BLOCK).zip(&mut pairs).zip(lanes) {
            next.ask(p);
            if pair.len() == pair_bytes {
                add_pair::<S, TY, false>(s, pair, &alive, &coefficients, lane, acc);
            } else {
                add_pair::<S, TY, true>(s, pair, &alive, &coefficients, lane, acc);
            }
        }
    }
}

/// Quads of a group with a hidden value that is not zero.
struct Alive {
    quads: [u8; QUADS],
    len: usize,
}

impl Alive {
    #[inline(always)]
    fn new(h: &[f32]) -> Self {
        let mut alive = Alive {
            quads: [0; QUADS],
            len: 0,
        };
        for (quad, h) in h.as_chunks::<QUAD>().0.iter().enumerate() {
            if h.iter().any(|h| *h != 0.0) {
                alive.quads[alive.len] = quad as u8;
                alive.len += 1;
            }
        }
        alive
    }
}

/// Adds the products with a pair of blocks of outputs, whose coefficients are those of lane `lane`
/// and the next; with the even block alone if the odd one is `CUT` off.
#[inline(always)]
fn add_pair<S: Simd, const TY: u8, const CUT: bool>(
    s: S,
    pair: &[u8],
    alive: &Alive,
    coefficients: &Coefficients,
    lane: usize,
    acc: &mut [f32],
) {
    let quad_bytes = if CUT {
        QUAD * BLOCK
    } else {
        QUAD * code_bytes::<TY>(2)
    };
    assert_eq!(pair.len(), QUADS * quad_bytes);
    let lanes = [lane, (lane + 1).min(S::LANES - 1)];
    let mut sums = [[s.zero_acc(); 4]; 2];
    let (twos, last) = alive.quads[..alive.len].as_chunks::<2>();
    for &[first, second] in twos {
        let (first, second) = (first as usize % QUADS, second as usize % QUADS);
        let c = [&coefficients.c[first], &coefficients.c[second]];
        for k in 0..BLOCK / S::LANES {
            // SAFETY: the quads are there, as the length was asserted.
            let [first, second] = unsafe {
                [
                    quad_codes::<S, TY, CUT>(s, pair, first * quad_bytes, k),
                    quad_codes::<S, TY, CUT>(s, pair, second * quad_bytes, k),
                ]
            };
            for b in 0..2 {
                let c = [s.splat4(&c[0][lanes[b]]), s.splat4(&c[1][lanes[b]])];
                sums[b][k] = s.dot2::<TY>(sums[b][k], [first[b], second[b]], c);
            }
        }
    }
    if let &[quad] = last {
        let quad = quad as usize % QUADS;
        let c = &coefficients.c[quad];
        for k in 0..BLOCK / S::LANES {
            // SAFETY: as above.
            let codes = unsafe { quad_codes::<S, TY, CUT>(s, pair, quad * quad_bytes, k) };
            for b in 0..2 {
                let c = [s.splat4(&c[lanes[b]]), s.zero_v()];
                sums[b][k] = s.dot2::<TY>(sums[b][k], [codes[b], s.zero_v()], c);
            }
        }
    }
    for (b, acc) in acc.chunks_exact_mut(BLOCK).enumerate() {
        let p = coefficients.products::<S, TY>(s, lanes[b], sums[b]);
        for k in 0..BLOCK / S::LANES {
            let y = s.add(s.floats_at(acc, k * S::LANES), p[k]);
            s.store_at(y, acc, k * S::LANES);
        }
    }
}

/// Codes of a quad of zipped rows, whose pair of blocks stands at byte `at` of `bytes`, for the
/// outputs of vector `k` of each block; of the even block alone if the odd one is `CUT` off.
///
/// # Safety
/// The pair is there.
#[inline(always)]
pub(super) unsafe fn quad_codes<S: Simd, const TY: u8, const CUT: bool>(
    s: S,
    bytes: &[u8],
    at: usize,
    k: usize,
) -> [S::V; 2] {
    let place = at + k * QUAD * S::LANES;
    let after_low = at + QUAD * BLOCK;
    // SAFETY: the caller's.
    unsafe {
        let first = vector_at(s, bytes, place);
        if TY == Q8 {
            let even = s.biased(first);
            if CUT {
                return [even, s.zero_v()];
            }
            return [even, s.biased(vector_at(s, bytes, place + QUAD * BLOCK))];
        }
        let [even, odd] = s.split4(first);
        match TY {
            Q6 => {
                // The high bits of column `k` and of `k + 16` are in one byte.
                let vectors = BLOCK / 2 / S::LANES;
                let high = vector_at(s, bytes, after_low + k % vectors * QUAD * S::LANES);
                let high = s.bits(s.floats_of(high));
                let turned = if k < vectors {
                    [s.shift_left::<4>(high), high]
                } else {
                    [s.shift_left::<2>(high), s.shift_right::<2>(high)]
                };
                [
                    with_high(s, even, s.and_w(turned[0], s.splat_w(0x3030_3030))),
                    with_high(s, odd, s.and_w(turned[1], s.splat_w(0x3030_3030))),
                ]
            }
            Q5 => {
                let words = bytes[after_low..][..QUAD * BLOCK / 4].as_chunks().0;
                let (even_words, odd_words) = words.split_at(BLOCK / 8);
                let word = k * S::LANES / 8;
                [
                    with_high(s, even, bits_of(s, s.fifth_bits(&even_words[word..]))),
                    with_high(s, odd, bits_of(s, s.fifth_bits(&odd_words[word..]))),
                ]
            }
            _ => [even, odd],
        }
    }
}

#[inline(always)]
fn bits_of<S: Simd>(s: S, a: S::V) -> S::W {
    s.bits(s.floats_of(a))
}

/// Low bits and high bits together.
#[inline(always)]
fn with_high<S: Simd>(s: S, low: S::V, high: S::W) -> S::V {
    s.vector(s.as_floats(s.or_w(bits_of(s, low), high)))
}

/// # Safety
/// The bytes are there.
#[inline(always)]
unsafe fn vector_at<S: Simd>(s: S, bytes: &[u8], at: usize) -> S::V {
    debug_assert!(at + QUAD * S::LANES <= bytes.len());
    // SAFETY: the caller's; an array of bytes needs no alignment.
    s.bytes(unsafe { &*bytes.as_ptr().add(at).cast() })
}
