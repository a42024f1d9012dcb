use super::*;
use crate::cache::PolicyKind;
use crate::format::{BATCHES, CACHES, PREFIXES, Statistics, StatisticsSource};

fn profile() -> DeviceProfile {
    DeviceProfile::default()
}

/// A flash that makes so many reads a second, of 4 and of 8 KiB, whatever the depth.
fn flash_with(reads_4k: f64, reads_8k: f64) -> DeviceProfile {
    let mut profile = profile();
    let row = |bytes_per_s| [bytes_per_s; crate::limits::PROFILE_DEPTHS_MAX];
    let range = &mut profile.flash.ranges[0];
    range.bytes_per_s[0] = row(reads_4k * 4096.0);
    range.bytes_per_s[1] = row(reads_8k * 8192.0);
    for row in &mut range.bytes_per_s[2..] {
        row.fill(reads_8k * 8192.0);
    }
    profile.validate().unwrap();
    profile
}

/// A model in the shape of a 7B with 10 % active neurons; the colder a neuron, the rarer.
fn model(choice: NeuronChoice) -> SparseModel {
    let layout = Layout {
        choice,
        sections: 32,
        sections_used: 32,
        bundles: 14336,
        bundle_neurons: 1,
        first_bytes: 4096,
        bundle_bytes: 8192,
        kept_bytes: 8192,
        depth_max: 64,
        policy: PolicyKind::Lru,
        run_max: 16,
        row_multiply_adds: 4096,
        alive_share: 0.8,
    };
    let rest = Demand {
        dram_bytes: 8e8,
        multiply_adds: 1.4e9,
        joins: 128.0,
        ..Demand::default()
    };
    let mut model = SparseModel::new(layout, rest, 1 << 30);
    let misses: std::vec::Vec<f32> = (0..PREFIXES * CACHES)
        .map(|at| {
            let hot = (at / CACHES) as f32 / 8.0;
            let cached = ((at % CACHES) as f32 / 32.0).min(1.0 - hot);
            let cold = (1.0 - hot).powi(3);
            let left = if hot < 1.0 {
                1.0 - cached / (1.0 - hot)
            } else {
                0.0
            };
            0.1 * 14336.0 * cold * left * left
        })
        .collect();
    let neurons = 64;
    let source = StatisticsSource {
        tokens: 1000,
        threshold: 0.0,
        threshold_share: 0.0,
        frequencies: &std::vec![0.1; BATCHES * neurons],
        misses: &misses,
    };
    let mut bytes = std::vec![0; Statistics::bytes(neurons)];
    source.write(neurons, &mut bytes);
    let statistics = Statistics::new_checked(&bytes, neurons).unwrap();
    for _ in 0..32 {
        model.add(&statistics, 1.0);
    }
    model
}

fn limits(memory_bytes: u64) -> SearchLimits {
    SearchLimits {
        memory_bytes,
        cache_bundles_min: 64,
        lanes: 4,
        wanted: Wanted::default(),
    }
}

#[test]
fn the_slowest_part_is_the_bound() {
    let profile = profile();
    let demand = Demand {
        flash_sequential_bytes: 1.7e9 * STREAM_SHARE,
        dram_bytes: 1.5e9,
        multiply_adds: 1e9,
        ..Demand::default()
    };
    let prediction = predict(&profile, &demand, 4);
    assert_eq!(prediction.bound, Bound::Flash);
    assert!(
        (prediction.tokens_per_s - 1.0).abs() < 1e-9,
        "{prediction:?}"
    );
    let terms = prediction.terms;
    assert_eq!(
        (terms.dram_ns, terms.compute_ns, terms.serial_ns),
        (5e7, 1e7, 0.0)
    );
    let kept = Demand {
        flash_sequential_bytes: 0.0,
        ..demand
    };
    assert_eq!(predict(&profile, &kept, 4).bound, Bound::Dram);
    let busy = Demand {
        reads_cpu_ns: 1e9,
        ..kept
    };
    let prediction = predict(&profile, &busy, 4);
    assert_eq!(prediction.bound, Bound::Compute);
    assert_eq!(prediction.terms.compute_ns, 1e7 + 2.5e8);
    assert_eq!(Bound::Compute.name(), "compute");
}

#[test]
fn attention_has_a_speed_of_its_own() {
    let demand = Demand {
        multiply_adds: 1e9,
        attention_multiply_adds: 6e9,
        ..Demand::default()
    };
    let terms = predict(&profile(), &demand, 2).terms;
    assert!((terms.compute_ns - (2e7 + 1e9)).abs() < 1.0, "{terms:?}");
}

#[test]
fn rows_of_single_neurons_take_longer() {
    let profile = profile();
    let plain = Demand {
        dram_bytes: 1.5e9,
        ..Demand::default()
    };
    let scattered = Demand {
        dram_scattered_bytes: 5e8,
        ..plain
    };
    let ns = |demand| predict(&profile, &demand, 4).terms.dram_ns;
    let longer = 5e8 * (1.0 / SCATTERED_SHARE - 1.0) / 1.5e9;
    assert!((ns(scattered) / ns(plain) - 1.0 - longer).abs() < 1e-9);
}

#[test]
fn scattered_reads_and_waits_come_from_the_table() {
    let profile = flash_with(50e3, 25e3);
    let demand = Demand {
        flash_random_reads: 1000.0,
        flash_random_bytes: 4096e3,
        flash_depth: 16.0,
        flash_waits: 10.0,
        ..Demand::default()
    };
    let terms = predict(&profile, &demand, 1).terms;
    assert!((terms.flash_ns - 20e6).abs() < 1.0, "{terms:?}");
    assert!((terms.serial_ns - 0.2e6).abs() < 1.0, "{terms:?}");
    assert_eq!(
        (
            demand.flash_block_bytes(),
            Demand::default().flash_block_bytes()
        ),
        (4096.0, 0.0)
    );
}

#[test]
fn more_lanes_are_never_slower_where_joins_are_free() {
    let mut profile = profile();
    profile.join_ns.fill(0.0);
    let demand = model(NeuronChoice::Predicted).demand(&Split::default(), &profile);
    let speed = |lanes| predict(&profile, &demand, lanes).tokens_per_s;
    assert!((1..4).all(|lanes| speed(lanes + 1) >= speed(lanes)));
}

#[test]
fn misses_follow_the_curve() {
    let model = model(NeuronChoice::Predicted);
    let all = f64::from(model.misses[0][0]);
    assert!((all / (0.1 * 14336.0 * 32.0) - 1.0).abs() < 1e-6, "{all}");
    assert_eq!(model.misses(0.0, 0.0), all);
    assert_eq!(model.misses(1.0, 1.0), 0.0);
    let (low, high) = (f64::from(model.misses[2][8]), f64::from(model.misses[2][9]));
    assert!((model.misses(0.25, 8.5 / 32.0) - (low + high) / 2.0).abs() < 1e-6 * low);
    let (low, high) = (f64::from(model.misses[2][8]), f64::from(model.misses[3][8]));
    assert!((model.misses(2.5 / 8.0, 0.25) - (low + high) / 2.0).abs() < 1e-6 * low);
    // Shares outside of 0 to 1 are the ends.
    assert_eq!(model.misses(-1.0, -1.0), all);
    assert_eq!(model.misses(2.0, 2.0), 0.0);
}

#[test]
fn a_token_reads_what_is_missing() {
    let (model, profile) = (model(NeuronChoice::Predicted), profile());
    let split = Split {
        prefix_bundles: 1792,
        cache_bundles: 3584,
        ..Split::default()
    };
    let missing = model.misses(0.125, 0.25);
    let one = model.demand(&split, &profile);
    assert!(
        one.flash_random_reads < missing,
        "neighbours are read together"
    );
    assert!((one.flash_random_bytes / (8192.0 * missing) - 1.0).abs() < 1e-9);
    let two = model.demand(
        &Split {
            two_phase: true,
            ..split
        },
        &profile,
    );
    assert!((two.flash_random_reads / (1.8 * missing) - 1.0).abs() < 1e-9);
    assert!((two.flash_random_bytes / (4096.0 * 1.8 * missing) - 1.0).abs() < 1e-9);
    assert_eq!((one.flash_waits, two.flash_waits), (32.0, 64.0));
    let gap = model.demand(
        &Split {
            gap_bundles: 4,
            ..split
        },
        &profile,
    );
    assert!(gap.flash_random_reads < one.flash_random_reads);
    assert!(gap.flash_random_bytes > one.flash_random_bytes);
    // Memory that holds everything leaves nothing to read.
    let whole = Split {
        prefix_bundles: 14336,
        ..Split::default()
    };
    let none = model.demand(&whole, &profile);
    assert_eq!((none.flash_random_reads, none.flash_waits), (0.0, 0.0));
    let rows = model.misses(0.0, 0.0) * (1.0 + 2.0 * 0.8);
    assert!((none.multiply_adds / (rows * 4096.0) - 1.0).abs() < 1e-9);
}

#[test]
fn merging_over_gaps_counts_as_a_simulation_does() {
    let model = model(NeuronChoice::Predicted);
    let (bundles, sections) = (14336usize, 32usize);
    let missing = model.misses(0.0, 0.25) / sections as f64;
    let density = missing / bundles as f64;
    for gap in [0u32, 2, 8] {
        let split = Split {
            cache_bundles: 3584,
            gap_bundles: gap,
            ..Split::default()
        };
        let demand = model.demand(&split, &profile());
        let (mut reads, mut read) = (0u64, 0u64);
        let mut state = 7u64;
        for _section in 0..200 {
            let mut last: Option<usize> = None;
            for bundle in 0..bundles {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if (state >> 11) as f64 / (1u64 << 53) as f64 >= density {
                    continue;
                }
                match last.map(|last| bundle - last) {
                    Some(step) if step <= gap as usize + 1 => read += step as u64,
                    _ => (reads, read) = (reads + 1, read + 1),
                }
                last = Some(bundle);
            }
        }
        let scale = sections as f64 / 200.0;
        let close = |have: f64, want: f64| (have / want - 1.0).abs() < 0.02;
        assert!(
            close(demand.flash_random_reads, reads as f64 * scale),
            "gap {gap}: {reads}"
        );
        let bytes = read as f64 * scale * 8192.0;
        assert!(close(demand.flash_random_bytes, bytes), "gap {gap}: {read}");
    }
}

#[test]
fn where_every_gate_is_computed_every_absent_bundle_is_read() {
    let (model, profile) = (model(NeuronChoice::Gated), profile());
    let split = Split {
        prefix_bundles: 1792,
        cache_bundles: 3584,
        ..Split::default()
    };
    let absent = 32.0 * (14336.0 - 1792.0 - 3584.0);
    let one = model.demand(&split, &profile);
    assert_eq!(
        (one.flash_sequential_bytes, one.flash_random_reads),
        (absent * 8192.0, 0.0)
    );
    let two = model.demand(
        &Split {
            two_phase: true,
            ..split
        },
        &profile,
    );
    let missing = model.misses(0.125, 0.25);
    assert!((two.flash_random_reads / (absent + missing) - 1.0).abs() < 1e-9);
    assert_eq!(two.flash_sequential_bytes, 0.0);
}

#[test]
fn more_memory_is_never_worse_and_the_budget_is_never_exceeded() {
    for choice in [NeuronChoice::Predicted, NeuronChoice::Gated] {
        let (model, profile) = (model(choice), profile());
        let mut last = 0.0;
        for step in 0..24u64 {
            let memory_bytes = (1 << 30) + (200 << 20) * step + 12345;
            let plan = match best_plan(&model, &profile, &limits(memory_bytes)) {
                Ok(plan) => plan,
                Err(error) => {
                    assert_eq!(last, 0.0, "{error} with more memory");
                    continue;
                }
            };
            assert!(plan.memory_bytes <= memory_bytes);
            assert_eq!(model.memory_bytes(&plan.split), Some(plan.memory_bytes));
            let split = &plan.split;
            assert!(
                split.prefix_bundles + split.cache_bundles <= 14336,
                "{split:?}"
            );
            let again = predict_phases(&profile, &model.phases(split, &profile), 4);
            assert_eq!(plan.prediction, again);
            assert!(
                plan.prediction.tokens_per_s >= last,
                "{choice:?}, {memory_bytes} bytes"
            );
            last = plan.prediction.tokens_per_s;
        }
        assert!(last > 0.0);
    }
}

#[test]
fn too_little_memory_names_the_least() {
    let (model, profile) = (model(NeuronChoice::Predicted), profile());
    for have_bytes in [0, 1 << 20, 1 << 30] {
        let error = best_plan(&model, &profile, &limits(have_bytes)).unwrap_err();
        let SearchError::Memory { need_bytes, .. } = error;
        assert_eq!(need_bytes, (1 << 30) + 32 * 64 * 8192);
        assert!(
            error
                .to_string()
                .contains(&std::format!("{need_bytes} is the least"))
        );
        assert!(best_plan(&model, &profile, &limits(need_bytes)).is_ok());
        assert!(best_plan(&model, &profile, &limits(need_bytes - 1)).is_err());
    }
}

#[test]
fn the_device_decides_between_one_and_two_phases() {
    let model = model(NeuronChoice::Predicted);
    let two_phase = |profile: &DeviceProfile| {
        let plan = best_plan(&model, profile, &limits(2 << 30)).unwrap();
        assert_eq!(plan.prediction.bound, Bound::Flash);
        plan.split.two_phase
    };
    // A second page costs nothing: it is read along.
    assert!(!two_phase(&flash_with(60e3, 60e3)));
    // Two small reads are faster than a large one (UFS 4.0 in the paper): gate first.
    assert!(two_phase(&flash_with(200e3, 60e3)));
}

#[test]
fn gaps_are_read_through_where_commands_are_dear() {
    let model = model(NeuronChoice::Predicted);
    // Reads of any size up to 1 MiB take the same time.
    let mut dear = flash_with(20e3, 20e3);
    for (row, bytes) in dear.flash.ranges[0]
        .bytes_per_s
        .iter_mut()
        .zip(&dear.flash.blocks_bytes)
    {
        row.fill(20e3 * f64::from(*bytes));
    }
    let gap = |profile: &DeviceProfile| {
        let plan = best_plan(&model, profile, &limits(1200 << 20)).unwrap();
        plan.split.gap_bundles
    };
    assert_eq!(gap(&flash_with(60e3, 60e3)), 0);
    assert!(gap(&dear) >= 8);
}
