//! The tokens that may still be drawn, and the steps that strike some of them off.

use super::Candidate;
use tessera_kernels::math::exp;

/// A weight of 1 (the likeliest token's) in units of the integer sums: 2^40.
///
/// Sums of integers do not depend on their order, so nothing here depends on how the standard
/// library's selection moves equal or unselected elements about. A token less likely than the
/// likeliest by more than this factor is never drawn.
const WEIGHT_ONE: f64 = (1u64 << 40) as f64;

/// Up to so many candidates are selected by a heap over one scan, more by quickselect.
const HEAP_MAX: usize = 2048;

/// The first candidates that a search for a cumulative probability puts in order; four times as
/// many each further round.
const FIRST_ROUND: usize = 64;

/// True where `a` is before `b`: the likelier first, of equals the lower id.
fn likelier(a: &Candidate, b: &Candidate) -> bool {
    a.logit > b.logit || (a.logit == b.logit && a.id < b.id)
}

/// Candidates with finite logits; at least one.
pub(super) struct Candidates<'s> {
    items: &'s mut [Candidate],
}

impl<'s> Candidates<'s> {
    pub(super) fn new(items: &'s mut [Candidate]) -> Self {
        assert!(!items.is_empty());
        Candidates { items }
    }

    /// The likeliest, the lowest id of equals.
    pub(super) fn best(&self) -> Candidate {
        let first = self.items[0];
        self.items[1..].iter().fold(
            first,
            |best, item| {
                if likelier(item, &best) { *item } else { best }
            },
        )
    }

    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<u32> {
        self.items.iter().map(|item| item.id).collect()
    }

    fn truncate(&mut self, count: usize) {
        let items = core::mem::take(&mut self.items);
        self.items = &mut items[..count];
    }

    /// Keeps the `k` likeliest, in order.
    pub(super) fn top_k(&mut self, k: usize) {
        let count = k.clamp(1, self.items.len());
        order_first(self.items, count, likelier);
        self.truncate(count);
    }

    /// Keeps the fewest of the likeliest that together have the probability `p`, in order.
    pub(super) fn top_p(&mut self, p: f32) {
        let max = self.best().logit;
        let count = cumulate(self.items, max, p, likelier, |sum, need| sum >= need);
        self.truncate(count);
    }

    /// Locally typical sampling: keeps the fewest whose surprise is nearest to the expected one
    /// and that together have more than the probability `p`, nearest first.
    ///
    /// `-ln p_i - H` is `mean - logit_i` with `mean = sum_j p_j logit_j`: no logarithm is needed.
    ///
    /// Source: Meister et al., "Locally Typical Sampling", 2023.
    pub(super) fn typical(&mut self, p: f32) {
        let max = self.best().logit;
        let (mut total, mut moment) = (0.0, 0.0);
        // In the order of the candidates, which no step leaves to chance.
        for part in self.items.chunks(PART) {
            for (item, power) in part.iter().zip(powers(part, max, 1.0)) {
                total += f64::from(power);
                moment += f64::from(power) * (f64::from(item.logit) - f64::from(max));
            }
        }
        let mean = f64::from(max) + moment / total;
        let distance = |item: &Candidate| {
            let from_mean = f64::from(item.logit) - mean;
            if from_mean < 0.0 {
                -from_mean
            } else {
                from_mean
            }
        };
        let nearer = |a: &Candidate, b: &Candidate| {
            let (left, right) = (distance(a), distance(b));
            left < right || (left == right && a.id < b.id)
        };
        let count = cumulate(self.items, max, p, nearer, |sum, need| sum > need);
        self.truncate(count);
    }

    /// Keeps those at least `p` times as likely as the likeliest, in their order.
    pub(super) fn min_p(&mut self, p: f32) {
        let max = self.best().logit;
        let mut count = 0;
        let mut index = 0;
        while index < self.items.len() {
            let end = self.items.len().min(index + PART);
            for power in &powers(&self.items[index..end], max, 1.0)[..end - index] {
                if *power >= p {
                    self.items.swap(count, index);
                    count += 1;
                }
                index += 1;
            }
        }
        self.truncate(count);
    }

    /// Draws one: the first whose cumulative weight passes a random number below the total.
    pub(super) fn draw(&self, temperature: f32, below: impl FnOnce(u64) -> u64) -> u32 {
        let max = self.best().logit;
        let total = total_weight(self.items, max, temperature);
        let mut left = below(total);
        for part in self.items.chunks(PART) {
            let weights = weights(part, max, temperature);
            for (item, weight) in part.iter().zip(weights) {
                if left < weight {
                    return item.id;
                }
                left -= weight;
            }
        }
        panic!("a number below {total} was not below the sum of the weights");
    }
}

/// Weights are computed so many at a time, which lets the compiler use vectors.
const PART: usize = 32;

/// `exp((logit - max) / temperature)` of up to [`PART`] candidates, in units of
/// 1 / [`WEIGHT_ONE`]; 0 past the last.
fn weights(part: &[Candidate], max: f32, temperature: f32) -> [u64; PART] {
    powers(part, max, temperature).map(|power| (f64::from(power) * WEIGHT_ONE) as u64)
}

fn powers(part: &[Candidate], max: f32, temperature: f32) -> [f32; PART] {
    let mut powers = [0.0; PART];
    for (power, item) in powers.iter_mut().zip(part) {
        *power = exp((item.logit - max) / temperature);
    }
    powers
}

fn total_weight(items: &[Candidate], max: f32, temperature: f32) -> u64 {
    let total = |part| weights(part, max, temperature).iter().sum::<u64>();
    items.chunks(PART).map(total).sum()
}

/// Puts the first candidates by `before` in order, until `enough(their weight, p * total)`, and
/// returns their count; it is all of them where rounding keeps the sum from being enough.
fn cumulate(
    items: &mut [Candidate],
    max: f32,
    p: f32,
    before: impl Fn(&Candidate, &Candidate) -> bool,
    enough: impl Fn(f64, f64) -> bool,
) -> usize {
    let need = f64::from(p) * total_weight(items, max, 1.0) as f64;
    let mut sum = 0u64;
    let mut start = 0;
    let mut round = FIRST_ROUND;
    while start < items.len() {
        let count = round.min(items.len() - start);
        order_first(&mut items[start..], count, &before);
        for part in items[start..start + count].chunks(PART) {
            for weight in &weights(part, max, 1.0)[..part.len()] {
                sum += weight;
                start += 1;
                if enough(sum as f64, need) {
                    return start;
                }
            }
        }
        round *= 4;
    }
    items.len()
}

/// Moves the first `count` by `before`, a total order, to the front, in order. The rest are kept,
/// in no order.
fn order_first(
    items: &mut [Candidate],
    count: usize,
    before: impl Fn(&Candidate, &Candidate) -> bool,
) {
    let compare = |a: &Candidate, b: &Candidate| {
        if before(a, b) {
            core::cmp::Ordering::Less
        } else if before(b, a) {
            core::cmp::Ordering::Greater
        } else {
            core::cmp::Ordering::Equal
        }
    };
    if count < items.len() {
        if count <= HEAP_MAX {
            select_by_heap(items, count, &before);
        } else {
            items.select_nth_unstable_by(count, compare);
        }
    }
    items[..count].sort_unstable_by(compare);
}

/// One scan with a heap of the best `count` so far at the front, the worst of them at its root:
/// in a large vocabulary nearly every candidate costs one comparison.
fn select_by_heap(
    items: &mut [Candidate],
    count: usize,
    before: impl Fn(&Candidate, &Candidate) -> bool,
) {
    if count == 0 {
        return;
    }
    let (heap, rest) = items.split_at_mut(count);
    for root in (0..count / 2).rev() {
        sift_down(heap, root, &before);
    }
    for item in rest {
        if before(item, &heap[0]) {
            core::mem::swap(item, &mut heap[0]);
            sift_down(heap, 0, &before);
        }
    }
}

fn sift_down(
    heap: &mut [Candidate],
    mut root: usize,
    before: impl Fn(&Candidate, &Candidate) -> bool,
) {
    loop {
        let mut worst = root;
        for child in [2 * root + 1, 2 * root + 2] {
            if child < heap.len() && before(&heap[worst], &heap[child]) {
                worst = child;
            }
        }
        if worst == root {
            return;
        }
        heap.swap(root, worst);
        root = worst;
    }
}
