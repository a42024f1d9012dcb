//! Predictors from calibration activity: which neurons a token will activate.
//!
//! The gate's best low-rank approximation on real inputs (`lowrank.rs`) is refined against what
//! really was active (`train.rs`), rounded, and its biases shifted until it finds the wanted share
//! of the activations' magnitude in the text's last fifth, which nothing was fitted to
//! (`measure.rs`). The rank is the one with which a token touches the fewest bytes, its own and
//! those of the neurons that it predicts: 32, 64, 128 … are tried until that no longer falls.

mod linalg;
mod lowrank;
mod measure;
mod train;

use tessera_kernels::{BLOCK, WeightType};

use super::activity::Activity;
use linalg::Matrix;
use measure::Stored;

/// Rows that are trained on, at most, spread over the text.
const TRAIN_ROWS_MAX: usize = 4096;
/// Rows that training is stopped by, at most.
const STOP_ROWS_MAX: usize = 512;
/// Fewer rows than this, of either kind, are too few to learn from.
const ROWS_MIN: usize = 32;
/// Largest rank.
const RANK_MAX: usize = 512;

/// The predictor of one section as its bytes: of `gate` (neurons, dim), whose neurons are
/// `neuron_bytes` each, with activity in the same order. `None` if the section served too few
/// tokens.
pub fn fit(
    activity: &Activity,
    gate: Vec<f32>,
    recall: f32,
    neuron_bytes: usize,
) -> Option<Vec<u8>> {
    let held = activity.held_row..activity.rows();
    if activity.held_row < ROWS_MIN || held.len() < ROWS_MIN {
        return None;
    }
    let dim = gate.len() / activity.neurons;
    let train_rows = spread(0..activity.held_row, TRAIN_ROWS_MAX);
    let stop_rows = spread(held, STOP_ROWS_MAX);
    let (x, stop_x) = (
        inputs(activity, dim, &train_rows),
        inputs(activity, dim, &stop_rows),
    );
    let train = train::Rows {
        x: &x,
        rows: &train_rows,
    };
    let stop = train::Rows {
        x: &stop_x,
        rows: &stop_rows,
    };
    let gate = Matrix {
        cols: dim,
        data: gate,
    };
    let rank_max = (dim / 4 / BLOCK * BLOCK).clamp(BLOCK, RANK_MAX);
    let factors = lowrank::factors(&gate, &x, rank_max);
    let mut best: Option<(f64, Vec<u8>)> = None;
    let mut rank = BLOCK;
    while rank <= rank_max {
        let mut floats = train::refine(&factors, rank, activity, &train, &stop);
        for (bias, row) in floats.bias.iter_mut().zip(gate.data.chunks_exact(dim)) {
            if row.iter().all(|weight| *weight == 0.0) {
                *bias = f32::NEG_INFINITY;
            }
        }
        let mut better = false;
        for second in [WeightType::Q4, WeightType::Q8] {
            let mut stored = Stored::new(&floats, second);
            let (quality, predicted) = stored.calibrate(activity, recall);
            let touched = predicted * (activity.neurons * neuron_bytes) as f64;
            let cost = stored.layout.bytes() as f64 + touched;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, stored.bytes(quality)));
                better = true;
            }
        }
        if !better {
            break;
        }
        rank *= 2;
    }
    best.map(|(_, bytes)| bytes)
}

/// At most `max` of `rows`, evenly spread.
fn spread(rows: std::ops::Range<usize>, max: usize) -> Vec<usize> {
    let count = rows.len().min(max);
    (0..count)
        .map(|index| rows.start + index * rows.len() / count)
        .collect()
}

/// Inputs of `rows` as floats.
fn inputs(activity: &Activity, dim: usize, rows: &[usize]) -> Matrix {
    let mut x = Matrix::zeros(rows.len(), dim);
    for (to, &row) in rows.iter().enumerate() {
        let codes = activity.codes[row * dim..][..dim].chunks_exact(BLOCK);
        let scales = &activity.scales[row * dim / BLOCK..];
        for ((to, codes), scale) in x.row_mut(to).chunks_exact_mut(BLOCK).zip(codes).zip(scales) {
            for (to, &code) in to.iter_mut().zip(codes) {
                *to = f32::from(code) * scale;
            }
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use tessera_kernels::{Activations, Kernels, interleave_activations};
    use tessera_runtime::format::{PredictorLayout, Quality};

    use super::*;

    /// A section whose inputs live in few directions, so that a small rank can tell.
    fn learnable(neurons: usize, dim: usize, rows: usize) -> (Activity, Vec<f32>) {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut noise = |rows: usize, cols: usize| {
            let mut m = Matrix::zeros(rows, cols);
            m.data.fill_with(|| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            });
            m
        };
        let x = noise(rows, 6).times_transposed(&noise(dim, 6));
        let mut gate = noise(neurons, dim);
        gate.row_mut(5).fill(0.0);
        let products = x.times_transposed(&gate);
        let limit = 1.2 * products.rms();
        let active: Vec<Vec<usize>> = (0..rows)
            .map(|row| {
                let hot = |&n: &usize| products.row(row)[n] > limit;
                (0..neurons).filter(hot).collect()
            })
            .collect();
        let mut activity = Activity::from_rows(neurons, active.iter().map(|row| &row[..]));
        activity.held_row = rows * 4 / 5;
        for (row, active) in active.iter().enumerate().skip(activity.held_row) {
            let mass = active.iter().map(|&n| products.row(row)[n] - limit);
            activity.masses.extend(mass);
        }
        activity.codes.resize(rows * dim, 0);
        activity.scales.resize(rows * dim / BLOCK, 0.0);
        let mut sums = vec![0; rows * dim / BLOCK];
        let Activity { codes, scales, .. } = &mut activity;
        (Kernels::best().quantize)(&x.data, codes, scales, &mut sums);
        (activity, gate.data)
    }

    #[test]
    fn a_predictor_finds_what_it_promises() {
        let (neurons, dim) = (96, 64);
        let (activity, gate) = learnable(neurons, dim, 600);
        let bytes = fit(&activity, gate.clone(), 0.99, 200).expect("a predictor");
        let layout = PredictorLayout::parse(&bytes, dim, neurons).unwrap();
        let Quality {
            recall,
            precision,
            active_share,
            cuts,
        } = Quality::of(&bytes);
        assert_eq!(layout.rank, 32);
        assert!(recall >= 0.99, "{recall}");
        assert!(precision > 0.6, "{precision}");
        assert!((0.05..0.3).contains(&active_share), "{active_share}");
        let mut aligned = vec![0u32; bytes.len().div_ceil(4)];
        bytemuck::cast_slice_mut::<u32, u8>(&mut aligned)[..bytes.len()].copy_from_slice(&bytes);
        let view = layout.view(&bytemuck::cast_slice(&aligned)[..bytes.len()]);
        assert_eq!(view.bias[5], f32::NEG_INFINITY);
        // Recall by the runtime's own arithmetic, one token at a time.
        let kernels = Kernels::SCALAR;
        let cut = cuts.expect("they are measured").score(50);
        let mut masses = activity.masses.iter();
        let (mut found, mut low, mut all) = (0.0, 0.0, 0.0);
        for row in activity.held_row..activity.rows() {
            let codes = &activity.codes[row * dim..][..dim];
            let scales = &activity.scales[row * dim / BLOCK..][..dim / BLOCK];
            let sum = |codes: &[i8]| codes.iter().map(|&code| i32::from(code)).sum();
            let sums: Vec<i32> = codes.chunks_exact(BLOCK).map(sum).collect();
            let mut interleaved = vec![0; dim];
            interleave_activations(codes, &mut interleaved);
            let x = Activations::new(1, dim, &[], codes, scales, &sums);
            let x = x.with_interleaved(&interleaved);
            let (mut a, mut scores) = (vec![0.0; layout.rank], vec![0.0; neurons]);
            (kernels.matvec)(&view.first, &x, &mut a);
            let blocks = layout.rank / BLOCK;
            let (mut q, mut s, mut t) = (vec![0; layout.rank], vec![0.0; blocks], vec![0; blocks]);
            (kernels.quantize)(&a, &mut q, &mut s, &mut t);
            let mut interleaved = vec![0; layout.rank];
            interleave_activations(&q, &mut interleaved);
            let a = Activations::new(1, layout.rank, &[], &q, &s, &t);
            let a = a.with_interleaved(&interleaved);
            (kernels.matvec)(&view.second, &a, &mut scores);
            for neuron in activity.active(row) {
                let mass = f64::from(*masses.next().unwrap());
                all += mass;
                let score = scores[neuron] + view.bias[neuron];
                if score > 0.0 {
                    found += mass;
                    low += if score <= cut { mass } else { 0.0 };
                }
            }
        }
        assert_eq!((found / all) as f32, recall);
        assert!((0.02..=0.05).contains(&(low / all)), "{low} of {all}");
        assert!(fit(&Activity::from_rows(32, []), Vec::new(), 0.99, 1).is_none());
    }
}
