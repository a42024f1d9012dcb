//! The first half of a layer: grouped-query attention over the KV cache.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;
use tessera_kernels::math::sin_cos;

use crate::format::VectorsLayout;
use crate::kv::{KvCache, KvHead, KvHeadMut};
use crate::limits::{HEAD_DIM_MAX, JOBS_MAX};
use crate::model::Pass;
use crate::product::{Machine, product};
use crate::shape::Shape;
use crate::weights::{Weights, WeightsError};
use crate::work::{Lanes, Work};

/// Cosines and sines of `tokens` positions from `pos` on: (tokens, head_dim / 2).
///
/// The angle is rounded to f32 before its sine is taken, as the reference implementations do.
pub fn rope_tables(inv_freq: &[f32], factor: f32, pass: Pass, cos: &mut [f32], sin: &mut [f32]) {
    let half = inv_freq.len();
    for t in 0..pass.tokens {
        let position = (pass.pos + t) as f32;
        for (i, &freq) in inv_freq.iter().enumerate() {
            let (s, c) = sin_cos((position * freq) as f64);
            cos[t * half + i] = c * factor;
            sin[t * half + i] = s * factor;
        }
    }
}

/// Rotates pairs `(x[i], x[i + half])` of one head.
fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = x.split_at_mut(cos.len());
    for i in 0..cos.len() {
        let (a, b) = (low[i], high[i]);
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

/// Attention of one layer: `work.inputs` (normed, quantised) -> `work.sum` (dim, tokens).
pub fn attention<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    lanes: &Lanes<'_>,
    vectors: &[f32],
    kv: &mut KvCache<'_>,
    work: &mut Work<'_>,
    layer: usize,
    pass: Pass,
) -> Result<(), WeightsError> {
    let shape = *weights.image.shape();
    let [q, k, v, o] = weights.image.attention(layer);
    let rows = shape.q_dim() + 2 * shape.kv_dim();
    let qkv = &mut work.qkv[..rows * pass.tokens];
    let inputs = work.inputs.view(pass.tokens, shape.dim);
    product(machine, weights, lanes, &[q, k, v], &inputs, qkv)?;

    let heads = Heads {
        shape: &shape,
        pass,
        layer,
        vectors,
        cos: work.cos,
        sin: work.sin,
        qkv,
    };
    heads.queries(machine, work.q);
    heads.keys_and_values(machine, kv);
    heads.attend(machine, lanes, kv, work.q, work.inputs.x);

    let (cores, kernels) = (machine.cores, machine.kernels);
    work.inputs
        .fill_rows(cores, kernels, pass.tokens, shape.q_dim(), &|_, _| {});
    let inputs = work.inputs.view(pass.tokens, shape.q_dim());
    product(
        machine,
        weights,
        lanes,
        &[o],
        &inputs,
        &mut work.sum[..shape.dim * pass.tokens],
    )
}

/// One layer's heads in one pass.
struct Heads<'a> {
    shape: &'a Shape,
    pass: Pass,
    layer: usize,
    vectors: &'a [f32],
    cos: &'a [f32],
    sin: &'a [f32],
    /// (rows, tokens).
    qkv: &'a [f32],
}

impl Heads<'_> {
    /// Rows from `row` on of token `t`, with their bias, normed, rotated.
    fn gather(
        &self,
        row: usize,
        t: usize,
        norm: Option<&[f32]>,
        kernels: &Kernels,
        out: &mut [f32],
    ) {
        self.gather_plain(row, t, out);
        if let Some(norm) = norm {
            // In place through a copy of one head at most.
            let mut copy = [0.0f32; HEAD_DIM_MAX];
            let copy = &mut copy[..out.len()];
            copy.copy_from_slice(out);
            (kernels.rmsnorm)(copy, norm, self.shape.rms_eps, out);
        }
        let half = self.shape.head_dim / 2;
        rotate(
            out,
            &self.cos[t * half..][..half],
            &self.sin[t * half..][..half],
        );
    }

    fn gather_plain(&self, row: usize, t: usize, out: &mut [f32]) {
        let tokens = self.pass.tokens;
        let column = self.qkv[row * tokens..].iter().skip(t).step_by(tokens);
        for (out, x) in out.iter_mut().zip(column) {
            *out = *x;
        }
        let layout = VectorsLayout::new(self.shape);
        let bias = &self.vectors[layout.qkv_bias(self.layer)];
        if !bias.is_empty() {
            for (out, bias) in out.iter_mut().zip(&bias[row..]) {
                *out += bias;
            }
        }
    }

    fn norms(&self) -> (Option<&[f32]>, Option<&[f32]>) {
        let (q, k) = VectorsLayout::new(self.shape).qk_norm(self.layer);
        let norm = |at: core::ops::Range<usize>| (!at.is_empty()).then(|| &self.vectors[at]);
        (norm(q), norm(k))
    }

    /// q of every token and head: (tokens, q_dim).
    fn queries<C: Cores, K>(&self, machine: &Machine<'_, C, K>, q: &mut [f32]) {
        let (shape, kernels) = (self.shape, machine.kernels);
        let (q_dim, hd) = (shape.q_dim(), shape.head_dim);
        let norm = self.norms().0;
        let visit = |t: usize, q: &mut [f32]| {
            for (head, out) in q.chunks_exact_mut(hd).enumerate() {
                self.gather(head * hd, t, norm, kernels, out);
            }
        };
        if self.pass.tokens == 1 {
            return visit(0, &mut q[..q_dim]);
        }
        let per_job = self.pass.tokens.div_ceil(JOBS_MAX);
        let mut jobs: heapless::Vec<_, JOBS_MAX> = q[..self.pass.tokens * q_dim]
            .chunks_mut(per_job * q_dim)
            .enumerate()
            .collect();
        machine.cores.for_each(&mut jobs, &|_lane, (index, q)| {
            for (i, q) in q.chunks_exact_mut(q_dim).enumerate() {
                visit(*index * per_job + i, q);
            }
        });
    }

    /// Appends keys and values of every token to the cache.
    fn keys_and_values<C: Cores, K>(&self, machine: &Machine<'_, C, K>, kv: &mut KvCache<'_>) {
        let (shape, kernels) = (self.shape, machine.kernels);
        let norm = self.norms().1;
        let visit = |head: usize, keys: &mut KvHeadMut<'_>, values: &mut KvHeadMut<'_>| {
            let mut x = [0.0f32; HEAD_DIM_MAX];
            let x = &mut x[..shape.head_dim];
            let row = shape.q_dim() + head * shape.head_dim;
            for t in 0..self.pass.tokens {
                self.gather(row, t, norm, kernels, x);
                keys.put(self.pass.pos + t, x, kernels);
                self.gather_plain(row + shape.kv_dim(), t, x);
                values.put(self.pass.pos + t, x, kernels);
            }
        };
        let heads = kv.heads_mut(self.layer).enumerate();
        if self.pass.tokens == 1 {
            return heads.for_each(|(head, (mut k, mut v))| visit(head, &mut k, &mut v));
        }
        let mut heads = heads.peekable();
        while heads.peek().is_some() {
            let mut jobs: heapless::Vec<_, 8> = heads.by_ref().take(8).collect();
            machine
                .cores
                .for_each(&mut jobs, &|_lane, (head, (k, v))| visit(*head, k, v));
        }
    }

    /// Attention of every token and head: (tokens, q_dim).
    fn attend<C: Cores, K>(
        &self,
        machine: &Machine<'_, C, K>,
        lanes: &Lanes<'_>,
        kv: &KvCache<'_>,
        q: &[f32],
        out: &mut [f32],
    ) {
        let (shape, kernels) = (self.shape, machine.kernels);
        let (hd, n_heads) = (shape.head_dim, shape.n_heads);
        let per_job = (self.pass.tokens * n_heads).div_ceil(JOBS_MAX);
        let mut jobs: heapless::Vec<_, JOBS_MAX> = out[..self.pass.tokens * n_heads * hd]
            .chunks_mut(per_job * hd)
            .enumerate()
            .collect();
        // Later tokens see more positions: the long pieces go first.
        jobs.reverse();
        machine.cores.for_each(&mut jobs, &|lane, (index, out)| {
            let mut lane = lanes[lane].lock();
            for (i, out) in out.chunks_exact_mut(hd).enumerate() {
                let at = *index * per_job + i;
                let (t, head) = (at / n_heads, at % n_heads);
                let (keys, values) = kv.head(self.layer, head / (n_heads / shape.n_kv_heads));
                let end = self.pass.pos + t + 1;
                let start = match shape.sliding_window {
                    0 => 0,
                    window => end.saturating_sub(window),
                };
                let scores = &mut lane.floats[..end - start];
                let q = &q[at * hd..][..hd];
                attend_head(kernels, q, keys, values, start, scores, out);
            }
        });
    }
}

/// One query (head_dim,) against positions `start..start + scores.len()`.
fn attend_head(
    kernels: &Kernels,
    q: &[f32],
    keys: KvHead<'_>,
    values: KvHead<'_>,
    start: usize,
    scores: &mut [f32],
    out: &mut [f32],
) {
    let hd = q.len();
    let scale = 1.0 / tessera_kernels::math::sqrt(hd as f32);
    let at = start * hd..(start + scores.len()) * hd;
    match keys {
        KvHead::F16(keys) => {
            for (score, key) in scores.iter_mut().zip(keys[at.clone()].chunks_exact(hd)) {
                *score = (kernels.dot_f16)(q, key) * scale;
            }
        }
        KvHead::F32(keys) => {
            for (score, key) in scores.iter_mut().zip(keys[at.clone()].chunks_exact(hd)) {
                *score = (kernels.dot)(q, key) * scale;
            }
        }
    }
    (kernels.softmax)(scores);
    out.fill(0.0);
    match values {
        KvHead::F16(values) => {
            for (&score, value) in scores.iter().zip(values[at].chunks_exact(hd)) {
                (kernels.axpy_f16)(score, value, out);
            }
        }
        KvHead::F32(values) => {
            for (&score, value) in scores.iter().zip(values[at].chunks_exact(hd)) {
                (kernels.axpy)(score, value, out);
            }
        }
    }
}
