//! The predictor of a section, which is its gates without their noise.
//!
//! A holds the section's directions and, as one row more, the sum of the constant block; B holds
//! each neuron's mixing vector and its threshold. What rounding B leaves of the threshold goes into
//! the bias, together with a margin that is measured: of tokens drawn like the model's own inputs,
//! gates and ups of some neurons are computed by the same kernels that run models, and the margin
//! is the smallest that keeps the recall.

use crate::tiles::Tiles;
use tessera_kernels::{
    Activations, BLOCK, Kernels, QUANTIZE_SCRATCH_BYTES, Rows, WeightType, dequantize_row,
    interleave,
};
use tessera_runtime::format::{Cuts, PredictorLayout, Quality};

use super::design::Design;
use super::random::{Random, Role};
use super::rows::{Matrix, Row, Section, TYPE};

/// Weight types of both layers.
const TYPES: [WeightType; 2] = [WeightType::Q8, WeightType::Q4];
/// Value of the constant's row: as large as deviates are, so that all share blocks well.
const CONSTANT: f64 = 8.0;
/// Tokens that the margin is fitted to, and as many that it is tried on.
const TOKENS: usize = 128;
/// Neurons whose gates are computed.
const NEURONS_MAX: usize = 512;
/// Recall that the margin is fitted for; the other tokens shall have 0.99.
const RECALL: f64 = 0.9935;

/// Layout of the predictors of a model.
pub fn layout(design: &Design) -> PredictorLayout {
    PredictorLayout {
        rank: (design.n_sets * design.n_directions + 1).next_multiple_of(BLOCK),
        dim: design.config.dim,
        neurons: design.config.ffn_dim,
        first: TYPES[0],
        second: TYPES[1],
    }
}

/// Rows of weights as stored.
#[derive(Debug, Default)]
struct Stored {
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    fn new(ty: WeightType, rows: usize, cols: usize) -> Self {
        Stored {
            codes: vec![0; rows * ty.code_bytes(cols)],
            scales: vec![0; rows * ty.scale_bytes(cols)],
        }
    }

    fn row(&mut self, ty: WeightType, cols: usize, index: usize) -> Row<'_> {
        let (code, scale) = (ty.code_bytes(cols), ty.scale_bytes(cols));
        Row {
            codes: &mut self.codes[index * code..][..code],
            scales: &mut self.scales[index * scale..][..scale],
        }
    }

    /// The same rows for products.
    fn interleaved(mut self, ty: WeightType, cols: usize) -> Self {
        interleave(ty, cols, &mut self.codes);
        self
    }

    fn view(&self, ty: WeightType, rows: usize, cols: usize) -> Rows<'_> {
        Rows::new(ty, rows, cols, &self.codes, &self.scales)
    }
}

/// Tokens as products see them.
struct Inputs {
    tokens: usize,
    cols: usize,
    q: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Inputs {
    /// Rounds `x` (tokens, cols).
    fn new(kernels: &Kernels, cols: usize, x: &[f32]) -> Self {
        let blocks = x.len() / BLOCK;
        let (mut q, mut scales, mut sums) = (vec![0; x.len()], vec![0.0; blocks], vec![0; blocks]);
        (kernels.quantize)(x, &mut q, &mut scales, &mut sums);
        let tokens = x.len() / cols;
        Inputs {
            tokens,
            cols,
            q,
            scales,
            sums,
        }
    }

    /// Rows times every token: (rows, tokens).
    fn product(&self, kernels: &Kernels, rows: &Rows<'_>) -> Vec<f32> {
        let x = Activations::new(
            self.tokens,
            self.cols,
            &[],
            &self.q,
            &self.scales,
            &self.sums,
        );
        let tiles = Tiles::new(self.cols, &self.q, &self.scales, &self.sums);
        let x = tiles.with(x);
        let mut out = vec![0.0; rows.rows() * self.tokens];
        let mut scratch = vec![0; Kernels::scratch_bytes(self.cols)];
        (kernels.matmul)(rows, &x, &mut out, &mut scratch);
        out
    }
}

/// Tokens as they reach the norm before a layer's network, after it: (tokens, dim).
fn sample(design: &Design, layer: usize, tokens: usize) -> Vec<f32> {
    let dim = design.config.dim;
    let mut random = Random::new(design.seed, Role::Sample, (layer, 0), 0);
    let others = (design.levels[layer][1].variance - 1.0).sqrt() as f32;
    let mut stored = Stored::new(TYPE, 1, dim);
    let (mut x, weight) = (vec![0.0; tokens * dim], vec![1.0; dim]);
    let mut raw = vec![0.0; dim];
    for x in x.chunks_exact_mut(dim) {
        let token = random.below(design.config.vocab_size);
        design.row(Matrix::Embedding, token, &mut stored.row(TYPE, dim, 0));
        dequantize_row(TYPE, dim, &stored.codes, &stored.scales, &mut raw);
        raw[BLOCK..]
            .iter_mut()
            .for_each(|x| *x += others * random.normal());
        (Kernels::SCALAR.rmsnorm)(&raw, &weight, design.config.rms_eps, x);
    }
    x
}

impl Section<'_> {
    /// A of the section's predictor.
    fn first_layer(&self, design: &Design, rank: usize) -> Stored {
        let (dim, ty) = (design.config.dim, TYPES[0]);
        let mut stored = Stored::new(ty, rank, dim);
        let mut scratch = vec![0; QUANTIZE_SCRATCH_BYTES];
        let mut weights = vec![0.0f32; dim];
        let count = design.n_sets * design.n_directions;
        for index in 0..=count {
            weights.fill(0.0);
            if index == count {
                let weight = CONSTANT / (BLOCK as f64 * self.level().unit);
                weights[..BLOCK].fill(weight as f32);
            } else {
                let (set, direction) = (index / design.n_directions, index % design.n_directions);
                let scale = self.direction_scale(set, direction);
                for block in (direction + 1..dim / BLOCK).step_by(design.n_directions) {
                    for (i, weight) in weights[block * BLOCK..][..BLOCK].iter_mut().enumerate() {
                        *weight = (scale * self.pattern(set, block, i)) as f32;
                    }
                }
            }
            let row = stored.row(ty, dim, index);
            let quantize = Kernels::best().quantize_rows;
            quantize(ty, dim, &weights, row.codes, row.scales, &mut scratch);
        }
        stored.interleaved(ty, dim)
    }

    /// B of the section's predictor, and what is left of each threshold.
    fn second_layer(&self, design: &Design, rank: usize) -> (Stored, Vec<f32>) {
        let (neurons, ty) = (design.config.ffn_dim, TYPES[1]);
        let mut stored = Stored::new(ty, neurons, rank);
        let mut scratch = vec![0; QUANTIZE_SCRATCH_BYTES];
        let (mut weights, mut back) = (vec![0.0f32; rank], vec![0.0f32; rank]);
        let constant_at = design.n_sets * design.n_directions;
        let mut bias = Vec::with_capacity(neurons);
        for neuron in 0..neurons {
            weights.fill(0.0);
            let first = self.set(neuron) * design.n_directions;
            self.mixing(neuron, &mut weights[first..][..design.n_directions]);
            let threshold = design.thresholds[neuron];
            weights[constant_at] = -threshold / CONSTANT as f32;
            let row = stored.row(ty, rank, neuron);
            let quantize = Kernels::best().quantize_rows;
            quantize(ty, rank, &weights, row.codes, row.scales, &mut scratch);
            dequantize_row(ty, rank, row.codes, row.scales, &mut back);
            bias.push(-threshold - back[constant_at] * CONSTANT as f32);
        }
        (stored.interleaved(ty, rank), bias)
    }

    /// Scores, without bias, and hidden values of some neurons for some tokens: `(score, hidden)`
    /// in the order of neurons.
    fn try_out(
        &self,
        design: &Design,
        neurons: &[usize],
        (first, second): (&Stored, &Stored),
        rank: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let (kernels, dim) = (Kernels::best(), design.config.dim);
        let x = Inputs::new(&kernels, dim, &sample(design, self.layer(), 2 * TOKENS));
        let mut rows = [(); 2].map(|()| Stored::new(TYPE, neurons.len(), dim));
        let mut chosen = Stored::new(TYPES[1], neurons.len(), rank);
        let mut mixing = Vec::new();
        for (index, &neuron) in neurons.iter().enumerate() {
            let [gate, up] = &mut rows;
            self.gate(neuron, &mut mixing, &mut gate.row(TYPE, dim, index));
            self.up(neuron, &mut up.row(TYPE, dim, index));
            let to = chosen.row(TYPES[1], rank, index);
            let (code, scale) = (to.codes.len(), to.scales.len());
            to.codes
                .copy_from_slice(&second.codes[neuron * code..][..code]);
            to.scales
                .copy_from_slice(&second.scales[neuron * scale..][..scale]);
        }
        let [mut hidden, up] = rows
            .map(|rows| rows.interleaved(TYPE, dim))
            .map(|rows| x.product(&kernels, &rows.view(TYPE, neurons.len(), dim)));
        (kernels.gated)(design.config.activation, &mut hidden, &up);
        let a = x.product(&kernels, &first.view(TYPES[0], rank, dim));
        let tokens = 2 * TOKENS;
        let turned: Vec<f32> = (0..tokens * rank)
            .map(|i| a[i % rank * tokens + i / rank])
            .collect();
        let a = Inputs::new(&kernels, rank, &turned);
        let scores = a.product(&kernels, &chosen.view(TYPES[1], neurons.len(), rank));
        (scores, hidden)
    }

    /// Makes the section's predictor; `bytes` are as many as its layout takes.
    pub fn predictor(&self, design: &Design, bytes: &mut [u8]) -> Quality {
        let layout = layout(design);
        let first = self.first_layer(design, layout.rank);
        let (second, mut bias) = self.second_layer(design, layout.rank);
        let step = layout.neurons.div_ceil(NEURONS_MAX);
        let neurons: Vec<usize> = (step / 2..layout.neurons).step_by(step).collect();
        let (mut scores, hidden) = self.try_out(design, &neurons, (&first, &second), layout.rank);
        for (scores, &neuron) in scores.chunks_exact_mut(2 * TOKENS).zip(&neurons) {
            scores.iter_mut().for_each(|score| *score += bias[neuron]);
        }
        let half = |fit: bool| {
            let all = scores.iter().zip(&hidden).enumerate();
            all.filter(move |(index, _)| (index % (2 * TOKENS) < TOKENS) == fit)
                .map(|(_, (score, hidden))| (*score, f64::from(hidden.abs())))
        };
        let margin = margin(half(true).collect(), RECALL);
        bias.iter_mut().for_each(|bias| *bias += margin);
        let quality = quality(half(false).map(|(score, hidden)| (score + margin, hidden)));
        let (first, second) = (
            (&first.codes[..], &first.scales[..]),
            (&second.codes[..], &second.scales[..]),
        );
        layout.write(quality, first, second, &bias, bytes);
        quality
    }
}

/// What must be added to scores so that those above zero carry `recall` of the magnitude.
fn margin(mut pairs: Vec<(f32, f64)>, recall: f64) -> f32 {
    pairs.retain(|(_, hidden)| *hidden > 0.0);
    pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let all: f64 = pairs.iter().map(|(_, hidden)| hidden).sum();
    let mut lost = 0.0;
    for (score, hidden) in &pairs {
        lost += hidden;
        if lost > (1.0 - recall) * all {
            return (-score).next_up();
        }
    }
    0.0
}

/// Recall, precision and share of scores above zero.
fn quality(pairs: impl Iterator<Item = (f32, f64)>) -> Quality {
    let (mut all, mut active, mut magnitude) = (0.0, 0.0, 0.0);
    let (mut predicted, mut right, mut found) = (0.0, Vec::new(), 0.0);
    for (score, hidden) in pairs {
        let alive = f64::from(u8::from(hidden > 0.0));
        (all, active, magnitude) = (all + 1.0, active + alive, magnitude + hidden);
        if score > 0.0 {
            (predicted, found) = (predicted + 1.0, found + hidden);
            if hidden > 0.0 {
                right.push((score, hidden as f32));
            }
        }
    }
    let share = |part: f64, of: f64| (part / of.max(f64::MIN_POSITIVE)) as f32;
    Quality {
        recall: share(found, magnitude),
        precision: share(right.len() as f64, predicted),
        active_share: share(active, all),
        cuts: Some(Cuts::of(&mut right, magnitude)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_margin_keeps_what_was_asked_for() {
        let pairs = vec![(-3.0, 1.0), (-1.0, 9.0), (0.5, 90.0), (-9.0, 0.0)];
        let shifted = |margin: f32| {
            quality(
                pairs
                    .iter()
                    .map(move |(score, hidden)| (score + margin, *hidden)),
            )
        };
        assert_eq!(shifted(0.0).recall, 0.9);
        // Of 100 without the ten that are not predicted: none of 90 may go.
        assert_eq!(shifted(0.0).cuts, Some(Cuts([0.0; 8])));
        assert_eq!(shifted(1.25).cuts.map(|cuts| cuts.score(100)), Some(0.25));
        assert_eq!(shifted(margin(pairs.clone(), 0.9)).recall, 0.99);
        let all = shifted(margin(pairs.clone(), 1.0));
        assert_eq!(
            (all.recall, all.precision, all.active_share),
            (1.0, 1.0, 0.75)
        );
        assert_eq!(margin(vec![(1.0, 0.0)], 0.99), 0.0);
    }
}
