//! Every step against a straightforward form of it in f64, then the whole chain.

use super::candidates::Candidates;
use super::pcg::Pcg32;
use super::*;

const GREEDY: SamplerOptions<'static> = SamplerOptions::GREEDY;
const DRAW: SamplerOptions<'static> = SamplerOptions {
    temperature: 1.0,
    ..GREEDY
};

fn scratch(count: usize) -> Vec<Candidate> {
    vec![
        Candidate {
            id: 7,
            logit: f32::NAN
        };
        count
    ]
}

fn sample_once(options: SamplerOptions<'_>, logits: &[f32], history: &[u32]) -> u32 {
    let mut scratch = scratch(logits.len());
    let mut sampler = Sampler::new(options, &mut scratch).unwrap();
    sampler.sample(logits, history).unwrap()
}

fn error_of(options: SamplerOptions<'_>, logits: &[f32], history: &[u32]) -> SampleError {
    let mut scratch = scratch(4);
    let mut sampler = Sampler::new(options, &mut scratch).unwrap();
    sampler.sample(logits, history).unwrap_err()
}

/// Logits like a model's: a bell over 0 with many equals.
fn random_logits(pcg: &mut Pcg32, count: usize) -> Vec<f32> {
    let part = |pcg: &mut Pcg32| pcg.below(1000) as f32 / 250.0 - 2.0;
    (0..count)
        .map(|_| part(pcg) + part(pcg) + part(pcg))
        .collect()
}

/// The likeliest first, of equals the lower id, with probabilities.
fn sorted_probabilities(logits: &[f32], ids: &[u32]) -> Vec<(u32, f64)> {
    let mut ids = ids.to_vec();
    ids.sort_by(|&a, &b| {
        let (left, right) = (logits[a as usize], logits[b as usize]);
        right.total_cmp(&left).then(a.cmp(&b))
    });
    let max = f64::from(logits[ids[0] as usize]);
    let weight = |id: u32| (f64::from(logits[id as usize]) - max).exp();
    let total: f64 = ids.iter().map(|&id| weight(id)).sum();
    ids.iter().map(|&id| (id, weight(id) / total)).collect()
}

/// What a step leaves over of all of `logits`.
fn survivors(logits: &[f32], step: impl FnOnce(&mut Candidates<'_>)) -> Vec<u32> {
    let number = |(id, &logit): (usize, &f32)| Candidate {
        id: id as u32,
        logit,
    };
    let mut items: Vec<Candidate> = logits.iter().enumerate().map(number).collect();
    let mut candidates = Candidates::new(&mut items);
    step(&mut candidates);
    candidates.ids()
}

fn all(logits: &[f32]) -> Vec<u32> {
    (0..logits.len() as u32).collect()
}

/// Keeps entries until their probabilities have reached `p`.
fn until(entries: &[(u32, f64)], reached: impl Fn(f64) -> bool) -> Vec<u32> {
    let mut sum = 0.0;
    let mut ids = Vec::new();
    for &(id, probability) in entries {
        ids.push(id);
        sum += probability;
        if reached(sum) {
            break;
        }
    }
    ids
}

const SIZES: [usize; 7] = [1, 2, 3, 63, 65, 700, 5000];

#[test]
fn top_k_is_the_front_of_a_full_sort() {
    let mut pcg = Pcg32::new(1);
    for count in SIZES {
        let logits = random_logits(&mut pcg, count);
        let sorted = sorted_probabilities(&logits, &all(&logits));
        for k in [1, 2, 40, 2048, 2049, 4999, usize::MAX] {
            let want: Vec<u32> = sorted.iter().take(k).map(|entry| entry.0).collect();
            assert_eq!(survivors(&logits, |c| c.top_k(k)), want, "{k} of {count}");
        }
    }
}

#[test]
fn top_p_agrees_with_a_full_sort() {
    let mut pcg = Pcg32::new(2);
    for count in SIZES {
        let logits = random_logits(&mut pcg, count);
        let sorted = sorted_probabilities(&logits, &all(&logits));
        for p in [1e-6, 0.1, 0.5, 0.9, 0.999] {
            let want = until(&sorted, |sum| sum >= f64::from(p));
            assert_eq!(survivors(&logits, |c| c.top_p(p)), want, "{p} of {count}");
        }
    }
}

#[test]
fn min_p_agrees_with_its_definition() {
    let mut pcg = Pcg32::new(3);
    for count in SIZES {
        let logits = random_logits(&mut pcg, count);
        let best = logits.iter().copied().fold(f32::MIN, f32::max);
        for p in [1e-3, 0.05, 0.5, 1.0] {
            let far = |id: u32| f64::from(logits[id as usize]) - f64::from(best);
            let keep = |&id: &u32| far(id).exp() >= f64::from(p);
            let want: Vec<u32> = all(&logits).into_iter().filter(keep).collect();
            assert_eq!(survivors(&logits, |c| c.min_p(p)), want, "{p} of {count}");
        }
    }
}

#[test]
fn typical_agrees_with_its_definition() {
    let mut pcg = Pcg32::new(4);
    for count in SIZES {
        // Distinct logits: equal distances would leave the order to rounding.
        let mut logits = random_logits(&mut pcg, count);
        logits
            .iter_mut()
            .enumerate()
            .for_each(|(i, logit)| *logit += i as f32 * 1e-5);
        let mut entries = sorted_probabilities(&logits, &all(&logits));
        let entropy: f64 = entries.iter().map(|(_, p)| -p * p.ln()).sum();
        let distance = |p: f64| (-p.ln() - entropy).abs();
        entries.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        for p in [0.1, 0.5, 0.9] {
            let mut want = until(&entries, |sum| sum > f64::from(p));
            let mut got = survivors(&logits, |c| c.typical(p));
            want.sort_unstable();
            got.sort_unstable();
            assert_eq!(got, want, "{p} of {count}");
        }
    }
}

#[test]
fn steps_can_follow_each_other() {
    let mut pcg = Pcg32::new(5);
    let logits = random_logits(&mut pcg, 3000);
    let first = sorted_probabilities(&logits, &all(&logits));
    let first: Vec<u32> = first.iter().take(50).map(|entry| entry.0).collect();
    let want = until(&sorted_probabilities(&logits, &first), |sum| {
        sum >= 0.8f32.into()
    });
    let got = survivors(&logits, |c| {
        c.top_k(50);
        c.top_p(0.8);
    });
    assert_eq!(got, want);
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(sample_once(GREEDY, &[1.0, 3.0, 3.0, -3.0], &[]), 1);
    assert_eq!(sample_once(GREEDY, &[0.0; 4], &[]), 0);
    assert_eq!(sample_once(GREEDY, &[-0.0, 0.0], &[]), 0);
    assert_eq!(sample_once(GREEDY, &[-1e30, 1e30], &[]), 1);
}

#[test]
fn one_candidate_needs_no_luck() {
    for seed in 0..50 {
        let logits = [0.5, 2.0, 2.0, 1.9];
        for options in [
            SamplerOptions {
                top_k: 1,
                seed,
                ..DRAW
            },
            SamplerOptions {
                top_p: 1e-9,
                seed,
                ..DRAW
            },
            SamplerOptions {
                temperature: 1e-30,
                top_k: 1,
                seed,
                ..DRAW
            },
        ] {
            assert_eq!(sample_once(options, &logits, &[]), 1);
        }
        // Both of the likeliest are exactly as likely as the likeliest.
        let token = sample_once(
            SamplerOptions {
                min_p: 1.0,
                seed,
                ..DRAW
            },
            &logits,
            &[],
        );
        assert!(token == 1 || token == 2);
    }
}

#[test]
fn extremes_are_ordinary_logits() {
    let extremes = [-1e30, 1e30, f32::MIN, f32::MAX, 0.0, f32::MIN_POSITIVE];
    for seed in 0..20 {
        let options = SamplerOptions {
            seed,
            ..SamplerOptions::default()
        };
        assert_eq!(sample_once(options, &extremes, &[0, 1, 3]), 3);
        let typical = SamplerOptions {
            typical_p: 0.5,
            temperature: 1e-40,
            seed,
            ..DRAW
        };
        assert_eq!(sample_once(typical, &extremes, &[]), 3);
        let hot = SamplerOptions {
            temperature: f32::MAX,
            seed,
            ..DRAW
        };
        assert!(sample_once(hot, &extremes, &[]) < 6);
    }
}

#[test]
fn seeds_replay_and_differ() {
    let logits = random_logits(&mut Pcg32::new(6), 500);
    let draws = |seed| {
        let mut scratch = scratch(500);
        let mut sampler = Sampler::new(SamplerOptions { seed, ..DRAW }, &mut scratch).unwrap();
        let first: Vec<u32> = (0..50)
            .map(|_| sampler.sample(&logits, &[]).unwrap())
            .collect();
        sampler.reseed(seed);
        let again: Vec<u32> = (0..50)
            .map(|_| sampler.sample(&logits, &[]).unwrap())
            .collect();
        assert_eq!(first, again);
        first
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
    // Committed: the same on every machine.
    assert_eq!(draws(3)[..8], [462, 73, 223, 132, 91, 462, 425, 364]);
}

/// Chi-square of `draws` draws against `want`.
fn chi_square(options: SamplerOptions<'_>, logits: &[f32], want: &[f64]) -> f64 {
    const DRAWS: usize = 40_000;
    let mut scratch = scratch(logits.len());
    let mut sampler = Sampler::new(options, &mut scratch).unwrap();
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(logits, &[]).unwrap() as usize] += 1.0;
    }
    let term = |(count, probability): (&f64, &f64)| {
        let expected = probability * DRAWS as f64;
        if expected == 0.0 {
            assert_eq!(*count, 0.0);
            return 0.0;
        }
        (count - expected).powi(2) / expected
    };
    counts.iter().zip(want).map(term).sum()
}

#[test]
fn draws_follow_the_probabilities() {
    let logits: Vec<f32> = (0..16).map(|i| (i * 7 % 16) as f32 / 4.0).collect();
    for temperature in [0.5, 1.0, 2.0] {
        let cooled: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
        let mut want = vec![0.0; 16];
        for (id, probability) in sorted_probabilities(&cooled, &all(&cooled)) {
            want[id as usize] = probability;
        }
        let options = SamplerOptions {
            temperature,
            seed: 9,
            ..GREEDY
        };
        // 15 degrees of freedom: above 37.7 once in 1000 seeds.
        let chi_square = chi_square(options, &logits, &want);
        assert!(chi_square < 37.7, "temperature {temperature}: {chi_square}");
    }
}

#[test]
fn what_was_struck_off_is_never_drawn() {
    let logits = [1.0, 2.0, 3.0, 4.0];
    let e = std::f64::consts::E;
    let want = [0.0, 0.0, 1.0 / (1.0 + e), e / (1.0 + e)];
    let options = SamplerOptions {
        top_k: 2,
        temperature: 1.0,
        ..GREEDY
    };
    assert!(chi_square(options, &logits, &want) < 10.9);
    let biases = [0, 1].map(|id| Bias {
        id,
        bias: f32::NEG_INFINITY,
    });
    let options = SamplerOptions {
        logit_biases: &biases,
        temperature: 1.0,
        ..GREEDY
    };
    assert!(chi_square(options, &logits, &want) < 10.9);
}

/// The logits after biases and penalties.
fn adjusted(options: SamplerOptions<'_>, logits: &[f32], history: &[u32]) -> Vec<f32> {
    let load = |&logit: &f32| Candidate { id: 0, logit };
    let mut items: Vec<Candidate> = logits.iter().map(load).collect();
    add_biases(&mut items, options.logit_biases).unwrap();
    penalize(&mut items, &options, history).unwrap();
    items.iter().map(|item| item.logit).collect()
}

#[test]
fn penalties_agree_with_their_definition() {
    let options = SamplerOptions {
        penalty_last_count: 5,
        repetition_penalty: 1.5,
        frequency_penalty: 0.25,
        presence_penalty: 0.125,
        ..GREEDY
    };
    let logits = [3.0, -3.0, 0.0, 3.0, 6.0];
    // Token 4 lies before the last five.
    let got = adjusted(options, &logits, &[4, 0, 1, 1, 2, 1]);
    let seen = |logit: f32, count: f32| logit - count * 0.25 - 0.125;
    assert_eq!(
        got,
        [seen(2.0, 1.0), seen(-4.5, 3.0), seen(0.0, 1.0), 3.0, 6.0]
    );
    let all = SamplerOptions {
        penalty_last_count: usize::MAX,
        ..options
    };
    assert_eq!(
        adjusted(all, &logits, &[4, 0, 1, 1, 2, 1])[4],
        seen(4.0, 1.0)
    );
    let none = SamplerOptions {
        penalty_last_count: 0,
        ..options
    };
    assert_eq!(adjusted(none, &logits, &[4, 0, 1, 1, 2, 1]), logits);
}

#[test]
fn biases_add_and_ban() {
    let biases = [(0, 5.0), (1, f32::NEG_INFINITY), (1, 9.0), (2, f32::MAX)];
    let biases = biases.map(|(id, bias)| Bias { id, bias });
    let options = SamplerOptions {
        logit_biases: &biases,
        repetition_penalty: 0.5,
        ..SamplerOptions::default()
    };
    let got = adjusted(options, &[1.0, 1.0, f32::MAX, 1.0], &[1, 2]);
    assert_eq!(got, [6.0, f32::NEG_INFINITY, f32::MAX, 1.0]);
    let greedy = SamplerOptions {
        logit_biases: &biases,
        ..GREEDY
    };
    assert_eq!(sample_once(greedy, &[1.0, 8.0, -f32::MAX, 1.0], &[]), 0);
}

#[test]
fn every_error_is_named() {
    let biases = [Bias { id: 4, bias: 1.0 }];
    let biased = SamplerOptions {
        logit_biases: &biases,
        ..GREEDY
    };
    let bans: Vec<Bias> = (0..2)
        .map(|id| Bias {
            id,
            bias: f32::NEG_INFINITY,
        })
        .collect();
    let banned = SamplerOptions {
        logit_biases: &bans,
        ..GREEDY
    };
    let penalty = SamplerOptions {
        penalty_last_count: 1,
        repetition_penalty: 1.1,
        ..GREEDY
    };
    assert_eq!(error_of(GREEDY, &[], &[]), SampleError::Empty);
    assert_eq!(
        error_of(GREEDY, &[0.0; 5], &[]),
        SampleError::Scratch { have: 4, need: 5 }
    );
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
        let error = SampleError::NonFinite { index: 2 };
        assert_eq!(error_of(GREEDY, &[0.0, f32::MAX, bad, bad], &[]), error);
    }
    let error = SampleError::Bias {
        index: 0,
        id: 4,
        vocab_size: 4,
    };
    assert_eq!(error_of(biased, &[0.0; 4], &[]), error);
    let error = SampleError::History {
        index: 1,
        id: 3,
        vocab_size: 3,
    };
    assert_eq!(error_of(penalty, &[0.0; 3], &[9, 3]), error);
    assert_eq!(error_of(banned, &[0.0; 2], &[]), SampleError::AllBanned);
    assert_eq!(
        SampleError::AllBanned.to_string(),
        "the biases ban every token"
    );
    assert_eq!(
        error.to_string(),
        "token 3 at position 1 of the history: the vocabulary has 3"
    );
}

#[test]
fn every_bad_option_is_refused() {
    let bias = |bias| vec![Bias { id: 0, bias: 0.0 }, Bias { id: 1, bias }];
    let (nan, infinite) = (bias(f32::NAN), bias(f32::INFINITY));
    let cases = [
        (
            SamplerOptions {
                temperature: -0.5,
                ..DRAW
            },
            OptionsError::Temperature,
        ),
        (
            SamplerOptions {
                temperature: f32::NAN,
                ..DRAW
            },
            OptionsError::Temperature,
        ),
        (
            SamplerOptions {
                temperature: f32::INFINITY,
                ..DRAW
            },
            OptionsError::Temperature,
        ),
        (SamplerOptions { top_p: 0.0, ..DRAW }, OptionsError::TopP),
        (SamplerOptions { top_p: 1.5, ..DRAW }, OptionsError::TopP),
        (
            SamplerOptions {
                typical_p: f32::NAN,
                ..DRAW
            },
            OptionsError::TypicalP,
        ),
        (
            SamplerOptions {
                min_p: -0.1,
                ..DRAW
            },
            OptionsError::MinP,
        ),
        (SamplerOptions { min_p: 1.1, ..DRAW }, OptionsError::MinP),
        (
            SamplerOptions {
                repetition_penalty: 0.0,
                ..DRAW
            },
            OptionsError::RepetitionPenalty,
        ),
        (
            SamplerOptions {
                frequency_penalty: f32::NAN,
                ..DRAW
            },
            OptionsError::FrequencyPenalty,
        ),
        (
            SamplerOptions {
                presence_penalty: f32::NAN,
                ..DRAW
            },
            OptionsError::PresencePenalty,
        ),
        (
            SamplerOptions {
                logit_biases: &nan,
                ..DRAW
            },
            OptionsError::Bias { index: 1 },
        ),
        (
            SamplerOptions {
                logit_biases: &infinite,
                ..DRAW
            },
            OptionsError::Bias { index: 1 },
        ),
    ];
    for (options, error) in cases {
        assert_eq!(
            Sampler::new(options, &mut []).err(),
            Some(error),
            "{options:?}"
        );
        assert!(!error.to_string().is_empty());
    }
    assert!(Sampler::new(SamplerOptions::default(), &mut []).is_ok());
}

/// Prints the cost of a token; `--ignored --nocapture`, in release.
#[test]
#[ignore = "measures time"]
fn speed() {
    const VOCAB_SIZE: usize = 151_936;
    let mut logits = random_logits(&mut Pcg32::new(7), VOCAB_SIZE);
    // Some far above the bell, as a model's.
    logits
        .iter_mut()
        .step_by(1000)
        .for_each(|logit| *logit = 3.0 * *logit + 14.0);
    let history: Vec<u32> = (0..4096).collect();
    for (name, options) in [
        ("greedy", GREEDY),
        ("default", SamplerOptions::default()),
        (
            "default, penalty",
            SamplerOptions {
                repetition_penalty: 1.1,
                ..Default::default()
            },
        ),
        ("temperature", DRAW),
        (
            "top-k 1000",
            SamplerOptions {
                top_k: 1000,
                ..DRAW
            },
        ),
        (
            "top-p 0.95",
            SamplerOptions {
                top_p: 0.95,
                ..DRAW
            },
        ),
        (
            "min-p 0.05",
            SamplerOptions {
                min_p: 0.05,
                ..DRAW
            },
        ),
        (
            "typical 0.9",
            SamplerOptions {
                typical_p: 0.9,
                ..DRAW
            },
        ),
    ] {
        let mut scratch = scratch(VOCAB_SIZE);
        let mut sampler = Sampler::new(options, &mut scratch).unwrap();
        let start = std::time::Instant::now();
        for _ in 0..50 {
            sampler.sample(&logits, &history).unwrap();
        }
        println!("{name}: {:?} a token", start.elapsed() / 50);
    }
}
