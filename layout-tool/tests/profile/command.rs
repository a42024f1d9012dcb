//! The command line.

use std::path::Path;

use layout_tool::pack::Weights;
use serde_json::{Map, Value, json};

use crate::launch;
use crate::run::{Bench, Loaded, specs};

fn tool(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = launch::program(env!("CARGO_BIN_EXE_layout-tool"))
        .current_dir(folder)
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// A vocabulary of one hundred single characters.
fn tokenizer() -> Value {
    let vocab: Map<String, Value> = (0..100u32)
        .map(|id| {
            (
                char::from_u32(33 + id + if id > 93 { 67 } else { 0 }).unwrap(),
                id,
            )
        })
        .map(|(character, id)| (character.to_string(), id.into()))
        .collect();
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

#[test]
fn pack_calibrate_is_pack_and_profile() {
    let bench = Bench::new(&specs()[0], Weights::Auto, 4, 300);
    let here = bench.folder.path();
    let text: String = (0..400u32)
        .map(|i| char::from(33 + (i * i % 90) as u8))
        .collect();
    std::fs::write(here.join("text"), text).unwrap();
    let args = [
        "pack",
        "model",
        "-o",
        "c.image",
        "--calibrate",
        "text",
        "--progress",
    ];
    let (code, out, err) = tool(here, &args);
    assert_eq!((code, out.is_empty()), (Some(1), false), "{err}");
    assert!(
        err.contains("has no tokenizer, give the text as numbers"),
        "{err}"
    );
    let left: Vec<_> = std::fs::read_dir(here)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("c."))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    std::fs::write(here.join("model/tokenizer.json"), tokenizer().to_string()).unwrap();
    let (code, out, err) = tool(here, &args);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("rank   recall  precision"), "{out}");
    assert!(err.contains("watching neurons "), "{err}");
    let (code, _, err) = tool(here, &["pack", "model", "-o", "d.image"]);
    assert_eq!(code, Some(0), "{err}");
    let args = ["profile", "d.image", "--text", "text", "-o", "e.image"];
    assert_eq!(tool(here, &args).0, Some(0));
    let read = |name: &str| Loaded::new(&here.join(name)).bytes;
    assert!(read("c.image") == read("e.image"));
    assert!(!here.join("c.image.uncalibrated").exists());
    let (code, table, err) = tool(here, &["inspect", "c.image"]);
    assert_eq!(code, Some(0), "{err}");
    let (rows, _) = out.rsplit_once("image ").unwrap();
    let (_, rows) = rows.split_once("layer expert").unwrap();
    assert!(table.contains(rows.trim_end()), "{table}");
    let (_, json, _) = tool(here, &["inspect", "c.image", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["calibration"][1]["layer"], 1);
    assert!(json["calibration"][0]["predictor_recall"].as_f64().unwrap() > 0.98);
    let (code, out, _) = tool(here, &["verify", "c.image", "--against", "model"]);
    assert_eq!(code, Some(0), "{out}");
    assert_eq!(tool(here, &["profile", "d.image", "-o", "f"]).0, Some(2));
    let (code, _, err) = tool(here, &args);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("e.image exists, give another name or --force"),
        "{err}"
    );
}
