//! Same seed, same bytes; images that verify; GGUF files that can be read and packed.

use std::path::Path;

use layout_tool::inspect::inspect;
use layout_tool::pack::{PackOptions, pack};
use layout_tool::source::{self, Role, SourceType};
use layout_tool::synth::{SynthError, SynthOptions, synth};
use layout_tool::verify::verify;
use tessera_runtime::format::SectionKind;

use super::made;

fn bytes(path: &Path, options: &SynthOptions) -> Vec<u8> {
    let options = SynthOptions {
        target: path.to_owned(),
        force: true,
        ..options.clone()
    };
    made(&options);
    std::fs::read(path).unwrap()
}

#[test]
fn a_file_depends_on_its_seed_and_not_on_threads() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, name) in [
        ("tiny", "a.image"),
        ("tiny-moe", "a.image"),
        ("tiny", "a.gguf"),
    ] {
        let path = folder.path().join(name);
        let one = SynthOptions {
            threads: Some(1),
            layers: Some(2),
            ..SynthOptions::new(shape, "")
        };
        let first = bytes(&path, &one);
        let (threads, seed) = (Some(3), 2);
        assert!(
            first
                == bytes(
                    &path,
                    &SynthOptions {
                        threads,
                        ..one.clone()
                    }
                )
        );
        let other = bytes(&path, &SynthOptions { seed, ..one });
        assert!(first.len() == other.len() && first != other);
        let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < first.len() / 2, "{same} of {} bytes", first.len());
    }
}

#[test]
fn images_verify_and_say_what_is_in_them() {
    let folder = tempfile::tempdir().unwrap();
    for (shape, sections) in [("tiny", 4), ("tiny-moe", 16)] {
        let path = folder.path().join(shape);
        let report = made(&SynthOptions::new(shape, &path));
        let verified = verify(&path, Some(2), &|_, _| {}).unwrap();
        assert_eq!(verified.damages, []);
        assert_eq!(report.bytes, std::fs::metadata(&path).unwrap().len());
        let inspection = inspect(&path, None).unwrap();
        let json = inspection.json();
        for (key, least, most) in [
            ("predictor_recall", 0.99, 1.0),
            ("predictor_precision", 0.3, 1.0),
            ("active_share", 0.09, 0.11),
        ] {
            let values = json[key].as_array().unwrap();
            assert_eq!(values.len(), sections, "{key}");
            for value in values {
                let value = value.as_f64().unwrap();
                assert!((least..=most).contains(&value), "{shape} {key} {value}");
            }
        }
        let rank = json["predictor_rank"][0].as_u64().unwrap();
        assert_eq!(rank, 64);
        let text = inspection.to_string();
        assert!(text.contains("predictors of rank 64"), "{text}");
        // A second predictor byte in the wrong place is found.
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.len() - 4096;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(verify(&path, Some(1), &|_, _| {}).unwrap().damages.len(), 1);
    }
}

#[test]
fn inspect_refuses_predictors_and_statistics_of_other_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let options = SynthOptions {
        layers: Some(1),
        ..SynthOptions::new("tiny-moe", &path)
    };
    made(&options);
    let intact = std::fs::read(&path).unwrap();
    let inspection = inspect(&path, None).unwrap();
    for (kind, number_at, message) in [
        (SectionKind::Predictor, 4, "dim of the predictor is 257"),
        (SectionKind::Statistics, 0, "the statistics are of 513"),
    ] {
        let section = inspection.image().find_of(kind, 0, 2).unwrap();
        let mut bytes = intact.clone();
        bytes[section.offset as usize + number_at] += 1;
        std::fs::write(&path, bytes).unwrap();
        let error = inspect(&path, None).unwrap_err().to_string();
        let want = format!("layer 0, expert 2: {message}");
        assert!(error.starts_with(&want), "{error}");
    }
}

#[test]
fn gguf_files_have_the_same_shape_and_can_be_packed() {
    let folder = tempfile::tempdir().unwrap();
    for shape in ["tiny", "tiny-moe"] {
        let (image, gguf) = (folder.path().join("i"), folder.path().join("m.gguf"));
        for path in [&image, &gguf] {
            let options = SynthOptions {
                force: true,
                ..SynthOptions::new(shape, path)
            };
            let report = made(&options);
            assert_eq!(report.bytes, std::fs::metadata(path).unwrap().len());
        }
        let model = source::open(&gguf).unwrap();
        let wanted = inspect(&image, None).unwrap();
        let wanted = *wanted.image().shape();
        let config = &model.config;
        assert_eq!(config.dim, wanted.dim);
        assert_eq!(config.ffn_dim, wanted.ffn_dim);
        assert_eq!(config.n_layers, wanted.n_layers);
        assert_eq!(config.n_heads, wanted.n_heads);
        assert_eq!(config.n_kv_heads, wanted.n_kv_heads);
        assert_eq!(config.head_dim, wanted.head_dim);
        assert_eq!(config.vocab_size, wanted.vocab_size);
        assert_eq!(config.n_experts, wanted.n_experts);
        let gate = model.tensor(Role::Gate(1, 0)).unwrap();
        assert_eq!(gate.ty, SourceType::Q4_0);
        let packed = folder.path().join(shape);
        let report = pack(&PackOptions::new(&gguf, &packed), &|_, _| {}).unwrap();
        assert!(report.image_bytes > 0);
    }
}

#[test]
fn what_cannot_be_made_is_refused_with_what_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let refused = |options: SynthOptions| synth(&options, &|_, _| {}).unwrap_err();
    let base = SynthOptions::new("tiny", &path);
    let error = refused(SynthOptions::new("mistral-8b", &path));
    assert_eq!(
        error.to_string(),
        "no shape is called mistral-8b, choose one of mistral-7b, bamboo-7b, llama-13b, \
         turbosparse-mixtral-47b, tiny, tiny-moe, small"
    );
    for share in [0.0, 0.6, f64::NAN] {
        let error = refused(SynthOptions {
            activation_share: Some(share),
            ..base.clone()
        });
        let text = error.to_string();
        assert!(text.ends_with("it must be from 0.01 to 0.5"), "{text}");
    }
    let layers = Some(0);
    let error = refused(SynthOptions {
        layers,
        ..base.clone()
    });
    assert_eq!(error, SynthError::Layers { layers: 0 });
    assert!(error.to_string().ends_with("it must be from 1 to 1024"));
    std::fs::write(&path, "something").unwrap();
    let error = refused(base);
    assert!(matches!(error, SynthError::Write(_)));
    assert!(
        error
            .to_string()
            .ends_with("exists, give another name or --force")
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"something");
}
