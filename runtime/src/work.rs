//! Working memory of a session: activations of a pass, and what each lane needs for itself.

use spin::mutex::SpinMutex;
use tessera_hal::Cores;
use tessera_kernels::{Activations, BLOCK, Kernels, interleave_activations};

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
    /// (wide,): the codes of the first token, interleaved.
    interleaved: &'m mut [i8],
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
        carved_bytes(tokens * wide * size_of::<f32>())
            + carved_bytes(tokens * wide)
            + carved_bytes(blocks * size_of::<f32>())
            + carved_bytes(blocks * size_of::<i32>())
            + carved_bytes(wide)
    }

    /// Carves room for `tokens` tokens of `wide` columns.
    pub fn take(arena: &mut Arena<'m>, tokens: usize, wide: usize) -> Result<Self, OutOfMemory> {
        let blocks = tokens * wide.div_ceil(BLOCK);
        Ok(Inputs {
            x: arena.take(tokens * wide)?,
            q: arena.take(tokens * wide)?,
            scales: arena.take(blocks)?,
            sums: arena.take(blocks)?,
            interleaved: arena.take(wide)?,
        })
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
        if tokens == 1 {
            interleave_activations(&self.q[..q_cols], &mut self.interleaved[..q_cols]);
        }
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
        match tokens {
            1 => x.with_interleaved(&self.interleaved[..cols]),
            _ => x,
        }
    }

    /// Copies row `token` of `source`, all forms of it, to row `index`.
    pub fn copy_row(&mut self, index: usize, source: &Inputs<'_>, token: usize, cols: usize) {
        let (to, from) = (index * cols, token * cols);
        self.x[to..to + cols].copy_from_slice(&source.x[from..from + cols]);
        if cols.is_multiple_of(BLOCK) {
            let blocks = cols / BLOCK;
            self.q[to..to + cols].copy_from_slice(&source.q[from..from + cols]);
            if index == 0 {
                interleave_activations(&self.q[..cols], &mut self.interleaved[..cols]);
            }
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
