//! Activations of eight tokens side by side, as panels of unpacked rows meet them.

use crate::block::BLOCK;
use crate::interleave::{FEW_TOKENS, RUN};

/// Tokens of a tile.
pub const TILE_TOKENS: usize = 8;

/// Tokens that share the unpacking of a row that is multiplied as it is stored.
pub(crate) const TOKENS_AT_ONCE: usize = 4;

/// A block of a tile: (steps, tokens), four columns each.
pub(crate) type TileBlock = [[[u8; 4]; TILE_TOKENS]; BLOCK / 4];

/// True if products of `tokens` tokens of `cols` columns are quicker with panels, and therefore
/// want [`Activations::with_tiles`](crate::Activations::with_tiles): of more than [`FEW_TOKENS`].
/// Where rows are no whole runs of blocks, each token pays for the last blocks of every row: five
/// are then cheaper with a panel.
pub const fn wants_tiles(tokens: usize, cols: usize) -> bool {
    cols.is_multiple_of(BLOCK)
        && (tokens > FEW_TOKENS || tokens > TOKENS_AT_ONCE && !cols.is_multiple_of(RUN))
}

/// Codes of tiles, and their blocks' scales and sums.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenTiles<'a> {
    /// (tiles, cols / 32, 8, 8, 4): block by block eight steps of four columns, each of eight
    /// tokens.
    pub q: &'a [i8],
    /// (tiles, cols / 32, 8): scale of each token's block.
    pub scales: &'a [f32],
    /// (tiles, cols / 32, 8): sum of each token's codes of a block.
    pub sums: &'a [i32],
}

/// The same, to be written.
#[derive(Debug)]
pub struct TokenTilesMut<'a> {
    /// See [`TokenTiles::q`].
    pub q: &'a mut [i8],
    /// See [`TokenTiles::scales`].
    pub scales: &'a mut [f32],
    /// See [`TokenTiles::sums`].
    pub sums: &'a mut [i32],
}

/// Bytes of the codes of `tokens` tokens in tiles; a block's scales and sums are one each for 32 of
/// them.
pub const fn tiles_len(tokens: usize, cols: usize) -> usize {
    tokens.next_multiple_of(TILE_TOKENS) * cols
}

/// Writes tokens whose codes `q` (tokens, cols), `scales` and `sums` (tokens, cols / 32) stand one
/// after the other. What the last tile lacks are zeros.
///
/// # Panics
/// If a length does not fit.
pub fn tile_activations(
    cols: usize,
    q: &[i8],
    scales: &[f32],
    sums: &[i32],
    tiles: &mut TokenTilesMut<'_>,
) {
    assert!(cols > 0 && cols.is_multiple_of(BLOCK), "{cols} columns");
    let (tokens, blocks) = (q.len() / cols, cols / BLOCK);
    assert_eq!(q.len(), tokens * cols);
    assert_eq!(scales.len(), tokens * blocks);
    assert_eq!(sums.len(), tokens * blocks);
    let len = tiles_len(tokens, cols);
    assert_eq!(tiles.q.len(), len);
    assert_eq!(tiles.scales.len(), len / BLOCK);
    assert_eq!(tiles.sums.len(), len / BLOCK);
    let words: &mut [TileBlock] = bytemuck::cast_slice_mut(tiles.q);
    let numbers = tiles.scales.as_chunks_mut::<TILE_TOKENS>().0.iter_mut();
    let numbers = numbers.zip(tiles.sums.as_chunks_mut::<TILE_TOKENS>().0);
    let q: &[[[u8; 4]; BLOCK / 4]] = bytemuck::cast_slice(q);
    for (place, (words, (tile_scales, tile_sums))) in words.iter_mut().zip(numbers).enumerate() {
        let (first, block) = (place / blocks * TILE_TOKENS, place % blocks);
        for t in 0..TILE_TOKENS {
            let at = (first + t) * blocks + block;
            let missing = first + t >= tokens;
            let q = if missing {
                &[[0; 4]; BLOCK / 4]
            } else {
                &q[at]
            };
            for (step, word) in words.iter_mut().zip(q) {
                step[t] = *word;
            }
            tile_scales[t] = if missing { 0.0 } else { scales[at] };
            tile_sums[t] = if missing { 0 } else { sums[at] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_place() {
        let (tokens, cols) = (11, 96);
        let q: Vec<i8> = (0..tokens * cols).map(|i| (i % 251) as u8 as i8).collect();
        let blocks = cols / BLOCK;
        let scales: Vec<f32> = (0..tokens * blocks).map(|i| i as f32).collect();
        let sums: Vec<i32> = (0..tokens * blocks).map(|i| -(i as i32)).collect();
        let len = tiles_len(tokens, cols);
        assert_eq!(len, 16 * cols);
        let (mut codes, mut s, mut t) = (vec![9; len], vec![9.0; len / 32], vec![9; len / 32]);
        let mut tiles = TokenTilesMut {
            q: &mut codes,
            scales: &mut s,
            sums: &mut t,
        };
        tile_activations(cols, &q, &scales, &sums, &mut tiles);
        for token in 0..16 {
            for col in 0..cols {
                let (block, step, byte) = (col / 32, col % 32 / 4, col % 4);
                let place = (token / 8 * blocks + block) * 8;
                let code = codes[((place + step) * 8 + token % 8) * 4 + byte];
                let want = if token < tokens {
                    q[token * cols + col]
                } else {
                    0
                };
                assert_eq!(code, want, "token {token} column {col}");
                let at = place + token % 8;
                let want = if token < tokens {
                    (token * blocks + block) as f32
                } else {
                    0.0
                };
                assert_eq!((s[at], t[at]), (want, -want as i32), "token {token}");
            }
        }
    }

    #[test]
    fn a_few_tokens_want_none() {
        for (tokens, cols, wants) in [
            (1, 96, false),
            (4, 96, false),
            (5, 96, true),
            (8, 256, false),
            (9, 256, true),
            (9, 40, false),
        ] {
            assert_eq!(wants_tiles(tokens, cols), wants, "{tokens} of {cols}");
        }
    }
}
