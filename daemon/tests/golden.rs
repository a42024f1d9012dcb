//! Logits and greedy tokens against reference implementations that are not ours.
//!
//! The reference models lie outside the repository, in `../shared/golden`; without them the tests
//! say so and pass. CI requires them by `TESSERA_REQUIRE_GOLDEN`.

use std::path::{Path, PathBuf};

use layout_tool::pack::{PackOptions, Weights, pack};
use serde_json::Value;
use tessera::engine::{EngineOptions, LinuxSession, OpenImage, start};

/// Logits may differ by this share of the largest one, on the f32 path.
const RELATIVE_ERROR_MAX: f32 = 1e-4;
/// Logits of models with 4-bit and 8-bit weights and activations may differ by so much: random
/// weights amplify rounding about tenfold.
const QUANTIZED_ERROR_MAX: f32 = 0.75;

fn golden_folders() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        })
        .unwrap_or_default();
    folders.retain(|folder| folder.join("config.json").exists());
    folders.sort();
    if folders.is_empty() {
        let required = std::env::var_os("TESSERA_REQUIRE_GOLDEN").is_some();
        assert!(!required, "no reference models in {}", root.display());
        eprintln!("not run: no reference models in {}", root.display());
    }
    folders
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(value: &Value) -> Vec<f32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_u64().unwrap() as u32)
        .collect()
}

/// A session over a freshly packed image.
fn session(source: &Path, weights: Weights, folder: &Path) -> LinuxSession {
    let image = folder.join("model.image");
    let mut options = PackOptions::new(source, &image);
    (options.force, options.weights) = (true, weights);
    pack(&options, &|_, _| {}).unwrap();
    let opened = OpenImage::open(&image).unwrap();
    let options = EngineOptions {
        memory_bytes: Some(64 << 20),
        context: Some(256),
        logits_rows: 4,
        lanes: Some(2),
        ..EngineOptions::default()
    };
    let (mut session, _) = start(&opened, &options).unwrap();
    session.load(&mut |_, _| {}).unwrap();
    session
}

fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = token;
        }
    }
    best as u32
}

fn difference(have: &[f32], want: &[f32]) -> f32 {
    assert_eq!(have.len(), want.len());
    have.iter()
        .zip(want)
        .fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

fn largest(logits: &[f32]) -> f32 {
    logits.iter().fold(0.0, |max, x| max.max(x.abs()))
}

/// Greedy continuation of `prompt`, compared up to the first step whose gap is below `gap_min`.
fn check_greedy(
    session: &mut LinuxSession,
    name: &str,
    prompt: &[u32],
    want: &[u32],
    gaps: &[f32],
    gap_min: f32,
) -> usize {
    session.truncate(0);
    let mut token = best(session.append(prompt).unwrap());
    for (step, (&want, &gap)) in want.iter().zip(gaps).enumerate() {
        if token != want {
            assert!(
                gap < gap_min,
                "{name}: step {step} gives {token}, not {want}, gap {gap}"
            );
            return step;
        }
        token = best(session.append(&[token]).unwrap());
    }
    want.len()
}

#[test]
fn f32_images_of_every_folder_give_the_reference_logits() {
    let place = tempfile::tempdir().unwrap();
    for folder in golden_folders() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let golden = json(&folder.join("golden.json"));
        let mut session = session(&folder, Weights::F32, place.path());
        for prompt in golden["prompts"].as_array().unwrap() {
            let tokens = ids(&prompt["ids"]);
            let want = floats(&prompt["last_logits"]);
            let error_max = RELATIVE_ERROR_MAX * largest(&want);
            session.truncate(0);
            let error = difference(session.append(&tokens).unwrap(), &want);
            println!(
                "{name}, {} tokens: {error:e}, at most {error_max:e}",
                tokens.len()
            );
            assert!(
                error <= error_max,
                "{name}, {} tokens: {error:e}",
                tokens.len()
            );
            if let Some(all) = prompt.get("all_logits") {
                session.truncate(0);
                let mut rows = all.as_array().unwrap().iter().map(floats);
                session
                    .append_each(&tokens, 0, &mut |pos, logits| {
                        let have: Vec<f32> = logits.iter().collect();
                        let want = rows.next().unwrap();
                        let error = difference(&have, &want);
                        assert!(
                            error <= RELATIVE_ERROR_MAX * largest(&want),
                            "{name}, {pos}"
                        );
                    })
                    .unwrap();
                assert_eq!(rows.len(), 0);
            }
            let greedy = &prompt["greedy"];
            let (want, gaps) = (ids(&greedy["ids"]), floats(&greedy["gap"]));
            check_greedy(&mut session, &name, &tokens, &want, &gaps, error_max);
        }
    }
}

#[test]
fn gguf_files_agree_with_the_reference_on_their_weights() {
    let place = tempfile::tempdir().unwrap();
    for folder in golden_folders() {
        let Ok(text) = std::fs::read(folder.join("golden-gguf.json")) else {
            continue;
        };
        let gguf: Value = serde_json::from_slice(&text).unwrap();
        let golden = json(&folder.join("golden.json"));
        for (file, expected) in gguf["files"].as_object().unwrap() {
            let name = format!("{}/{file}", folder.file_name().unwrap().to_string_lossy());
            let mut exact = session(&folder.join(file), Weights::F32, place.path());
            let prompts = golden["prompts"].as_array().unwrap();
            for (prompt, expected) in prompts.iter().zip(expected["prompts"].as_array().unwrap()) {
                let tokens = ids(&prompt["ids"]);
                let want = floats(&expected["hf_dequantized"]["last_logits"]);
                let error_max = RELATIVE_ERROR_MAX * largest(&want);
                exact.truncate(0);
                let error = difference(exact.append(&tokens).unwrap(), &want);
                println!(
                    "{name}, {} tokens: {error:e}, at most {error_max:e}",
                    tokens.len()
                );
                assert!(
                    error <= error_max,
                    "{name}, {} tokens: {error:e}",
                    tokens.len()
                );
                let reference = &expected["hf_dequantized"];
                let (want, gaps) = (ids(&reference["greedy_ids"]), floats(&reference["gap"]));
                check_greedy(&mut exact, &name, &tokens, &want, &gaps, error_max);
            }
        }
    }
}

#[test]
fn quantized_images_stay_near_the_reference() {
    let place = tempfile::tempdir().unwrap();
    for folder in golden_folders() {
        let Ok(text) = std::fs::read(folder.join("golden-gguf.json")) else {
            continue;
        };
        let gguf: Value = serde_json::from_slice(&text).unwrap();
        let golden = json(&folder.join("golden.json"));
        for (file, expected) in gguf["files"].as_object().unwrap() {
            if file.contains("f32") || file.contains("f16") {
                continue;
            }
            let name = format!("{}/{file}", folder.file_name().unwrap().to_string_lossy());
            let mut quantized = session(&folder.join(file), Weights::Auto, place.path());
            let prompts = golden["prompts"].as_array().unwrap();
            for (prompt, expected) in prompts.iter().zip(expected["prompts"].as_array().unwrap()) {
                let tokens = ids(&prompt["ids"]);
                let reference = &expected["hf_dequantized"];
                let want = floats(&reference["last_logits"]);
                quantized.truncate(0);
                let error = difference(quantized.append(&tokens).unwrap(), &want);
                let (want, gaps) = (ids(&reference["greedy_ids"]), floats(&reference["gap"]));
                let max = 2.0 * QUANTIZED_ERROR_MAX;
                let steps = check_greedy(&mut quantized, &name, &tokens, &want, &gaps, max);
                println!(
                    "{name}, {} tokens: {error}, {steps} steps equal",
                    tokens.len()
                );
                assert!(
                    error <= QUANTIZED_ERROR_MAX,
                    "{name}, {} tokens: {error}",
                    tokens.len()
                );
            }
        }
    }
}
