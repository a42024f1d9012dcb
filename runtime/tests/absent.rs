//! Masks that prefer neurons which are likely to be in memory: they depend on the passes alone.

#[path = "support/interrupt.rs"]
mod interrupt;
mod support;

use interrupt::{Interrupt, Interrupting};
use support::{Predictors, Recipe, tiny_image};
use tessera_hal::sim::{Latency, ShuffledLanes, SimClock, SimFlash};
use tessera_kernels::{Activation, Kernels};
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::Image;
use tessera_runtime::{ColdOptions, Mode, Plan, PlanError, PlanOptions, Session, SessionError};

type Bits = Vec<Vec<u32>>;
type Simulated<'i, 'm> = Session<'m, SimFlash<'i, 'm>, Interrupting, &'static SimClock>;

const PROMPT: [u32; 3] = [3, 40, 77];
/// More than a bundle is remembered for.
const STEPS: u32 = 60;
/// Passes for which a bundle is taken to be in memory.
const NEAR_PASSES: usize = 16;

/// Of one neuron a bundle: of several, one is needed in nearly every pass.
fn recipes() -> [Recipe; 3] {
    let base = Recipe {
        activation: Activation::Relu,
        bundle_neurons: 1,
        ..Recipe::default()
    };
    [
        base,
        Recipe {
            seed: 2,
            n_experts: 3,
            activation: Activation::ReluBoth,
            ..base
        },
        Recipe {
            seed: 3,
            activation: Activation::Silu,
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

/// A plan that the seed chooses.
fn options_of(image: &Image<'_>, absent_loss_pml: u16, seed: usize) -> PlanOptions {
    let cold = ColdOptions {
        policy: [PolicyKind::Lru, PolicyKind::Frequency][seed % 2],
        hot_pct: seed % 4 * 30,
        two_phase: seed.is_multiple_of(3),
        gap: seed % 5,
        reads: 1 + seed * 7 % 64,
        guesses: seed * 5 % 64,
        absent_loss_pml,
        ..ColdOptions::default()
    };
    let options = |memory_bytes| PlanOptions {
        memory_bytes,
        seq_len: 88,
        batch_tokens: 8,
        lanes: 1 + seed % 3,
        mode: Mode::Predict,
        cold,
        ..PlanOptions::default()
    };
    let least = match Plan::new(image, options(1)) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        other => panic!("one byte was enough: {other:?}"),
    };
    let kept_bytes = Plan::new(image, options(1 << 30)).unwrap().kept_bytes as usize;
    options(least + kept_bytes * (seed % 5) / 4)
}

/// Runs `test` with a session, which is still to be loaded.
fn with_session<'i, T>(
    bytes: &'i [u8],
    absent_loss_pml: u16,
    seed: usize,
    test: impl for<'s, 'm> FnOnce(&'s mut Simulated<'i, 'm>, &'static Interrupt) -> T,
) -> T {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options_of(&image, absent_loss_pml, seed)).unwrap();
    let mut region = vec![0xA5; plan.budget.total_bytes().unwrap()];
    // The device borrows the clock for as long as the image.
    let clock: &'static SimClock = Box::leak(Box::default());
    let interrupt: &'static Interrupt = Box::leak(Box::default());
    let flash = SimFlash::new(bytes, clock, Latency::UFS_3_1, seed as u64);
    let lanes = Interrupting {
        lanes: ShuffledLanes::new(plan.sizes.lanes, seed as u64),
        interrupt,
    };
    let kernels = Kernels::best();
    let mut session = Session::new(image, plan, &mut region, flash, lanes, clock, kernels).unwrap();
    session.cancel_with(&interrupt.flag);
    test(&mut session, interrupt)
}

fn token(step: u32) -> u32 {
    188 + 37 * step % 100
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Logits of each token after the prompt; `disturb` is called before each token.
fn decode(session: &mut Simulated<'_, '_>, disturb: &dyn Fn(&mut Simulated<'_, '_>, u32)) -> Bits {
    session.truncate(0);
    session.append(&PROMPT).unwrap();
    let one = |step: u32| {
        disturb(session, step);
        bits(session.append(&[token(step)]).unwrap())
    };
    (0..STEPS).map(one).collect()
}

fn calm(session: &mut Simulated<'_, '_>) -> Bits {
    decode(session, &|_, _| {})
}

fn bits_and_active(bytes: &[u8], absent_loss_pml: u16, seed: usize) -> (Bits, u64) {
    with_session(bytes, absent_loss_pml, seed, |session, _| {
        session.load(&mut |_, _| {}).unwrap();
        let all = calm(session);
        let active = session.stats().active_neurons;
        assert!(calm(session) == all, "a text begins anew");
        (all, active)
    })
}

#[test]
fn what_is_left_out_depends_on_the_passes_alone() {
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::Some);
        let all = bits_and_active(&bytes, 0, 1);
        let fewer = bits_and_active(&bytes, 100, 1);
        assert!(fewer.1 < all.1, "{} of {} neurons", fewer.1, all.1);
        let mut pairs = fewer.0.iter().zip(&all.0);
        let first = pairs.position(|(one, other)| one != other);
        assert!(first.is_some_and(|first| first >= NEAR_PASSES), "{first:?}");
        let fewest = bits_and_active(&bytes, 200, 1);
        assert!(fewest.1 < fewer.1, "the more may be lost, the fewer");
        for seed in 2..=16 {
            let other = bits_and_active(&bytes, 100, seed);
            assert!(other == fewer, "seed {seed} of {recipe:?}");
        }
    }
}

/// Tries `tokens`, which are cancelled after so many calls of the lanes.
fn fail(session: &mut Simulated<'_, '_>, interrupt: &Interrupt, tokens: &[u32], calls: u64) {
    let pos = session.pos();
    interrupt.after(calls);
    match session.append(tokens) {
        Err(SessionError::Cancelled) => {}
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{tokens:?} were not cancelled after {calls} calls"),
    }
    interrupt.never();
    assert_eq!(session.pos(), pos);
}

#[test]
fn calls_that_were_cancelled_do_not_count() {
    for recipe in recipes() {
        let bytes = image_of(recipe, Predictors::Some);
        with_session(&bytes, 100, 3, |session, interrupt| {
            session.load(&mut |_, _| {}).unwrap();
            let plain = calm(session);
            // The same token, another, and a prompt.
            for tokens in [&[][..], &[7], &[7, 8, 9]] {
                let disturbed = decode(session, &|session, step| {
                    let same = [token(step)];
                    let tokens = if tokens.is_empty() { &same } else { tokens };
                    fail(session, interrupt, tokens, 1 + u64::from(step % 10));
                });
                assert!(disturbed == plain, "{tokens:?} of {recipe:?}");
            }
            // Three passes, of which the second is cancelled: the first takes so many calls, more
            // or less by which experts it needs.
            session.prompt_as_decoded(true);
            let of_one_pass = (1..100).find(|&calls| {
                interrupt.after(calls);
                session.append(&[9; 8]).is_ok()
            });
            session.prompt_as_decoded(false);
            interrupt.never();
            let of_one_pass = of_one_pass.expect("a pass has fewer calls");
            let disturbed = decode(session, &|session, step| {
                session.prompt_as_decoded(true);
                fail(
                    session,
                    interrupt,
                    &[9; 24],
                    of_one_pass + u64::from(step % 10),
                );
                session.prompt_as_decoded(false);
            });
            assert!(disturbed == plain, "{recipe:?}");
        });
    }
}

#[test]
fn what_was_truncated_does_not_count() {
    let bytes = image_of(recipes()[0], Predictors::Some);
    with_session(&bytes, 100, 3, |session, _| {
        session.load(&mut |_, _| {}).unwrap();
        let mut after = |tokens: u32, others: u32| {
            session.truncate(0);
            session.append(&PROMPT).unwrap();
            for step in (0..tokens).chain(70..70 + others) {
                session.append(&[token(step)]).unwrap();
            }
            session.truncate(PROMPT.len() + tokens as usize);
            let one = |step| bits(session.append(&[token(step)]).unwrap());
            (tokens..STEPS).map(one).collect::<Bits>()
        };
        assert!(after(20, 1) == after(20, 30));
        assert!(after(20, 0) != after(20, 1), "nothing was truncated");
    });
}

#[test]
fn several_sequences_are_refused() {
    let bytes = image_of(recipes()[0], Predictors::Some);
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let options = PlanOptions {
        sequences: 2,
        ..options_of(&image, 100, 1)
    };
    let error = Plan::new(&image, options).unwrap_err();
    assert_eq!(error, PlanError::AbsentLoss { sequences: 2 });
    assert!(error.to_string().starts_with("2 sequences were asked for"));
}

#[test]
fn an_image_that_knows_no_losses_is_refused_where_they_are_wanted() {
    let bytes = image_of(recipes()[0], Predictors::All);
    let load = |absent_loss_pml| {
        with_session(&bytes, absent_loss_pml, 1, |session, _| {
            session
                .load(&mut |_, _| {})
                .map_err(|error| error.to_string())
        })
    };
    assert_eq!(load(0), Ok(()));
    let said = load(10).unwrap_err();
    assert!(
        said.contains("layer 0, expert 0: the predictor does not say what leaving"),
        "{said}"
    );
}
