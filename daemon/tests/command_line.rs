//! The commands as a script sees them: exit status, standard output, one plain sentence.

#[path = "../../runtime/tests/support/launch.rs"]
mod launch;
#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use support::{Recipe, tiny_image};

fn image(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.image");
    std::fs::write(&path, tiny_image(&Recipe::default())).unwrap();
    path
}

fn tessera(arguments: &[&str]) -> Output {
    launch::program(env!("CARGO_BIN_EXE_tessera"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a command that must be refused, and gives its sentence.
fn refused(arguments: &[&str], status: i32) -> String {
    let output = tessera(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    text
}

#[test]
fn token_ids_go_in_and_come_out() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let stats = folder.path().join("stats.json");
    let common = ["--image", image.to_str().unwrap(), "--lanes", "2"];
    let mut arguments = vec![
        "run",
        "--tokens",
        "1,2,3",
        "--max-tokens",
        "9",
        "--print-ids",
    ];
    arguments.extend(common);
    arguments.extend(["--stats", stats.to_str().unwrap()]);
    let first = tessera(&arguments);
    assert!(first.status.success());
    let ids = String::from_utf8(first.stdout).unwrap();
    assert_eq!(ids.trim_end().split(',').count(), 9);
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
    for key in [
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "first_token_ms",
        "token_ms_mean",
        "token_ms_p50",
        "token_ms_p90",
        "token_ms_p99",
        "bytes_read_per_token",
        "reads_per_token",
        "hit_rate",
        "miss_rate_p99",
        "stall_ms_per_token",
        "resident_bytes_peak",
        "budget_bytes",
        "io_path",
        "kernels",
        "lanes",
        "batch",
        "mode",
        "logits_digest",
    ] {
        assert!(!stats[key].is_null(), "{key}: {stats}");
    }
    // A system that gives no word of memory pressure is said to be one.
    let mut arguments = vec!["run", "--tokens", "1,2,3", "--max-tokens", "2"];
    arguments.extend(common);
    arguments.push("--yield-memory");
    let output = tessera(&arguments);
    assert!(output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    let said = ["memory given back: 0 bytes", "pressure cannot be watched"];
    assert!(said.iter().any(|said| text.contains(said)), "{text}");
    // A number of tokens that no memory could hold is cut to the context.
    let mut arguments = vec!["run", "--tokens", "1,2,3", "--max-tokens", "99999999999"];
    arguments.extend(common);
    let output = tessera(&arguments);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().split(',').count(),
        510
    );
}

#[test]
fn measurements_follow_the_text_where_standard_output_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let run = ["run", "--tokens", "1,2", "--max-tokens", "3", "--print-ids"];
    let rest = ["--stats", "-", "--image", image.to_str().unwrap()];
    let output = tessera(&[&run[..], &rest].concat());
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let (ids, stats) = text.split_once('\n').unwrap();
    assert_eq!(ids.split(',').count(), 3);
    let stats: serde_json::Value = serde_json::from_str(stats).unwrap();
    assert!(stats["decode_tokens_per_s"].is_number(), "{stats}");
    assert!(!Path::new("-").exists());
}

#[test]
fn empty_variables_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let run = |value: &str| {
        launch::program(env!("CARGO_BIN_EXE_tessera"))
            .args(["run", "--tokens", "1", "--max-tokens", "1", "--image"])
            .arg(&image)
            .envs(["TESSERA_KERNELS", "TESSERA_PROFILE"].map(|name| (name, value)))
            .output()
            .unwrap()
    };
    assert!(run("").status.success());
    let refused = run("magic");
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("magic"), "{text}");
}

#[test]
fn sequences_are_decoded_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let run = |arguments: &[&str]| -> serde_json::Value {
        let common = ["bench", "-p", "0", "-n", "5", "-r", "1", "--json"];
        let image = ["--image", image.to_str().unwrap()];
        let output = tessera(&[&common[..], &image, arguments].concat());
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let bytes = |stats: &serde_json::Value| stats["budget_bytes"].as_u64().unwrap();
    let (one, three) = (run(&[]), run(&["--batch", "3"]));
    let eight_bits = run(&["--batch", "3", "--kv", "q8"]);
    assert_eq!((&one["batch"], &three["batch"]), (&1.into(), &3.into()));
    assert!(three["decode_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!(bytes(&one) < bytes(&eight_bits) && bytes(&eight_bits) < bytes(&three));
    assert_ne!(three["logits_digest"], eight_bits["logits_digest"]);
}

#[test]
fn logits_come_row_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let output = tessera(&[
        "logits",
        "--image",
        image.to_str().unwrap(),
        "--tokens",
        "5,6,7,8",
        "--all",
        "--json",
        "-",
    ]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["logits"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.as_array().unwrap().len() == 300));
}

#[test]
fn what_cannot_be_done_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let image = image.to_str().unwrap();
    let with = |rest: &[&'static str]| -> Vec<String> {
        let mut all: Vec<String> = rest.iter().map(|word| word.to_string()).collect();
        all.extend(["--image".to_owned(), image.to_owned()]);
        all
    };
    let cases: [(&[&'static str], i32, &str); 14] = [
        (&["run", "--tokens", "1,,2"], 2, "is no token id"),
        (
            &["run", "--tokens", "300"],
            1,
            "not in the vocabulary of 300",
        ),
        (&["run", "--prompt", "text"], 1, "no tokenizer"),
        (&["run"], 1, "--prompt"),
        (&["run", "--tokens", "1", "--memory", "1K"], 1, "too few"),
        (&["run", "--tokens", "1", "--memory", "much"], 2, "much"),
        (&["run", "--tokens", "1", "--lanes", "17"], 2, "17"),
        (&["run", "--tokens", "1", "--ctx", "4096"], 1, "512"),
        (&["run", "--tokens", "1", "--kernels", "magic"], 1, "magic"),
        (&["bench", "-p", "99999999999", "-n", "1"], 1, "512"),
        (
            &["bench", "-p", "1", "-n", "1", "-r", "99999999999"],
            1,
            "1000",
        ),
        (&["bench", "--batch", "65"], 1, "64"),
        (&["run", "--tokens", "1", "--kv", "q2"], 2, "q2"),
        (&["chat"], 1, "no tokenizer"),
    ];
    for (arguments, status, part) in cases {
        let arguments = with(arguments);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let text = refused(&arguments, status);
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
    for (path, part) in [
        ("/dev/zero", "no regular file"),
        ("/", "a folder"),
        ("/nowhere/at.all", "cannot open"),
        (env!("CARGO_BIN_EXE_tessera"), "not a Tessera image"),
    ] {
        let text = refused(&["bench", "--image", path], 1);
        assert!(text.contains(part), "{path}: {text}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    for arguments in [
        vec!["bench", "-p", "2", "-n", "2", "-r", "1", "--json"],
        vec!["run", "--tokens", "1,2", "--max-tokens", "4"],
        vec!["logits", "--tokens", "1,2", "--json", "-"],
    ] {
        let full = std::fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = launch::program(env!("CARGO_BIN_EXE_tessera"))
            .args(&arguments)
            .arg("--image")
            .arg(&image)
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains("No space left"), "{arguments:?}: {text}");
    }
}

#[test]
fn a_damaged_bundle_is_named_and_nothing_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = {
        let image =
            tessera_runtime::format::Image::new_checked(&bytes, bytes.len() as u64).unwrap();
        image.ffn(2, 0).bundle_offset(32) as usize
    };
    bytes[at + 5000] ^= 64;
    std::fs::write(&path, &bytes).unwrap();
    let output = tessera(&["run", "--tokens", "1,2", "--image", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("ffn, layer 2, bundle 1"), "{text}");
    assert!(text.contains("tiny.image"), "{text}");
    // The same where it is met only when the weights are streamed.
    let common = ["run", "--tokens", "1,2", "--ctx", "16", "--lanes", "1"];
    let run = |memory: &str| {
        let image = ["--image", path.to_str().unwrap(), "--memory", memory];
        refused(&[&common[..], &image].concat(), 1)
    };
    let text = run("1K");
    assert!(text.contains("(--memory "), "{text}");
    let before = text.split(" is the least").next().unwrap();
    let text = run(before.rsplit(' ').next().unwrap());
    assert!(text.contains("ffn, layer 2, bundle 1"), "{text}");
    assert!(text.contains("tiny.image"), "{text}");
}
