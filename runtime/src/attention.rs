//! The first half of a layer: grouped-query attention over the KV cache.

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;
use tessera_kernels::attention::finish;
use tessera_kernels::kv::{KvRowsMut, kv_dim};
use tessera_kernels::math::sin_cos;

use crate::attend::Attend;
use crate::format::VectorsLayout;
use crate::kv::KvCache;
use crate::limits::{HEAD_DIM_MAX, JOBS_MAX};
use crate::model::Pass;
use crate::product::{Machine, product};
use crate::shape::Shape;
use crate::weights::{Weights, WeightsError};
use crate::work::{Lanes, Work};

/// Cosines and sines of each token's position: (tokens, head_dim / 2).
///
/// The angle is rounded to f32 before its sine is taken, as the reference implementations do.
pub fn rope_tables(
    inv_freq: &[f32],
    factor: f32,
    pass: Pass<'_>,
    cos: &mut [f32],
    sin: &mut [f32],
) {
    let half = inv_freq.len();
    for (t, place) in pass.places.iter().enumerate() {
        let position = place.pos as f32;
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
#[inline(never)]
pub fn attention<'m, F: Flash<'m>, C: Cores, K: Clock>(
    machine: &Machine<'_, C, K>,
    weights: &mut Weights<'m, F>,
    lanes: &Lanes<'_>,
    vectors: &[f32],
    kv: &mut KvCache<'_>,
    work: &mut Work<'_>,
    layer: usize,
    pass: Pass<'_>,
) -> Result<(), WeightsError> {
    let shape = *weights.image.shape();
    let [q, k, v, o] = weights.image.attention(layer);
    let (tokens, rows) = (pass.places.len(), shape.q_dim() + 2 * shape.kv_dim());
    let qkv = &mut work.qkv[..rows * tokens];
    let inputs = work.inputs.view(tokens, shape.dim);
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
    let attend = Attend {
        shape: &shape,
        pass,
        layer,
        kv,
        q: work.q,
    };
    attend.run(machine, lanes, work.states, work.parts);

    let (cores, kernels) = (machine.cores, machine.kernels);
    let states = &*work.states;
    work.inputs
        .fill_rows(cores, kernels, tokens, shape.q_dim(), &|t, out| {
            let dim = kv_dim(shape.head_dim);
            for (head, out) in out.chunks_exact_mut(shape.head_dim).enumerate() {
                finish(dim, attend.state(states, t, head), out);
            }
        });
    let inputs = work.inputs.view(tokens, shape.q_dim());
    let sum = &mut work.sum[..shape.dim * tokens];
    product(machine, weights, lanes, &[o], &inputs, sum)
}

/// One layer's heads in one pass.
struct Heads<'a> {
    shape: &'a Shape,
    pass: Pass<'a>,
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
        let tokens = self.pass.places.len();
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

    /// q of every token and head: (kv heads, tokens, group, dim).
    fn queries<C: Cores, K>(&self, machine: &Machine<'_, C, K>, q: &mut [f32]) {
        let (shape, kernels) = (self.shape, machine.kernels);
        let (tokens, group) = (self.pass.places.len(), shape.n_heads / shape.n_kv_heads);
        let (head_dim, dim) = (shape.head_dim, kv_dim(shape.head_dim));
        let norm = self.norms().0;
        let visit = |item: usize, q: &mut [f32]| {
            let (head, t) = (item / tokens * group, item % tokens);
            for (i, out) in q.chunks_exact_mut(dim).enumerate() {
                let (out, rest) = out.split_at_mut(head_dim);
                self.gather((head + i) * head_dim, t, norm, kernels, out);
                rest.fill(0.0);
            }
        };
        let items = shape.n_kv_heads * tokens;
        let per_job = if tokens == 1 {
            items
        } else {
            items.div_ceil(JOBS_MAX)
        };
        let mut jobs: heapless::Vec<_, JOBS_MAX> = q[..items * group * dim]
            .chunks_mut(per_job * group * dim)
            .enumerate()
            .collect();
        let run = |(index, q): &mut (usize, &mut [f32])| {
            for (i, q) in q.chunks_exact_mut(group * dim).enumerate() {
                visit(*index * per_job + i, q);
            }
        };
        if tokens == 1 {
            return jobs.iter_mut().for_each(run);
        }
        machine.cores.for_each(&mut jobs, &|_lane, job| run(job));
    }

    /// Appends keys and values of every token to the cache.
    fn keys_and_values<C: Cores, K>(&self, machine: &Machine<'_, C, K>, kv: &mut KvCache<'_>) {
        let (shape, kernels) = (self.shape, machine.kernels);
        let norm = self.norms().1;
        let positions = kv.positions();
        let visit = |head: usize, is_key: bool, rows: &mut KvRowsMut<'_>| {
            let mut x = [0.0f32; HEAD_DIM_MAX];
            let x = &mut x[..kv_dim(shape.head_dim)];
            let row = shape.q_dim() + head * shape.head_dim;
            for (t, place) in self.pass.places.iter().enumerate() {
                let slot = place.sequence as usize * positions + place.pos as usize;
                let head = &mut x[..shape.head_dim];
                if is_key {
                    self.gather(row, t, norm, kernels, head);
                    rows.put_key(kernels, slot, x);
                } else {
                    self.gather_plain(row + shape.kv_dim(), t, head);
                    rows.put_value(kernels, slot, x);
                }
            }
        };
        let mut heads = kv
            .heads_mut(self.layer)
            .enumerate()
            .flat_map(|(head, (keys, values))| [(head, true, keys), (head, false, values)])
            .peekable();
        if self.pass.places.len() == 1 {
            return heads.for_each(|(head, is_key, mut rows)| visit(head, is_key, &mut rows));
        }
        while heads.peek().is_some() {
            let mut jobs: heapless::Vec<_, 16> = heads.by_ref().take(16).collect();
            machine
                .cores
                .for_each(&mut jobs, &|_lane, (head, is_key, rows)| {
                    visit(*head, *is_key, rows)
                });
        }
    }
}
