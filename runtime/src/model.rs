//! One pass through the model: it reads like the paper.

use tessera_hal::{Clock, Cores, Flash};

use crate::attention::{attention, rope_tables};
use crate::ffn::{Choice, ffn};
use crate::format::VectorsLayout;
use crate::kv::{KvCache, Place};
use crate::limits::JOBS_MAX;
use crate::product::{Machine, product};
use crate::sparse::Sparse;
use crate::weights::{Weights, WeightsError};
use crate::work::{Lanes, Work};

/// Tokens that go through the model together, of one sequence or of several. Those of one sequence
/// stand in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass<'a> {
    /// Where they stand.
    pub places: &'a [Place],
    /// Feed-forward networks compute only some neurons: those that predictors name, or those that
    /// reach a threshold.
    pub sparse: bool,
}

/// A model and everything it works in.
pub struct Model<'m, F> {
    /// Weights.
    pub weights: Weights<'m, F>,
    /// Norms, biases, routers, rotary frequencies.
    pub vectors: &'m mut [f32],
    /// Keys and values.
    pub kv: KvCache<'m>,
    /// Activations.
    pub work: Work<'m>,
    /// What each lane works in.
    pub lanes: Lanes<'m>,
    /// Memory of passes with predictors, where the plan has any.
    pub sparse: Option<Sparse<'m>>,
    /// Threshold of each feed-forward section, in threshold mode.
    pub thresholds: &'m mut [f32],
}

impl<'m, F: Flash<'m>> Model<'m, F> {
    /// Takes the embeddings in `work.x` (tokens, dim) through all layers, in place, and appends
    /// to the KV cache. `go_on` is asked before each layer; false ends the pass early.
    pub fn layers<C: Cores, K: Clock>(
        &mut self,
        machine: &Machine<'_, C, K>,
        pass: Pass<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<bool, WeightsError> {
        let (shape, tokens) = (*self.weights.image.shape(), pass.places.len());
        let layout = VectorsLayout::new(&shape);
        let inv_freq = &self.vectors[layout.inv_freq()];
        rope_tables(
            inv_freq,
            shape.attention_factor,
            pass,
            self.work.cos,
            self.work.sin,
        );
        if let Some(sparse) = &mut self.sparse {
            if pass.sparse {
                sparse.begin_pass();
            } else if let Some(recency) = sparse.recency() {
                recency.forget();
            }
        }
        for layer in 0..shape.n_layers {
            if !go_on() {
                return Ok(false);
            }
            self.norm(machine, layout.attn_norm(layer), tokens);
            let (weights, lanes, work) = (&mut self.weights, &self.lanes, &mut self.work);
            attention(
                machine,
                weights,
                lanes,
                self.vectors,
                &mut self.kv,
                work,
                layer,
                pass,
            )?;
            self.add_sum(machine, tokens);

            if let Some(sparse) = self.sparse.as_mut().filter(|_| pass.sparse)
                && layer + 1 < shape.n_layers
            {
                let x = &self.work.x[..tokens * shape.dim];
                let weight = &self.vectors[layout.ffn_norm(layer + 1)];
                sparse.look_ahead(machine, x, weight, shape.rms_eps);
            }
            self.norm(machine, layout.ffn_norm(layer), tokens);
            let router = &self.vectors[layout.router(layer)];
            let (weights, lanes, work) = (&mut self.weights, &self.lanes, &mut self.work);
            let choice = match &mut self.sparse {
                Some(sparse) if pass.sparse => Choice::Predicted(sparse),
                None if pass.sparse => Choice::Above(self.thresholds),
                _ => Choice::All,
            };
            ffn(machine, weights, lanes, router, work, choice, layer, tokens)?;
            self.add_sum(machine, tokens);
        }
        Ok(true)
    }

    /// Logits of the tokens `first..first + rows` of the last pass: (vocab_size, rows).
    pub fn logits<C: Cores, K: Clock>(
        &mut self,
        machine: &Machine<'_, C, K>,
        first: usize,
        rows: usize,
    ) -> Result<&[f32], WeightsError> {
        let shape = *self.weights.image.shape();
        let weight = &self.vectors[VectorsLayout::new(&shape).output_norm()];
        let (x, dim, eps) = (&*self.work.x, shape.dim, shape.rms_eps);
        let (cores, kernels) = (machine.cores, machine.kernels);
        let x = &x[first * dim..][..rows * dim];
        self.work.inputs.norm_rows(cores, kernels, x, weight, eps);
        let head = self.weights.image.lm_head();
        let x = self.work.inputs.view(rows, shape.dim);
        let logits = &mut self.work.logits[..shape.vocab_size * rows];
        product(machine, &mut self.weights, &self.lanes, &[head], &x, logits)?;
        Ok(&self.work.logits[..shape.vocab_size * rows])
    }

    /// Norm of every token, rounded to blocks: the inputs of the next product.
    fn norm<C: Cores, K>(
        &mut self,
        machine: &Machine<'_, C, K>,
        weight: core::ops::Range<usize>,
        tokens: usize,
    ) {
        let shape = self.weights.image.shape();
        let (dim, eps, weight) = (shape.dim, shape.rms_eps, &self.vectors[weight]);
        let (x, cores, kernels) = (&*self.work.x, machine.cores, machine.kernels);
        let x = &x[..tokens * dim];
        self.work.inputs.norm_rows(cores, kernels, x, weight, eps);
    }

    /// Adds `work.sum` (dim, tokens) to the residual stream (tokens, dim).
    fn add_sum<C: Cores, K>(&mut self, machine: &Machine<'_, C, K>, tokens: usize) {
        let dim = self.weights.image.shape().dim;
        let (x, sum) = (
            &mut self.work.x[..tokens * dim],
            &self.work.sum[..dim * tokens],
        );
        if tokens == 1 {
            return x.iter_mut().zip(sum).for_each(|(x, sum)| *x += sum);
        }
        // A piece is a cache line of tokens, so that each line of sums is fetched once.
        let per_job = tokens.div_ceil(JOBS_MAX).next_multiple_of(16);
        let mut jobs: heapless::Vec<_, JOBS_MAX> =
            x.chunks_mut(per_job * dim).enumerate().collect();
        machine.cores.for_each(&mut jobs, &|_lane, (index, x)| {
            let first = *index * per_job;
            let count = x.len() / dim;
            for (i, sums) in sum.chunks_exact(tokens).enumerate() {
                for (t, sum) in sums[first..first + count].iter().enumerate() {
                    x[t * dim + i] += sum;
                }
            }
        });
    }
}
