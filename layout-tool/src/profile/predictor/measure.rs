//! A predictor as stored, measured as the runtime computes it.

use tessera_kernels::{
    Activations, BLOCK, Kernels, QUANTIZE_SCRATCH_BYTES, Rows, WeightType, interleave,
};
use tessera_runtime::format::{Cuts, PredictorLayout, Quality};

use super::linalg::Matrix;
use super::train::Floats;
use crate::profile::activity::Activity;
use crate::tiles::Tiles;

/// Rows that are measured at once.
const ROWS: usize = 64;

/// A rounded predictor.
pub struct Stored {
    /// Sizes and types.
    pub layout: PredictorLayout,
    first: (Vec<u8>, Vec<u8>),
    second: (Vec<u8>, Vec<u8>),
    /// (neurons,)
    pub bias: Vec<f32>,
}

fn rounded(ty: WeightType, matrix: &Matrix) -> (Vec<u8>, Vec<u8>) {
    let (rows, cols) = (matrix.rows(), matrix.cols);
    let mut codes = vec![0; rows * ty.code_bytes(cols)];
    let mut scales = vec![0; rows * ty.scale_bytes(cols)];
    let mut scratch = vec![0; QUANTIZE_SCRATCH_BYTES];
    let round = Kernels::best().quantize_rows;
    round(
        ty,
        cols,
        &matrix.data,
        &mut codes,
        &mut scales,
        &mut scratch,
    );
    interleave(ty, cols, &mut codes);
    (codes, scales)
}

impl Stored {
    /// Rounds `floats`: A to q8, B to `second`.
    pub fn new(floats: &Floats, second: WeightType) -> Self {
        let layout = PredictorLayout {
            rank: floats.a.rows(),
            dim: floats.a.cols,
            neurons: floats.b.rows(),
            first: WeightType::Q8,
            second,
        };
        Stored {
            layout,
            first: rounded(layout.first, &floats.a),
            second: rounded(second, &floats.b),
            bias: floats.bias.clone(),
        }
    }

    /// Products `B a` (neurons, rows), before the bias, of rows `rows` of the activity.
    fn products(&self, activity: &Activity, rows: std::ops::Range<usize>) -> Vec<f32> {
        let PredictorLayout {
            rank,
            dim,
            neurons,
            first,
            second,
        } = self.layout;
        let kernels = Kernels::best();
        let count = rows.len();
        let mut scratch = vec![0; Kernels::scratch_bytes(dim.max(rank))];
        let codes = &activity.codes[rows.start * dim..rows.end * dim];
        let blocks = dim / BLOCK;
        let scales = &activity.scales[rows.start * blocks..rows.end * blocks];
        let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum();
        let sums: Vec<i32> = codes.chunks_exact(BLOCK).map(sum).collect();
        let tiles = Tiles::new(dim, codes, scales, &sums);
        let x = tiles.with(Activations::new(count, dim, &[], codes, scales, &sums));
        let a = Rows::new(first, rank, dim, &self.first.0, &self.first.1);
        let mut out = Matrix::zeros(rank, count);
        (kernels.matmul)(&a, &x, &mut out.data, &mut scratch);
        let hidden = out.transposed();
        let blocks = count * rank / BLOCK;
        let (mut codes, mut scales) = (vec![0; count * rank], vec![0.0; blocks]);
        let mut sums = vec![0; blocks];
        (kernels.quantize)(&hidden.data, &mut codes, &mut scales, &mut sums);
        let tiles = Tiles::new(rank, &codes, &scales, &sums);
        let hidden = tiles.with(Activations::new(count, rank, &[], &codes, &scales, &sums));
        let b = Rows::new(second, neurons, rank, &self.second.0, &self.second.1);
        let mut scores = vec![0.0; neurons * count];
        (kernels.matmul)(&b, &hidden, &mut scores, &mut scratch);
        scores
    }

    /// Shifts all biases by the least that predicted neurons carry `recall` of the magnitude in
    /// the held-out rows; returns what it then does there, and the share of neurons predicted.
    pub fn calibrate(&mut self, activity: &Activity, recall: f32) -> (Quality, f64) {
        let held = Held::new(self, activity);
        let mut shift = held.shift(&self.bias, recall);
        let biases = self.bias.clone();
        let mut step = f32::EPSILON * shift.abs().max(1.0);
        loop {
            let shifted = self.bias.iter_mut().zip(&biases);
            shifted.for_each(|(to, bias)| *to = bias + shift);
            let (mut quality, predicted) = held.quality(activity, &self.bias);
            // Rounding of the sum may have taken a neuron away again.
            if quality.recall >= recall.min(1.0) || step > 1.0 {
                quality.cuts = Some(held.cuts(&self.bias));
                return (quality, predicted);
            }
            shift += step;
            step *= 2.0;
        }
    }

    /// The section's bytes.
    pub fn bytes(&self, quality: Quality) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.bytes()];
        let first = (&self.first.0[..], &self.first.1[..]);
        let second = (&self.second.0[..], &self.second.1[..]);
        self.layout
            .write(quality, first, second, &self.bias, &mut bytes);
        bytes
    }
}

/// What is known of held-out rows.
struct Held {
    /// Products (rows, neurons).
    products: Matrix,
    first_row: usize,
    /// Row, neuron and magnitude of all that is active.
    active: Vec<(u32, u32, f32)>,
    mass: f64,
}

impl Held {
    fn new(stored: &Stored, activity: &Activity) -> Self {
        let neurons = activity.neurons;
        let held = activity.held_row..activity.rows();
        let mut products = Matrix::zeros(held.len(), neurons);
        for start in held.clone().step_by(ROWS) {
            let rows = start..(start + ROWS).min(held.end);
            let count = rows.len();
            let part = stored.products(activity, rows);
            for (neuron, scores) in part.chunks_exact(count).enumerate() {
                for (index, score) in scores.iter().enumerate() {
                    products.row_mut(start - held.start + index)[neuron] = *score;
                }
            }
        }
        let mut masses = activity.masses.iter();
        let mut active = Vec::with_capacity(activity.masses.len());
        for row in held.clone() {
            for (neuron, mass) in activity.active(row).zip(masses.by_ref()) {
                active.push(((row - held.start) as u32, neuron as u32, *mass));
            }
        }
        let mass = active.iter().map(|&(_, _, mass)| f64::from(mass)).sum();
        Held {
            products,
            first_row: held.start,
            active,
            mass,
        }
    }

    fn score(&self, bias: &[f32], row: u32, neuron: u32) -> f32 {
        self.products.row(row as usize)[neuron as usize] + bias[neuron as usize]
    }

    /// What lifts the scores of enough active neurons to zero or above.
    fn shift(&self, bias: &[f32], recall: f32) -> f32 {
        let score = |&(row, neuron, mass): &(u32, u32, f32)| (self.score(bias, row, neuron), mass);
        let mut scores: Vec<(f32, f32)> = self.active.iter().map(score).collect();
        scores.sort_by(|one, other| other.0.total_cmp(&one.0));
        let mut mass = 0.0;
        let last = scores.iter().find(|&&(_, m)| {
            mass += f64::from(m);
            mass >= f64::from(recall) * self.mass
        });
        last.or(scores.last()).map_or(0.0, |&(score, _)| -score)
    }

    fn cuts(&self, bias: &[f32]) -> Cuts {
        let score = |&(row, neuron, mass): &(u32, u32, f32)| (self.score(bias, row, neuron), mass);
        let scored = self.active.iter().map(score);
        let mut predicted: Vec<_> = scored.filter(|&(score, _)| score > 0.0).collect();
        Cuts::of(&mut predicted, self.mass)
    }

    /// All but the cuts; and the share of neurons predicted.
    fn quality(&self, activity: &Activity, bias: &[f32]) -> (Quality, f64) {
        let mut found = 0.0;
        let mut right = 0u64;
        for &(row, neuron, mass) in &self.active {
            if self.score(bias, row, neuron) > 0.0 {
                found += f64::from(mass);
                right += 1;
            }
        }
        let predicted: usize = self
            .products
            .data
            .chunks_exact(bias.len())
            .map(|row| row.iter().zip(bias).filter(|(p, b)| *p + *b > 0.0).count())
            .sum();
        let share = |part: f64, all: f64, none: f32| match all > 0.0 {
            true => (part / all) as f32,
            false => none,
        };
        let places = (activity.rows() - self.first_row) * activity.neurons;
        let quality = Quality {
            recall: share(found, self.mass, 1.0),
            precision: share(right as f64, predicted as f64, 1.0),
            active_share: share(self.active.len() as f64, places as f64, 0.0),
            cuts: None,
        };
        (quality, predicted as f64 / places.max(1) as f64)
    }
}
