//! Trace and statistics against a plain count of what the runtime shows.

use std::collections::BTreeMap;
use std::sync::Mutex;

use layout_tool::pack::Weights;
use layout_tool::profile::TRACE_MAGIC;
use tessera_kernels::math::{relu, silu};
use tessera_runtime::Observer;
use tessera_runtime::format::{BATCHES, PredictorLayout, Quality, SectionKind, Statistics};

use crate::run::{Bench, CHUNK, Loaded, profiled, specs};

/// For each section, for each of its tokens: gate and up products of each neuron.
#[derive(Default)]
struct Plain {
    seen: Mutex<BTreeMap<(usize, usize), Vec<Neurons>>>,
    routed: Mutex<Vec<usize>>,
}

#[derive(Default, Clone)]
struct Neurons {
    token: usize,
    products: Vec<(f32, f32)>,
}

impl Observer for Plain {
    fn routed(&self, _: usize, _: usize, token: usize) {
        self.routed.lock().unwrap().push(token);
    }

    fn inputs(&self, layer: usize, expert: usize, x: &[f32]) {
        let mut routed = std::mem::take(&mut *self.routed.lock().unwrap());
        if routed.is_empty() {
            routed = (0..x.len() / crate::model::SPEC.dim).collect();
        }
        let tokens = routed.into_iter().map(|token| Neurons {
            token,
            ..Neurons::default()
        });
        let key = (layer, expert);
        self.seen.lock().unwrap().insert(key, tokens.collect());
    }

    fn products(
        &self,
        layer: usize,
        expert: usize,
        first: usize,
        tokens: usize,
        gate: &[f32],
        up: &[f32],
    ) {
        let mut seen = self.seen.lock().unwrap();
        let all = seen.get_mut(&(layer, expert)).unwrap();
        assert_eq!((all.len(), all[0].products.len()), (tokens, first));
        for (at, pair) in gate.iter().copied().zip(up.iter().copied()).enumerate() {
            all[at % tokens].products.push(pair);
        }
    }
}

/// Activity of a section: its tokens, and for each whether each neuron (in the image's old order)
/// is active.
type Active = BTreeMap<(usize, usize), Vec<(usize, Vec<bool>)>>;

fn activity(
    old: &Loaded,
    ids: &[u32],
    is_active: &dyn Fn((usize, usize), f32, f32) -> bool,
) -> Active {
    let mut all = Active::new();
    old.with_session(|session| {
        for (index, tokens) in ids.chunks(CHUNK).enumerate() {
            session.truncate(0);
            let plain = Plain::default();
            session.append_observed(tokens, &plain).unwrap();
            for (key, tokens) in plain.seen.into_inner().unwrap() {
                let rows = tokens.into_iter().map(|row| {
                    let active = row.products.iter().map(|&(g, u)| is_active(key, g, u));
                    (index * CHUNK + row.token, active.collect())
                });
                all.entry(key).or_default().extend(rows);
            }
        }
    });
    all
}

/// The trace, read back: for each token, for each section the active neurons.
fn trace(path: &std::path::Path) -> (Vec<u32>, Vec<Vec<Vec<usize>>>) {
    let bytes = std::fs::read(path).unwrap();
    let mut words = bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word));
    let head: Vec<u32> = words.by_ref().take(4).collect();
    let mut tokens = Vec::new();
    while words.len() > 0 {
        let section = |words: &mut dyn Iterator<Item = u32>| {
            let count = words.next().unwrap() as usize;
            words.take(count).map(|neuron| neuron as usize).collect()
        };
        tokens.push((0..head[1]).map(|_| section(&mut words)).collect());
    }
    (head, tokens)
}

fn lru_misses(rows: &[Vec<usize>], k: usize, first: usize, capacity: usize) -> usize {
    let (mut cache, mut misses): (Vec<usize>, usize) = (Vec::new(), 0);
    for row in rows {
        let mut bundles: Vec<usize> = row.iter().map(|neuron| neuron / k).collect();
        bundles.dedup();
        for bundle in bundles.into_iter().filter(|bundle| *bundle >= first) {
            match cache.iter().position(|held| *held == bundle) {
                Some(at) => drop(cache.remove(at)),
                None => misses += 1,
            }
            cache.push(bundle);
            if cache.len() > capacity {
                cache.remove(0);
            }
        }
    }
    misses * k
}

/// Statistics of one section against its rows, in the new order.
fn check(statistics: &Statistics<'_>, rows: &[Vec<usize>], neurons: usize, k: usize) {
    assert_eq!(statistics.tokens(), rows.len() as u64);
    let active: usize = rows.iter().map(Vec::len).sum();
    let share = active as f32 / (rows.len() * neurons) as f32;
    assert!((statistics.threshold_share() - share).abs() < 1e-6);
    for batch in 1..=BATCHES {
        for neuron in 0..neurons {
            let hit = |run: &&[Vec<usize>]| run.iter().any(|row| row.contains(&neuron));
            let want = rows.windows(batch).filter(hit).count() as f32;
            let want = want / rows.windows(batch).len() as f32;
            let have = statistics.frequency(batch, neuron);
            assert!((have - want).abs() <= 0.51 / 65535.0, "{batch} {neuron}");
        }
    }
    for (prefix, cache) in [
        (0, 0),
        (0, 4),
        (0, 16),
        (0, 32),
        (1, 8),
        (4, 8),
        (7, 2),
        (8, 1),
    ] {
        let want = lru_misses(rows, k, neurons * prefix / 8 / k, neurons * cache / 32 / k);
        let have = statistics.misses(prefix, cache) * rows.len() as f32;
        assert!(
            (have - want as f32).abs() < 0.01,
            "{prefix} {cache}: {have} {want}"
        );
    }
}

#[test]
fn trace_and_statistics_equal_a_recount() {
    for (index, spec) in specs().iter().enumerate() {
        let k = [1, 4, 32][index];
        let bench = Bench::new(spec, Weights::Auto, k, 600);
        let mut options = bench.options("p.image");
        options.trace = Some(bench.path("trace"));
        options.predictors = true;
        let report = profiled(&options).unwrap();
        let (old, new) = (Loaded::new(&bench.image), Loaded::new(&options.target));
        let (n_ffns, neurons) = (spec.n_experts.max(1), spec.ffn_dim);
        let section = |layer: usize, expert: usize| &report.sections[layer * n_ffns + expert];
        let silu_model = spec.activation == "silu";
        let all = activity(&old, &bench.ids, &|(layer, expert), gate, up| {
            let threshold = section(layer, expert).threshold;
            assert_eq!(threshold > 0.0, silu_model);
            match silu_model {
                true => silu(gate).abs() >= threshold,
                false => relu(gate) * up != 0.0,
            }
        });
        let (head, tokens) = trace(&bench.path("trace"));
        let n_sections = spec.n_layers * n_ffns;
        let sizes = [n_sections, neurons, k].map(|number| number as u32);
        assert_eq!(head, [&[TRACE_MAGIC][..], &sizes].concat());
        assert_eq!(tokens.len(), bench.ids.len());
        for (&(layer, expert), rows) in &all {
            let order = new.order(layer, expert);
            let rows: Vec<(usize, Vec<usize>)> = rows
                .iter()
                .map(|(token, active)| {
                    let here = (0..neurons).filter(|&place| active[order[place]]);
                    (*token, here.collect())
                })
                .collect();
            let mut found = rows.iter().peekable();
            for (token, sections) in tokens.iter().enumerate() {
                let want = found.next_if(|(row, _)| *row == token);
                let want = want.map_or(&[][..], |(_, active)| active);
                assert_eq!(sections[layer * n_ffns + expert], want);
            }
            assert!(found.next().is_none());
            let blob = new.blob(SectionKind::Statistics, layer, expert).unwrap();
            let statistics = Statistics::new_checked(blob, neurons).unwrap();
            let rows: Vec<Vec<usize>> = rows.into_iter().map(|(_, active)| active).collect();
            check(&statistics, &rows, neurons, k);
            let blob = new.blob(SectionKind::Predictor, layer, expert).unwrap();
            PredictorLayout::parse(blob, spec.dim, neurons).unwrap();
            let quality = Quality::of(blob);
            assert!(quality.recall >= options.recall && quality.recall <= 1.0);
            assert!(
                quality.precision >= quality.active_share * 0.9,
                "{quality:?}"
            );
        }
        assert_eq!(all.len(), n_sections);
    }
}

/// What is below a threshold carries no more of a token's energy than was allowed, in the mean.
#[test]
fn thresholds_lose_what_they_may() {
    let bench = Bench::new(&crate::model::SPEC, Weights::F32, 1, 300);
    let old = Loaded::new(&bench.image);
    let map = old.image().ffn(0, 0);
    let norm = |neuron: usize| {
        let at = map.bundle_offset(neuron) as usize;
        let parts = map.bundle.view(&old.bytes[at..][..map.bundle.bytes()]);
        let weights = parts.down.codes(0).as_chunks().0.iter();
        weights.map(|w| f32::from_le_bytes(*w).powi(2)).sum::<f32>()
    };
    let norms: Vec<f32> = (0..map.neurons).map(norm).collect();
    let energies = Mutex::new(Vec::new());
    let all = activity(&old, &bench.ids, &|key, gate, up| {
        if key == (0, 0) {
            energies
                .lock()
                .unwrap()
                .push((silu(gate).abs(), silu(gate) * up));
        }
        true
    });
    let rows = all[&(0, 0)].len();
    let energies = energies.into_inner().unwrap();
    assert_eq!(energies.len(), rows * map.neurons);
    let mut before = 0.0;
    for loss in [0.001, 0.01, 0.1] {
        let mut options = bench.options("p.image");
        (options.loss, options.force) = (loss, true);
        let threshold = profiled(&options).unwrap().sections[0].threshold;
        assert!(threshold > before);
        before = threshold;
        let mut shares = 0.0;
        for token in energies.chunks_exact(map.neurons) {
            let (mut lost, mut total) = (0.0, 0.0);
            for ((magnitude, h), norm) in token.iter().zip(&norms) {
                let energy = f64::from(h * h * norm);
                total += energy;
                if *magnitude < threshold {
                    lost += energy;
                }
            }
            shares += lost / total;
        }
        let share = shares / rows as f64;
        assert!(
            share <= loss * 1.000_01 && share > loss * 0.8,
            "{share} of {loss}"
        );
    }
}
