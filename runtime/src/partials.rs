//! Partial sums of clusters, added in cluster order.

use tessera_hal::Cores;

use crate::limits::{JOBS_MAX, LANES_MAX};

/// Strips of outputs that each lane adds.
const STRIPS_PER_LANE: usize = 2;
/// Fewer floats than this are added sooner than other lanes hear of them.
const SHARED_MIN: usize = 16 << 10;

static_assertions::const_assert!(STRIPS_PER_LANE * LANES_MAX <= JOBS_MAX);

/// Adds each of `partials` (clusters, outputs), in this order, to `sum` (outputs,): every lane some
/// of the outputs.
pub fn add_in_order<C: Cores>(cores: &C, partials: &[f32], sum: &mut [f32]) {
    let outputs = sum.len();
    let add = |first: usize, sum: &mut [f32]| {
        for partial in partials.chunks_exact(outputs) {
            for (sum, partial) in sum.iter_mut().zip(&partial[first..]) {
                *sum += partial;
            }
        }
    };
    let strip = outputs.div_ceil(STRIPS_PER_LANE * cores.lanes());
    if partials.len() < SHARED_MIN || strip == outputs {
        return add(0, sum);
    }
    let mut strips: heapless::Vec<_, JOBS_MAX> = sum.chunks_mut(strip).enumerate().collect();
    cores.for_each(&mut strips, &|_lane, (index, sum)| add(*index * strip, sum));
}

#[cfg(test)]
mod tests {
    use super::add_in_order;
    use tessera_hal::sim::ShuffledLanes;

    #[test]
    fn partials_are_added_one_after_the_other() {
        // Sums of floats of such different size depend on their order.
        let clusters = 9;
        for (outputs, lanes) in [(1, 1), (7, 3), (4096, 1), (4096, 2), (4097, 3)] {
            let value = |cluster: usize, i: usize| {
                [1e8f32, -1e8, 1.0, 0.1][(cluster + i) % 4] * (1 + i % 13) as f32
            };
            let partials: Vec<f32> = (0..clusters * outputs)
                .map(|at| value(at / outputs, at % outputs))
                .collect();
            let mut sum = vec![0.5; outputs];
            add_in_order(&ShuffledLanes::new(lanes, 1), &partials, &mut sum);
            for (i, sum) in sum.iter().enumerate() {
                let wanted = (0..clusters).fold(0.5, |sum, cluster| sum + value(cluster, i));
                assert_eq!(
                    sum.to_bits(),
                    wanted.to_bits(),
                    "output {i} of {outputs}, {lanes} lanes"
                );
            }
        }
    }
}
