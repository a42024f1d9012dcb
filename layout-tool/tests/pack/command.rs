//! The command line: exit codes, where text goes, and JSON keys.

use std::path::Path;
use std::process::Output;

use layout_tool::source::SourceType;
use serde_json::Value;

use crate::launch;
use crate::model::{SPEC, folder, write_gguf};

fn tool(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let command = launch::program(env!("CARGO_BIN_EXE_layout-tool"))
        .current_dir(folder)
        .args(args)
        .output()
        .unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = command;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// Runs the tool and expects it to refuse with one sentence.
fn refused(folder: &Path, args: &[&str]) -> String {
    let (code, out, err) = tool(folder, args);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{args:?}: {err}");
    assert!(err.starts_with("layout-tool: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    err
}

#[test]
fn pack_inspect_verify() {
    let folder = folder();
    let here = folder.path();
    write_gguf(&here.join("m.gguf"), SourceType::Q4_0);
    let (code, out, err) = tool(here, &["pack", "m.gguf", "-o", "m.image", "--progress"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("down columns, relative RMS error"), "{out}");
    assert!(
        out.contains("bundles of 32, clusters of 64 neurons"),
        "{out}"
    );
    assert!(err.contains("packing "), "{err}");
    let err = refused(here, &["pack", "m.gguf", "-o", "m.image"]);
    assert_eq!(
        err,
        "layout-tool: m.image exists, give another name or --force\n"
    );
    assert_eq!(
        tool(
            here,
            &["pack", "m.gguf", "-o", "m.image", "-f", "--threads", "1"]
        )
        .0,
        Some(0)
    );

    let (code, out, _) = tool(here, &["inspect", "m.image"]);
    assert_eq!(code, Some(0));
    assert!(
        out.contains("dim 256, ffn_dim 512, 1 layers, 4 heads (2 kv) of 64"),
        "{out}"
    );
    let args = ["verify", "m.image", "--against", "m.gguf"];
    let (code, out, err) = tool(here, &args);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("checksums are right"), "{out}");
    assert!(out.ends_with("the image is that of the source\n"), "{out}");

    let mut bytes = std::fs::read(here.join("m.image")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(here.join("m.image"), bytes).unwrap();
    let (code, out, err) = tool(here, &["verify", "m.image"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.starts_with("layout-tool: lm_head, tile 0 at byte"),
        "{err}"
    );
    assert!(
        err.ends_with("m.image: 1 damaged place, copy or pack the image again\n"),
        "{err}"
    );
}

#[test]
fn inspect_gives_numbers_that_add_up() {
    let folder = folder();
    let here = folder.path();
    SPEC.write(here);
    assert_eq!(tool(here, &["pack", "model", "-o", "m.image"]).0, Some(0));
    let args = [
        "inspect", "m.image", "--json", "--memory", "4M", "--lanes", "2", "--ctx", "64",
    ];
    let (code, out, err) = tool(here, &args);
    assert_eq!(code, Some(0), "{err}");
    let json: Value = serde_json::from_str(&out).unwrap();
    for (key, want) in [
        ("dim", 64),
        ("ffn_dim", 96),
        ("n_layers", 2),
        ("head_dim", 32),
    ] {
        assert_eq!(json[key], want, "{key}");
    }
    assert_eq!(json["ffn_resident_min_bytes"], 0);
    assert_eq!(json["ffn_bytes"], json["sections"]["ffn"]);
    assert_eq!(json["rms_eps"], 1e-5);
    assert_eq!(json["down_types"].as_array().unwrap().len(), 2);
    assert_eq!(json["image_id"].as_str().unwrap().len(), 32);
    let file_bytes = std::fs::metadata(here.join("m.image")).unwrap().len();
    assert_eq!(json["image_bytes"], file_bytes);
    let sum = |key: &str| -> u64 {
        json[key]
            .as_object()
            .unwrap()
            .values()
            .map(|bytes| bytes.as_u64().unwrap())
            .sum()
    };
    assert_eq!(
        sum("data_bytes") + json["padding_bytes"].as_u64().unwrap(),
        file_bytes
    );
    assert_eq!(json["total_bytes"], sum("budget"));
    assert!(sum("budget") <= 4 << 20);

    let err = refused(here, &["inspect", "m.image", "--memory", "20K"]);
    assert!(
        err.contains("20480 bytes of memory are too few for this model"),
        "{err}"
    );
    let err = refused(
        here,
        &["inspect", "m.image", "--memory", "4M", "--ctx", "100000"],
    );
    assert!(
        err.contains("a context of 100000 positions was asked for"),
        "{err}"
    );
    let err = refused(here, &["inspect", "model/config.json"]);
    assert!(err.contains("not a Tessera image"), "{err}");
    let err = refused(here, &["inspect", "none.image"]);
    assert!(err.contains("none.image: No such file"), "{err}");
}

#[test]
fn wrong_usage_is_two() {
    let folder = folder();
    for args in [
        &[][..],
        &["pack"],
        &["pack", "m"],
        &["pack", "m", "-o", "i", "--weights", "q3"],
        &["pack", "m", "-o", "i", "--bundle", "3"],
        &["pack", "m", "-o", "i", "--threads", "0"],
        &["inspect", "i", "--ctx", "5"],
        &["inspect", "i", "--memory", "lots"],
        &["frobnicate"],
    ] {
        let (code, out, err) = tool(folder.path(), args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
    }
    for args in [&["--help"][..], &["pack", "--help"], &["--version"]] {
        assert_eq!(tool(folder.path(), args).0, Some(0));
    }
}
