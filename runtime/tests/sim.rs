//! The engine on simulated devices: whatever the order, the delays, the budget and the lanes, the
//! logits are the same bits, or there is a clean error.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use support::{Recipe, tiny_image};
use tessera_hal::sim::{Faults, Faulty, Latency, PerFault, ShuffledLanes, SimClock, SimFlash};
use tessera_hal::{Clock, Flash};
use tessera_kernels::{Activation, Kernels, WeightType};
use tessera_runtime::format::Image;
use tessera_runtime::weights::WeightsError;
use tessera_runtime::{Plan, PlanError, PlanOptions, Session, SessionError};

type Bits = Vec<Vec<u32>>;

const TOKENS: [u32; 20] = [
    3, 40, 77, 114, 151, 188, 225, 262, 299, 36, 73, 110, 147, 184, 221, 258, 295, 32, 69, 106,
];

fn recipes() -> Vec<Recipe> {
    let base = Recipe::default();
    vec![
        base,
        Recipe {
            seed: 2,
            n_experts: 4,
            ..base
        },
        Recipe {
            seed: 3,
            attention: WeightType::Q4,
            down: WeightType::Q4O,
            activation: Activation::Relu,
            bundle_neurons: 4,
            tied: false,
            sliding_window: 7,
            ..base
        },
        Recipe {
            seed: 4,
            attention: WeightType::F16,
            gate_up: WeightType::Q6,
            down: WeightType::Q6,
            activation: Activation::ReluBoth,
            bundle_neurons: 1,
            n_experts: 3,
            ..base
        },
        Recipe {
            seed: 5,
            dim: 256,
            attention: WeightType::Q5,
            gate_up: WeightType::Q4K,
            down: WeightType::Q5,
            bundle_neurons: 8,
            ..base
        },
        Recipe {
            seed: 6,
            attention: WeightType::F32,
            gate_up: WeightType::F32,
            down: WeightType::F32,
            activation: Activation::GeluTanh,
            bundle_neurons: 8,
            ..base
        },
    ]
}

fn options(memory_bytes: usize, lanes: usize) -> PlanOptions {
    PlanOptions {
        memory_bytes,
        seq_len: 32,
        batch_tokens: 8,
        logits_rows: 3,
        lanes,
        ..PlanOptions::default()
    }
}

/// The least memory a model runs in.
fn least_bytes(image: &Image<'_>, lanes: usize) -> usize {
    match Plan::new(image, options(1, lanes)) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        other => panic!("one byte was enough: {other:?}"),
    }
}

/// Runs `test` with a loaded session over `flash`.
fn with_session<'m, F: Flash<'m>, C: Clock>(
    image: Image<'m>,
    plan: Plan,
    region: &'m mut [u8],
    flash: F,
    clock: C,
    seed: u64,
    test: impl FnOnce(&mut Session<'m, F, ShuffledLanes, C>),
) {
    let lanes = ShuffledLanes::new(plan.sizes.lanes, seed);
    let mut session =
        Session::new(image, plan, region, flash, lanes, clock, Kernels::best()).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    test(&mut session);
}

/// Logits of every position, token by token or in batches.
fn all_bits<'m, F: Flash<'m>, K: Clock>(
    session: &mut Session<'m, F, ShuffledLanes, K>,
    one_by_one: bool,
) -> Bits {
    let mut all = Bits::new();
    if one_by_one {
        for token in TOKENS {
            let logits = session.append(&[token]).unwrap();
            all.push(logits.iter().map(|logit| logit.to_bits()).collect());
        }
    } else {
        session
            .append_each(&TOKENS, 0, &mut |_, logits| {
                all.push(logits.iter().map(f32::to_bits).collect());
            })
            .unwrap();
    }
    all
}

/// The same model resident, on one lane, on flash that takes no time.
fn calm_bits(bytes: &[u8]) -> Bits {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(1 << 30, 1)).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(bytes, &clock, Latency::NONE, 1);
    let mut all = Bits::new();
    with_session(image, plan, &mut region, flash, &clock, 1, |session| {
        all = all_bits(session, true);
    });
    all
}

#[test]
fn budget_lanes_and_flash_never_change_a_bit() {
    for recipe in recipes() {
        let bytes = tiny_image(&recipe);
        let calm = calm_bits(&bytes);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        for seed in 1..=12u64 {
            let lanes = 1 + (seed % 3) as usize;
            let kept = Plan::new(&image, options(1 << 30, 1)).unwrap().kept_bytes as usize;
            let memory = least_bytes(&image, lanes) + kept * (seed % 4) as usize / 4;
            let plan = Plan::new(&image, options(memory, lanes)).unwrap();
            let total_bytes = plan.budget.total_bytes().unwrap();
            assert!(total_bytes <= memory, "{total_bytes} of {memory}");
            let mut region = vec![0xA5; total_bytes];
            let clock = SimClock::default();
            let latency = if seed % 2 == 0 {
                Latency::UFS_3_1
            } else {
                Latency::UFS_4_0
            };
            let flash = SimFlash::new(&bytes, &clock, latency, seed);
            with_session(image, plan, &mut region, flash, &clock, seed, |session| {
                let bits = all_bits(session, seed % 5 < 2);
                assert!(bits == calm, "seed {seed} of {recipe:?}");
                if plan.sizes.resident_bytes as u64 == plan.kept_bytes {
                    assert_eq!(session.stats().miss_bytes, 0);
                } else {
                    assert!(session.stats().miss_bytes > 0);
                }
            });
        }
    }
}

#[test]
fn failed_and_altered_reads_are_tried_again_or_reported() {
    failed_and_altered_reads(&Recipe::default());
}

#[test]
fn failed_and_altered_reads_of_experts_are_tried_again_or_reported() {
    failed_and_altered_reads(&Recipe {
        n_experts: 3,
        ..Recipe::default()
    });
}

fn failed_and_altered_reads(recipe: &Recipe) {
    let bytes = tiny_image(recipe);
    let calm = calm_bits(&bytes);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(least_bytes(&image, 2), 2)).unwrap();
    let (mut clean, mut reported) = (0, 0);
    for seed in 1..=150u64 {
        let mut region = vec![0; plan.budget.total_bytes().unwrap()];
        let clock = SimClock::default();
        let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, seed);
        let faults = Faults::new(PerFault {
            failed: 50,
            altered: 50,
            lost: 0,
        });
        let flash = Faulty::new(flash, &clock, &faults, seed);
        let lanes = ShuffledLanes::new(2, seed);
        let session = Session::new(
            image,
            plan,
            &mut region,
            flash,
            lanes,
            &clock,
            Kernels::best(),
        );
        let Ok(mut session) = session else { continue };
        if session.load(&mut |_, _| {}).is_err() {
            continue;
        }
        for (pos, token) in TOKENS.into_iter().enumerate() {
            // A token that failed is asked for again: the context must be as it was.
            for _ in 0..50 {
                match session.append(&[token]) {
                    Ok(logits) => {
                        let bits = logits.iter().map(|logit| logit.to_bits());
                        assert!(bits.eq(calm[pos].iter().copied()), "seed {seed}, {pos}");
                        clean += 1;
                        break;
                    }
                    Err(SessionError::Weights(error)) => {
                        assert_eq!(session.pos(), pos);
                        assert!(error.to_string().contains("byte"), "{error}");
                        reported += 1;
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
        }
    }
    assert!(
        clean > 2000 && reported > 20,
        "{clean} clean, {reported} reported"
    );
}

#[test]
fn only_what_is_read_again_counts_as_a_retry() {
    let bytes = tiny_image(&Recipe {
        tied: false,
        ..Recipe::default()
    });
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    // A full queue refuses reads; nothing went wrong.
    let plan = Plan::new(&image, options(least_bytes(&image, 1), 1)).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, 1).with_depth(1);
    with_session(image, plan, &mut region, flash, &clock, 1, |session| {
        session.append(&TOKENS).unwrap();
        assert_eq!(session.stats().retries, 0);
    });
    let (mut failed, mut altered) = (0, 0);
    for seed in 1..=40 {
        let plan = Plan::new(&image, options(1 << 30, 1)).unwrap();
        let mut region = vec![0; plan.budget.total_bytes().unwrap()];
        let (clock, faults) = (SimClock::default(), Faults::default());
        let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, seed);
        let flash = Faulty::new(flash, &clock, &faults, seed);
        let lanes = ShuffledLanes::new(1, seed);
        let kernels = Kernels::best();
        let session = Session::new(image, plan, &mut region, flash, lanes, &clock, kernels);
        let mut session = session.unwrap();
        faults.set(PerFault {
            failed: 100,
            altered: 100,
            lost: 0,
        });
        if session.load(&mut |_, _| {}).is_ok() {
            let counts = faults.counts();
            let wrong = counts.failed + counts.altered;
            assert_eq!(session.stats().retries, u64::from(wrong), "{counts:?}");
            (failed, altered) = (failed + counts.failed, altered + counts.altered);
        }
    }
    assert!(failed > 0 && altered > 0, "{failed} {altered}");
}

/// A read that the device had no room for was not tried.
#[test]
fn a_full_queue_takes_no_try_from_a_read() {
    let bytes = tiny_image(&Recipe {
        tied: false,
        ..Recipe::default()
    });
    let calm = calm_bits(&bytes);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(1 << 30, 1)).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let (clock, faults) = (SimClock::default(), Faults::default());
    let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, 1).with_depth(1);
    let flash = Faulty::new(flash, &clock, &faults, 1);
    with_session(image, plan, &mut region, flash, &clock, 1, |session| {
        // Each of eight embedding rows fails once or twice, three times with one in 30,000.
        faults.set(PerFault {
            failed: 30,
            ..PerFault::default()
        });
        for _ in 0..200 {
            session.truncate(0);
            let logits = session.append(&TOKENS[..8]).unwrap();
            assert!(
                logits
                    .iter()
                    .map(|l| l.to_bits())
                    .eq(calm[7].iter().copied())
            );
        }
        assert!(faults.counts().failed > 20);
    });
}

#[test]
fn a_damaged_unit_is_named() {
    let mut bytes = tiny_image(&Recipe::default());
    let map = Image::new_checked(&bytes, bytes.len() as u64)
        .unwrap()
        .ffn(1, 0);
    bytes[map.bundle_offset(64) as usize + 100] ^= 1;
    assert_bundle_2_of_layer_1_is_named(&bytes);
}

#[test]
fn an_intact_unit_in_another_ones_place_is_named() {
    let mut bytes = tiny_image(&Recipe::default());
    let map = Image::new_checked(&bytes, bytes.len() as u64)
        .unwrap()
        .ffn(1, 0);
    let two = &mut bytes[map.bundle_offset(64) as usize..][..2 * map.bundle.bytes()];
    two.rotate_left(map.bundle.bytes());
    assert_bundle_2_of_layer_1_is_named(&bytes);
}

fn assert_bundle_2_of_layer_1_is_named(bytes: &[u8]) {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    for memory in [least_bytes(&image, 1), 1 << 30] {
        let plan = Plan::new(&image, options(memory, 1)).unwrap();
        let mut region = vec![0; plan.budget.total_bytes().unwrap()];
        let clock = SimClock::default();
        let flash = SimFlash::new(bytes, &clock, Latency::NONE, 1);
        let lanes = ShuffledLanes::new(1, 1);
        let mut session = Session::new(
            image,
            plan,
            &mut region,
            flash,
            lanes,
            &clock,
            Kernels::best(),
        )
        .unwrap();
        let result = session
            .load(&mut |_, _| {})
            .and_then(|()| session.append(&[1]).map(|_| ()));
        let Err(SessionError::Weights(WeightsError::Damaged {
            unit: Some(unit), ..
        })) = result
        else {
            panic!("{result:?}")
        };
        assert_eq!((unit.layer, unit.unit), (1, 2));
        assert_eq!(unit.to_string(), "ffn, layer 1, bundle 2");
    }
}

#[test]
fn cancelling_stops_and_leaves_the_session_usable() {
    let bytes = tiny_image(&Recipe::default());
    let calm = calm_bits(&bytes);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(least_bytes(&image, 2), 2)).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(&bytes, &clock, Latency::UFS_4_0, 7);
    with_session(image, plan, &mut region, flash, &clock, 7, |session| {
        // The flag must outlive the session's memory; a leaked one does.
        let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        session.cancel_with(flag);
        for (pos, token) in TOKENS.into_iter().enumerate() {
            flag.store(true, Ordering::Relaxed);
            assert_eq!(
                session.append(&[token]).unwrap_err(),
                SessionError::Cancelled
            );
            assert_eq!(session.pos(), pos);
            flag.store(false, Ordering::Relaxed);
            let logits = session.append(&[token]).unwrap();
            assert!(
                logits
                    .iter()
                    .map(|l| l.to_bits())
                    .eq(calm[pos].iter().copied())
            );
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_with_both_numbers() {
    let bytes = tiny_image(&Recipe::default());
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(1 << 30, 1)).unwrap();
    let mut region = vec![0; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(&bytes, &clock, Latency::NONE, 1);
    with_session(image, plan, &mut region, flash, &clock, 1, |session| {
        assert_eq!(session.append(&[]).unwrap_err(), SessionError::NoTokens);
        let error = session.append(&[1, 300]).unwrap_err();
        assert_eq!(
            error,
            SessionError::TokenOutOfRange {
                token: 300,
                vocab_size: 300
            }
        );
        let error = session.append(&[1; 33]).unwrap_err();
        assert_eq!(
            error,
            SessionError::ContextLengthExceeded { need: 33, max: 32 }
        );
        session.append(&[1; 32]).unwrap();
        let error = session.append(&[1]).unwrap_err();
        assert_eq!(
            error,
            SessionError::ContextLengthExceeded { need: 33, max: 32 }
        );
        session.truncate(31);
        session.append(&[1]).unwrap();
    });
    let too_long = PlanOptions {
        seq_len: 513,
        ..options(1 << 30, 1)
    };
    assert_eq!(
        Plan::new(&image, too_long),
        Err(PlanError::Context {
            have: 513,
            max: 512
        })
    );
    let too_many = options(1 << 30, 17);
    assert_eq!(
        Plan::new(&image, too_many),
        Err(PlanError::Lanes { have: 17, max: 16 })
    );
    for have in [0, 65] {
        let sequences = PlanOptions {
            sequences: have,
            ..options(1 << 30, 1)
        };
        let refused = Err(PlanError::Sequences { have, max: 64 });
        assert_eq!(Plan::new(&image, sequences), refused);
    }
}

#[test]
fn a_region_one_page_short_is_refused() {
    let bytes = tiny_image(&Recipe::default());
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options(1 << 30, 2)).unwrap();
    let clock = SimClock::default();
    let mut region = vec![0; plan.budget.total_bytes().unwrap() - 2 * 4096];
    let flash = SimFlash::new(&bytes, &clock, Latency::NONE, 1);
    let lanes = ShuffledLanes::new(2, 1);
    let result = Session::new(
        image,
        plan,
        &mut region,
        flash,
        lanes,
        &clock,
        Kernels::best(),
    );
    assert!(matches!(result.err(), Some(SessionError::OutOfMemory(_))));
}

#[test]
fn the_least_memory_is_enough_and_a_byte_less_is_not() {
    for recipe in recipes() {
        let bytes = tiny_image(&recipe);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let least = least_bytes(&image, 2);
        let plan = Plan::new(&image, options(least, 2)).unwrap();
        assert_eq!(plan.budget.total_bytes(), Some(least));
        let error = Plan::new(&image, options(least - 1, 2)).unwrap_err();
        let (have_bytes, need_bytes) = (least - 1, least);
        assert_eq!(
            error,
            PlanError::Memory {
                have_bytes,
                need_bytes
            }
        );
        let mut resident_bytes = 0;
        for memory in (least..least + 2 * bytes.len()).step_by(bytes.len() / 16) {
            let plan = Plan::new(&image, options(memory, 2)).unwrap();
            assert!(plan.budget.total_bytes().unwrap() <= memory);
            assert!(plan.sizes.resident_bytes + plan.sizes.slot_bytes * 16 >= resident_bytes);
            resident_bytes = plan.sizes.resident_bytes;
        }
    }
}
