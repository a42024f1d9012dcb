//! Re-ordering moves bytes: the model is the same.

use std::sync::Mutex;

use layout_tool::pack::Weights;
use layout_tool::verify::{compare, verify};
use tessera_runtime::Observer;

use crate::run::{Bench, Loaded, profiled, specs};

/// Gate and up products of layer 0, or of its first expert: (neurons, tokens).
#[derive(Default)]
struct First {
    products: Mutex<(Vec<u32>, Vec<u32>)>,
}

impl Observer for First {
    fn routed(&self, _: usize, _: usize, _: usize) {}

    fn inputs(&self, _: usize, _: usize, _: &[f32]) {}

    fn products(&self, layer: usize, expert: usize, _: usize, _: usize, gate: &[f32], up: &[f32]) {
        if (layer, expert) == (0, 0) {
            let mut products = self.products.lock().unwrap();
            products.0.extend(gate.iter().map(|x| x.to_bits()));
            products.1.extend(up.iter().map(|x| x.to_bits()));
        }
    }
}

fn run(loaded: &Loaded, tokens: &[u32]) -> (Vec<f32>, Vec<u32>, Vec<u32>) {
    let first = First::default();
    let logits = loaded.with_session(|session| {
        let logits = session.append_observed(tokens, &first).unwrap();
        logits.to_vec()
    });
    let (gate, up) = first.products.into_inner().unwrap();
    (logits, gate, up)
}

/// Products of layer 0 are the same bits, each in its new place: its inputs do not depend on the
/// order of neurons. What follows differs by the order in which down columns are summed: in f32 by
/// rounding of the last bits (measured: 4e-7 of the largest logit); with rounded weights hidden
/// values are also rounded to 8 bits in other groups of 32 (measured: up to 3.2 %).
#[test]
fn the_profiled_model_is_the_same_model() {
    for spec in specs() {
        for (weights, bundle, bound) in [
            (Weights::F32, 1, 1e-5),
            (Weights::F32, 4, 1e-5),
            (Weights::Auto, 32, 0.06),
            (Weights::Q4, 8, 0.06),
        ] {
            let bench = Bench::new(&spec, weights, bundle, 400);
            let options = bench.options("p.image");
            profiled(&options).unwrap();
            let damages = verify(&options.target, None, &|_, _| {}).unwrap().damages;
            assert_eq!(damages, []);
            let comparison = compare(&options.target, &bench.source, None, &|_, _| {}).unwrap();
            assert_eq!(comparison.mismatches, [], "{comparison}");
            let before = compare(&bench.image, &bench.source, None, &|_, _| {}).unwrap();
            let unequal = |comparison: &layout_tool::verify::Comparison| -> Vec<u64> {
                comparison.kinds.iter().map(|kind| kind.unequal).collect()
            };
            assert_eq!(unequal(&comparison), unequal(&before));

            let (old, new) = (Loaded::new(&bench.image), Loaded::new(&options.target));
            let order = new.order(0, 0);
            assert!(!order.is_sorted(), "nothing moved");
            let tokens = &bench.ids[..40];
            let (want, old_gate, old_up) = run(&old, tokens);
            let (have, new_gate, new_up) = run(&new, tokens);
            let count = old_gate.len() / order.len();
            for (place, &neuron) in order.iter().enumerate() {
                let (to, from) = (place * count, neuron * count);
                assert_eq!(new_gate[to..to + count], old_gate[from..from + count]);
                assert_eq!(new_up[to..to + count], old_up[from..from + count]);
            }
            let top = want.iter().fold(0f32, |top, x| top.max(x.abs()));
            let far = want.iter().zip(&have).map(|(w, h)| (w - h).abs());
            let far = far.fold(0f32, f32::max) / top;
            eprintln!(
                "{} {weights:?}: logits differ by {far:e} of the largest",
                spec.activation
            );
            assert!(far <= bound, "{far} of {} {weights:?}", spec.activation);
        }
    }
}

/// The order is one of the model's neurons, however often an image was profiled.
#[test]
fn a_profile_of_a_profile_replaces_it() {
    let bench = Bench::new(&specs()[0], Weights::Auto, 4, 300);
    let once = bench.options("once");
    profiled(&once).unwrap();
    let mut twice = bench.options("twice");
    twice.image = once.target.clone();
    std::fs::write(bench.path("ids"), "5 9 13 17 21 25 ".repeat(50)).unwrap();
    profiled(&twice).unwrap();
    let (one, two) = (Loaded::new(&once.target), Loaded::new(&twice.target));
    assert_eq!(one.image().n_sections(), two.image().n_sections());
    assert_ne!(one.order(0, 0), two.order(0, 0));
    let comparison = compare(&twice.target, &bench.source, None, &|_, _| {}).unwrap();
    assert_eq!(comparison.mismatches, []);
}

#[test]
fn a_neuron_in_the_wrong_place_is_noticed() {
    let bench = Bench::new(&specs()[0], Weights::F32, 1, 300);
    let options = bench.options("p.image");
    profiled(&options).unwrap();
    // Another model of the same shape, packed and profiled alike.
    let other = crate::model::Spec {
        weight: |name, row, col| crate::model::noise(name, row ^ 1, col),
        ..specs()[0].clone()
    };
    let other = Bench::new(&other, Weights::F32, 1, 300);
    let comparison = compare(&options.target, &other.source, None, &|_, _| {}).unwrap();
    assert!(!comparison.mismatches.is_empty());
}
