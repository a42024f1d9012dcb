//! Working memory of a session: activations of a pass, and what each lane needs for itself.

use spin::mutex::SpinMutex;
use tessera_hal::Cores;
use tessera_kernels::{Activations, BLOCK, Kernels};

use crate::arena::{Arena, OutOfMemory};
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
}

impl<'m> Inputs<'m> {
    pub fn take(arena: &mut Arena<'m>, tokens: usize, wide: usize) -> Result<Self, OutOfMemory> {
        let blocks = tokens * wide.div_ceil(BLOCK);
        Ok(Inputs {
            x: arena.take(tokens * wide)?,
            q: arena.take(tokens * wide)?,
            scales: arena.take(blocks)?,
            sums: arena.take(blocks)?,
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
        let blocks = if cols.is_multiple_of(BLOCK) {
            cols / BLOCK
        } else {
            0
        };
        let quantize = |x: &[f32], q: &mut [i8], scales: &mut [f32], sums: &mut [i32]| {
            if blocks > 0 {
                (kernels.quantize)(x, q, scales, sums);
            }
        };
        let x = &mut self.x[..tokens * cols];
        let q = &mut self.q[..tokens * cols];
        let scales = &mut self.scales[..tokens * blocks.max(1)];
        let sums = &mut self.sums[..tokens * blocks.max(1)];
        if tokens == 1 {
            fill(0, x);
            return quantize(x, q, scales, sums);
        }
        let per_job = tokens.div_ceil(JOBS_MAX);
        let step = per_job * blocks.max(1);
        let mut jobs: heapless::Vec<_, JOBS_MAX> = x
            .chunks_mut(per_job * cols)
            .zip(q.chunks_mut(per_job * cols))
            .zip(scales.chunks_mut(step).zip(sums.chunks_mut(step)))
            .enumerate()
            .collect();
        cores.for_each(&mut jobs, &|_lane, (index, ((x, q), (scales, sums)))| {
            for (i, x) in x.chunks_exact_mut(cols).enumerate() {
                fill(*index * per_job + i, x);
            }
            quantize(x, q, scales, sums);
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
        Activations::new(tokens, cols, &self.x[..len], &self.q[..len], scales, sums)
    }

    /// Copies row `token` of `source`, all forms of it, to row `index`.
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
