//! Loading: what fails is loaded again, and nothing is computed before.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use support::{Predictors, Recipe, tiny_image};
use tessera_hal::sim::{Latency, ShuffledLanes, SimClock, SimFlash};
use tessera_kernels::{Activation, Kernels};
use tessera_runtime::format::Image;
use tessera_runtime::stream::StreamError;
use tessera_runtime::weights::WeightsError;
use tessera_runtime::{ColdOptions, Mode, Plan, PlanOptions, Session, SessionError};

const TOKENS: [u32; 4] = [3, 40, 77, 114];

type Simulated<'i, 'm> = Session<'m, SimFlash<'i, 'm>, ShuffledLanes, &'static SimClock>;

fn image_of(seed: u64) -> Vec<u8> {
    tiny_image(&Recipe {
        seed,
        activation: Activation::Relu,
        bundle_neurons: 8,
        predictors: Predictors::Some,
        threshold: Some(0.1),
        tied: false,
        ..Recipe::default()
    })
}

/// Runs `test` with a session that is not loaded, if it can be made; half of the feed-forward
/// weights are resident.
fn with_session<'i>(
    bytes: &'i [u8],
    mode: Mode,
    (latency, seed): (Latency, u64),
    test: impl for<'s, 'm> FnOnce(&'s mut Simulated<'i, 'm>),
) -> Result<(), SessionError> {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let options = PlanOptions {
        memory_bytes: 1 << 30,
        seq_len: 16,
        batch_tokens: 8,
        mode,
        cold: ColdOptions {
            hot_pct: 50,
            ..ColdOptions::default()
        },
        ..PlanOptions::default()
    };
    let roomy = Plan::new(&image, options).unwrap();
    let memory_bytes = roomy.budget.total_bytes().unwrap() - roomy.kept_bytes as usize / 4;
    let plan = Plan::new(
        &image,
        PlanOptions {
            memory_bytes,
            ..options
        },
    )
    .unwrap();
    let mut region = vec![0xA5; plan.budget.total_bytes().unwrap()];
    // The device borrows the clock for as long as the image.
    let clock: &'static SimClock = Box::leak(Box::default());
    let flash = SimFlash::new(bytes, clock, latency, seed);
    let lanes = ShuffledLanes::new(1, seed);
    let kernels = Kernels::best();
    let mut session = Session::new(image, plan, &mut region, flash, lanes, clock, kernels)?;
    test(&mut session);
    Ok(())
}

fn decode(session: &mut Simulated<'_, '_>) -> Result<Vec<Vec<u32>>, SessionError> {
    session.truncate(0);
    let one = |token: u32| {
        let logits = session.append(&[token])?;
        Ok(logits.iter().map(|logit| logit.to_bits()).collect())
    };
    TOKENS.into_iter().map(one).collect()
}

fn calm(bytes: &[u8], mode: Mode) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    with_session(bytes, mode, (Latency::NONE, 1), |session| {
        session.load(&mut |_, _| {}).unwrap();
        all = decode(session).unwrap();
    })
    .unwrap();
    all
}

/// Calls until it is done; only reads that come too late may fail. How often they did.
fn insist<T>(mut call: impl FnMut() -> Result<T, SessionError>) -> (T, usize) {
    for failures in 0..100 {
        match call() {
            Ok(done) => return (done, failures),
            Err(SessionError::Weights(WeightsError::Read { error, .. })) => {
                assert!(matches!(error, StreamError::Deadline { .. }), "{error:?}");
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("still not done")
}

/// A read that came too late for one call is in the device when the next one begins.
#[test]
fn a_load_after_one_that_failed_waits_for_its_reads() {
    let late = Latency {
        slow_pml: 20,
        slow_ns: 30_000_000_000,
        ..Latency::UFS_4_0
    };
    for mode in [Mode::Exact, Mode::Predict, Mode::Threshold] {
        let bytes = image_of(1);
        let calm = calm(&bytes, mode);
        let (mut again, mut made) = (0, 0);
        for seed in 1..=200 {
            let made_one = with_session(&bytes, mode, (late, seed), |session| {
                again += insist(|| session.load(&mut |_, _| {})).1;
                let (bits, failures) = insist(|| decode(session));
                assert!(bits == calm, "seed {seed}, {mode:?}");
                // What a token left in the device is waited for as well.
                if failures > 0 {
                    insist(|| session.load(&mut |_, _| {}));
                    assert!(
                        insist(|| decode(session)).0 == calm,
                        "seed {seed}, {mode:?}"
                    );
                }
            });
            made += u32::from(made_one.is_ok());
        }
        assert!(made > 100 && again > 20, "{made} {again}");
    }
}

#[test]
fn nothing_is_computed_with_weights_that_were_not_loaded() {
    for mode in [Mode::Exact, Mode::Predict, Mode::Threshold] {
        let bytes = image_of(2);
        let calm = calm(&bytes, mode);
        with_session(&bytes, mode, (Latency::NONE, 1), |session| {
            let refused = |session: &mut Simulated<'_, '_>| {
                let error = Some(SessionError::NotLoaded);
                assert_eq!(session.append(&TOKENS).err(), error);
                let each = session.append_each(&TOKENS, 0, &mut |_, _| panic!("no logits"));
                assert_eq!(each.err(), error);
                let decoded = session.decode(&[(0, 1)], &mut |_, _| panic!("no logits"));
                assert_eq!(decoded.err(), error);
                assert_eq!(session.pos(), 0);
            };
            refused(session);
            // Cancelled at the first look, in the middle, and when all but the cache is there.
            let flag: &'static AtomicBool = Box::leak(Box::default());
            session.cancel_with(flag);
            for at_pct in [0, 50, 100] {
                let result = session.load(&mut |done, all| {
                    flag.store(done * 100 >= all * at_pct, Ordering::Relaxed);
                });
                flag.store(false, Ordering::Relaxed);
                let cancelled = Err(SessionError::Cancelled);
                if at_pct < 100 || mode == Mode::Predict {
                    assert_eq!(result, cancelled, "{mode:?}, {at_pct}");
                    refused(session);
                }
            }
            session.load(&mut |_, _| {}).unwrap();
            assert!(decode(session).unwrap() == calm, "{mode:?}");
        })
        .unwrap();
    }
}
