//! `plan` and `probe` as a script sees them.

#[path = "../../runtime/tests/support/launch.rs"]
mod launch;
#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{Recipe, tiny_image};
use tessera::profile::ProfileFile;
use tessera_runtime::profile::DeviceProfile;

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.image");
    std::fs::write(&path, tiny_image(&Recipe::default())).unwrap();
    path
}

fn tessera(arguments: &[&str]) -> Output {
    launch::program(env!("CARGO_BIN_EXE_tessera"))
        .args(arguments)
        // A profile that somebody saved is no part of these tests.
        .env("XDG_CONFIG_HOME", "/dev/null")
        .env_remove("TESSERA_PROFILE")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = tessera(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

fn refused(arguments: &[&str], status: i32) -> String {
    let output = tessera(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    assert!(
        !text.contains("panicked") && output.stdout.is_empty(),
        "{text}"
    );
    text
}

/// The least memory that `plan` names when it is offered next to none, for some lanes.
fn least_bytes(image: &str, lanes: &str) -> u64 {
    let common = ["plan", "--image", image, "--memory", "1K", "--ctx", "32"];
    let text = refused(&[&common[..], &["--lanes", lanes]].concat(), 1);
    let before = text.split(" is the least").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_table_adds_up_to_the_byte() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let least = least_bytes(image, "2");
    for memory_bytes in [least, least + 123_457, 64 << 20] {
        let memory = memory_bytes.to_string();
        let common = ["plan", "--image", image, "--memory", &memory, "--ctx", "32"];
        let common = [&common[..], &["--lanes", "2"]].concat();
        let plan = json(&[&common[..], &["--json"]].concat());
        let budget = plan["budget"].as_object().unwrap();
        let sum: u64 = budget.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(plan["total_bytes"].as_u64(), Some(sum), "{plan}");
        assert!(sum <= memory_bytes, "{plan}");
        // The same to read: parts and what is left over are the memory.
        let text = text(&common);
        let rows = text.lines().skip(1).take_while(|line| !line.contains('%'));
        let numbers: Vec<u64> = rows
            .filter_map(|row| row.rsplit(' ').next()?.replace(',', "").parse().ok())
            .collect();
        let (memory, parts) = numbers.split_last().unwrap();
        assert_eq!(
            (*memory, parts.len()),
            (memory_bytes, budget.len() + 1),
            "{text}"
        );
        assert_eq!(parts.iter().sum::<u64>(), memory_bytes, "{text}");
        assert!(text.contains("(profile: built-in default)"), "{text}");
        let slowest = ["flash", "dram", "compute"].map(|part| {
            let key = format!("{part}_ms_per_token");
            (plan[&key].as_f64().unwrap(), part)
        });
        let (ms, bound) = slowest
            .into_iter()
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        assert_eq!(plan["bound"], bound);
        let ms = ms
            + plan["apart_ms_per_token"].as_f64().unwrap()
            + plan["serial_ms_per_token"].as_f64().unwrap();
        let speed = plan["predicted_tokens_per_s"].as_f64().unwrap();
        assert!((speed * ms / 1000.0 - 1.0).abs() < 1e-6, "{plan}");
        assert!(
            text.contains(&format!("{speed:.2} tokens/s, bound by {bound}")),
            "{text}"
        );
    }
    assert!(refused(&["plan", "--image", image], 2).contains("--memory"));
}

#[test]
fn what_is_planned_to_be_read_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let least = least_bytes(image, "2");
    let mut last = f64::INFINITY;
    // A chunk of this image is a quarter of a MiB, and it has two and a bit.
    for memory_bytes in [least, least + 300_000, least + 540_000] {
        let memory = memory_bytes.to_string();
        let common = [
            "--image", image, "--memory", &memory, "--ctx", "32", "--json",
        ];
        let lanes = ["--lanes", "2"];
        let plan = json(&[&["plan"][..], &common, &lanes].concat());
        let bench = ["bench", "-p", "32", "-n", "32", "-r", "4"];
        let bench = json(&[&bench[..], &common, &lanes].concat());
        assert_eq!(plan["total_bytes"], bench["budget_bytes"]);
        let planned = plan["streamed_bytes_per_token"].as_f64().unwrap();
        let read = bench["bytes_read_per_token"].as_f64().unwrap();
        // Besides the stream, a token may read the tile of its embedding's row.
        let tiles = 3.0 * 4096.0;
        assert!(
            (0.95 * planned..=1.05 * planned + tiles).contains(&read),
            "{memory_bytes}: {planned} planned, {read} read"
        );
        assert!(
            planned < last,
            "{memory_bytes}: {planned}, with less memory {last}"
        );
        last = planned;
    }
}

#[test]
fn a_profile_is_used_and_named_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let path = folder.path().join("slow.toml");
    let mut profile = DeviceProfile::default();
    profile.flash.sequential_bytes_per_s /= 10.0;
    let file = ProfileFile::new(&profile).text().unwrap();
    std::fs::write(&path, &file).unwrap();
    let (image, name) = (image.to_str().unwrap(), path.to_str().unwrap());
    let memory = least_bytes(image, "4").to_string();
    let common = [
        "plan", "--image", image, "--memory", &memory, "--ctx", "32", "--json",
    ];
    let with = |arguments: &[&str]| json(&[&common[..], arguments].concat());
    let (fast, slow) = (with(&["--lanes", "4"]), with(&["--profile", name]));
    assert_eq!(
        (&slow["profile"], &slow["lanes"]),
        (&name.into(), &4.into())
    );
    assert_eq!(
        (&slow["bound"], &fast["bound"]),
        (&"flash".into(), &"flash".into())
    );
    let ms = |plan: &Value| plan["flash_ms_per_token"].as_f64().unwrap();
    assert!(ms(&slow) > 2.0 * ms(&fast), "{slow} {fast}");
    let refuse = |arguments: &[&str]| refused(&[&common[..], arguments].concat(), 1);
    let text = refuse(&["--profile", name, "--lanes", "5"]);
    assert!(
        text.contains("5 lanes") && text.contains("knows 4"),
        "{text}"
    );
    std::fs::write(&path, file.replace("join_ns = [100,", "join_ns = [nan,")).unwrap();
    let text = refuse(&["--profile", name]);
    assert!(
        text.contains("slow.toml: dram.join_ns[0] is NaN, it must be from 0"),
        "{text}"
    );
    let text = refuse(&["--profile", "/nowhere/at.all"]);
    assert!(text.contains("cannot read /nowhere/at.all"), "{text}");
    let text = refuse(&["--profile", image]);
    assert!(text.contains("tiny.image"), "{text}");
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

#[test]
fn a_probe_writes_a_profile_that_plans_take() {
    let folder = tempfile::tempdir().unwrap();
    let flash = folder.path().join("flash");
    std::fs::create_dir(&flash).unwrap();
    let path = folder.path().join("device.toml");
    let (dir, name) = (flash.to_str().unwrap(), path.to_str().unwrap());
    let probe = [
        "probe",
        "--dir",
        dir,
        "--seconds",
        "1",
        "--size",
        "16M",
        "-o",
        name,
        "--json",
    ];
    let printed: ProfileFile = serde_json::from_value(json(&probe)).unwrap();
    let written = ProfileFile::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(printed, written);
    let measured = written.measured.as_ref().unwrap();
    assert_eq!(measured.test_file_bytes, 16 << 20);
    assert!(
        [
            "uring-direct",
            "uring-buffered",
            "pread-direct",
            "pread-buffered"
        ]
        .contains(&measured.io_path.as_str())
    );
    assert!(!measured.issuing_cores.is_empty());
    let profile = ProfileFile::read(&path).unwrap();
    assert_eq!(profile.flash.ranges[0].range_bytes, 16 << 20);
    assert!(names(&flash).is_empty(), "{:?}", names(&flash));
    let image = image(folder.path());
    let plan = [
        "plan",
        "--image",
        image.to_str().unwrap(),
        "--memory",
        "64M",
        "--json",
    ];
    let plan = json(&[&plan[..], &["--profile", name]].concat());
    assert!(
        plan["predicted_tokens_per_s"].as_f64().unwrap() > 0.0,
        "{plan}"
    );
    assert_eq!(plan["lanes"].as_u64(), Some(profile.lanes.len() as u64));
}

#[test]
fn an_interrupted_probe_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.toml");
    let mut probe = launch::program(env!("CARGO_BIN_EXE_tessera"))
        .args(["probe", "--seconds", "60", "--size", "16M", "-o"])
        .arg(&path)
        .arg("--dir")
        .arg(folder.path())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Until its test file is open, which has no name there; it measures for long after.
    let fds = PathBuf::from(format!("/proc/{}/fd", probe.id()));
    let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.unwrap().path());
        target.is_ok_and(|target| target.starts_with(folder.path()))
    };
    let open = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        std::fs::read_dir(&fds).is_ok_and(|mut entries| entries.any(is_ours))
    });
    assert!(open, "no test file within a minute");
    let pid = probe.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert!(!probe.wait().unwrap().success());
    assert!(
        names(folder.path()).is_empty(),
        "{:?}",
        names(folder.path())
    );
}

#[test]
fn what_cannot_be_probed_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device.toml");
    let (dir, name) = (folder.path().to_str().unwrap(), path.to_str().unwrap());
    let cases: [(&[&str], i32, &[&str]); 7] = [
        (
            &["-o", name, "--dir", "/nowhere"],
            1,
            &["/nowhere", "No such file"],
        ),
        (
            &["-o", name, "--dir", dir, "--size", "9999T"],
            1,
            &[dir, "free", "9999 TiB"],
        ),
        (
            &["-o", name, "--dir", dir, "--size", "1K"],
            1,
            &["1024 bytes", "16777216"],
        ),
        (
            &["-o", "/nowhere/x.toml", "--dir", dir],
            1,
            &["cannot write /nowhere/x.toml"],
        ),
        (&["-o", dir, "--dir", dir], 1, &["cannot write", dir]),
        (&["-o", name, "--seconds", "0"], 2, &["0"]),
        (&["--dir", dir], 1, &["cannot make /dev/null/tessera"]),
    ];
    for (arguments, status, parts) in cases {
        let text = refused(&[&["probe"], arguments].concat(), status);
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{arguments:?}: {text}"
        );
        assert!(names(folder.path()).is_empty(), "{arguments:?}");
    }
}
