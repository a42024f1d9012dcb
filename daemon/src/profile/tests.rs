use super::*;

fn built_in() -> String {
    ProfileFile::new(&DeviceProfile::default()).text().unwrap()
}

#[test]
fn a_profile_survives_the_way_through_its_file() {
    let mut profile = DeviceProfile::default();
    profile.dram_bytes_per_s[1] = 20_000_000_000.5;
    profile.flash.ranges[0].bytes_per_s[2][3] = 1_234_567.0;
    let mut file = ProfileFile::new(&profile);
    file.measured = Some(Measured {
        tool: "a test".into(),
        io_path: "uring-direct".into(),
        io: "io_uring, direct".into(),
        kernels: "scalar".into(),
        folder: "/some \"where\"".into(),
        test_file_bytes: 1 << 30,
        seconds: Number(12.5),
        issuing_cores: vec![IssuingCore {
            core: 3,
            block_bytes: 4096,
            depth: 16,
            bytes_per_s: Number(2e8),
            cpu_ns_per_read: Number(8000.0),
        }],
    });
    file.lanes[0].core = Some(7);
    let again = ProfileFile::parse(&file.text().unwrap()).unwrap();
    assert_eq!(again, file);
    assert_eq!(again.profile().unwrap(), profile);
    // Whole numbers are written as such.
    assert!(
        built_in().contains("depths = [1, 4, 16, 64]"),
        "{}",
        built_in()
    );
}

/// What is said about the built-in profile's text with one part replaced.
fn refusal(from: &str, to: &str) -> String {
    let text = built_in();
    assert!(text.contains(from), "{from} is not in {text}");
    let changed = text.replacen(from, to, 1);
    let refused = ProfileFile::parse(&changed).and_then(|file| file.profile());
    format!("{:#}", refused.expect_err(to))
}

#[test]
fn what_is_wrong_is_said_with_place_value_and_what_is_allowed() {
    for (from, to, parts) in [
        (
            "version = 1",
            "version = 2",
            ["version is 2", "reads version 1"],
        ),
        (
            "1700000000\n",
            "nan\n",
            ["sequential_bytes_per_s is NaN", "from 1000 to"],
        ),
        (
            "1700000000\n",
            "1e300\n",
            ["sequential_bytes_per_s is 1000", "to 10000000000000"],
        ),
        (
            "1700000000\n",
            "-5\n",
            ["sequential_bytes_per_s is -5", "from 1000"],
        ),
        ("1700000000\n", "inf\n", ["is inf", "from 1000"]),
        ("1700000000\n", "\"fast\"\n", ["line ", "fast"]),
        ("sequential_bytes_per_s", "speed", ["line ", "speed"]),
        ("depths = [1, 4, 16, 64]\n", "", ["line ", "depths"]),
        (
            "[1, 4, 16, 64]",
            "[1, 4, 4, 64]",
            ["depths[2] is 4", "more than the 4"],
        ),
        (
            "[1, 4, 16, 64]",
            "[1, 4, 16.5, 64]",
            ["depths[2] is 16.5", "whole number"],
        ),
        (
            "[1, 4, 16, 64]",
            "[1, 4, 16]",
            ["bytes_per_s[0][0] has 4 values", "have 3"],
        ),
        (
            "[1, 4, 16, 64]",
            "[1, 2, 3, 4, 5, 6, 7]",
            ["depths has 7", "from 1 to 6"],
        ),
        ("[1, 4, 16, 64]", "[]", ["has 4 values", "have 0"]),
        (
            "100000000,",
            "-0.0,",
            ["bytes_per_s[0][0][1] is -0", "from 1000"],
        ),
        (
            "range_bytes = 1073741824",
            "range_bytes = -1",
            ["range_bytes[0] is -1", "whole"],
        ),
        (
            "range_bytes = 1073741824",
            "range_bytes = 1",
            ["range_bytes[0] is 1", "from 4096"],
        ),
        (
            "join_ns = [100, 2000, ",
            "join_ns = [",
            ["join_ns has 2 values", "have 4"],
        ),
        (
            "join_ns = [100, ",
            "join_ns = [-100, ",
            ["join_ns[0] is -100", "from 0"],
        ),
        (
            "25000000000",
            "0",
            ["multiply_adds_per_s[0] is 0", "from 1000000"],
        ),
        ("[[lanes]]", "[[lines]]", ["line ", "lines"]),
        ("version = 1", "version = [", ["line ", "comma"]),
    ] {
        let text = refusal(from, to);
        assert!(parts.iter().all(|part| text.contains(part)), "{to}: {text}");
        assert!(!text.contains('\n'), "{to}: {text}");
    }
}

#[test]
fn profiles_from_before_attention_was_measured_are_read() {
    let line = "attention_multiply_adds_per_s = 3000000000\n";
    let text = built_in().replace(line, "");
    assert!(text.len() + 4 * line.len() == built_in().len(), "{text}");
    let text = text.replace("25000000000", "50000000000");
    let profile = ProfileFile::parse(&text).unwrap().profile().unwrap();
    assert_eq!(profile.lanes[0].attention_multiply_adds_per_s, 6e9);
}

#[test]
fn files_that_are_no_profiles_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.toml");
    std::fs::write(&path, built_in()).unwrap();
    assert_eq!(ProfileFile::read(&path).unwrap(), DeviceProfile::default());
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    for path in [&path, folder.path(), Path::new("/nowhere/at.all")] {
        let text = format!("{:#}", ProfileFile::read(path).unwrap_err());
        assert!(
            text.contains("cannot read") && text.contains(path.to_str().unwrap()),
            "{text}"
        );
    }
}
