//! Each source type to each weight type: lossless where it can be, close where not.

use layout_tool::pack::{Fidelity, PackOptions, Weights, fidelity, weight_type};
use layout_tool::source::SourceType;
use layout_tool::verify::compare;
use tessera_kernels::WeightType;

use crate::model::{folder, packed, write_gguf};

#[test]
fn every_source_type() {
    let folder = folder();
    for from in SourceType::ALL {
        let source = folder.path().join(format!("{}.gguf", from.name()));
        write_gguf(&source, from);
        for weights in [
            Weights::Auto,
            Weights::Q4,
            Weights::Q4o,
            Weights::Q8,
            Weights::F16,
            Weights::F32,
        ] {
            let mut options = PackOptions::new(&source, folder.path().join("a.image"));
            (options.weights, options.force) = (weights, true);
            packed(&options).unwrap();
            let comparison = compare(&options.target, &source, Some(1), &|_, _| {}).unwrap();
            let what = format!("{} {weights:?}: {comparison}", from.name());
            assert_eq!(comparison.mismatches, [], "{what}");
            for kind in &comparison.kinds {
                let wide_head = matches!(weights, Weights::Q4 | Weights::Q4o);
                let to = match kind.name {
                    "lm_head" if wide_head => WeightType::Q6,
                    _ => weight_type(from, weights),
                };
                assert!(
                    kind.fidelity != Fidelity::Exact || kind.unequal == 0,
                    "{what}"
                );
                if kind.name != "down" {
                    assert_eq!((kind.to, kind.fidelity), (to, fidelity(from, to)), "{what}");
                }
            }
        }
    }
}

/// What `--weights auto` promises, type by type.
#[test]
fn auto_keeps_what_the_source_has() {
    use SourceType as S;
    let lossless = [
        (S::Q4_0, WeightType::Q4),
        (S::Q4_1, WeightType::Q4O),
        (S::Q4K, WeightType::Q4K),
        (S::Q5_0, WeightType::Q5),
        (S::Q8_0, WeightType::Q8),
    ];
    for (from, to) in lossless {
        assert_eq!(weight_type(from, Weights::Auto), to);
        assert_eq!(fidelity(from, to), Fidelity::Exact);
    }
    assert_eq!(weight_type(S::F16, Weights::Auto), WeightType::Q8);
    for from in S::ALL {
        assert_eq!(
            fidelity(from, weight_type(from, Weights::F32)),
            Fidelity::Exact
        );
        let four = weight_type(from, Weights::Q4);
        assert_eq!(four.code_bytes(256), 128, "{four:?}");
    }
}

#[test]
fn another_model_is_told_apart() {
    let folder = folder();
    let [one, two] = [SourceType::Q4_0, SourceType::Q4_1].map(|ty| {
        let source = folder.path().join(format!("{}.gguf", ty.name()));
        write_gguf(&source, ty);
        source
    });
    let options = PackOptions::new(&one, folder.path().join("a.image"));
    packed(&options).unwrap();
    let comparison = compare(&options.target, &two, None, &|_, _| {}).unwrap();
    let text = comparison.to_string();
    assert!(
        text.contains("weights of gate are further from the source than rounding"),
        "{text}"
    );
    assert!(
        text.ends_with("the image is not that of the source, pack it again"),
        "{text}"
    );
    let small = crate::model::SPEC.write(folder.path());
    let comparison = compare(&options.target, &small, None, &|_, _| {}).unwrap();
    assert!(
        comparison
            .to_string()
            .contains("dim is not that of the source")
    );
}
