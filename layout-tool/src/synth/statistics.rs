//! Statistics of a section, from the process that its gates follow.
//!
//! A gate is a mix of directions, each a normal deviate over tokens: of the token itself, and of
//! the average over the last few. So is up, where it must be above zero. All sections of a model
//! follow the same process, so one of them is followed, neuron by neuron, for some hundred tokens.

use tessera_kernels::Activation;
use tessera_runtime::format::{BATCHES, CACHES, PREFIXES, StatisticsSource};

use super::design::Design;
use super::random::{Random, Role};
use super::rows::Section;

/// Tokens before the first that is counted: caches fill.
const WARM_TOKENS: usize = 256;
/// Tokens that are counted.
const TOKENS: usize = 512;
/// Neurons that are followed at once.
const TILE: usize = 1024;
/// Neurons of similar rank over which frequencies of batches are averaged.
const SMOOTH: usize = 64;

/// Which neurons are active, token by token.
struct Trace {
    neurons: usize,
    /// (tokens, neurons).
    active: Vec<bool>,
}

/// What the trace of a section says.
#[derive(Debug, Clone, PartialEq)]
pub struct Behaviour {
    /// Frequencies (BATCHES, neurons).
    pub frequencies: Vec<f32>,
    /// Misses (PREFIXES, CACHES).
    pub misses: Vec<f32>,
    /// Share of a token's active neurons that the token before it had active as well.
    pub overlap: f64,
}

/// Directions over tokens: (tokens, directions), each of variance 1.
fn directions(design: &Design, which: usize, tokens: usize, count: usize) -> Vec<f32> {
    let window = &design.window;
    let mut random = Random::new(design.seed, Role::Process, (which, 0), 0);
    let before = window.weights.len();
    let values: Vec<f32> = (0..(before + tokens) * count)
        .map(|_| random.normal())
        .collect();
    let own = 1.0 / design.levels[0][1].variance;
    let context = ((1.0 - own) / window.squares()).sqrt();
    let own = own.sqrt() as f32;
    let mut out = vec![0.0f32; tokens * count];
    for (token, out) in out.chunks_exact_mut(count).enumerate() {
        for (distance, weight) in window.weights.iter().enumerate() {
            let values = &values[(before + token - distance) * count..][..count];
            let weight = (context * weight) as f32;
            for (out, value) in out.iter_mut().zip(values) {
                *out += weight * value;
            }
        }
        out.iter_mut().for_each(|x| *x += own * random.normal());
    }
    out
}

impl Trace {
    fn new(design: &Design, tokens: usize) -> Self {
        let (neurons, count) = (design.config.ffn_dim, design.n_directions);
        let both = design.config.activation == Activation::ReluBoth;
        let gates = directions(design, 0, tokens, count * design.n_sets);
        let ups = if both {
            directions(design, 1, tokens, count)
        } else {
            Vec::new()
        };
        let sections = [0, 1].map(|expert| Section::new(design, 0, expert));
        let mut active = vec![false; tokens * neurons];
        for first in (0..neurons).step_by(TILE) {
            let of_tile = first..(first + TILE).min(neurons);
            let mixing = sections
                .each_ref()
                .map(|section| turned_mixing(section, of_tile.clone(), count));
            let mut sums = vec![0.0f32; of_tile.len()];
            for token in 0..tokens {
                let active = &mut active[token * neurons..][of_tile.clone()];
                sums.fill(0.0);
                let x = &gates[token * count * design.n_sets..][..count * design.n_sets];
                for set in 0..design.n_sets {
                    // Neurons of a set are every `n_sets`-th.
                    let start = (set + design.n_sets - first % design.n_sets) % design.n_sets;
                    add_mix(
                        &mut sums,
                        &mixing[0],
                        &x[set * count..][..count],
                        (start, design.n_sets),
                    );
                }
                let thresholds = &design.thresholds[of_tile.clone()];
                for ((active, sum), threshold) in active.iter_mut().zip(&sums).zip(thresholds) {
                    *active = sum > threshold;
                }
                if both {
                    sums.fill(design.up_mean as f32);
                    add_mix(
                        &mut sums,
                        &mixing[1],
                        &ups[token * count..][..count],
                        (0, 1),
                    );
                    for (active, sum) in active.iter_mut().zip(&sums) {
                        *active &= *sum > 0.0;
                    }
                }
            }
        }
        Trace { neurons, active }
    }

    fn tokens(&self) -> usize {
        self.active.len() / self.neurons
    }

    fn token(&self, token: usize) -> &[bool] {
        &self.active[token * self.neurons..][..self.neurons]
    }

    /// Share of a token's active neurons that were active for the one before.
    fn overlap(&self) -> f64 {
        let (mut both, mut all) = (0usize, 0usize);
        for token in 1..self.tokens() {
            for (now, before) in self.token(token).iter().zip(self.token(token - 1)) {
                all += usize::from(*now);
                both += usize::from(*now && *before);
            }
        }
        both as f64 / all.max(1) as f64
    }

    /// For each neuron, the share of runs of `batch` tokens in which it is active.
    fn unions(&self, batch: usize) -> Vec<f32> {
        let runs = self.tokens() + 1 - batch;
        let mut counts = vec![0u32; self.neurons];
        for first in 0..runs {
            for (neuron, count) in counts.iter_mut().enumerate() {
                *count += u32::from((first..first + batch).any(|t| self.token(t)[neuron]));
            }
        }
        counts
            .iter()
            .map(|count| *count as f32 / runs as f32)
            .collect()
    }
}

/// Mixing vectors of `neurons`, turned: (directions, neurons).
fn turned_mixing(section: &Section<'_>, neurons: std::ops::Range<usize>, count: usize) -> Vec<f32> {
    let mut turned = vec![0.0; count * neurons.len()];
    let mut mixing = vec![0.0; count];
    for (index, neuron) in neurons.clone().enumerate() {
        section.mixing(neuron, &mut mixing);
        for (direction, weight) in mixing.iter().enumerate() {
            turned[direction * neurons.len() + index] = *weight;
        }
    }
    turned
}

/// Adds to the sums of every `step`-th neuron from `start` on its mix of `x`.
fn add_mix(sums: &mut [f32], mixing: &[f32], x: &[f32], (start, step): (usize, usize)) {
    for (x, weights) in x.iter().zip(mixing.chunks_exact(sums.len())) {
        if step == 1 {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += x * weight;
            }
        } else {
            let own = sums.iter_mut().zip(weights).skip(start).step_by(step);
            own.for_each(|(sum, weight)| *sum += x * weight);
        }
    }
}

/// Means over neurons of similar rank.
fn smoothed(values: &[f32]) -> Vec<f32> {
    (0..values.len())
        .map(|index| {
            let reach = (SMOOTH / 2).min(index).min(values.len() - 1 - index);
            let near = &values[index - reach..=index + reach];
            near.iter().sum::<f32>() / near.len() as f32
        })
        .collect()
}

/// Counts of places, added up to any of them (Fenwick, 1994).
struct Counts(Vec<u32>);

impl Counts {
    fn add(&mut self, place: usize, by: u32) {
        let mut at = place + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }

    /// Sum of the places before `place`.
    fn before(&self, place: usize) -> u32 {
        let (mut at, mut sum) = (place, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.0[at]);
            at &= at - 1;
        }
        sum
    }
}

/// Misses a token of LRU caches of each size, in neurons, for uses of bundles: `uses[t]` are those
/// of token `t`, below `bundles`, of which a bundle has `k` neurons. Tokens before `warm` only
/// fill the caches. A use misses in every cache that holds no more bundles than were used since
/// the last use of the same (Mattson et al., 1970).
fn lru_misses(uses: &[Vec<u32>], bundles: usize, k: usize, warm: usize) -> [f32; CACHES] {
    let total: usize = uses.iter().map(Vec::len).sum();
    let mut counts = Counts(vec![0; total + 1]);
    let mut last = vec![usize::MAX; bundles];
    let mut hits = [0u64; CACHES];
    let (mut now, mut live, mut all) = (0, 0u32, 0u64);
    for (token, uses) in uses.iter().enumerate() {
        for &bundle in uses {
            let place = &mut last[bundle as usize];
            if *place == usize::MAX {
                live += 1;
            } else {
                let distance = (live - counts.before(*place + 1)) as usize;
                counts.add(*place, 1u32.wrapping_neg());
                if token >= warm {
                    let holds = |cache: &usize| cache * bundles / (CACHES - 1) > distance;
                    if let Some(cache) = (0..CACHES).find(holds) {
                        hits[cache] += 1;
                    }
                }
            }
            counts.add(now, 1);
            *place = now;
            now += 1;
            all += u64::from(token >= warm);
        }
    }
    let tokens = (uses.len() - warm) as f32;
    let mut hit = 0;
    hits.map(|more| {
        hit += more;
        (all - hit) as f32 * k as f32 / tokens
    })
}

impl Behaviour {
    /// Follows a section of bundles of `k` neurons.
    pub fn new(design: &Design, k: usize) -> Self {
        let trace = Trace::new(design, WARM_TOKENS + TOKENS);
        let neurons = trace.neurons;
        let mut frequencies: Vec<f32> = design.probabilities.iter().map(|p| *p as f32).collect();
        for batch in 2..=BATCHES {
            let more = smoothed(&trace.unions(batch));
            let fewer = frequencies.len() - neurons;
            for (index, frequency) in more.into_iter().enumerate() {
                frequencies.push(frequency.max(frequencies[fewer + index]));
            }
        }
        let bundles = neurons / k;
        let uses: Vec<Vec<u32>> = (0..trace.tokens())
            .map(|token| {
                let used = trace.token(token).chunks_exact(k).enumerate();
                used.filter(|(_, active)| active.contains(&true))
                    .map(|(bundle, _)| bundle as u32)
                    .collect()
            })
            .collect();
        let mut misses = Vec::with_capacity(PREFIXES * CACHES);
        for prefix in 0..PREFIXES {
            let first = (prefix * bundles / (PREFIXES - 1)) as u32;
            let cold: Vec<Vec<u32>> = uses
                .iter()
                .map(|uses| uses.iter().copied().filter(|b| *b >= first).collect())
                .collect();
            misses.extend(lru_misses(&cold, bundles, k, WARM_TOKENS));
        }
        Behaviour {
            frequencies,
            misses,
            overlap: trace.overlap(),
        }
    }

    /// What the section's statistics are written from.
    pub fn source(&self) -> StatisticsSource<'_> {
        StatisticsSource {
            tokens: TOKENS as u64,
            threshold: 0.0,
            threshold_share: 1.0,
            frequencies: &self.frequencies,
            misses: &self.misses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_those_of_an_lru_list() {
        let mut random = Random::new(3, Role::Process, (0, 0), 1);
        let bundles = 64;
        let uses: Vec<Vec<u32>> = (0..60)
            .map(|_| {
                let chance = random.bits();
                (0..bundles)
                    .filter(|b| chance >> b & 1 == 1 && *b != 9)
                    .collect()
            })
            .collect();
        let misses = lru_misses(&uses, bundles as usize, 2, 20);
        for (cache, misses) in misses.into_iter().enumerate() {
            let (mut list, mut count) = (Vec::new(), 0);
            for (token, uses) in uses.iter().enumerate() {
                for bundle in uses {
                    let found = list.iter().position(|b| b == bundle);
                    count += usize::from(token >= 20 && found.is_none());
                    found.map(|at| list.remove(at));
                    list.insert(0, *bundle);
                    list.truncate(cache * bundles as usize / (CACHES - 1));
                }
            }
            assert_eq!(misses, 2.0 * count as f32 / 40.0, "cache {cache}");
        }
    }

    #[test]
    fn a_trace_has_the_prescribed_frequencies_and_overlaps() {
        for name in ["tiny", "tiny-moe"] {
            let shape = crate::synth::shapes::named(name).unwrap();
            let design = Design::new(shape.config(None), 5, 0.1);
            let behaviour = Behaviour::new(&design, 16);
            let neurons = design.config.ffn_dim;
            let trace = Trace::new(&design, 800);
            let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
            let counted = mean(&trace.unions(1));
            assert!((counted / 0.1 - 1.0).abs() < 0.1, "{name}: {counted}");
            let means: Vec<f32> = behaviour.frequencies.chunks(neurons).map(mean).collect();
            assert!(means.is_sorted_by(|a, b| a < b), "{means:?}");
            assert!(means[7] < 0.57, "less than independent tokens: {means:?}");
            assert!(
                (0.35..0.75).contains(&behaviour.overlap),
                "{}",
                behaviour.overlap
            );
            // All active bundles without a cache, and none where everything stays.
            assert!(behaviour.misses[0] > 0.1 * neurons as f32);
            assert_eq!(behaviour.misses[8 * CACHES..], [0.0; CACHES]);
        }
    }
}
