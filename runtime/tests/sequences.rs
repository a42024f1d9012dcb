//! Several sequences in one session, and contexts of several segments: a sequence's logits are the
//! same bits whatever else is computed beside it.

mod support;

use support::{Recipe, tiny_image};
use tessera_hal::sim::{Latency, ShuffledLanes, SimClock, SimFlash};
use tessera_kernels::{Kernels, WeightType};
use tessera_runtime::format::Image;
use tessera_runtime::{KvType, Plan, PlanOptions, Session, SessionError};

type TinySession<'i, 'm> = Session<'m, SimFlash<'i, 'm>, ShuffledLanes, &'i SimClock>;

/// Tokens of each sequence's prompt, and steps that all are decoded for.
const PROMPTS: [usize; 5] = [1, 150, 131, 7, 291];
const STEPS: usize = 6;

fn token(sequence: usize, pos: usize) -> u32 {
    (3 + 37 * pos + 101 * sequence) as u32 % 300
}

fn recipes() -> [Recipe; 3] {
    let base = Recipe::default();
    [
        base,
        Recipe {
            seed: 3,
            sliding_window: 140,
            n_experts: 3,
            ..base
        },
        Recipe {
            seed: 6,
            attention: WeightType::F32,
            gate_up: WeightType::F32,
            down: WeightType::F32,
            ..base
        },
    ]
}

fn options(sequences: usize, lanes: usize, kv: KvType) -> PlanOptions {
    PlanOptions {
        memory_bytes: 1 << 30,
        seq_len: 300,
        sequences,
        kv,
        // The longest prompt ends with 11 tokens: more units than are worked on at once.
        batch_tokens: 40,
        lanes,
        ..PlanOptions::default()
    }
}

/// Runs `test` with a loaded session.
fn with_session(bytes: &[u8], options: PlanOptions, test: impl FnOnce(&mut TinySession<'_, '_>)) {
    let image = Image::new_checked(bytes, bytes.len() as u64).unwrap();
    let plan = Plan::new(&image, options).unwrap();
    let mut region = vec![0xff; plan.budget.total_bytes().unwrap()];
    let clock = SimClock::default();
    let flash = SimFlash::new(bytes, &clock, Latency::NONE, 1);
    let lanes = ShuffledLanes::new(plan.sizes.lanes, 5);
    let kernels = Kernels::best();
    let mut session =
        Session::new(image, plan, &mut region, flash, lanes, &clock, kernels).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    test(&mut session);
}

fn bits(logits: impl Iterator<Item = f32>) -> Vec<u32> {
    logits.map(f32::to_bits).collect()
}

/// Logits of a sequence's steps, alone, token by token on one lane.
fn alone(bytes: &[u8], sequence: usize, kv: KvType) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    with_session(bytes, options(1, 1, kv), |session| {
        for pos in 0..PROMPTS[sequence] + STEPS {
            let logits = session.append(&[token(sequence, pos)]).unwrap();
            if pos >= PROMPTS[sequence] {
                all.push(bits(logits.iter().copied()));
            }
        }
    });
    all
}

#[test]
fn sequences_side_by_side_give_the_bits_of_each_alone() {
    for recipe in recipes() {
        let bytes = tiny_image(&recipe);
        for kv in [KvType::F16, KvType::Q8] {
            let want: Vec<_> = (0..PROMPTS.len())
                .map(|sequence| alone(&bytes, sequence, kv))
                .collect();
            for lanes in [1, 2, 3] {
                with_session(&bytes, options(PROMPTS.len(), lanes, kv), |session| {
                    for (sequence, &len) in PROMPTS.iter().enumerate() {
                        session.select(sequence).unwrap();
                        let prompt: Vec<u32> = (0..len).map(|pos| token(sequence, pos)).collect();
                        session.append(&prompt).unwrap();
                    }
                    for step in 0..STEPS {
                        check_step(session, step, &want);
                    }
                });
            }
        }
    }
}

/// Decodes one token of some of the sequences, then of the others.
fn check_step(session: &mut TinySession<'_, '_>, step: usize, want: &[Vec<Vec<u32>>]) {
    let all: Vec<(usize, u32)> = PROMPTS
        .iter()
        .enumerate()
        .map(|(sequence, len)| (sequence, token(sequence, len + step)))
        .rev()
        .collect();
    let (first, second) = all.split_at(all.len() - step % 3);
    for steps in [first, second]
        .into_iter()
        .filter(|steps| !steps.is_empty())
    {
        let mut seen = 0;
        session
            .decode(steps, &mut |index, logits| {
                let sequence = steps[index].0;
                assert!(
                    bits(logits.iter()) == want[sequence][step],
                    "sequence {sequence}, step {step}"
                );
                seen += 1;
            })
            .unwrap();
        assert_eq!(seen, steps.len());
    }
}

#[test]
fn what_cannot_be_decoded_changes_nothing() {
    let bytes = tiny_image(&Recipe::default());
    with_session(&bytes, options(2, 2, KvType::F16), |session| {
        let mut none = |_: usize, _: tessera_runtime::session::Logits<'_>| panic!("no logits");
        assert_eq!(session.decode(&[], &mut none), Err(SessionError::NoTokens));
        let (sequence, max) = (2, 2);
        let absent = SessionError::SequenceOutOfRange { sequence, max };
        assert_eq!(session.decode(&[(0, 1), (2, 1)], &mut none), Err(absent));
        assert_eq!(session.select(2), Err(absent));
        assert_eq!(
            session.decode(&[(1, 1), (1, 2)], &mut none),
            Err(SessionError::SequenceTwice { sequence: 1 })
        );
        let (token, vocab_size) = (300, 300);
        assert_eq!(
            session.decode(&[(1, 300)], &mut none),
            Err(SessionError::TokenOutOfRange { token, vocab_size })
        );
        session.append(&[1; 300]).unwrap();
        assert_eq!(
            session.decode(&[(1, 1), (0, 1)], &mut none),
            Err(SessionError::ContextLengthExceeded {
                need: 301,
                max: 300
            })
        );
        assert_eq!(session.pos(), 300);
        session.select(1).unwrap();
        assert_eq!(session.pos(), 0);
    });
}

#[test]
fn eight_bit_caches_take_little_more_than_half() {
    let bytes = tiny_image(&Recipe::default());
    let image = Image::new_checked(&bytes, bytes.len() as u64).unwrap();
    let kv_bytes = |sequences, kv| {
        let plan = Plan::new(&image, options(sequences, 1, kv)).unwrap();
        plan.budget.kv_bytes
    };
    // Three layers, two heads of 16, 320 positions; a scale is four bytes.
    assert_eq!(kv_bytes(1, KvType::F16), 2 * 3 * 2 * 320 * 16 * 2);
    assert_eq!(kv_bytes(1, KvType::Q8), 2 * 3 * 2 * 320 * (16 + 4));
    assert_eq!(kv_bytes(5, KvType::Q8), 5 * kv_bytes(1, KvType::Q8));
}
