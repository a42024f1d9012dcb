//! An observer changes nothing, and sees every neuron of every section once.

mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Recipe, tiny_image};
use tessera_hal::OneLane;
use tessera_hal::sim::{Latency, SimClock, SimFlash};
use tessera_kernels::{Activation, Kernels};
use tessera_runtime::format::Image;
use tessera_runtime::{Observer, Plan, PlanOptions, Session};

const TOKENS: [u32; 20] = [
    3, 40, 77, 114, 151, 188, 225, 262, 299, 36, 73, 110, 147, 184, 221, 258, 295, 32, 69, 106,
];
const BATCH: usize = 12;

/// What one section was shown in one pass.
#[derive(Default)]
struct Seen {
    routed: Vec<usize>,
    inputs: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    tokens: usize,
}

#[derive(Default)]
struct Watch {
    seen: Mutex<BTreeMap<(usize, usize), Seen>>,
}

impl Watch {
    fn with(&self, layer: usize, expert: usize, see: impl FnOnce(&mut Seen)) {
        see(self
            .seen
            .lock()
            .unwrap()
            .entry((layer, expert))
            .or_default());
    }
}

impl Observer for Watch {
    fn routed(&self, layer: usize, expert: usize, token: usize) {
        self.with(layer, expert, |seen| seen.routed.push(token));
    }

    fn inputs(&self, layer: usize, expert: usize, x: &[f32]) {
        self.with(layer, expert, |seen| seen.inputs.extend(x));
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
        self.with(layer, expert, |seen| {
            assert_eq!(seen.gate.len(), first * tokens);
            seen.tokens = tokens;
            seen.gate.extend(gate);
            seen.up.extend(up);
        });
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// The logits at the end of runs of `step` tokens, and what was seen in each run.
fn run(bytes: &[u8], step: usize, observe: bool, kernels: Kernels) -> (Vec<Vec<u32>>, Vec<Watch>) {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let options = PlanOptions {
        memory_bytes: 1 << 30,
        seq_len: 32,
        batch_tokens: BATCH,
        ..PlanOptions::default()
    };
    let plan = Plan::new(&image, options).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(bytes, &clock, Latency::NONE, 1);
    let mut session =
        Session::new(image, plan, &mut region, flash, OneLane, &clock, kernels).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    let (mut all, mut watches) = (Vec::new(), Vec::new());
    for tokens in TOKENS.chunks(step) {
        let watch = Watch::default();
        let logits = match observe {
            true => session.append_observed(tokens, &watch),
            false => session.append(tokens),
        };
        all.push(bits(logits.unwrap()));
        watches.push(watch);
    }
    (all, watches)
}

#[test]
fn observed_logits_are_the_same_bits() {
    for (seed, activation, n_experts) in [
        (1, Activation::Silu, 0),
        (2, Activation::Relu, 4),
        (3, Activation::ReluBoth, 0),
        (4, Activation::GeluTanh, 3),
    ] {
        let recipe = Recipe {
            seed,
            activation,
            n_experts,
            ..Recipe::default()
        };
        let (shape, bytes) = (recipe.shape(), tiny_image(&recipe));
        let mut one_by_one: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
        for step in [1, 3, BATCH] {
            let (want, _) = run(&bytes, step, false, Kernels::best());
            let (have, watches) = run(&bytes, step, true, Kernels::best());
            assert!(have == want, "{recipe:?} by {step}");
            let mut inputs: BTreeMap<(usize, usize), Vec<u32>> = BTreeMap::new();
            for (watch, tokens) in watches.iter().zip(TOKENS.chunks(step)) {
                let mut served = vec![0; shape.n_layers];
                for (&(layer, expert), seen) in watch.seen.lock().unwrap().iter() {
                    if n_experts > 0 {
                        assert_eq!(seen.routed.len(), seen.tokens);
                        assert!(seen.routed.is_sorted());
                        assert!(seen.routed.iter().all(|&token| token < tokens.len()));
                    }
                    served[layer] += seen.tokens;
                    assert_eq!(seen.inputs.len(), seen.tokens * shape.dim);
                    assert_eq!(seen.gate.len(), seen.tokens * shape.ffn_dim);
                    assert_eq!(seen.up.len(), seen.gate.len());
                    let all = inputs.entry((layer, expert)).or_default();
                    all.extend(bits(&seen.inputs));
                }
                let each = shape.n_experts_used.max(1);
                assert_eq!(served, vec![tokens.len() * each; shape.n_layers]);
            }
            if step == 1 {
                one_by_one = inputs;
            } else {
                assert!(inputs == one_by_one, "{recipe:?} by {step}");
            }
        }
    }
}

/// Nothing else in a pass is a softmax of its own.
#[test]
fn experts_are_chosen_once_for_a_token() {
    static CHOICES: AtomicUsize = AtomicUsize::new(0);
    let softmax = |x: &mut [f32]| {
        CHOICES.fetch_add(1, Ordering::Relaxed);
        (Kernels::SCALAR.softmax)(x);
    };
    let kernels = Kernels {
        softmax,
        ..Kernels::best()
    };
    let recipe = Recipe {
        n_experts: 4,
        ..Recipe::default()
    };
    let bytes = tiny_image(&recipe);
    for step in [1, BATCH] {
        CHOICES.store(0, Ordering::Relaxed);
        run(&bytes, step, false, kernels);
        let layers = recipe.shape().n_layers;
        let choices = CHOICES.load(Ordering::Relaxed);
        assert_eq!(choices, TOKENS.len() * layers, "by {step}");
    }
}
