//! Memory given back while a session runs: the same bits before, meanwhile and afterwards.

#[path = "support/interrupt.rs"]
mod interrupt;
mod support;

use interrupt::{Interrupt, Interrupting};
use support::{Predictors, Recipe, tiny_image};
use tessera_hal::Reclaim;
use tessera_hal::sim::{
    Faults, Faulty, Latency, PerFault, Poisoning, Random, ShuffledLanes, SimClock, SimFlash,
};
use tessera_kernels::{Activation, Kernels};
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::Image;
use tessera_runtime::{ColdOptions, Mode, Plan, PlanError, PlanOptions, Session, SessionError};

const TOKENS: [u32; 8] = [3, 40, 77, 114, 151, 188, 225, 262];

fn image_of(n_experts: usize) -> Vec<u8> {
    tiny_image(&Recipe {
        activation: Activation::Relu,
        bundle_neurons: 1,
        n_experts,
        predictors: Predictors::Some,
        ..Recipe::default()
    })
}

/// A plan with three quarters of the feed-forward weights in the cache, none in the prefix.
fn plan_of(image: &Image<'_>, mode: Mode, lanes: usize, cold: ColdOptions) -> Plan {
    let options = |memory_bytes| PlanOptions {
        memory_bytes,
        seq_len: 32,
        batch_tokens: 8,
        lanes,
        mode,
        cold: ColdOptions { hot_pct: 0, ..cold },
        ..PlanOptions::default()
    };
    let least = match Plan::new(image, options(1)) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        other => panic!("one byte was enough: {other:?}"),
    };
    let kept_bytes = Plan::new(image, options(1 << 30)).unwrap().kept_bytes;
    Plan::new(image, options(least + kept_bytes as usize / 4 * 3)).unwrap()
}

type Device<'i, 'm> = Faulty<'i, 'm, SimFlash<'i, 'm>>;
type Simulated<'i, 'm> = Session<'m, Device<'i, 'm>, Interrupting, &'static SimClock>;

/// Runs `test` with a loaded session on a device of whose reads so many of 1,000 fail, and as many
/// are altered; `None` where it cannot be loaded.
fn with_session<'i, T>(
    bytes: &'i [u8],
    plan: Plan,
    (seed, fault_pml): (u64, u32),
    test: impl for<'s, 'm> FnOnce(&'s mut Simulated<'i, 'm>, &'static Interrupt) -> T,
) -> Option<T> {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let mut region = vec![0xA5; plan.budget.total_bytes().unwrap()];
    // The device borrows them for as long as the image.
    let clock: &'static SimClock = Box::leak(Box::default());
    let faults: &'static Faults = Box::leak(Box::new(Faults::new(PerFault {
        failed: fault_pml,
        altered: fault_pml,
        lost: 0,
    })));
    let flash = SimFlash::new(bytes, clock, Latency::UFS_3_1, seed);
    let flash = Faulty::new(flash, clock, faults, seed);
    let interrupt: &'static Interrupt = Box::leak(Box::default());
    let lanes = Interrupting {
        lanes: ShuffledLanes::new(plan.sizes.lanes, seed),
        interrupt,
    };
    let kernels = Kernels::best();
    let session = Session::new(image, plan, &mut region, flash, lanes, clock, kernels);
    let mut session = session.ok()?;
    session.load(&mut |_, _| {}).ok()?;
    session.cancel_with(&interrupt.flag);
    Some(test(&mut session, interrupt))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn calm_bits(bytes: &[u8]) -> Vec<Vec<u32>> {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = plan_of(&image, Mode::Predict, 1, ColdOptions::default());
    let decode = |session: &mut Simulated<'_, '_>, _: &Interrupt| {
        let one = |token: u32| bits(session.append(&[token]).unwrap());
        TOKENS.map(one).to_vec()
    };
    with_session(bytes, plan, (1, 0), decode).unwrap()
}

#[test]
fn logits_stay_the_same_while_memory_comes_and_goes() {
    for n_experts in [0, 3] {
        let bytes = image_of(n_experts);
        let calm = calm_bits(&bytes);
        let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        let (mut waited_ns, mut cancelled) = (0, 0);
        for seed in 1..=40u64 {
            let mut random = Random::new(seed);
            let cold = ColdOptions {
                policy: [PolicyKind::Lru, PolicyKind::Frequency][(seed % 2) as usize],
                two_phase: seed % 3 == 0,
                ..ColdOptions::default()
            };
            let fault_pml = if seed % 4 == 0 { 30 } else { 0 };
            let plan = plan_of(&image, Mode::Predict, 1 + (seed % 3) as usize, cold);
            let mut system = Poisoning::new([1, 64, 4096][(seed % 3) as usize]);
            let run = |session: &mut Simulated<'_, '_>, interrupt: &Interrupt| {
                let (all, mut given) = (session.spare_bytes(&system), 0);
                assert!(all > 0);
                let mut index = 0;
                for _ in 0..40 {
                    match random.below(3) {
                        0 => interrupt.after(1 + random.below(40)),
                        _ => interrupt.never(),
                    }
                    match session.append(&TOKENS[index..=index]) {
                        Ok(logits) => {
                            assert!(bits(logits) == calm[index], "seed {seed}");
                            index = (index + 1) % TOKENS.len();
                            session.truncate(index);
                        }
                        Err(SessionError::Cancelled) => cancelled += 1,
                        Err(SessionError::Weights(_)) if fault_pml > 0 => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                    let spare = session.spare_bytes(&system);
                    assert_eq!(spare + given, all);
                    let bytes = random.below(spare as u64 + 1) as usize;
                    let before = session.stats();
                    match random.below(4) {
                        0 => {
                            let gave = session.shrink(bytes, &mut system).unwrap();
                            assert!(gave >= bytes && gave <= spare);
                            given += gave;
                        }
                        1 => {
                            let some = random.below(given as u64 + 1) as usize;
                            let took = session.grow(some, &system);
                            assert!(took <= some);
                            given -= took;
                        }
                        _ => {}
                    }
                    waited_ns += session.stats().since(&before).stall_ns;
                }
                given -= session.grow(usize::MAX, &system);
                assert_eq!((given, session.spare_bytes(&system)), (0, all));
            };
            with_session(&bytes, plan, (seed, fault_pml), run);
            assert!(fault_pml > 0 || system.given_bytes > 0, "seed {seed}");
        }
        // Guesses are made in models without experts; some of them were still being read.
        assert_eq!((waited_ns > 0, cancelled > 100), (n_experts == 0, true));
    }
}

#[test]
fn less_than_was_asked_for_is_refused_with_both_numbers() {
    let bytes = image_of(0);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = plan_of(&image, Mode::Predict, 1, ColdOptions::default());
    with_session(&bytes, plan, (1, 0), |session, _| {
        let mut system = Poisoning::new(4096);
        let have_bytes = session.spare_bytes(&system);
        let want_bytes = have_bytes + 1;
        let error = session.shrink(want_bytes, &mut system).unwrap_err();
        assert_eq!(
            error,
            SessionError::NotEnoughCache {
                want_bytes,
                have_bytes
            }
        );
        assert!(
            error.to_string().contains(&want_bytes.to_string()),
            "{error}"
        );
        assert_eq!(system.given_bytes, 0);
        assert_eq!(session.shrink(have_bytes, &mut system), Ok(have_bytes));
        assert_eq!(system.given_bytes, have_bytes);
        // What is left is enough to decode with, and nothing more is to be had.
        session.append(&TOKENS).unwrap();
        session.append(&[5]).unwrap();
        assert_eq!(session.spare_bytes(&system), 0);
        assert!(session.shrink(1, &mut system).is_err());
        assert_eq!(session.shrink(0, &mut system), Ok(0));
    })
    .unwrap();
    let plan = plan_of(&image, Mode::Exact, 1, ColdOptions::default());
    with_session(&bytes, plan, (1, 0), |session, _| {
        let mut system = Poisoning::new(4096);
        assert_eq!(session.shrink(0, &mut system), Ok(0));
        let error = session.shrink(1, &mut system).unwrap_err();
        assert!(matches!(
            error,
            SessionError::NotEnoughCache { have_bytes: 0, .. }
        ));
        assert_eq!(session.grow(usize::MAX, &system), 0);
    })
    .unwrap();
    assert_eq!(tessera_hal::KeepAll.page_bytes(), 1);
}

/// A smaller cache misses more, and a cache that has grown again as little as before.
#[test]
fn the_cache_serves_as_much_as_it_has_memory() {
    let bytes = image_of(0);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let plan = plan_of(&image, Mode::Predict, 1, ColdOptions::default());
    with_session(&bytes, plan, (1, 0), |session, _| {
        let missed = |session: &mut Simulated<'_, '_>| {
            let mut before = session.stats();
            for round in 0..3 {
                // The first round fills the cache.
                before = if round == 1 { session.stats() } else { before };
                session.truncate(0);
                for token in TOKENS {
                    session.append(&[token]).unwrap();
                }
            }
            session.stats().since(&before).miss_bytes
        };
        let mut system = Poisoning::new(4096);
        let whole = missed(session);
        let spare = session.spare_bytes(&system);
        session.shrink(spare / 2, &mut system).unwrap();
        let half = missed(session);
        session
            .shrink(session.spare_bytes(&system), &mut system)
            .unwrap();
        let least = missed(session);
        session.grow(usize::MAX, &system);
        let again = missed(session);
        assert!(whole < half && half < least, "{whole} {half} {least}");
        assert!(again < half, "{again} {half}");
    })
    .unwrap();
}
