//! The golden models, where they stand beside the checkout.

use std::path::{Path, PathBuf};

use layout_tool::pack::{PackOptions, Weights};
use layout_tool::verify::{compare, verify};

use crate::model::{folder, packed};

fn golden() -> Option<Vec<PathBuf>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/golden");
    let Ok(entries) = std::fs::read_dir(&path) else {
        eprintln!("skipped: there is no {}", path.display());
        return None;
    };
    let folders = entries.map(|entry| entry.unwrap().path());
    Some(
        folders
            .filter(|folder| folder.join("model.safetensors").exists())
            .collect(),
    )
}

#[test]
fn golden_models_pack_and_compare() {
    let Some(models) = golden() else { return };
    assert!(models.len() >= 9, "{models:?}");
    let folder = folder();
    for model in models {
        let ggufs = ["f32", "f16", "q8_0", "q4_0"].map(|ty| model.join(format!("model-{ty}.gguf")));
        for source in [model]
            .into_iter()
            .chain(ggufs)
            .filter(|source| source.exists())
        {
            for weights in [Weights::Auto, Weights::F32] {
                let mut options = PackOptions::new(&source, folder.path().join("a.image"));
                (options.weights, options.force) = (weights, true);
                packed(&options).unwrap();
                let what = format!("{} {weights:?}", source.display());
                assert_eq!(
                    verify(&options.target, None, &|_, _| {}).unwrap().damages,
                    [],
                    "{what}"
                );
                let comparison = compare(&options.target, &source, None, &|_, _| {}).unwrap();
                assert_eq!(comparison.mismatches, [], "{what}: {comparison}");
                if weights == Weights::F32 {
                    assert!(
                        comparison.kinds.iter().all(|kind| kind.unequal == 0),
                        "{what}"
                    );
                }
            }
        }
    }
}
