//! Tokens in tiles, for products of many of them.

use tessera_kernels::{Activations, BLOCK, TokenTiles, TokenTilesMut, tile_activations, tiles_len};

/// Tiles that own their numbers.
pub struct Tiles {
    q: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Tiles {
    /// Of tokens with these codes `q` (tokens, cols), and scales and sums (tokens, cols / 32).
    pub fn new(cols: usize, q: &[i8], scales: &[f32], sums: &[i32]) -> Self {
        let len = tiles_len(q.len() / cols, cols);
        let mut tiles = Tiles {
            q: vec![0; len],
            scales: vec![0.0; len / BLOCK],
            sums: vec![0; len / BLOCK],
        };
        let mut out = TokenTilesMut {
            q: &mut tiles.q,
            scales: &mut tiles.scales,
            sums: &mut tiles.sums,
        };
        tile_activations(cols, q, scales, sums, &mut out);
        tiles
    }

    /// `x` with these tiles.
    pub fn with<'a>(&'a self, x: Activations<'a>) -> Activations<'a> {
        let Tiles { q, scales, sums } = self;
        x.with_tiles(TokenTiles { q, scales, sums })
    }
}
