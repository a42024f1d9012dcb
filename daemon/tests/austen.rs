//! The model that the program carries: Jane Austen's manner in four million weights.

#[path = "../../runtime/tests/support/launch.rs"]
mod launch;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use layout_tool::pack::{PackOptions, pack};
use tempfile::TempDir;
use tessera::commands::start_and_load;
use tessera::engine::{EngineOptions, OpenImage};
use tessera::vocabulary::Vocabulary;
use tessera_runtime::Observer;

/// Prompts and the tokens that follow them, as the scalar kernels give them.
const GREEDY: &str = include_str!("data/austen/greedy.out");
/// The beginning of a chapter that the model was not trained on.
const HELD_OUT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/data/austen/held-out.txt"
);
/// Its perplexity in windows of 256 tokens by PyTorch, as `layout-tool/model/export.py` prints it.
const PYTORCH_PERPLEXITY: f64 = 32.5173;

fn image() -> (TempDir, PathBuf) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../layout-tool/model/austen.gguf");
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("austen.image");
    pack(&PackOptions::new(&source, &target), &|_, _| {}).unwrap();
    (folder, target)
}

fn tessera(command: &mut Command) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert!(status.success(), "{stderr}");
    (String::from_utf8(stdout).unwrap(), stderr)
}

fn command(name: &str, image: &Path) -> Command {
    let mut command = launch::program(env!("CARGO_BIN_EXE_tessera"));
    command.args([name, "--lanes", "2", "--image"]).arg(image);
    command
}

#[test]
fn the_demonstration_runs_without_python_and_network() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = launch::program(env!("CARGO_BIN_EXE_tessera"));
    command
        .env("PATH", folder.path())
        .env("TESSERA_CACHE", folder.path());
    let (text, messages) = tessera(&mut command);
    assert!(text.starts_with("Elizabeth had never been"), "{text}");
    assert!(text.len() > 300, "{text}");
    // QEMU's user emulation tells of a missing program only by the status of a shell's.
    let emulated = launch::emulated();
    let sign = ["cannot run python3", "exit status: 127"][usize::from(emulated)];
    assert!(
        messages.contains(sign) && messages.contains("a smaller model"),
        "{messages}"
    );
    let repeated = tessera(&mut command);
    assert_eq!(repeated.0, text);
}

#[test]
fn greedy_tokens_are_those_of_the_snapshot_at_any_budget() {
    let (_folder, image) = image();
    let mut found = String::new();
    for line in GREEDY.lines() {
        let (prompt, tokens) = line.split_once('\t').unwrap();
        for memory in ["2M", "64M"] {
            let mut command = command("run", &image);
            command.args(["--ctx", "256", "--max-tokens", "48", "--print-ids"]);
            command.args(["--memory", memory, "--prompt", prompt]);
            let (ids, _) = tessera(&mut command);
            if memory == "64M" {
                found.push_str(&format!("{prompt}\t{ids}"));
            } else {
                assert_eq!(ids.trim_end(), tokens, "{prompt} within {memory}");
            }
        }
    }
    assert_eq!(found, GREEDY);
}

#[test]
fn perplexity_is_that_of_pytorch() {
    let (_folder, image) = image();
    let mut command = command("perplexity", &image);
    command.args(["--ctx", "256", "--json", "--file", HELD_OUT]);
    let (json, _) = tessera(&mut command);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let perplexity = json["perplexity"].as_f64().unwrap();
    let ratio = perplexity / PYTORCH_PERPLEXITY;
    assert!((0.995..1.005).contains(&ratio), "{perplexity}");
}

/// Gates of each layer that are not above zero, and all of them.
#[derive(Default)]
struct Gates([(AtomicUsize, AtomicUsize); 4]);

impl Observer for Gates {
    fn routed(&self, _layer: usize, _expert: usize, _token: usize) {}

    fn inputs(&self, _layer: usize, _expert: usize, _x: &[f32]) {}

    fn products(
        &self,
        layer: usize,
        _expert: usize,
        _first: usize,
        _tokens: usize,
        gate: &[f32],
        _up: &[f32],
    ) {
        let (zeros, all) = &self.0[layer];
        let shut = gate.iter().filter(|&&gate| gate <= 0.0).count();
        zeros.fetch_add(shut, Ordering::Relaxed);
        all.fetch_add(gate.len(), Ordering::Relaxed);
    }
}

#[test]
fn most_hidden_values_are_zero_in_every_layer() {
    let (_folder, image) = image();
    let model = OpenImage::open(&image).unwrap();
    let vocabulary = Vocabulary::required(&model, "the test").unwrap();
    let text = std::fs::read_to_string(HELD_OUT).unwrap();
    let tokens = vocabulary.tokenizer.encode(&text, false, true).unwrap();
    let options = EngineOptions {
        context: Some(512),
        ..EngineOptions::default()
    };
    let (mut session, _) = start_and_load(&model, &options).unwrap();
    let gates = Gates::default();
    session.append_observed(&tokens[..512], &gates).unwrap();
    let shape = *session.image().shape();
    for (layer, (zeros, all)) in gates.0.iter().enumerate() {
        let (zeros, all) = (zeros.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
        assert_eq!(all, 512 * shape.ffn_dim);
        let share = zeros as f64 / all as f64;
        assert!((0.8..0.99).contains(&share), "layer {layer}: {share}");
    }
}
