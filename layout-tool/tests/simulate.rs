//! Traces read and scored: by hand, damaged, and drawn from a model of activations.

use std::fs;

use layout_tool::simulate::start::Starts;
use layout_tool::simulate::trace::{Fault, MAGIC, Place, Trace, TraceError};
use layout_tool::simulate::{POLICIES, Simulation, score, simulate};
use tessera_runtime::cache::PolicyKind;

/// A trace of one layer or several, as a list of active neurons for each token and section.
fn words(neurons: u32, bundle: u32, tokens: &[Vec<Vec<u32>>]) -> Vec<u32> {
    let mut words = vec![MAGIC, tokens[0].len() as u32, neurons, bundle];
    for active in tokens.iter().flatten() {
        words.push(active.len() as u32);
        words.extend(active);
    }
    words
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn small() -> Vec<u32> {
    let first = vec![vec![0, 2, 3, 7], vec![1]];
    let second = vec![vec![], vec![4, 5, 6]];
    words(8, 2, &[first, second])
}

fn fault(words: &[u32], prefix: f64) -> Fault {
    Trace::read(&bytes(words)[..], prefix).unwrap_err()
}

#[test]
fn neurons_become_bundles_past_the_prefix() {
    let trace = Trace::read(&bytes(&small())[..], 0.3).unwrap();
    // Bundle 0 of each section is resident; neurons 2 and 3 are one bundle, and so are 4 and 5.
    assert_eq!((trace.sections, trace.section_bundles), (2, 3));
    assert_eq!(trace.demands, [0, 2, 3 + 1, 3 + 2]);
    assert_eq!((trace.token(0), trace.token(1)), (0..2, 2..4));
}

#[test]
fn a_pass_of_several_tokens_asks_once() {
    let active = |list: &[u32]| vec![list.to_vec()];
    let tokens = [
        active(&[1, 3]),
        active(&[0, 3]),
        active(&[]),
        active(&[2]),
        active(&[5]),
    ];
    let trace = Trace::read(&bytes(&words(8, 1, &tokens))[..], 0.0).unwrap();
    let joined = trace.joined(2);
    assert_eq!(joined.demands, [0, 1, 3, 2]);
    assert_eq!((joined.tokens(), joined.token(1)), (2, 3..4));
    assert_eq!(trace.joined(1), trace);
}

#[test]
fn a_cache_that_begins_full_misses_least_at_first() {
    let trace = drawn(
        &Activity {
            boost: 1.5,
            kept: 0.0,
            scan_every: 0,
        },
        40,
    );
    let starts = Starts::of(&trace, 4);
    println!("{starts}");
    for row in starts.scores.chunks(5).filter(|row| row[0].share_pct >= 20) {
        let [empty, filled] = [2, 4].map(|kind| row[kind].misses_mean);
        assert!(filled < 0.95 * empty, "{row:?}");
    }
}

#[test]
fn every_truncation_is_found() {
    let all = bytes(&small());
    let first_token = 4 * (4 + 5 + 2);
    for offset in 0..all.len() {
        let found = Trace::read(&all[..offset], 0.0).unwrap_err();
        let want = match offset {
            16 => Fault::Tokens(0),
            offset if offset == first_token => Fault::Tokens(1),
            _ => Fault::Truncated {
                offset: offset as u64,
                token: (offset > first_token) as usize,
            },
        };
        assert_eq!(found, want);
    }
}

#[test]
fn nonsense_is_refused_where_it_stands() {
    let changed = |at: usize, word: u32| {
        let mut words = small();
        words[at] = word;
        fault(&words, 0.0)
    };
    let at = |word: u64| Place {
        offset: 4 * word,
        token: 0,
        section: 0,
    };
    assert_eq!(changed(0, 7), Fault::Magic(7));
    assert_eq!(changed(1, 0), Fault::Header([0, 8, 2]));
    assert_eq!(changed(2, 9), Fault::Header([2, 9, 2]));
    assert_eq!(changed(3, 0), Fault::Header([2, 8, 0]));
    assert_eq!(changed(1, u32::MAX), Fault::Header([u32::MAX, 8, 2]));
    let (neurons, count) = (8, 9);
    assert_eq!(
        changed(4, count),
        Fault::Count {
            at: at(4),
            count,
            neurons
        }
    );
    let neuron = 8;
    assert_eq!(
        changed(8, neuron),
        Fault::Neuron {
            at: at(8),
            neuron,
            neurons
        }
    );
    let (neuron, last) = (2, 2);
    assert_eq!(
        changed(7, neuron),
        Fault::Order {
            at: at(7),
            neuron,
            last
        }
    );
    assert_eq!(fault(&small(), 1.0), Fault::Prefix { neurons: 8 });
}

#[test]
fn an_error_is_a_sentence_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let mut words = small();
    words[8] = 8;
    fs::write(&path, bytes(&words)).unwrap();
    let error = simulate(&path, &[], 0.0).unwrap_err();
    let want = "byte 32 (token 0, section 0): neuron 8, and a section has 8";
    assert_eq!(error.to_string(), format!("{}: {want}", path.display()));

    let missing = simulate(&folder.path().join("none"), &[], 0.0).unwrap_err();
    let TraceError { fault, .. } = missing;
    assert!(matches!(fault, Fault::Io(std::io::ErrorKind::NotFound, _)));
}

#[test]
fn a_round_of_demands_defeats_lru_and_not_the_optimum() {
    // Ten bundles round and round, all in each token.
    let tokens = vec![vec![(0..10).collect::<Vec<u32>>()]; 20];
    let trace = Trace::read(&bytes(&words(10, 1, &tokens))[..], 0.0).unwrap();
    let scored = score(&trace, &[PolicyKind::Lru]);
    let half = scored.rows.iter().find(|row| row.slots == 5).unwrap();
    assert_eq!(half.scores[0].misses_mean, 10.0);
    assert_eq!(half.scores[0].hit_rate, 0.0);
    // Between two demands of a bundle are nine others, and four of the nine can be kept.
    assert!((half.scores[1].misses_mean - 5.5).abs() < 0.3, "{half:?}");
}

/// Marsaglia's xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn chance(&mut self, share: f64) -> bool {
        ((self.next() >> 11) as f64) < share * (1u64 << 53) as f64
    }
}

/// How a model's neurons fire.
struct Activity {
    /// Factor on the neurons of a topic while it is on.
    boost: f64,
    /// Share of the neurons whose state is that of the last token.
    kept: f64,
    /// After so many tokens comes one that stands for a prompt of 64.
    scan_every: usize,
}

const NEURONS: usize = 14336;
const TOPICS: usize = 64;
const TOPICS_ON: usize = 8;

/// One layer with activation probabilities by a power law, 10 % on average, in the order of their
/// frequency. Each neuron belongs to a topic; eight topics are on, and each lasts 40 tokens on
/// average.
fn drawn(activity: &Activity, n_tokens: usize) -> Trace {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let power = |i: usize| (i as f64 / NEURONS as f64 + 0.005).powf(-0.6);
    let scale = 0.1 * NEURONS as f64 / (0..NEURONS).map(power).sum::<f64>();
    let topic: Vec<usize> = (0..NEURONS)
        .map(|_| random.next() as usize % TOPICS)
        .collect();
    let on_share = TOPICS_ON as f64 / TOPICS as f64;
    let off = (1.0 - activity.boost * on_share) / (1.0 - on_share);
    let mut on: Vec<usize> = (0..TOPICS_ON).collect();
    let mut last = vec![false; NEURONS];
    let mut tokens = Vec::new();
    for token in 0..n_tokens {
        for topic in &mut on {
            if random.chance(1.0 / 40.0) {
                *topic = random.next() as usize % TOPICS;
            }
        }
        let scan = activity.scan_every > 0 && (token + 1).is_multiple_of(activity.scan_every);
        let mut active = Vec::new();
        for neuron in 0..NEURONS {
            let factor = if on.contains(&topic[neuron]) {
                activity.boost
            } else {
                off
            };
            let share = (power(neuron) * scale * factor).min(0.97);
            let fires = if scan {
                random.chance(1.0 - (1.0 - share).powi(64))
            } else {
                if !random.chance(activity.kept) {
                    last[neuron] = random.chance(share);
                }
                last[neuron]
            };
            if fires {
                active.push(neuron as u32);
            }
        }
        tokens.push(vec![active]);
    }
    Trace::read(&bytes(&words(NEURONS as u32, 1, &tokens))[..], 0.1).unwrap()
}

fn all(trace: &Trace) -> Simulation {
    let scored = score(trace, &POLICIES.map(|(kind, _)| kind));
    println!("{scored}");
    for row in &scored.rows {
        let optimum = row.scores[2].misses_mean;
        assert!(
            row.scores.iter().all(|score| score.misses_mean >= optimum),
            "{row:?}"
        );
    }
    scored
}

/// Misses with the policy by frequency for one of LRU, at `share_pct`.
fn ratio(scored: &Simulation, share_pct: u32) -> f64 {
    let row = scored
        .rows
        .iter()
        .find(|row| row.share_pct == share_pct)
        .unwrap();
    row.scores[1].misses_mean / row.scores[0].misses_mean
}

#[test]
fn frequency_misses_less_than_lru_where_topics_are_weak() {
    let trace = drawn(
        &Activity {
            boost: 1.5,
            kept: 0.0,
            scan_every: 0,
        },
        120,
    );
    let scored = all(&trace);
    for share_pct in [20, 30, 40, 50, 60, 70, 80] {
        let ratio = ratio(&scored, share_pct);
        assert!(ratio < 0.95, "{ratio} at {share_pct} %");
    }
}

#[test]
fn frequency_keeps_up_with_lru_where_topics_are_strong() {
    let trace = drawn(
        &Activity {
            boost: 4.0,
            kept: 0.3,
            scan_every: 0,
        },
        120,
    );
    let scored = all(&trace);
    for share_pct in [20, 30, 40, 50, 60, 70, 80] {
        let ratio = ratio(&scored, share_pct);
        assert!(ratio < 1.03, "{ratio} at {share_pct} %");
    }
}

#[test]
fn prompts_sweep_less_of_a_cache_by_frequency() {
    let trace = drawn(
        &Activity {
            boost: 4.0,
            kept: 0.3,
            scan_every: 30,
        },
        120,
    );
    let scored = all(&trace);
    for share_pct in [50, 60, 70, 80] {
        let ratio = ratio(&scored, share_pct);
        assert!(ratio < 0.9, "{ratio} at {share_pct} %");
    }
}
