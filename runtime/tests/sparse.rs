//! Sparse passes on simulated devices: what a predictor names is computed, wherever it stands and
//! in whatever order it arrives.

mod support;

use support::{Predictors, Recipe, tiny_image};
use tessera_hal::sim::{Faults, Faulty, Latency, PerFault, ShuffledLanes, SimClock, SimFlash};
use tessera_hal::{Clock, Flash};
use tessera_kernels::{Activation, Kernels, WeightType};
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::Image;
use tessera_runtime::plan::Without;
use tessera_runtime::{ColdOptions, Mode, Plan, PlanError, PlanOptions, Session, SessionError};

type Bits = Vec<Vec<u32>>;

const PROMPT: [u32; 5] = [3, 40, 77, 114, 151];
const TOKENS: [u32; 12] = [188, 225, 262, 299, 36, 73, 110, 147, 184, 221, 258, 295];

fn recipes() -> Vec<Recipe> {
    let base = Recipe {
        activation: Activation::Relu,
        bundle_neurons: 1,
        ..Recipe::default()
    };
    vec![
        base,
        Recipe {
            seed: 2,
            n_experts: 3,
            activation: Activation::ReluBoth,
            bundle_neurons: 4,
            ..base
        },
        Recipe {
            seed: 3,
            gate_up: WeightType::Q4,
            down: WeightType::Q4,
            activation: Activation::Silu,
            bundle_neurons: 8,
            ..base
        },
    ]
}

fn image_of(recipe: Recipe, predictors: Predictors) -> Vec<u8> {
    tiny_image(&Recipe {
        predictors,
        ..recipe
    })
}

fn options(mode: Mode, memory_bytes: usize, lanes: usize) -> PlanOptions {
    PlanOptions {
        memory_bytes,
        seq_len: 32,
        batch_tokens: 8,
        sequences: 2,
        lanes,
        mode,
        ..PlanOptions::default()
    }
}

fn least_bytes(image: &Image<'_>, options: PlanOptions) -> usize {
    let one = PlanOptions {
        memory_bytes: 1,
        ..options
    };
    match Plan::new(image, one) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        other => panic!("one byte was enough: {other:?}"),
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits of each token after the prompt.
fn decode<'m, F: Flash<'m>, K: Clock>(
    session: &mut Session<'m, F, ShuffledLanes, K>,
) -> Result<Bits, SessionError> {
    session.truncate(0);
    session.append(&PROMPT)?;
    let mut all = Bits::new();
    for token in TOKENS {
        all.push(bits(session.append(&[token])?));
    }
    Ok(all)
}

type Simulated<'i, 'm> = Session<'m, SimFlash<'i, 'm>, ShuffledLanes, &'static SimClock>;

/// Runs `test` with a loaded session.
fn with_session<'i, T>(
    bytes: &'i [u8],
    options: PlanOptions,
    latency: Latency,
    seed: u64,
    test: impl for<'s, 'm> FnOnce(&'s mut Simulated<'i, 'm>) -> T,
) -> T {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options).unwrap();
    let total_bytes = plan.budget.total_bytes().unwrap();
    assert!(total_bytes <= options.memory_bytes);
    let mut region = vec![0xA5; total_bytes];
    // The device borrows the clock for as long as the image.
    let clock: &'static SimClock = Box::leak(Box::default());
    let flash = SimFlash::new(bytes, clock, latency, seed);
    let lanes = ShuffledLanes::new(options.lanes, seed);
    let kernels = Kernels::best();
    let mut session = Session::new(image, plan, &mut region, flash, lanes, clock, kernels).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    test(&mut session)
}

fn calm_bits(bytes: &[u8], mode: Mode) -> Bits {
    with_session(
        bytes,
        options(mode, 1 << 30, 1),
        Latency::NONE,
        1,
        |session| decode(session).unwrap(),
    )
}

#[test]
fn a_predictor_that_names_all_gives_the_dense_bits() {
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::All);
        let dense = calm_bits(&bytes, Mode::Exact);
        assert!(calm_bits(&bytes, Mode::Predict) == dense, "{recipe:?}");
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let small = options(Mode::Predict, 1, 2);
        let small = PlanOptions {
            memory_bytes: least_bytes(&image, small),
            ..small
        };
        with_session(&bytes, small, Latency::UFS_3_1, 7, |session| {
            assert!(decode(session).unwrap() == dense, "{recipe:?}");
        });
    }
}

#[test]
fn memory_lanes_policy_and_order_never_change_a_bit() {
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::Some);
        let calm = calm_bits(&bytes, Mode::Predict);
        assert!(
            calm != calm_bits(&bytes, Mode::Exact),
            "something is left out"
        );
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        for seed in 1..=24u64 {
            let cold = ColdOptions {
                policy: [PolicyKind::Lru, PolicyKind::Frequency][(seed % 2) as usize],
                hot_pct: (seed as usize % 4) * 30,
                two_phase: seed % 3 == 0,
                gap: seed as usize % 5,
                reads: 1 + (seed as usize * 7) % 64,
                guesses: (seed as usize * 5) % 64,
                absent_loss_pml: 0,
                without: Without {
                    bundles: seed % 7 == 0,
                    cache: seed % 5 == 0,
                    pipeline: seed % 4 == 1,
                },
            };
            let options = options(Mode::Predict, 1, 1 + (seed % 3) as usize);
            let options = PlanOptions { cold, ..options };
            let least = least_bytes(&image, options);
            let roomy = PlanOptions {
                memory_bytes: 1 << 30,
                ..options
            };
            let kept_bytes = Plan::new(&image, roomy).unwrap().kept_bytes;
            let memory_bytes = least + (kept_bytes * (seed % 5)) as usize / 8;
            let options = PlanOptions {
                memory_bytes,
                ..options
            };
            let latency = [Latency::UFS_3_1, Latency::UFS_4_0][(seed % 2) as usize];
            with_session(&bytes, options, latency, seed, |session| {
                assert!(
                    decode(session).unwrap() == calm,
                    "seed {seed} of {recipe:?}"
                );
                let stats = session.stats();
                assert!(stats.active_neurons < stats.all_neurons, "{stats:?}");
                assert!(stats.miss_bytes > 0, "{stats:?}");
            });
        }
    }
}

#[test]
fn reads_ahead_shorten_waits_and_change_no_bit() {
    let bytes = image_of(recipes()[0], Predictors::All);
    let calm = calm_bits(&bytes, Mode::Predict);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let waits = [0, 48].map(|guesses| {
        let options = options(Mode::Predict, 1, 2);
        let cold = ColdOptions {
            guesses,
            hot_pct: 0,
            // Begins with an empty cache.
            policy: PolicyKind::Lru,
            ..options.cold
        };
        let options = PlanOptions { cold, ..options };
        let roomy = PlanOptions {
            memory_bytes: 1 << 30,
            ..options
        };
        let kept_bytes = Plan::new(&image, roomy).unwrap().kept_bytes as usize;
        let options = PlanOptions {
            // Simulated cores compute in no time, so little is gained; with three quarters kept,
            // nothing.
            memory_bytes: least_bytes(&image, options) + kept_bytes / 8,
            ..options
        };
        with_session(&bytes, options, Latency::UFS_3_1, 3, |session| {
            assert!(decode(session).unwrap() == calm);
            session.stats().stall_ns
        })
    });
    assert!(waits[1] < waits[0], "{waits:?}");
}

#[test]
fn sequences_side_by_side_get_the_bits_of_each_alone() {
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::Some);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let options = options(Mode::Predict, 1, 2);
        let options = PlanOptions {
            memory_bytes: least_bytes(&image, options) + bytes.len() / 4,
            ..options
        };
        with_session(&bytes, options, Latency::UFS_4_0, 5, |session| {
            let mut alone = Vec::new();
            for (sequence, tokens) in [(0, &TOKENS[..6]), (1, &TOKENS[6..])] {
                session.select(sequence).unwrap();
                session.truncate(0);
                let logits = tokens
                    .iter()
                    .map(|&token| session.append(&[token]).map(bits));
                alone.push(logits.collect::<Result<Bits, _>>().unwrap());
                session.truncate(0);
            }
            for step in 0..6 {
                let steps = [(0, TOKENS[step]), (1, TOKENS[6 + step])];
                session
                    .decode(&steps, &mut |index, logits| {
                        let logits: Vec<u32> = logits.iter().map(f32::to_bits).collect();
                        assert!(logits == alone[index][step], "step {step} of {recipe:?}");
                    })
                    .unwrap();
            }
        });
    }
}

/// More than a sparse pass carries.
#[test]
fn many_sequences_get_the_bits_of_each_alone() {
    let recipe = Recipe {
        threshold: Some(0.1),
        ..recipes()[0]
    };
    let bytes = image_of(recipe, Predictors::Some);
    for mode in [Mode::Predict, Mode::Threshold, Mode::Exact] {
        let options = PlanOptions {
            sequences: TOKENS.len(),
            ..options(mode, 1 << 30, 2)
        };
        with_session(&bytes, options, Latency::NONE, 1, |session| {
            let alone: Vec<_> = (0..TOKENS.len())
                .map(|sequence| {
                    session.select(sequence).unwrap();
                    let logits = bits(session.append(&TOKENS[sequence..=sequence]).unwrap());
                    session.truncate(0);
                    logits
                })
                .collect();
            let steps: Vec<_> = TOKENS.into_iter().enumerate().collect();
            let mut seen = 0;
            session
                .decode(&steps, &mut |index, logits| {
                    let logits: Vec<u32> = logits.iter().map(f32::to_bits).collect();
                    assert!(logits == alone[index], "sequence {index}, {mode:?}");
                    assert_eq!(index, seen);
                    seen += 1;
                })
                .unwrap();
            assert_eq!((seen, session.pos()), (TOKENS.len(), 1));
        });
    }
}

/// A window of clusters is no larger than the room for their sums, of which a mixture takes some.
#[test]
fn experts_may_have_more_clusters_than_are_computed_at_once() {
    let recipe = Recipe {
        ffn_dim: 2112,
        n_experts: 3,
        activation: Activation::Relu,
        ..Recipe::default()
    };
    let bytes = image_of(recipe, Predictors::All);
    let dense = calm_bits(&bytes, Mode::Exact);
    for batch_tokens in [1, 3, 8] {
        let options = PlanOptions {
            batch_tokens,
            sequences: 1,
            ..options(Mode::Predict, 1 << 30, 2)
        };
        with_session(&bytes, options, Latency::NONE, 1, |session| {
            session.prompt_as_decoded(true);
            assert!(decode(session).unwrap() == dense, "{batch_tokens}");
        });
    }
}

#[test]
fn hits_are_not_what_arrived_while_reads_were_short() {
    let bytes = image_of(recipes()[0], Predictors::Some);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let bundle_bytes = image.ffn(0, 0).bundle.bytes() as u64;
    let counted = [1, 2, 64].map(|reads| {
        let cold = ColdOptions {
            policy: PolicyKind::Lru,
            hot_pct: 0,
            gap: 0,
            guesses: 0,
            reads,
            ..ColdOptions::default()
        };
        let options = PlanOptions {
            cold,
            ..options(Mode::Predict, 1 << 30, 1)
        };
        let kept_bytes = Plan::new(&image, options).unwrap().kept_bytes as usize;
        let options = PlanOptions {
            memory_bytes: least_bytes(&image, options) + kept_bytes / 4 * 3,
            ..options
        };
        with_session(&bytes, options, Latency::UFS_3_1, 1, |session| {
            // Few enough that nothing is evicted.
            session.append(&TOKENS[..1]).unwrap();
            session.append(&TOKENS[1..2]).unwrap();
            let stats = session.stats();
            assert_eq!(stats.miss_bytes % bundle_bytes, 0);
            (stats.hit_bytes, stats.miss_bytes)
        })
    });
    assert!(counted[0].1 > 64 * bundle_bytes, "{counted:?}");
    assert_eq!(counted, [counted[2]; 3]);
}

/// However slow it is: reads that come one after the other are no read that does not come.
#[test]
fn a_slow_device_is_waited_for() {
    let bytes = image_of(recipes()[0], Predictors::Some);
    let calm = calm_bits(&bytes, Mode::Predict);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let options = options(Mode::Predict, 1, 2);
    let roomy = PlanOptions {
        memory_bytes: 1 << 30,
        ..options
    };
    let kept_bytes = Plan::new(&image, roomy).unwrap().kept_bytes as usize;
    let options = PlanOptions {
        memory_bytes: least_bytes(&image, options) + kept_bytes / 2,
        ..options
    };
    let slow = Latency {
        request_ns: 700_000_000,
        ..Latency::NONE
    };
    with_session(&bytes, options, slow, 1, |session| {
        assert!(decode(session).unwrap() == calm);
        assert!(session.stats().stall_ns > 100_000_000_000);
    });
}

#[test]
fn failed_and_altered_reads_are_tried_again_or_reported() {
    for (index, recipe) in recipes().into_iter().enumerate() {
        let bytes = image_of(recipe, Predictors::Some);
        let calm = calm_bits(&bytes, Mode::Predict);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let (mut clean, mut reported) = (0, 0);
        for seed in 1..=100u64 {
            let options = options(Mode::Predict, 1, 2);
            let cold = ColdOptions {
                two_phase: seed % 2 == 0,
                hot_pct: 0,
                ..ColdOptions::default()
            };
            let options = PlanOptions { cold, ..options };
            let memory_bytes = least_bytes(&image, options);
            let plan = Plan::new(
                &image,
                PlanOptions {
                    memory_bytes,
                    ..options
                },
            )
            .unwrap();
            let mut region = vec![0; plan.budget.total_bytes().unwrap()];
            let clock = SimClock::default();
            let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, seed);
            let share_pml = 20 + index as u32 * 20;
            let faults = Faults::new(PerFault {
                failed: share_pml,
                altered: share_pml,
                lost: 0,
            });
            let flash = Faulty::new(flash, &clock, &faults, seed);
            let lanes = ShuffledLanes::new(2, seed);
            let kernels = Kernels::best();
            let session = Session::new(image, plan, &mut region, flash, lanes, &clock, kernels);
            let Ok(mut session) = session else { continue };
            if session.load(&mut |_, _| {}).is_err() {
                continue;
            }
            // A session stays usable after an error.
            for _ in 0..3 {
                match decode(&mut session) {
                    Ok(bits) => {
                        assert!(bits == calm, "seed {seed} of {recipe:?}");
                        clean += 1;
                    }
                    Err(SessionError::Weights(_)) => reported += 1,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
        assert!(
            clean > 20 && (index == 0 || reported > 0),
            "{clean} {reported}"
        );
    }
}

#[test]
fn neurons_below_the_threshold_are_left_out_whatever_the_budget() {
    for recipe in recipes() {
        let with = |threshold| {
            tiny_image(&Recipe {
                activation: Activation::Silu,
                threshold: Some(threshold),
                ..recipe
            })
        };
        let none = with(0.0);
        let dense = calm_bits(&none, Mode::Exact);
        assert!(calm_bits(&none, Mode::Threshold) == dense, "{recipe:?}");
        let bytes = with(0.1);
        let calm = calm_bits(&bytes, Mode::Threshold);
        assert!(calm != dense, "{recipe:?}");
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        for lanes in 1..=3 {
            let options = options(Mode::Threshold, 1, lanes);
            let options = PlanOptions {
                memory_bytes: least_bytes(&image, options),
                ..options
            };
            with_session(&bytes, options, Latency::UFS_3_1, lanes as u64, |session| {
                assert!(decode(session).unwrap() == calm, "{recipe:?}");
                let stats = session.stats();
                assert!(0 < stats.active_neurons && stats.active_neurons < stats.all_neurons);
                // The same when the prompt is computed as decoding is, however it is cut.
                session.prompt_as_decoded(true);
                session.truncate(0);
                let mut together = Bits::new();
                session
                    .append_each(&TOKENS, 0, &mut |_, logits| {
                        together.push(logits.iter().map(f32::to_bits).collect());
                    })
                    .unwrap();
                session.truncate(0);
                let alone = TOKENS.map(|token| bits(session.append(&[token]).unwrap()));
                assert!(together == alone, "{recipe:?}");
                session.prompt_as_decoded(false);
            });
        }
    }
}

#[test]
fn an_image_without_predictors_or_thresholds_is_refused() {
    let bytes = image_of(recipes()[0], Predictors::None);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = |mode| Plan::new(&image, options(mode, 1 << 30, 1));
    assert_eq!(plan(Mode::Predict), Err(PlanError::Predictors));
    assert_eq!(plan(Mode::Threshold), Err(PlanError::Statistics));
    // One section without a predictor is one too many: the error says so before anything is read.
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::AllButLast);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let plan = |mode| Plan::new(&image, options(mode, 1 << 30, 1));
        assert_eq!(
            plan(Mode::Predict),
            Err(PlanError::Predictors),
            "{recipe:?}"
        );
        assert!(
            calm_bits(&bytes, Mode::Exact)
                == calm_bits(&image_of(recipe, Predictors::None), Mode::Exact)
        );
    }
    let text = PlanError::Predictors.to_string();
    assert!(text.contains("every layer and expert"), "{text}");
}
