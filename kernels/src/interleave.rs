//! Blocks interleaved by four columns: every 32-bit lane of a vector sums one block's products, and
//! no sum crosses lanes.

use crate::block::{BLOCK, WeightType};
use crate::pack::{pack_codes, unpack_codes};

/// Blocks that are interleaved with each other.
pub(crate) const INTERLEAVED: usize = 8;
/// Their columns.
pub(crate) const RUN: usize = INTERLEAVED * BLOCK;

/// Most tokens that rows are multiplied with as they are stored; more meet a panel of unpacked
/// rows, see [`wants_tiles`](crate::wants_tiles).
pub const FEW_TOKENS: usize = 8;

/// The step that stands at each place of a run of activations: of 64 bytes of 4-bit codes the low
/// halves meet the first two, the high halves the others.
pub(crate) const STEPS: [usize; INTERLEAVED] = [0, 2, 1, 3, 4, 6, 5, 7];

/// From blocks to steps, and back: word `s` of block `j` is word `j` of step `s`.
#[inline(always)]
fn turn<T: Copy>(words: &[T; RUN / 4]) -> [T; RUN / 4] {
    let mut turned = *words;
    for block in 0..INTERLEAVED {
        for step in 0..INTERLEAVED {
            turned[step * INTERLEAVED + block] = words[block * INTERLEAVED + step];
        }
    }
    turned
}

/// Interleaves rows of codes as stored, or takes them apart again: it is its own inverse. Rows of
/// floats, and the blocks after the last whole run of eight, stay as they are.
///
/// # Panics
/// If `codes` are not whole rows of `cols` columns.
pub fn interleave(ty: WeightType, cols: usize, codes: &mut [u8]) {
    let row_bytes = ty.code_bytes(cols);
    if !ty.is_quantized() || row_bytes == 0 {
        return;
    }
    assert!(
        codes.len().is_multiple_of(row_bytes),
        "{} bytes",
        codes.len()
    );
    let run_bytes = ty.code_bytes(RUN);
    for row in codes.chunks_exact_mut(row_bytes) {
        for run in row[..cols / RUN * run_bytes].chunks_exact_mut(run_bytes) {
            if let Ok(run) = <&mut [u8; RUN / 2]>::try_from(&mut *run) {
                turn_halves(run);
                continue;
            }
            let mut codes = [0; RUN];
            unpack_codes(ty, RUN, run, &mut codes);
            let turned = turn::<[u8; 4]>(bytemuck::must_cast_ref(&codes));
            pack_codes(
                ty,
                RUN,
                bytemuck::must_cast_ref::<_, [u8; RUN]>(&turned),
                run,
            );
        }
    }
}

/// A run of 4-bit codes, four columns of two blocks (or of two steps) at a time.
fn turn_halves(run: &mut [u8; RUN / 2]) {
    let word = |pair: usize, at: usize, odd: usize| {
        let four = u32::from_ne_bytes(run[pair * BLOCK + 4 * at..].as_chunks().0[0]);
        four >> (4 * odd) & 0x0f0f_0f0f
    };
    let mut turned = [0; RUN / 2];
    for (place, out) in turned.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (step, block) = (place / INTERLEAVED * 2, place % INTERLEAVED);
        let low = word(block / 2, step, block % 2);
        let high = word(block / 2, step + 1, block % 2);
        *out = (low | high << 4).to_ne_bytes();
    }
    *run = turned;
}

/// Interleaves one token's codes `q` for products with interleaved rows, see
/// [`Activations::with_interleaved`](crate::Activations::with_interleaved).
///
/// # Panics
/// If the lengths differ.
pub fn interleave_activations(q: &[i8], out: &mut [i8]) {
    assert_eq!(q.len(), out.len());
    let (runs, rest) = q.as_chunks::<RUN>();
    let (outs, out_rest) = out.as_chunks_mut::<RUN>();
    for (q, out) in runs.iter().zip(outs) {
        let steps = turn::<[i8; 4]>(bytemuck::must_cast_ref(q));
        for (out, step) in out.as_chunks_mut::<BLOCK>().0.iter_mut().zip(STEPS) {
            let words = &steps[step * INTERLEAVED..][..INTERLEAVED];
            out.copy_from_slice(bytemuck::cast_slice(words));
        }
    }
    out_rest.copy_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn place_has_the_documented_column() {
        let cols = RUN + 2 * BLOCK;
        let columns: Vec<u8> = (0..cols).map(|column| (column % 251) as u8).collect();
        let mut codes = columns.clone();
        interleave(WeightType::Q8, cols, &mut codes);
        for (place, code) in codes.iter().enumerate() {
            let (s, j, i) = (place / 32, place / 4 % 8, place % 4);
            let column = if place < RUN {
                32 * j + 4 * s + i
            } else {
                place
            };
            assert_eq!(*code, columns[column], "{place}");
        }
    }

    #[test]
    fn twice_is_nothing() {
        for ty in WeightType::ALL {
            let cols = (2 * RUN + 96).next_multiple_of(ty.cols_multiple());
            let mut codes = Random::new(3).bytes(3 * ty.code_bytes(cols));
            if cols % (2 * BLOCK) > 0 && ty.is_quantized() && ty != WeightType::Q8 {
                // What fills up an odd block is zero.
                let whole = codes.clone();
                let mut columns = vec![0; cols];
                let rows = codes.chunks_exact_mut(ty.code_bytes(cols));
                for (row, whole) in rows.zip(whole.chunks_exact(ty.code_bytes(cols))) {
                    unpack_codes(ty, cols, whole, &mut columns);
                    pack_codes(ty, cols, &columns, row);
                }
            }
            let before = codes.clone();
            interleave(ty, cols, &mut codes);
            assert_eq!(codes != before, ty.is_quantized(), "{ty:?}");
            interleave(ty, cols, &mut codes);
            assert!(codes == before, "{ty:?}");
        }
    }

    #[test]
    fn activations_stand_where_their_weights_do() {
        let cols = RUN + BLOCK;
        let columns: Vec<i8> = (0..cols).map(|column| (column % 127) as i8).collect();
        let mut weights: Vec<u8> = columns.iter().map(|column| *column as u8).collect();
        interleave(WeightType::Q8, cols, &mut weights);
        let mut places = vec![0; cols];
        interleave_activations(&columns, &mut places);
        for (place, step) in STEPS.into_iter().enumerate() {
            let stored = &weights[step * BLOCK..][..BLOCK];
            assert_eq!(
                bytemuck::cast_slice::<i8, u8>(&places[place * BLOCK..][..BLOCK]),
                stored
            );
        }
        assert_eq!(places[RUN..], columns[RUN..]);
    }
}
