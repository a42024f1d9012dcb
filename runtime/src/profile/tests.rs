use super::*;

/// A device with round numbers: reads a second (blocks, depths) over two ranges.
fn flash() -> FlashProfile {
    let range = |range_bytes, factor: f64| {
        let mut bytes_per_s = [[0.0; DEPTHS_MAX]; BLOCKS_MAX];
        for (block, row) in [[10e3, 40e3, 80e3], [10e3, 40e3, 60e3], [5e3, 10e3, 10e3]]
            .into_iter()
            .enumerate()
        {
            for (depth, reads) in row.into_iter().enumerate() {
                bytes_per_s[block][depth] = factor * reads * [4096.0, 8192.0, 65536.0][block];
            }
        }
        RangeProfile {
            range_bytes,
            bytes_per_s,
        }
    };
    FlashProfile {
        sequential_bytes_per_s: 1e9,
        blocks_bytes: Vec::from_array([4096, 8192, 65536]),
        depths: Vec::from_array([1, 4, 16]),
        cpu_ns_per_read: Vec::from_array([8e3, 10e3, 30e3]),
        ranges: Vec::from_array([range(128 << 20, 1.0), range(1 << 30, 0.5)]),
    }
}

fn close(have: f64, want: f64) {
    assert!((have / want - 1.0).abs() < 1e-9, "{have}, not {want}");
}

#[test]
fn measured_points_are_themselves() {
    let flash = flash();
    for range in &flash.ranges {
        for (block, &bytes) in flash.blocks_bytes.iter().enumerate() {
            for (depth, &in_flight) in flash.depths.iter().enumerate() {
                let range_bytes = range.range_bytes as f64;
                let have = flash.bytes_per_s(bytes.into(), in_flight.into(), range_bytes);
                close(have, range.bytes_per_s[block][depth]);
            }
        }
    }
    assert_eq!(
        [4096.0, 8192.0, 65536.0].map(|bytes| flash.cpu_ns(bytes)),
        [8e3, 10e3, 30e3]
    );
}

#[test]
fn between_points_latency_and_read_time_are_linear() {
    let flash = flash();
    // 1 and 4 in flight take 100 us both: so do 2, and twice as many reads are done.
    close(flash.reads_per_s(4096.0, 2.0, 0.0), 20e3);
    // 4 and 16 in flight take 100 and 200 us: 10 take 150.
    close(flash.reads_per_s(4096.0, 10.0, 0.0), 10.0 / 150e-6);
    // 8 KiB take 100 us of the device, 64 KiB take 200: 36 KiB take 150.
    close(flash.reads_per_s(36864.0, 1.0, 0.0), 1.0 / 150e-6);
    close(flash.cpu_ns(6144.0), 9e3);
    for depth in 1..=16 {
        let reads = |bytes: u32| flash.reads_per_s(f64::from(bytes), f64::from(depth), 0.0);
        for bytes in (4096..=131072).step_by(1024) {
            assert!(reads(bytes + 1024) <= reads(bytes), "{depth} of {bytes}");
        }
    }
}

#[test]
fn outside_of_what_was_measured_the_border_holds() {
    let flash = flash();
    // Smaller reads cost as much as the smallest, larger ones move bytes as fast as the largest.
    close(flash.reads_per_s(512.0, 4.0, 0.0), 40e3);
    close(flash.bytes_per_s(1e6, 4.0, 0.0), 10e3 * 65536.0);
    close(flash.reads_per_s(4096.0, 1000.0, 0.0), 80e3);
    close(flash.reads_per_s(4096.0, 0.5, 0.0), 10e3);
    assert_eq!((flash.cpu_ns(1.0), flash.cpu_ns(1e9)), (8e3, 30e3));
    // The smallest range that holds the bytes, or the largest there is.
    close(flash.reads_per_s(4096.0, 4.0, 134217728.0), 40e3);
    close(flash.reads_per_s(4096.0, 4.0, 134217729.0), 20e3);
    close(flash.reads_per_s(4096.0, 4.0, 1e15), 20e3);
    assert_eq!(flash.best_depth(4096.0, 0.0), 16);
    assert_eq!(flash.best_depth(65536.0, 0.0), 4);
}

#[test]
fn lanes_past_the_known_ones_add_nothing() {
    let profile = DeviceProfile::default();
    profile.validate().unwrap();
    assert_eq!(profile.dram(2), 20e9);
    assert_eq!((profile.dram(0), profile.dram(99)), (12e9, 30e9));
    assert_eq!(profile.multiply_adds_per_s(2), 50e9);
    assert_eq!(profile.multiply_adds_per_s(99), 100e9);
    assert_eq!(profile.attention_multiply_adds_per_s(2), 6e9);
    assert_eq!((profile.join_ns(1), profile.join_ns(16)), (100.0, 4e3));
}

#[test]
fn every_number_is_checked() {
    type Break = fn(&mut DeviceProfile, f64);
    let numbers: [(Break, &str); 9] = [
        (
            |p, x| p.flash.sequential_bytes_per_s = x,
            "flash.sequential_bytes_per_s is",
        ),
        (
            |p, x| p.flash.cpu_ns_per_read[5] = x,
            "flash.cpu_ns_per_read[5] is",
        ),
        (
            |p, x| p.flash.ranges[0].bytes_per_s[0][0] = x,
            "flash.ranges.bytes_per_s[0][0][0] is",
        ),
        (
            |p, x| p.flash.ranges[0].bytes_per_s[5][3] = x,
            "flash.ranges.bytes_per_s[0][5][3] is",
        ),
        (
            |p, x| p.lanes[3].multiply_adds_per_s = x,
            "lanes.multiply_adds_per_s[3] is",
        ),
        (
            |p, x| p.lanes[0].rows_bytes_per_s = x,
            "lanes.rows_bytes_per_s[0] is",
        ),
        (
            |p, x| p.lanes[1].attention_multiply_adds_per_s = x,
            "lanes.attention_multiply_adds_per_s[1] is",
        ),
        (|p, x| p.dram_bytes_per_s[3] = x, "dram.bytes_per_s[3] is"),
        (|p, x| p.join_ns[1] = x, "dram.join_ns[1] is"),
    ];
    for (set, text) in numbers {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e30] {
            let mut profile = DeviceProfile::default();
            set(&mut profile, value);
            let error = profile.validate().unwrap_err();
            assert!(matches!(error, ProfileError::OutOfRange { .. }), "{error}");
            assert!(error.to_string().starts_with(text), "{error}");
        }
    }
    let mut profile = DeviceProfile::default();
    profile.flash.depths[1] = 1;
    let error = profile.validate().unwrap_err();
    assert!(
        matches!(error, ProfileError::NotAscending { before: 1.0, .. }),
        "{error}"
    );
    type Shorten = fn(&mut DeviceProfile);
    let lists: [(Shorten, &str); 6] = [
        (
            |p| p.lanes.clear(),
            "lanes has 0 values, it must have from 1 to 16",
        ),
        (|p| p.flash.depths.clear(), "flash.depths has 0"),
        (|p| p.flash.blocks_bytes.clear(), "flash.blocks_bytes has 0"),
        (|p| p.flash.ranges.clear(), "flash.ranges has 0"),
        (
            |p| _ = p.join_ns.pop(),
            "dram.join_ns has 3 values, it must have 4",
        ),
        (
            |p| _ = p.flash.cpu_ns_per_read.pop(),
            "flash.cpu_ns_per_read has 5",
        ),
    ];
    for (shorten, text) in lists {
        let mut profile = DeviceProfile::default();
        shorten(&mut profile);
        let error = profile.validate().unwrap_err();
        assert!(matches!(error, ProfileError::Count { .. }), "{error}");
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
