//! Sessions on devices that are late, out of order, wrong, or lose reads, one for each seed: the
//! same bits or a clean error, never a hang, no place lost.
//!
//! A few hundred seeds run with the other tests, `TESSERA_SIM_SEEDS=10000` runs more.

#[path = "support/interrupt.rs"]
mod interrupt;
mod support;

use interrupt::{Interrupt, Interrupting};
use support::{Predictors, Recipe, tiny_image};
use tessera_hal::PAGE_BYTES;
use tessera_hal::sim::{
    Faults, Faulty, Latency, PerFault, Poisoning, Random, ShuffledLanes, SimClock, SimFlash,
};
use tessera_kernels::{Activation, Kernels};
use tessera_runtime::cache::PolicyKind;
use tessera_runtime::format::Image;
use tessera_runtime::plan::Without;
use tessera_runtime::stream::StreamError;
use tessera_runtime::weights::WeightsError;
use tessera_runtime::{ColdOptions, Mode, Plan, PlanError, PlanOptions, Session, SessionError};

const SEEDS_DEFAULT: u64 = 300;
const PROMPT: [u32; 5] = [3, 40, 77, 114, 151];
const TOKENS: [u32; 6] = [188, 225, 262, 299, 36, 73];
/// The prompt, and each token.
const STEPS: usize = 1 + TOKENS.len();
const WELL: PerFault = PerFault {
    failed: 0,
    altered: 0,
    lost: 0,
};

/// What a test does to a session while it has it.
#[derive(Default)]
struct Knobs {
    faults: Faults,
    interrupt: Interrupt,
}

type Bits = Vec<Vec<u32>>;
type Device<'i, 'm> = Faulty<'i, 'm, SimFlash<'i, 'm>>;
type Troubles<'i, 'm> = Session<'m, Device<'i, 'm>, Interrupting, &'static SimClock>;

/// How often each end was seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ends {
    /// Seeds without any error.
    clean: u64,
    /// Seeds that had errors, and gave all bits when they were asked again.
    recovered: u64,
    /// Seeds whose device kept a read for ever, so that something could not be had any more.
    crippled: u64,
    /// Sessions that could not be loaded.
    unloaded: u64,
    /// Calls: right, and by kind of error.
    right: u64,
    device: u64,
    damaged: u64,
    deadline: u64,
    cancelled: u64,
    /// Bytes that were given back.
    given_bytes: u64,
}

impl Ends {
    /// Counts an error that may happen.
    fn count(&mut self, error: SessionError, seed: u64) {
        let kind = match error {
            SessionError::Cancelled => &mut self.cancelled,
            SessionError::Weights(WeightsError::Damaged { .. }) => &mut self.damaged,
            SessionError::Weights(WeightsError::Read { error, .. }) => match error {
                StreamError::Device { .. } => &mut self.device,
                StreamError::Deadline { .. } => &mut self.deadline,
            },
            error => panic!("seed {seed}: {error}"),
        };
        *kind += 1;
    }
}

/// A model and a mode, with the logits of each step on a device without troubles.
struct Case {
    mode: Mode,
    bytes: Vec<u8>,
    calm: Bits,
}

fn options(mode: Mode, memory_bytes: usize, lanes: usize, cold: ColdOptions) -> PlanOptions {
    PlanOptions {
        memory_bytes,
        seq_len: 16,
        batch_tokens: 8,
        lanes,
        mode,
        cold,
        ..PlanOptions::default()
    }
}

fn cases() -> Vec<Case> {
    let base = Recipe {
        activation: Activation::Relu,
        bundle_neurons: 1,
        predictors: Predictors::Some,
        threshold: Some(0.1),
        ..Recipe::default()
    };
    let recipes = [
        (base, [Mode::Exact, Mode::Predict]),
        (
            Recipe {
                seed: 2,
                n_experts: 3,
                bundle_neurons: 4,
                ..base
            },
            [Mode::Exact, Mode::Predict],
        ),
        (
            Recipe {
                seed: 3,
                activation: Activation::Silu,
                bundle_neurons: 8,
                ..base
            },
            [Mode::Threshold, Mode::Predict],
        ),
    ];
    let all = recipes.iter().flat_map(|(recipe, modes)| {
        let bytes = tiny_image(recipe);
        modes.map(|mode| {
            let options = options(mode, 1 << 30, 1, ColdOptions::default());
            let mut calm = Bits::new();
            let run = |session: &mut Troubles<'_, '_>, _: &Knobs| {
                for at in 0..STEPS {
                    calm.push(bits(session.append(step(at)).unwrap()));
                }
            };
            with_session(&bytes, options, (Latency::NONE, 32), 1, WELL, run).unwrap();
            let bytes = bytes.clone();
            Case { mode, bytes, calm }
        })
    });
    all.collect()
}

fn step(at: usize) -> &'static [u32] {
    match at.checked_sub(1) {
        None => &PROMPT,
        Some(at) => &TOKENS[at..=at],
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Runs `test` with a loaded session, if it can be loaded.
fn with_session<'i>(
    bytes: &'i [u8],
    options: PlanOptions,
    (latency, depth): (Latency, usize),
    seed: u64,
    faults: PerFault,
    test: impl for<'s, 'm> FnOnce(&'s mut Troubles<'i, 'm>, &'static Knobs),
) -> Result<(), SessionError> {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options).unwrap();
    let mut region = vec![0xA5; plan.budget.total_bytes().unwrap()];
    // The device borrows them for as long as the image.
    let clock: &'static SimClock = Box::leak(Box::default());
    let knobs: &'static Knobs = Box::leak(Box::default());
    knobs.faults.set(faults);
    let flash = SimFlash::new(bytes, clock, latency, seed).with_depth(depth);
    let flash = Faulty::new(flash, clock, &knobs.faults, seed);
    let lanes = Interrupting {
        lanes: ShuffledLanes::new(options.lanes, seed),
        interrupt: &knobs.interrupt,
    };
    let kernels = Kernels::best();
    let mut session = Session::new(image, plan, &mut region, flash, lanes, clock, kernels)?;
    if let Err(error) = session.load(&mut |_, _| {}) {
        // Once all is well again it can be loaded, unless the device kept a buffer.
        knobs.faults.set(WELL);
        let again = session.load(&mut |_, _| {});
        let lost = knobs.faults.counts().lost > 0;
        assert!(lost || again.is_ok(), "seed {seed}: {again:?}");
        return Err(error);
    }
    session.cancel_with(&knobs.interrupt.flag);
    test(&mut session, knobs);
    Ok(())
}

/// A plan that only the seed knows.
fn drawn_options(case: &Case, random: &mut Random) -> PlanOptions {
    let mut below = |count: u64| random.below(count) as usize;
    let baseline = below(4);
    let without = Without {
        bundles: baseline == 0 || below(8) == 0,
        cache: baseline == 0 || below(8) == 0,
        pipeline: baseline < 2 || below(8) == 0,
    };
    let cold = ColdOptions {
        policy: [PolicyKind::Lru, PolicyKind::Frequency][below(2)],
        hot_pct: below(4) * 30,
        two_phase: below(3) == 0,
        gap: below(6),
        reads: 1 + below(64),
        guesses: below(64),
        // Texts are too short for it to matter; `absent.rs` has longer ones.
        absent_loss_pml: 0,
        without,
    };
    let lanes = 1 + below(3);
    let image = Image::new_checked(&case.bytes, case.bytes.len() as u64).unwrap();
    let with = |memory_bytes| options(case.mode, memory_bytes, lanes, cold);
    let least = match Plan::new(&image, with(1)) {
        Err(PlanError::Memory { need_bytes, .. }) => need_bytes,
        other => panic!("one byte was enough: {other:?}"),
    };
    let kept_bytes = Plan::new(&image, with(1 << 30)).unwrap().kept_bytes as usize;
    with(least + kept_bytes * below(5) / 4)
}

/// Everything that happens to the session of one seed.
fn run_seed(case: &Case, seed: u64, ends: &mut Ends) {
    let mut random = Random::new(seed);
    let options = drawn_options(case, &mut random);
    let slow = Latency {
        slow_pml: 50,
        ..Latency::UFS_3_1
    };
    let latencies = [Latency::NONE, Latency::UFS_4_0, Latency::UFS_3_1, slow];
    let latency = latencies[random.below(4) as usize];
    let depth = 1 + random.below(64) as usize;
    let mut shares = |most: &[u32]| most[random.below(most.len() as u64) as usize];
    let faults = PerFault {
        failed: shares(&[0, 0, 10, 30, 100, 400]),
        altered: shares(&[0, 0, 10, 30, 100, 400]),
        lost: shares(&[0, 0, 0, 0, 1, 5]),
    };
    // Loading reads most: half of the devices fall ill afterwards.
    let at_load = [faults, WELL][random.below(2) as usize];
    let mut seen = Ends::default();
    let run = |session: &mut Troubles<'_, '_>, knobs: &'static Knobs| {
        knobs.faults.set(faults);
        let mut system = Poisoning::new(4096);
        let mut tries = 0;
        let mut at = 0;
        while at < STEPS && tries < 60 {
            tries += 1;
            match random.below(6) {
                0 => knobs.interrupt.after(1 + random.below(60)),
                _ => knobs.interrupt.never(),
            }
            let pos = session.pos();
            match session.append(step(at)) {
                Ok(logits) => {
                    let right = bits(logits) == case.calm[at];
                    assert!(right, "seed {seed}, step {at}, {options:?}");
                    (at, seen.right) = (at + 1, seen.right + 1);
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    assert_eq!(session.pos(), pos, "seed {seed}");
                    seen.count(error, seed);
                }
            }
            if random.below(5) == 0 {
                let bytes = random.below(session.spare_bytes(&system) as u64 + 1);
                match session.shrink(bytes as usize, &mut system) {
                    Ok(given) => seen.given_bytes += given as u64,
                    Err(error) => seen.count(error, seed),
                }
            } else if random.below(5) == 0 {
                session.grow(random.below(1 << 20) as usize, &system);
            }
        }
        // All is well again: everything can be had, unless the device kept a buffer.
        knobs.faults.set(WELL);
        knobs.interrupt.never();
        session.truncate(0);
        let lost = knobs.faults.counts().lost > 0;
        let mut calm = || {
            session.shrink(session.spare_bytes(&system), &mut system)?;
            session.grow(usize::MAX, &system);
            for at in 0..STEPS {
                let right = bits(session.append(step(at))?) == case.calm[at];
                assert!(right, "seed {seed}, at the end, {options:?}");
            }
            Ok(())
        };
        match calm() {
            Ok(()) if seen.device + seen.damaged + seen.deadline == 0 => seen.clean += 1,
            Ok(()) => seen.recovered += 1,
            Err(error) => {
                assert!(lost, "seed {seed}: {error} on a device that is well");
                seen.count(error, seed);
                seen.crippled += 1;
            }
        }
    };
    if let Err(error) = with_session(&case.bytes, options, (latency, depth), seed, at_load, run) {
        ends.count(error, seed);
        ends.unloaded += 1;
    }
    ends.add(&seen);
}

impl Ends {
    fn add(&mut self, seen: &Ends) {
        self.clean += seen.clean;
        self.recovered += seen.recovered;
        self.crippled += seen.crippled;
        self.right += seen.right;
        self.device += seen.device;
        self.damaged += seen.damaged;
        self.deadline += seen.deadline;
        self.cancelled += seen.cancelled;
        self.given_bytes += seen.given_bytes;
    }
}

/// A read of one neuron that never comes out, in every design: the wait ends, and names it.
#[test]
fn a_lost_read_of_a_neuron_is_named() {
    let cases = cases();
    let design = |bundles, cache, pipeline, two_phase| ColdOptions {
        two_phase,
        policy: PolicyKind::Lru,
        hot_pct: 0,
        without: Without {
            bundles,
            cache,
            pipeline,
        },
        ..ColdOptions::default()
    };
    let designs = [
        design(false, false, false, false),
        design(false, false, false, true),
        design(false, false, true, false),
        design(false, true, true, false),
        design(true, true, true, true),
    ];
    for case in cases.iter().filter(|case| case.mode == Mode::Predict) {
        let image = Image::new_checked(&case.bytes, case.bytes.len() as u64).unwrap();
        let experts = [0, image.shape().n_ffns() - 1].map(|expert| image.ffn(1, expert));
        let [from, last] = experts.map(|map| map.offset);
        let to = last + experts[1].run_bytes(experts[1].neurons) as u64;
        for (cold, lanes) in designs.iter().flat_map(|cold| [(*cold, 1), (*cold, 2)]) {
            let one = options(case.mode, 1, lanes, cold);
            let Err(PlanError::Memory { need_bytes, .. }) = Plan::new(&image, one) else {
                panic!("one byte was enough")
            };
            let least = options(case.mode, need_bytes, lanes, cold);
            let run = |session: &mut Troubles<'_, '_>, knobs: &'static Knobs| {
                session.append(&PROMPT).unwrap();
                let pages = [from, to].map(|offset| (offset / PAGE_BYTES) as u32);
                knobs.faults.lose_only(pages[0]..pages[1]);
                knobs.faults.set(PerFault { lost: 1000, ..WELL });
                let (pos, begun_ns) = (session.pos(), session.now_ns());
                let error = TOKENS
                    .iter()
                    .find_map(|&token| session.append(&[token]).err());
                let waited_ns = session.now_ns() - begun_ns;
                assert!(
                    (15..60).contains(&(waited_ns / 1_000_000_000)),
                    "{waited_ns}"
                );
                assert!(session.pos() >= pos);
                let text = error.expect("reads of the layer are lost").to_string();
                assert!(text.contains("did not finish in time"), "{text}");
                assert!(text.contains("ffn, layer 1"), "{text}");
            };
            let device = (Latency::UFS_4_0, 32);
            with_session(&case.bytes, least, device, 1, WELL, run).unwrap();
        }
    }
}

#[test]
fn every_seed_gives_the_same_bits_or_a_clean_error() {
    let seeds = std::env::var("TESSERA_SIM_SEEDS");
    let seeds = seeds.map_or(SEEDS_DEFAULT, |seeds| seeds.parse().expect("a number"));
    let begun = std::time::Instant::now();
    let (cases, mut ends) = (cases(), Ends::default());
    for seed in 1..=seeds {
        run_seed(&cases[seed as usize % cases.len()], seed, &mut ends);
    }
    println!("{seeds} seeds in {:?}: {ends:?}", begun.elapsed());
    let sum = ends.clean + ends.recovered + ends.crippled + ends.unloaded;
    assert_eq!(sum, seeds);
    // All kinds occur, or the test tests less than it says.
    let kinds = [ends.clean, ends.recovered, ends.crippled, ends.unloaded];
    let errors = [ends.device, ends.damaged, ends.deadline, ends.cancelled];
    let all = kinds.iter().chain(&errors).chain([&ends.given_bytes]);
    assert!(all.into_iter().all(|&count| count > 0), "{ends:?}");
}
