//! What runs through synthetic models, against what was prescribed.

use super::reference::{Reference, Rounded, Seen};
use super::{image, made};

use layout_tool::synth::SynthOptions;
use tessera_hal::sim::{Latency, ShuffledLanes, SimClock, SimFlash};
use tessera_kernels::Kernels;
use tessera_runtime::format::{Image, PredictorLayout, Quality, SectionKind, Statistics};
use tessera_runtime::{Plan, PlanOptions, Session};

/// Tokens before the first that counts: attention averages over so many.
const WARM: usize = 24;

/// Random token ids.
fn tokens(count: usize, vocab: usize) -> Vec<u32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % vocab
    };
    (0..count).map(|_| next() as u32).collect()
}

/// Logits of the runtime after each of `tokens`.
fn session_logits(bytes: &[u8], tokens: &[u32]) -> Vec<Vec<f32>> {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let options = PlanOptions {
        memory_bytes: 1 << 30,
        seq_len: 1024,
        batch_tokens: 32,
        logits_rows: 4,
        lanes: 2,
        ..PlanOptions::default()
    };
    let plan = Plan::new(&image, options).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(bytes, &clock, Latency::NONE, 1);
    let lanes = ShuffledLanes::new(2, 1);
    let kernels = Kernels::best();
    let mut session =
        Session::new(image, plan, &mut region, flash, lanes, &clock, kernels).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    let mut all = Vec::new();
    session
        .append_each(tokens, 0, &mut |_, logits| {
            all.push(logits.iter().collect())
        })
        .unwrap();
    all
}

/// Everything that the sections do for `tokens`, of which all but the first [`WARM`] are kept.
/// The reference is the runtime's model: their logits agree.
fn run(bytes: &[u8], count: usize) -> Vec<Vec<Seen>> {
    let mut reference = Reference::new(bytes);
    let vocab = Image::new_checked(bytes, bytes.len() as u64)
        .unwrap()
        .shape()
        .vocab_size;
    let tokens = tokens(WARM + count, vocab);
    let session = session_logits(bytes, &tokens);
    let (mut all, mut apart) = (Vec::new(), 0);
    for (token, theirs) in tokens.iter().zip(session) {
        let (logits, seen) = reference.append(*token);
        let norm = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
        let error: Vec<f32> = logits.iter().zip(&theirs).map(|(a, b)| a - b).collect();
        // Now and then rounding decides between two experts.
        apart += usize::from(norm(&error) > 0.05 * norm(&theirs));
        let deviation = norm(&theirs) / (theirs.len() as f32).sqrt();
        assert!((1.0..10.0).contains(&deviation), "logits of {deviation}");
        all.push(seen);
    }
    assert!(apart * 50 <= tokens.len(), "{apart} logits differ");
    all.split_off(WARM)
}

fn active(seen: &Seen) -> usize {
    seen.hidden.iter().filter(|hidden| **hidden != 0.0).count()
}

/// Share of active neurons of each layer.
fn shares(run: &[Vec<Seen>]) -> Vec<f64> {
    let n_layers = run[0].last().unwrap().layer + 1;
    let mut counts = vec![(0, 0); n_layers];
    for seen in run.iter().flatten() {
        counts[seen.layer].0 += active(seen);
        counts[seen.layer].1 += seen.hidden.len();
    }
    let share = |(active, all)| active as f64 / all as f64;
    counts.into_iter().map(share).collect()
}

#[test]
fn as_many_neurons_are_active_as_was_prescribed() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, share, count) in [
        ("tiny", 0.1, 300),
        ("tiny", 0.25, 200),
        ("tiny-moe", 0.1, 300),
        ("small", 0.1, 40),
    ] {
        let path = folder.path().join("m");
        made(&SynthOptions {
            activation_share: Some(share),
            force: true,
            layers: (shape == "small").then_some(4),
            ..SynthOptions::new(shape, &path)
        });
        let run = run(&std::fs::read(&path).unwrap(), count);
        let shares = shares(&run);
        println!("{shape}, prescribed {share}, by layer: {shares:.4?}");
        for have in &shares {
            assert!((have / share - 1.0).abs() < 0.1, "{shape}: {shares:?}");
        }
    }
}

#[test]
fn frequencies_are_those_of_the_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = image(folder.path(), "tiny");
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let (run, neurons) = (run(&bytes, 400), image.shape().ffn_dim);
    for layer in 0..image.shape().n_layers {
        let section = image.find_of(SectionKind::Statistics, layer, 0).unwrap();
        let data = &bytes[section.offset as usize..][..section.data_bytes as usize];
        let statistics = Statistics::new_checked(data, neurons).unwrap();
        let is_active = |t: usize, neuron: usize| run[t][layer].hidden[neuron] != 0.0;
        // By eighths of the ranks, since a single neuron's frequency is uncertain.
        for batch in [1, 2, 8] {
            for eighth in 0..8 {
                let ranks = eighth * neurons / 8..(eighth + 1) * neurons / 8;
                let runs = run.len() + 1 - batch;
                let counted = ranks.clone().map(|neuron| {
                    let some = |t: &usize| (*t..*t + batch).any(|t| is_active(t, neuron));
                    (0..runs).filter(some).count()
                });
                let counted = counted.sum::<usize>() as f32 / (runs * ranks.len()) as f32;
                let said = ranks
                    .clone()
                    .map(|neuron| statistics.frequency(batch, neuron));
                let said = said.sum::<f32>() / ranks.len() as f32;
                let near = (counted - said).abs() < 0.2 * said;
                assert!(
                    near,
                    "layer {layer}, batch {batch}, {ranks:?}: {counted}, {said}"
                );
            }
        }
    }
}

/// Share of a token's active neurons that the one before had active as well.
fn overlap(run: &[Vec<Seen>]) -> f64 {
    let (mut both, mut all) = (0, 0);
    for pair in run.windows(2) {
        for now in &pair[1] {
            let same = |seen: &&Seen| (seen.layer, seen.expert) == (now.layer, now.expert);
            let Some(before) = pair[0].iter().find(same) else {
                continue;
            };
            let each = now.hidden.iter().zip(&before.hidden);
            both += each.filter(|(a, b)| **a != 0.0 && **b != 0.0).count();
            all += active(now);
        }
    }
    both as f64 / all as f64
}

#[test]
fn successive_tokens_share_neurons_as_the_report_says() {
    let folder = tempfile::tempdir().unwrap();
    for shape in ["tiny", "tiny-moe"] {
        let path = folder.path().join(shape);
        let report = made(&SynthOptions::new(shape, &path));
        let run = run(&std::fs::read(&path).unwrap(), 300);
        let (have, said) = (overlap(&run), report.image.unwrap().overlap);
        println!("{shape}: overlap {have:.3}, reported {said:.3}");
        assert!((0.35..0.75).contains(&have), "{have}");
        assert!((have - said).abs() < 0.08, "{have}, reported {said}");
    }
}

#[test]
fn predictors_find_the_activations_of_the_running_model() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = Kernels::best();
    for shape in ["tiny", "tiny-moe"] {
        let bytes = image(folder.path(), shape);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let (dim, neurons) = (image.shape().dim, image.shape().ffn_dim);
        let run = run(&bytes, 300);
        for layer in 0..image.shape().n_layers {
            let (mut found, mut all) = (0.0, 0.0);
            let (mut right, mut predicted) = (0, 0);
            let mut said = Vec::new();
            for seen in run.iter().flatten().filter(|seen| seen.layer == layer) {
                let kind = SectionKind::Predictor;
                let section = image.find_of(kind, layer, seen.expert).unwrap();
                let data = &bytes[section.offset as usize..][..section.data_bytes as usize];
                let layout = PredictorLayout::parse(data, dim, neurons).unwrap();
                let words: Vec<u32> = data
                    .as_chunks()
                    .0
                    .iter()
                    .map(|word| u32::from_ne_bytes(*word))
                    .collect();
                let predictor = layout.view(bytemuck::cast_slice(&words));
                let mut a = vec![0.0; layout.rank];
                let x = Rounded::new(&kernels, &seen.x);
                (kernels.matvec)(&predictor.first, &x.view(), &mut a);
                let mut scores = vec![0.0; neurons];
                let a = Rounded::new(&kernels, &a);
                (kernels.matvec)(&predictor.second, &a.view(), &mut scores);
                for ((score, bias), hidden) in scores.iter().zip(predictor.bias).zip(&seen.hidden) {
                    all += hidden.abs();
                    if score + bias > 0.0 {
                        found += hidden.abs();
                        predicted += 1;
                        right += usize::from(*hidden != 0.0);
                    }
                }
                said.push(Quality::of(data).precision);
            }
            let (recall, precision) = (found / all, right as f32 / predicted as f32);
            let said = said.iter().sum::<f32>() / said.len() as f32;
            println!("{shape}, layer {layer}: recall {recall:.4}, precision {precision:.3}");
            assert!(recall > 0.985, "{shape}, layer {layer}: {recall}");
            assert!(
                (precision - said).abs() < 0.06,
                "{precision}, header {said}"
            );
        }
    }
}
