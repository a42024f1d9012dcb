//! Each refusal is one sentence, and leaves nothing behind.

use std::path::Path;

use layout_tool::pack::{PackError, PackOptions, Weights};

use crate::model::{SPEC, Spec, Weight, folder, packed};

/// Packs, expects an error, and that no file is left.
fn refused(folder: &Path, spec: &Spec, weights: Weights) -> PackError {
    let images = folder.join("images");
    std::fs::create_dir_all(&images).unwrap();
    let mut options = PackOptions::new(spec.write(folder), images.join("a.image"));
    options.weights = weights;
    let error = packed(&options).unwrap_err();
    assert_eq!(std::fs::read_dir(images).unwrap().count(), 0, "{error}");
    assert!(!error.to_string().contains('\n'));
    error
}

#[test]
fn widths_that_are_no_blocks() {
    let folder = folder();
    let spec = Spec { dim: 48, ..SPEC };
    for weights in [Weights::Auto, Weights::Q4, Weights::Q8] {
        let text = refused(folder.path(), &spec, weights).to_string();
        assert!(
            text.starts_with("rows of lm_head.weight have 48 weights, no multiple of 32"),
            "{text}"
        );
        assert!(
            text.ends_with("choose another type for them (f16 holds any)"),
            "{text}"
        );
    }
    // The width of o is that of the heads.
    let spec = Spec {
        head_dim: 12,
        ..SPEC
    };
    let text = refused(folder.path(), &spec, Weights::Q8).to_string();
    assert!(
        text.starts_with("rows of model.layers.0.self_attn.o_proj.weight have 48"),
        "{text}"
    );
}

#[test]
fn weights_that_are_no_numbers() {
    fn bad(there: bool, weight: f32) -> f32 {
        if there { weight } else { 0.5 }
    }
    let cases: [(Weight, &str); 4] = [
        (
            |n, r, _| bad(n == "lm_head.weight" && r == 17, f32::NAN),
            "row 17 of tensor lm_head.",
        ),
        (
            |n, _, _| bad(n == "model.norm.weight", f32::INFINITY),
            "row 0 of tensor model.norm.",
        ),
        (
            |n, r, _| bad(n.ends_with("1.mlp.down_proj.weight") && r == 5, f32::NAN),
            "row 5 of tensor model.layers.1.mlp.down_proj.",
        ),
        (
            |n, r, _| {
                bad(
                    n.ends_with("1.self_attn.k_proj.weight") && r == 63,
                    -f32::INFINITY,
                )
            },
            "row 63 of tensor model.layers.1.self_attn.k_proj.",
        ),
    ];
    let folder = folder();
    for (weight, text) in cases {
        for weights in [Weights::Auto, Weights::F32] {
            let error = refused(folder.path(), &Spec { weight, ..SPEC }, weights);
            assert!(matches!(error, PackError::NotFinite { .. }), "{error:?}");
            assert!(error.to_string().starts_with(text), "{error}");
            assert!(
                error
                    .to_string()
                    .ends_with("a weight that is no finite number"),
                "{error}"
            );
        }
    }
}

#[test]
fn weights_too_large_for_halves() {
    let folder = folder();
    let spec = Spec {
        weight: |_, _, c| if c == 9 { 65520.0 } else { 1.0 },
        ..SPEC
    };
    let error = refused(folder.path(), &spec, Weights::F16);
    assert!(
        matches!(error, PackError::TooLarge { row: 0, .. }),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .ends_with("beyond the range of f16, use --weights f32"),
        "{error}"
    );
}

#[test]
fn shapes_that_no_image_has() {
    let folder = folder();
    let spec = Spec {
        head_dim: 512,
        n_heads: 2,
        n_kv_heads: 1,
        ..SPEC
    };
    let text = refused(folder.path(), &spec, Weights::F32).to_string();
    assert!(
        text.starts_with("the model does not fit the image format: head_dim is 512"),
        "{text}"
    );
}

#[test]
fn sources_that_are_none() {
    let folder = folder();
    let options = PackOptions::new(folder.path().join("no.gguf"), folder.path().join("a.image"));
    let error = packed(&options).unwrap_err();
    assert!(matches!(&error, PackError::Source(_)), "{error:?}");
    assert!(error.to_string().contains("no.gguf"), "{error}");
}

#[test]
fn targets_that_must_not_be_written() {
    let folder = folder();
    let source = SPEC.write(folder.path());
    let mut options = PackOptions::new(&source, folder.path().join("a.image"));
    packed(&options).unwrap();
    let before = std::fs::read(&options.target).unwrap();
    let path = options.target.clone();
    assert_eq!(
        packed(&options).unwrap_err(),
        PackError::Exists { path: path.clone() }
    );
    // A run that fails does not touch the image that is there.
    options.force = true;
    std::fs::write(source.join("model.safetensors"), "cut short").unwrap();
    packed(&options).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), before);
    options.target = folder.path().into();
    assert!(matches!(
        packed(&options).unwrap_err(),
        PackError::NotAFile { .. }
    ));
    options.target = source.join("model.safetensors");
    options.source = options.target.clone();
    assert!(matches!(
        packed(&options).unwrap_err(),
        PackError::OverSource { .. }
    ));
    options.source = SPEC.write(folder.path());
    options.target = folder.path().join("none/a.image");
    assert!(matches!(
        packed(&options).unwrap_err(),
        PackError::Io { .. }
    ));
}
