//! The real model of the demonstration, SmolLM2-135M-Instruct Q4_1.
//!
//! `TESSERA_MODELS` names the folder that holds its GGUF file (the demonstration's cache does);
//! without it the tests say so and pass. The reference continuations and the text lie in
//! `../shared`; what needs them says so where they are missing.

#[path = "../../runtime/tests/support/launch.rs"]
mod launch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use layout_tool::pack::{PackOptions, Weights, pack};
use serde_json::Value;
use tempfile::TempDir;
use tessera::engine::{EngineOptions, Io, LinuxSession, OpenImage, start};
use tessera_runtime::{Plan, PlanError, PlanOptions};

const FILE_NAME: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared")
        .join(path);
    if !path.exists() {
        eprintln!("not run: no {}", path.display());
    }
    path.exists().then_some(path)
}

/// An image in a folder of its own, which goes with the last that holds it.
struct Image {
    path: PathBuf,
    _place: TempDir,
}

/// The image with the weights as they are, while a test holds it: it is large, and three want it.
static SHARED: Mutex<Weak<Image>> = Mutex::new(Weak::new());

fn shared_image() -> Option<Arc<Image>> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(image) = shared.upgrade() {
        return Some(image);
    }
    let image = Arc::new(packed(Weights::Auto)?);
    *shared = Arc::downgrade(&image);
    Some(image)
}

fn packed(weights: Weights) -> Option<Image> {
    let Some(folder) = std::env::var_os("TESSERA_MODELS") else {
        eprintln!("not run: TESSERA_MODELS does not name the folder of {FILE_NAME}");
        return None;
    };
    let source = Path::new(&folder).join(FILE_NAME);
    assert!(source.exists(), "no {}", source.display());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("smollm2.image");
    let mut options = PackOptions::new(&source, &path);
    (options.force, options.weights) = (true, weights);
    pack(&options, &|_, _| {}).unwrap();
    Some(Image {
        path,
        _place: place,
    })
}

fn session(image: &Path, options: &EngineOptions) -> LinuxSession {
    let (mut session, _) = start(&OpenImage::open(image).unwrap(), options).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    session
}

fn best(logits: &[f32]) -> u32 {
    let order = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a));
    (0..logits.len()).max_by(order).unwrap() as u32
}

/// Greedy tokens are the reference's, up to its first step with a gap below `gap_min`.
fn check_greedy(image: &Path, reference: &str, gap_min: f64) {
    let Some(golden) = shared("golden/smollm2/golden.json") else {
        return;
    };
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let options = EngineOptions {
        context: Some(256),
        logits_rows: 1,
        ..Default::default()
    };
    let mut session = session(image, &options);
    for prompt in golden["prompts"].as_array().unwrap() {
        let ids = |value: &Value| -> Vec<u32> {
            value
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect()
        };
        session.truncate(0);
        let mut token = best(session.append(&ids(&prompt["prompt_ids"])).unwrap());
        let want = ids(&prompt[reference]["output_ids"]);
        let mut equal = 0;
        for (step, &want) in want.iter().enumerate() {
            if prompt[reference]["gap"][step].as_f64().unwrap() < gap_min {
                break;
            }
            assert_eq!(token, want, "{}: step {step}", prompt["name"]);
            equal += 1;
            token = best(session.append(&[token]).unwrap());
        }
        println!(
            "{}: {equal} of {} tokens compared",
            prompt["name"],
            want.len()
        );
    }
}

#[test]
fn greedy_tokens_are_those_of_llama_cpp() {
    if let Some(image) = shared_image() {
        check_greedy(&image.path, "llama_cpp", 0.5);
    }
}

#[test]
fn greedy_tokens_in_f32_are_those_of_transformers() {
    if let Some(image) = packed(Weights::F32) {
        check_greedy(&image.path, "hf_dequantized", 0.01);
    }
}

#[test]
fn perplexity_stays_within_its_bound() {
    let (Some(image), Some(text)) = (shared_image(), shared("data/wiki.test.raw")) else {
        return;
    };
    let output = launch::program(env!("CARGO_BIN_EXE_tessera"))
        .args(["perplexity", "--chunks", "20", "--json", "--image"])
        .arg(&image.path)
        .arg("--file")
        .arg(&text)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result: Value = serde_json::from_str(&text).unwrap();
    println!("{result}");
    assert_eq!(result["tokens"].as_u64(), Some(20 * 255));
    // llama.cpp: 28.707 for the file itself, 28.626 for its weights as they are.
    assert!(result["perplexity"].as_f64().unwrap() <= 28.85, "{result}");
}

#[test]
fn budget_lanes_and_io_path_never_change_a_bit() {
    let Some(image) = shared_image() else {
        return;
    };
    let prompt: Vec<u32> = (0..24).map(|i| 1000 + 37 * i).collect();
    let image_bytes = std::fs::metadata(&image.path).unwrap().len();
    let mut expected: Option<Vec<u32>> = None;
    for (share, lanes, io) in [
        (100, 2, Io::Auto),
        (100, 1, Io::Pread),
        (50, 2, Io::Auto),
        (50, 1, Io::Pread),
        (25, 2, Io::Auto),
        (25, 1, Io::Buffered),
    ] {
        let memory_bytes = match share {
            100 => None,
            _ => Some(image_bytes * share / 100),
        };
        let options = EngineOptions {
            memory_bytes,
            context: Some(128),
            logits_rows: 1,
            lanes: Some(lanes),
            io,
            ..EngineOptions::default()
        };
        let mut session = session(&image.path, &options);
        let mut bits: Vec<u32> = Vec::new();
        bits.extend(
            session
                .append(&prompt)
                .unwrap()
                .iter()
                .map(|logit| logit.to_bits()),
        );
        for _ in 0..4 {
            let token = best(session.logits());
            bits.extend(
                session
                    .append(&[token])
                    .unwrap()
                    .iter()
                    .map(|logit| logit.to_bits()),
            );
        }
        let missed = session.stats().miss_bytes > 0;
        assert_eq!(missed, share < 100, "{share} %: {:?}", session.stats());
        match &expected {
            Some(expected) => assert!(bits == *expected, "{share} %, {lanes} lanes, {io:?}"),
            None => expected = Some(bits),
        }
    }
}

/// Larger budgets choose larger chunks of the stream: where these do not fit, smaller ones must do.
#[test]
fn what_fits_a_budget_fits_every_larger_one() {
    let Some(image) = shared_image() else {
        return;
    };
    let model = OpenImage::open(&image.path).unwrap();
    for (seq_len, sequences) in [(256, 1), (2722, 1), (8192, 1), (64, 64)] {
        let options = |memory_bytes| PlanOptions {
            memory_bytes,
            seq_len,
            batch_tokens: 512,
            logits_rows: 1,
            lanes: 2,
            sequences,
            ..PlanOptions::default()
        };
        let Err(PlanError::Memory { need_bytes, .. }) = Plan::new(&model.image, options(1)) else {
            panic!("one byte was enough");
        };
        for memory in (need_bytes..need_bytes + (48 << 20)).step_by(150_000) {
            let plan = Plan::new(&model.image, options(memory));
            assert!(
                plan.is_ok(),
                "{seq_len}, {need_bytes} needed, {memory}: {plan:?}"
            );
        }
    }
}
