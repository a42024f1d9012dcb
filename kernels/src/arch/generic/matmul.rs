//! Several tokens: each lane of a sum is a row, of a panel whose codes were unpacked once.

use bytemuck::cast_slice;

use super::ahead::Ahead;
use super::by_type;
use super::few;
use super::matvec::{self, Token};
use super::panel::{Panel, carve};
use crate::arch::simd::{PANEL_VECTORS, Simd, Simd8, has_offset, offset_shift};
use crate::block::{BLOCK, WeightType};
use crate::check;
use crate::tiles::{TILE_TOKENS, TileBlock};
use crate::view::{Activations, Rows};

/// See [`crate::Kernels::matmul`].
#[inline(always)]
pub(crate) fn matmul<P: Simd8, S: Simd>(
    p: P,
    s: S,
    w: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
    scratch: &mut [u8],
) {
    check::matmul(w, x, out, scratch);
    if out.is_empty() {
        return;
    }
    match w.ty() {
        WeightType::F32 => floats::<P, false>(p, w, x, out),
        WeightType::F16 => floats::<P, true>(p, w, x, out),
        ty if !x.tiles.q.is_empty() => by_type!(ty, many::<P, S>(p, s, w, x, out, scratch)),
        ty if x.tokens() == 1 => {
            let token = Token::new(x, 0);
            by_type!(ty, matvec::quantized::<P>(p, w, &token, out));
        }
        ty => by_type!(ty, few::quantized::<P>(p, w, x, out)),
    }
}

/// Row by row, so that a row is read once.
#[inline(always)]
fn floats<P: Simd8, const HALF: bool>(p: P, w: &Rows<'_>, x: &Activations<'_>, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(x.tokens()).enumerate() {
        for (token, out) in out.iter_mut().enumerate() {
            let x = &x.x[token * x.cols()..][..x.cols()];
            *out = matvec::float_product::<P, HALF>(p, w.codes(row), x);
        }
    }
}

/// The accumulators `A_j` of a tile and a panel: (j, vectors, tokens).
type Sums<S> = [[[<S as Simd>::Floats; TILE_TOKENS]; PANEL_VECTORS]; 8];

/// Blocks of eight tokens.
struct Tile<'a> {
    words: &'a [TileBlock],
    scales: &'a [[f32; TILE_TOKENS]],
    sums: &'a [[i32; TILE_TOKENS]],
}

#[inline(always)]
fn many<P: Simd8, S: Simd, const TY: u8>(
    p: P,
    s: S,
    w: &Rows<'_>,
    x: &Activations<'_>,
    out: &mut [f32],
    mut scratch: &mut [u8],
) {
    let (blocks, tokens) = (x.cols() / BLOCK, x.tokens());
    let rows_at_once = Panel::<S>::ROWS;
    let mut panel = Panel::<S>::carve(&mut scratch, blocks);
    let sums = carve::<S::Floats>(&mut scratch, 8 * PANEL_VECTORS * TILE_TOKENS);
    let sums = sums.as_chunks_mut().0.as_chunks_mut().0;
    let [sums] = sums.as_chunks_mut().0 else {
        unreachable!("as many as were carved")
    };
    let words: &[TileBlock] = cast_slice(x.tiles.q);
    let (scales, x_sums) = (x.tiles.scales.as_chunks().0, x.tiles.sums.as_chunks().0);
    for first in (0..w.rows()).step_by(rows_at_once) {
        panel.fill::<P, TY>(p, w, first);
        let rows = (w.rows() - first).min(rows_at_once);
        // The next panel's codes come while tokens meet this one.
        let soon = match first + rows {
            next if next < w.rows() => w.codes_from(next, rows_at_once).into(),
            _ => w.soon(),
        };
        let mut ahead = Ahead::new(soon, tokens.div_ceil(TILE_TOKENS));
        let out = &mut out[first * tokens..][..rows * tokens];
        for (tile, start) in (0..tokens).step_by(TILE_TOKENS).enumerate() {
            let tile = Tile {
                words: &words[tile * blocks..][..blocks],
                scales: &scales[tile * blocks..][..blocks],
                sums: &x_sums[tile * blocks..][..blocks],
            };
            if rows > S::LANES {
                add_blocks::<P, S, TY, PANEL_VECTORS>(p, s, &panel, &tile, sums);
            } else {
                add_blocks::<P, S, TY, 1>(p, s, &panel, &tile, sums);
            }
            ahead.ask(p);
            let left = [rows, tokens - start];
            store(p, s, sums, &mut out[start..], left, tokens);
        }
    }
}

/// What a block's sums give each row: the bits of an i32 to be added to products of codes, or, for
/// weights with an offset, `s_b * f32(t_b)`.
#[inline(always)]
fn terms_of<P: Simd8, S: Simd, const TY: u8>(p: P, scales: P::F, sums: P::W) -> P::F {
    match offset_shift(TY, S::Q8_BIAS) {
        Some(3) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<3>(sums))),
        Some(4) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<4>(sums))),
        Some(5) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<5>(sums))),
        Some(_) => p.as_floats(p.sub_w(p.splat_w(0), p.shift_left::<7>(sums))),
        None => p.mul(scales, p.to_f(sums)),
    }
}

/// The accumulators of a panel's first `V` vectors of rows and a tile.
#[inline(always)]
fn add_blocks<P: Simd8, S: Simd, const TY: u8, const V: usize>(
    p: P,
    s: S,
    panel: &Panel<'_, S>,
    tile: &Tile<'_>,
    sums: &mut Sums<S>,
) {
    for sums in sums.as_flattened_mut().as_flattened_mut() {
        *sums = s.to_floats(s.splat(0.0));
    }
    let inputs = tile.words.iter().zip(tile.scales.iter().zip(tile.sums));
    let rows = panel.codes.iter().zip(panel.d.iter().zip(&*panel.m));
    for (block, ((words, (scales, t)), (codes, (d, m)))) in inputs.zip(rows).enumerate() {
        let dots = s.tile::<TY, V>(codes, words);
        let terms = p.to_floats(terms_of::<P, S, TY>(p, p.floats(scales), p.words(t)));
        for v in 0..V {
            let (d, m) = (s.floats(&d[v]), s.floats(&m[v]));
            for t in 0..TILE_TOKENS {
                let mut dot = dots[v][t];
                if offset_shift(TY, S::Q8_BIAS).is_some() {
                    dot = s.add_w(dot, s.splat_w(terms[t].to_bits() as i32));
                }
                let mut product = s.mul(s.mul(d, s.splat(scales[t])), s.to_f(dot));
                if has_offset(TY) {
                    product = s.add(product, s.mul(m, s.splat(terms[t])));
                }
                let sum = &mut sums[block % 8][v][t];
                *sum = s.to_floats(s.add(s.floats(sum), product));
            }
        }
    }
}

/// Adds the accumulators in the order of the tree: `out[row * stride + token]`, of as many rows and
/// tokens as there are `left`.
#[inline(always)]
fn store<P: Simd8, S: Simd>(
    p: P,
    s: S,
    sums: &Sums<S>,
    out: &mut [f32],
    left: [usize; 2],
    stride: usize,
) {
    let tokens = left[1].min(TILE_TOKENS);
    for v in 0..PANEL_VECTORS {
        let mut lanes = [s.to_floats(s.splat(0.0)); TILE_TOKENS];
        for (t, lanes) in lanes.iter_mut().enumerate() {
            let mut a = [s.splat(0.0); 8];
            for j in 0..8 {
                a[j] = s.floats(&sums[j][v][t]);
            }
            let even = s.add(s.add(a[0], a[4]), s.add(a[2], a[6]));
            let odd = s.add(s.add(a[1], a[5]), s.add(a[3], a[7]));
            *lanes = s.to_floats(s.add(even, odd));
        }
        let lanes: &[f32] = cast_slice(&lanes);
        for eight in 0..S::LANES / 8 {
            let first = v * S::LANES + eight * 8;
            let mut turned = [p.zero_v(); 8];
            for (t, turned) in turned.iter_mut().enumerate() {
                *turned = p.vector(p.floats_at(lanes, t * S::LANES + eight * 8));
            }
            let rows = left[0].saturating_sub(first).min(8);
            for (row, y) in p.transpose8(turned)[..rows].iter().enumerate() {
                let y = p.to_floats(p.floats_of(*y));
                out[(first + row) * stride..][..tokens].copy_from_slice(&y[..tokens]);
            }
        }
    }
}
