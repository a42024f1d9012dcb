//! Working memory of a session: activations of a pass, and what each lane needs for itself.

use spin::mutex::SpinMutex;
use tessera_hal::Cores;
use tessera_kernels::{
    Activations, BLOCK, FEW_TOKENS, Kernels, TILE_TOKENS, TokenTiles, TokenTilesMut,
    interleave_activations, tile_activations, tiles_len, wants_tiles,
};

use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::budget::{Buffers, Sizes};
use crate::limits::{JOBS_MAX, LANES_MAX};
use crate::shape::Shape;

/// What one lane works in. A lane runs one piece at a time, so its lock is never contended.
pub struct Lane<'m> {
    /// Scores and sums of attention, hidden neurons of a cluster, partial sums of a strip.
    pub floats: &'m mut [f32],
    /// Working memory of the kernels.
    pub bytes: &'m mut [u8],
    /// Neurons that reached a threshold, since they were last counted.
    pub active: u64,
    /// Neurons there were.
    pub all: u64,
}

/// All lanes.
pub type Lanes<'m> = heapless::Vec<SpinMutex<Lane<'m>>, LANES_MAX>;

/// Carves the working memory of every lane.
pub fn take_lanes<'m>(
    arena: &mut Arena<'m>,
    shape: &Shape,
    sizes: &Sizes,
) -> Result<Lanes<'m>, OutOfMemory> {
    let buffers = Buffers::new(shape, sizes);
    let mut lanes = Lanes::new();
    for _ in 0..sizes.lanes {
        let floats = arena.take(buffers.lane_floats)?;
        let bytes = arena.take(buffers.lane_bytes)?;
        let _ = lanes.push(SpinMutex::new(Lane {
            floats,
            bytes,
            active: 0,
            all: 0,
        }));
    }
    Ok(lanes)
}

/// Inputs of products: floats, and the same rounded to 8-bit blocks.
pub struct Inputs<'m> {
    /// (tokens, wide).
    pub x: &'m mut [f32],
    q: &'m mut [i8],
    scales: &'m mut [f32],
    sums: &'m mut [i32],
    /// (few tokens, wide): the codes of a few tokens, interleaved.
    interleaved: &'m mut [i8],
    /// Many tokens once more, eight side by side.
    tiles: TokenTilesMut<'m>,
}

/// One token's inputs; without codes where blocks are not whole.
struct Row<'a> {
    x: &'a mut [f32],
    q: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [i32],
}

impl<'m> Inputs<'m> {
    /// Bytes that [`Inputs::take`] carves.
    pub fn bytes(tokens: usize, wide: usize) -> usize {
        let blocks = tokens * wide.div_ceil(BLOCK);
        let tiled = Self::tiles_len(tokens, wide);
        carved_bytes(tokens * wide * size_of::<f32>())
            + carved_bytes(tokens * wide)
            + carved_bytes(blocks * size_of::<f32>())
            + carved_bytes(blocks * size_of::<i32>())
            + carved_bytes(tokens.min(FEW_TOKENS) * wide)
            + carved_bytes(tiled)
            + carved_bytes(tiled / BLOCK * size_of::<f32>())
            + carved_bytes(tiled / BLOCK * size_of::<i32>())
    }

    /// Carves room for `tokens` tokens of `wide` columns.
    pub fn take(arena: &mut Arena<'m>, tokens: usize, wide: usize) -> Result<Self, OutOfMemory> {
        let blocks = tokens * wide.div_ceil(BLOCK);
        let tiled = Self::tiles_len(tokens, wide);
        Ok(Inputs {
            x: arena.take(tokens * wide)?,
            q: arena.take(tokens * wide)?,
            scales: arena.take(blocks)?,
            sums: arena.take(blocks)?,
            interleaved: arena.take(tokens.min(FEW_TOKENS) * wide)?,
            tiles: TokenTilesMut {
                q: arena.take(tiled)?,
                scales: arena.take(tiled / BLOCK)?,
                sums: arena.take(tiled / BLOCK)?,
            },
        })
    }

    /// Codes of tiles that passes of up to `tokens` tokens may want.
    fn tiles_len(tokens: usize, wide: usize) -> usize {
        // Narrower inputs may want tiles where the widest do not.
        if wants_tiles(tokens, BLOCK) {
            tiles_len(tokens, wide.next_multiple_of(BLOCK))
        } else {
            0
        }
    }

    /// Each token's row on some lane: `fill(t, x)` writes its floats (cols,), which are then
    /// rounded to blocks where blocks are whole.
    pub fn fill_rows<C: Cores>(
        &mut self,
        cores: &C,
        kernels: &Kernels,
        tokens: usize,
        cols: usize,
        fill: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        self.rows(cores, tokens, cols, &|t, row| {
            fill(t, row.x);
            if row.q.len() == cols {
                (kernels.quantize)(row.x, row.q, row.scales, row.sums);
            }
        });
    }

    /// The rows of `x` (tokens, cols), normed and rounded.
    pub fn norm_rows<C: Cores>(
        &mut self,
        cores: &C,
        kernels: &Kernels,
        x: &[f32],
        weight: &[f32],
        eps: f32,
    ) {
        let cols = weight.len();
        self.rows(cores, x.len() / cols, cols, &|t, row| {
            let x = &x[t * cols..][..cols];
            if row.q.len() == cols {
                let (q, scales, sums) = (row.q, row.scales, row.sums);
                (kernels.rmsnorm_quantize)(x, weight, eps, row.x, q, scales, sums);
            } else {
                (kernels.rmsnorm)(x, weight, eps, row.x);
            }
        });
    }

    /// `visit(t, row)` for each token, on some lane.
    fn rows<C: Cores>(
        &mut self,
        cores: &C,
        tokens: usize,
        cols: usize,
        visit: &(dyn Fn(usize, Row<'_>) + Sync),
    ) {
        let blocks = if cols.is_multiple_of(BLOCK) {
            cols / BLOCK
        } else {
            0
        };
        let per_job = tokens.div_ceil(JOBS_MAX);
        // Where blocks are not whole, the row is given none.
        let (q_cols, step) = (blocks * BLOCK, per_job * blocks.max(1));
        let mut jobs: heapless::Vec<_, JOBS_MAX> = self.x[..tokens * cols]
            .chunks_mut(per_job * cols)
            .zip(self.q[..tokens * cols].chunks_mut(per_job * cols))
            .zip(self.scales.chunks_mut(step).zip(self.sums.chunks_mut(step)))
            .enumerate()
            .collect();
        let run = |index: usize, x: &mut [f32], q: &mut [i8], s: &mut [f32], t: &mut [i32]| {
            for (i, x) in x.chunks_exact_mut(cols).enumerate() {
                let row = Row {
                    x,
                    q: &mut q[i * q_cols..][..q_cols],
                    scales: &mut s[i * blocks..][..blocks],
                    sums: &mut t[i * blocks..][..blocks],
                };
                visit(index * per_job + i, row);
            }
        };
        if let [(index, ((x, q), (scales, sums)))] = &mut *jobs {
            run(*index, x, q, scales, sums);
        } else {
            cores.for_each(&mut jobs, &|_lane, (index, ((x, q), (scales, sums)))| {
                run(*index, x, q, scales, sums);
            });
        }
        drop(jobs);
        self.arrange(cores, tokens, cols);
    }

    /// Puts the codes in the order in which products of so many tokens want them.
    pub fn arrange<C: Cores>(&mut self, cores: &C, tokens: usize, cols: usize) {
        if !cols.is_multiple_of(BLOCK) {
            return;
        }
        if tokens <= FEW_TOKENS {
            let rows = self.interleaved.chunks_exact_mut(cols).take(tokens);
            for (q, interleaved) in self.q.chunks_exact(cols).zip(rows) {
                interleave_activations(q, interleaved);
            }
        }
        if wants_tiles(tokens, cols) {
            self.fill_tiles(cores, tokens, cols);
        }
    }

    /// Kept out of the frame of those who have a few tokens.
    #[inline(never)]
    fn fill_tiles<C: Cores>(&mut self, cores: &C, tokens: usize, cols: usize) {
        let (blocks, len) = (cols / BLOCK, tiles_len(tokens, cols));
        let per_job = tokens.div_ceil(JOBS_MAX).next_multiple_of(TILE_TOKENS);
        let (q, scales, sums) = (&*self.q, &*self.scales, &*self.sums);
        let tiles = &mut self.tiles;
        let mut jobs: heapless::Vec<_, JOBS_MAX> = tiles.q[..len]
            .chunks_mut(per_job * cols)
            .zip(tiles.scales[..len / BLOCK].chunks_mut(per_job * blocks))
            .zip(tiles.sums[..len / BLOCK].chunks_mut(per_job * blocks))
            .map(|((q, scales), sums)| TokenTilesMut { q, scales, sums })
            .enumerate()
            .collect();
        cores.for_each(&mut jobs, &|_lane, (index, tiles)| {
            let first = *index * per_job;
            let end = (first + per_job).min(tokens);
            let numbers = first * blocks..end * blocks;
            let q = &q[first * cols..end * cols];
            tile_activations(cols, q, &scales[numbers.clone()], &sums[numbers], tiles);
        });
    }

    /// The inputs as products see them.
    pub fn view(&self, tokens: usize, cols: usize) -> Activations<'_> {
        let len = tokens * cols;
        if !cols.is_multiple_of(BLOCK) {
            return Activations::new(tokens, cols, &self.x[..len], &[], &[], &[]);
        }
        let blocks = tokens * (cols / BLOCK);
        let (scales, sums) = (&self.scales[..blocks], &self.sums[..blocks]);
        let x = Activations::new(tokens, cols, &self.x[..len], &self.q[..len], scales, sums);
        if wants_tiles(tokens, cols) {
            let len = tiles_len(tokens, cols);
            return x.with_tiles(TokenTiles {
                q: &self.tiles.q[..len],
                scales: &self.tiles.scales[..len / BLOCK],
                sums: &self.tiles.sums[..len / BLOCK],
            });
        }
        x.with_interleaved(&self.interleaved[..len])
    }

    /// Copies row `token` of `source` to row `index`, to be followed by [`Inputs::arrange`].
    pub fn copy_row(&mut self, index: usize, source: &Inputs<'_>, token: usize, cols: usize) {
        let (to, from) = (index * cols, token * cols);
        self.x[to..to + cols].copy_from_slice(&source.x[from..from + cols]);
        if cols.is_multiple_of(BLOCK) {
            let blocks = cols / BLOCK;
            self.q[to..to + cols].copy_from_slice(&source.q[from..from + cols]);
            let (to, from) = (index * blocks, token * blocks);
            self.scales[to..to + blocks].copy_from_slice(&source.scales[from..from + blocks]);
            self.sums[to..to + blocks].copy_from_slice(&source.sums[from..from + blocks]);
        }
    }
}

/// Activations of one pass.
pub struct Work<'m> {
    /// Residual stream (tokens, dim).
    pub x: &'m mut [f32],
    /// Inputs of the current product.
    pub inputs: Inputs<'m>,
    /// q, k and v (rows, tokens).
    pub qkv: &'m mut [f32],
    /// q after the rotary embedding (kv heads, tokens, group, dim).
    pub q: &'m mut [f32],
    /// States of attention (kv heads, tokens, group, state).
    pub states: &'m mut [f32],
    /// States of segments (units, group, state).
    pub parts: &'m mut [f32],
    /// Cosines (tokens, head_dim / 2).
    pub cos: &'m mut [f32],
    /// Sines (tokens, head_dim / 2).
    pub sin: &'m mut [f32],
    /// Output of a block (dim, tokens).
    pub sum: &'m mut [f32],
    /// Gate outputs, then hidden values (neurons, tokens).
    pub gate: &'m mut [f32],
    /// Up outputs (neurons, tokens).
    pub up: &'m mut [f32],
    /// Partial sums of clusters; a mixture's expert (dim, tokens).
    pub partials: &'m mut [f32],
    /// Inputs of one expert's tokens, in a mixture.
    pub gathered: Option<Inputs<'m>>,
    /// Logits (vocab_size, rows).
    pub logits: &'m mut [f32],
}

impl<'m> Work<'m> {
    /// Carves everything.
    pub fn take(arena: &mut Arena<'m>, shape: &Shape, sizes: &Sizes) -> Result<Self, OutOfMemory> {
        let b = Buffers::new(shape, sizes);
        Ok(Work {
            x: arena.take(b.x)?,
            inputs: Inputs::take(arena, b.tokens, b.wide)?,
            qkv: arena.take(b.qkv)?,
            q: arena.take(b.q)?,
            states: arena.take(b.states)?,
            parts: arena.take(b.parts)?,
            cos: arena.take(b.rope)?,
            sin: arena.take(b.rope)?,
            sum: arena.take(b.sum)?,
            gate: arena.take(b.hidden)?,
            up: arena.take(b.hidden)?,
            partials: arena.take(b.partials)?,
            gathered: match shape.n_experts {
                0 => None,
                _ => Some(Inputs::take(arena, b.tokens, b.wide)?),
            },
            logits: arena.take(b.logits)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tessera_kernels::kv::KvType;
    use tessera_kernels::{Activation, GROUP};

    use super::*;
    use crate::budget::Budget;
    use crate::kv::Place;

    fn shape(n_experts: usize) -> Shape {
        Shape {
            dim: 160,
            ffn_dim: 352,
            n_layers: 2,
            n_heads: 5,
            n_kv_heads: 1,
            head_dim: 32,
            vocab_size: 77,
            seq_len: 64,
            n_experts,
            n_experts_used: n_experts.min(2),
            sliding_window: 0,
            activation: Activation::Silu,
            rms_eps: 1e-5,
            attention_factor: 1.0,
            qkv_bias: false,
            qk_norm: false,
            tied_embeddings: true,
            norm_topk_prob: false,
            kv_f32: false,
            bundle_neurons: GROUP,
            cluster_neurons: GROUP,
        }
    }

    /// The budget says what is carved, to the byte.
    #[test]
    fn what_is_planned_is_carved() {
        for (n_experts, batch_tokens) in [(0, 1), (0, 7), (0, 8), (0, 128), (4, 1), (4, 33)] {
            let shape = shape(n_experts);
            let sizes = Sizes {
                n_chunks: 3,
                resident_bytes: 0,
                seq_len: 64,
                sequences: 1,
                kv: KvType::F16,
                batch_tokens,
                logits_rows: batch_tokens,
                lanes: 3,
                n_slots: 2,
                slot_bytes: 4096,
                embed_bytes: 4096,
                n_thresholds: 0,
                sparse: None,
            };
            let budget = Budget::new(&shape, &sizes);
            let mut region = vec![0; budget.activation_bytes + budget.scratch_bytes + 4096];
            let mut arena = Arena::new(&mut region);
            let before = arena.taken_bytes();
            Work::take(&mut arena, &shape, &sizes).unwrap();
            let places = carved_bytes(batch_tokens * size_of::<Place>());
            let taken = arena.taken_bytes() - before;
            assert_eq!(
                taken + places,
                budget.activation_bytes,
                "{n_experts} {batch_tokens}"
            );
            let before = arena.taken_bytes();
            take_lanes(&mut arena, &shape, &sizes).unwrap();
            assert_eq!(
                arena.taken_bytes() - before,
                budget.scratch_bytes,
                "{batch_tokens}"
            );
        }
    }
}
