//! Rope variants, from either source: computed exactly or refused by name.

use serde_json::{Value, json};

use super::build::*;
use super::sentence;
use crate::source::{Rope, SourceError, gguf, open};

fn from_gguf(change: impl FnOnce(&mut Gguf)) -> Result<Rope, SourceError> {
    let mut file = tiny("llama");
    change(&mut file);
    Ok(gguf::from_bytes(&file.bytes())?.config.rope)
}

fn from_folder(key: &str, value: Value) -> Result<Rope, SourceError> {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config("llama");
    config[key] = value;
    write_folder(folder.path(), &config, &tensors());
    Ok(open(folder.path())?.config.rope)
}

fn refused<T>(result: Result<T, SourceError>) -> SourceError {
    let Err(error) = result else {
        panic!("accepted")
    };
    sentence(&error);
    error
}

#[test]
fn both_sources_give_the_same_frequencies() {
    let plain = from_gguf(|_| {}).unwrap();
    assert_eq!(
        (plain.inv_freq.as_slice(), plain.kind.as_str()),
        (&[1.0, 0.01][..], "none")
    );
    assert_eq!(plain, from_folder("rope_scaling", Value::Null).unwrap());
    assert_eq!(
        plain,
        from_folder("rope_scaling", json!({"rope_type": "default"})).unwrap()
    );

    let linear = from_gguf(|file| {
        file.set("llama.rope.scaling.type", text("linear"))
            .set("llama.rope.scaling.factor", f32(4.0));
    });
    let folder = from_folder("rope_scaling", json!({"type": "linear", "factor": 4.0}));
    assert_eq!(linear, folder);
    assert_eq!(linear.unwrap().inv_freq, [0.25, 0.0025]);
    let old = from_gguf(|file| {
        file.set("llama.rope.scale_linear", f32(4.0));
    });
    assert_eq!(old, folder);

    let yarn = from_gguf(|file| {
        file.set("llama.rope.scaling.type", text("yarn"))
            .set("llama.rope.scaling.factor", f32(4.0))
            .set("llama.rope.freq_base", f32(1e4))
            .set("llama.rope.scaling.original_context_length", u32(4));
    });
    let object = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4,
        "rope_theta": 10000.0,
    });
    assert_eq!(yarn, from_folder("rope_parameters", object));
    assert_eq!(yarn.unwrap().kind, "yarn");
}

#[test]
fn factors_divide_the_frequencies() {
    let rope = from_gguf(|file| {
        file.add("rope_freqs.weight", &[2], 2.0);
    });
    let rope = rope.unwrap();
    assert_eq!(
        (rope.inv_freq.as_slice(), rope.kind.as_str()),
        (&[0.5, 0.01 / 3.0][..], "factors")
    );
    let add = |dims: &[u64], first: f32| {
        from_gguf(|file| {
            file.add("rope_freqs.weight", dims, first);
        })
    };
    assert!(matches!(
        refused(add(&[3], 1.0)),
        SourceError::TensorShape { .. }
    ));
    assert!(matches!(refused(add(&[2], 0.0)), SourceError::Key { .. }));
}

#[test]
fn llama3_is_read_from_a_folder() {
    let object = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    });
    let rope = from_folder("rope_scaling", object.clone()).unwrap();
    assert_eq!(
        (rope.inv_freq.as_slice(), rope.kind.as_str()),
        (&[1.0, 0.00125][..], "llama3")
    );
    let mut narrow = object.clone();
    narrow["high_freq_factor"] = json!(1.0);
    assert!(matches!(
        refused(from_folder("rope_scaling", narrow)),
        SourceError::Key { .. }
    ));
    let mut without = object;
    without.as_object_mut().unwrap().remove("factor");
    let error = refused(from_folder("rope_scaling", without));
    assert_eq!(
        error,
        SourceError::KeyMissing {
            key: "rope_scaling.factor".into()
        }
    );
}

#[test]
fn yarn_takes_its_attention_factor_from_the_model() {
    let object = json!({"type": "yarn", "factor": 4.0, "attention_factor": 2.0});
    assert_eq!(
        from_folder("rope_scaling", object)
            .unwrap()
            .attention_factor,
        2.0
    );
    let object = json!({"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0});
    assert_eq!(
        from_folder("rope_scaling", object)
            .unwrap()
            .attention_factor,
        1.0
    );
}

#[test]
fn other_variants_are_refused_by_name() {
    for kind in ["dynamic", "longrope", "su", "mrope", "ntk"] {
        let error = refused(from_folder(
            "rope_scaling",
            json!({"type": kind, "factor": 2.0}),
        ));
        assert_eq!(error, SourceError::Rope { kind: kind.into() });
        let error = refused(from_gguf(|file| {
            file.set("llama.rope.scaling.type", text(kind));
        }));
        assert_eq!(error, SourceError::Rope { kind: kind.into() });
    }
    let sections = json!({"type": "default", "mrope_section": [1, 1]});
    let error = refused(from_folder("rope_scaling", sections));
    assert_eq!(
        error,
        SourceError::Rope {
            kind: "mrope".into()
        }
    );
    let error = refused(from_gguf(|file| {
        file.add("rope_factors_long.weight", &[2], 1.0);
    }));
    assert_eq!(
        error,
        SourceError::Rope {
            kind: "longrope".into()
        }
    );
    let both = refused(from_gguf(|file| {
        file.add("rope_freqs.weight", &[2], 1.0)
            .set("llama.rope.scaling.factor", f32(2.0));
    }));
    assert!(matches!(both, SourceError::Rope { .. }), "{both}");
    assert!(matches!(
        refused(from_folder("rope_scaling", json!("x"))),
        SourceError::Key { .. }
    ));
    assert!(matches!(
        refused(from_folder("rope_scaling", json!({}))),
        SourceError::KeyMissing { .. }
    ));
}

#[test]
fn frequencies_are_finite() {
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = refused(from_gguf(|file| {
            file.set("llama.rope.freq_base", f32(base));
        }));
        assert!(matches!(error, SourceError::Key { .. }), "{error}");
    }
    let tiny = json!({"rope_type": "linear", "factor": 1e-44});
    let error = refused(from_folder("rope_scaling", tiny));
    assert!(matches!(error, SourceError::Rope { .. }), "{error}");
}
