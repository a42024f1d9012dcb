//! Refines a predictor by gradient descent on the logistic loss of "active".

use super::linalg::Matrix;
use super::lowrank::Factors;
use crate::profile::activity::Activity;

/// Rows of a step.
const BATCH: usize = 64;
/// Passes over the rows, at most.
const EPOCHS_MAX: usize = 8;
/// Passes that may fail to lower the loss of the held-out rows before it ends.
const PATIENCE: usize = 2;
/// Length of the first steps, relative to the size of what is changed.
const RATE: f32 = 0.02;
/// A later pass takes steps shorter by this.
const RATE_DECAY: f32 = 0.7;
/// The scores' standard deviation at the start: where the logistic function bends.
const SCORE_DEVIATION: f32 = 2.0;
/// Rows that the first biases are fitted on, at most.
const BIAS_ROWS: usize = 512;

/// A predictor in floats.
#[derive(Debug, Clone, PartialEq)]
pub struct Floats {
    /// A (rank, dim).
    pub a: Matrix,
    /// B (neurons, rank).
    pub b: Matrix,
    /// (neurons,)
    pub bias: Vec<f32>,
}

/// Inputs (rows, dim), and the row of the activity that each stands for.
pub struct Rows<'a> {
    /// Inputs.
    pub x: &'a Matrix,
    /// Rows of the activity.
    pub rows: &'a [usize],
}

/// The predictor of the first `rank` factors, refined on `train` until `held` gets no better.
pub fn refine(
    factors: &Factors,
    rank: usize,
    activity: &Activity,
    train: &Rows<'_>,
    held: &Rows<'_>,
) -> Floats {
    let mut floats = begin(factors, rank, activity, train);
    let mut best = floats.clone();
    let mut best_loss = loss(&floats, activity, held);
    let mut state = Adam::new(&floats);
    let (mut rate, mut failed) = (RATE, 0);
    for _ in 0..EPOCHS_MAX {
        // Steps take every n-th row, so that each sees all of the text.
        let steps = train.rows.len().div_ceil(BATCH);
        for step in 0..steps {
            let picked: Vec<usize> = (step..train.rows.len()).step_by(steps).collect();
            let mut x = Matrix::zeros(picked.len(), train.x.cols);
            for (to, &from) in picked.iter().enumerate() {
                x.row_mut(to).copy_from_slice(train.x.row(from));
            }
            let rows: Vec<usize> = picked.iter().map(|&index| train.rows[index]).collect();
            state.step(&mut floats, activity, &x, &rows, rate);
        }
        let now = loss(&floats, activity, held);
        if now < best_loss {
            (best, best_loss, failed) = (floats.clone(), now, 0);
        } else {
            failed += 1;
            if failed == PATIENCE {
                break;
            }
        }
        rate *= RATE_DECAY;
    }
    best
}

/// Scores of a deviation that the loss can work with, and biases that give each neuron its
/// frequency.
fn begin(factors: &Factors, rank: usize, activity: &Activity, train: &Rows<'_>) -> Floats {
    let a = factors.a.slice(0, rank);
    let mut b = factors.b.slice(0, rank).transposed();
    let count = train.rows.len().min(BIAS_ROWS);
    let step = train.rows.len() / count;
    let mut x = Matrix::zeros(count, train.x.cols);
    for index in 0..count {
        x.row_mut(index).copy_from_slice(train.x.row(index * step));
    }
    let hidden = x.times_transposed(&a);
    let deviation = hidden.times_transposed(&b).rms();
    if deviation > 0.0 {
        b.scale(SCORE_DEVIATION / deviation);
    }
    let scores = b.times_transposed(&hidden);
    let mut active = vec![0usize; activity.neurons];
    for &row in train.rows {
        activity.active(row).for_each(|neuron| active[neuron] += 1);
    }
    let half = 0.5 / train.rows.len() as f32;
    let bias = active.iter().enumerate().map(|(neuron, &active)| {
        let want = (active as f32 / train.rows.len() as f32).clamp(half, 1.0 - half);
        let mut bias = 0.0f32;
        for _ in 0..12 {
            let (mut mean, mut slope) = (0.0, 0.0);
            for score in scores.row(neuron) {
                let p = logistic(score + bias);
                mean += p / count as f32;
                slope += p * (1.0 - p) / count as f32;
            }
            bias -= ((mean - want) / slope.max(1e-6)).clamp(-1.0, 1.0);
        }
        bias
    });
    let bias = bias.collect();
    Floats { a, b, bias }
}

fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Mean logistic loss.
fn loss(floats: &Floats, activity: &Activity, held: &Rows<'_>) -> f64 {
    let scores = floats.scores(held.x);
    let mut sum = 0.0;
    for (index, &row) in held.rows.iter().enumerate() {
        let mut part = 0.0f32;
        for (neuron, &score) in scores.row(index).iter().enumerate() {
            let wrong = match activity.is_active(row, neuron) {
                true => -score,
                false => score,
            };
            part += wrong.max(0.0) + (-wrong.abs()).exp().ln_1p();
        }
        sum += f64::from(part);
    }
    sum / (held.rows.len() * activity.neurons).max(1) as f64
}

impl Floats {
    /// Scores (rows, neurons) of inputs `x` (rows, dim).
    fn scores(&self, x: &Matrix) -> Matrix {
        let mut scores = x.times_transposed(&self.a).times_transposed(&self.b);
        for row in scores.data.chunks_exact_mut(self.bias.len()) {
            row.iter_mut()
                .zip(&self.bias)
                .for_each(|(score, bias)| *score += bias);
        }
        scores
    }
}

/// First and second moments of gradients (Kingma and Ba, 2014).
struct Adam {
    moments: [Vec<(f32, f32)>; 3],
    sizes: [f32; 3],
    steps: i32,
}

impl Adam {
    fn new(floats: &Floats) -> Self {
        let of = |len: usize| vec![(0.0, 0.0); len];
        Adam {
            moments: [
                of(floats.a.data.len()),
                of(floats.b.data.len()),
                of(floats.bias.len()),
            ],
            sizes: [floats.a.rms(), floats.b.rms(), 1.0],
            steps: 0,
        }
    }

    /// One step on inputs `x` of rows `rows`.
    fn step(
        &mut self,
        floats: &mut Floats,
        activity: &Activity,
        x: &Matrix,
        rows: &[usize],
        rate: f32,
    ) {
        let hidden = x.times_transposed(&floats.a);
        // Scores become their gradients.
        let mut slopes = floats.scores(x);
        let part = 1.0 / rows.len() as f32;
        for (index, &row) in rows.iter().enumerate() {
            let slopes = slopes.row_mut(index);
            slopes.iter_mut().for_each(|s| *s = logistic(*s) * part);
            activity
                .active(row)
                .for_each(|neuron| slopes[neuron] -= part);
        }
        let by_neuron = slopes.transposed();
        let for_b = by_neuron.times_transposed(&hidden.transposed());
        let for_bias: Vec<f32> = (0..activity.neurons)
            .map(|neuron| by_neuron.row(neuron).iter().sum())
            .collect();
        let back = slopes.times_transposed(&floats.b.transposed()).transposed();
        let for_a = back.times_transposed(&x.transposed());
        self.steps += 1;
        let changed = [&mut floats.a.data, &mut floats.b.data, &mut floats.bias];
        let gradients = [&for_a.data, &for_b.data, &for_bias];
        for (which, (values, gradient)) in changed.into_iter().zip(gradients).enumerate() {
            let rate = rate * self.sizes[which];
            adam(values, gradient, &mut self.moments[which], rate, self.steps);
        }
    }
}

fn adam(values: &mut [f32], gradient: &[f32], moments: &mut [(f32, f32)], rate: f32, steps: i32) {
    const FIRST: f32 = 0.9;
    const SECOND: f32 = 0.999;
    let (one, two) = (1.0 - FIRST.powi(steps), 1.0 - SECOND.powi(steps));
    for ((value, g), (m, v)) in values.iter_mut().zip(gradient).zip(moments) {
        *m = FIRST * *m + (1.0 - FIRST) * g;
        *v = SECOND * *v + (1.0 - SECOND) * g * g;
        *value -= rate * (*m / one) / ((*v / two).sqrt() + 1e-8);
    }
}
