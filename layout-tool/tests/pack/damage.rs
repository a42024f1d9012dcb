//! What verify says of damaged images.

use std::path::{Path, PathBuf};

use layout_tool::image_file::{ImageError, ImageFile};
use layout_tool::pack::PackOptions;
use layout_tool::verify::{Damage, Fault, VerifyError, VerifyReport, verify};
use tessera_runtime::format::{FormatError, SectionKind};

use crate::model::{SPEC, Spec, folder, packed};

fn image(folder: &Path, spec: &Spec) -> PathBuf {
    let mut options = PackOptions::new(spec.write(folder), folder.join("a.image"));
    options.force = true;
    packed(&options).unwrap();
    options.target
}

fn check(path: &Path) -> Result<VerifyReport, VerifyError> {
    verify(path, Some(2), &|_, _| {})
}

/// Verifies the image with the byte at `at` changed.
fn flipped(path: &Path, bytes: &[u8], at: usize) -> Result<Vec<Damage>, VerifyError> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x10;
    let target = path.with_extension("damaged");
    std::fs::write(&target, bytes).unwrap();
    check(&target).map(|report| report.damages)
}

#[test]
fn a_flipped_byte_is_found_in_every_section() {
    let folder = folder();
    for spec in [
        SPEC,
        Spec {
            model_type: "mixtral",
            n_experts: 2,
            ..SPEC
        },
    ] {
        let path = image(folder.path(), &spec);
        assert_eq!(check(&path).unwrap().damages, []);
        let bytes = std::fs::read(&path).unwrap();
        let file = ImageFile::open(&path).unwrap();
        let image = file.image();
        let mut kinds = std::collections::BTreeSet::new();
        for index in 0..image.n_sections() {
            let section = image.section(index);
            kinds.insert(section.kind);
            let name = SectionKind::from_u16(section.kind).unwrap().name();
            let last = section.bytes as usize - 1;
            for at in [0, last / 2, last] {
                let at = section.offset as usize + at;
                let damages = flipped(&path, &bytes, at).unwrap();
                assert_eq!(damages.len(), 1, "byte {at} of {name}: {damages:?}");
                let text = damages[0].to_string();
                assert!(text.starts_with(name), "{text}");
                if section.layer != u16::MAX {
                    assert!(text.contains(&format!("layer {}", section.layer)), "{text}");
                }
                let unit = if name == "ffn" { "bundle" } else { "tile" };
                assert!(name == "vectors" || text.contains(unit), "{text}");
                let padding = name == "vectors" && at > section.offset as usize;
                let end = if padding {
                    "padding is not zero"
                } else {
                    "checksum wrong"
                };
                assert!(text.ends_with(end) || name == "vectors", "{text}");
            }
        }
        assert_eq!(kinds.len(), 8);
    }
}

/// Two units that are each intact, but in each other's place.
#[test]
fn swapped_units_are_found() {
    let folder = folder();
    let path = image(folder.path(), &SPEC);
    let mut bytes = std::fs::read(&path).unwrap();
    let file = ImageFile::open(&path).unwrap();
    let map = file.image().ffn(0, 0);
    let (first, size) = (map.offset as usize, map.bundle.bytes());
    let (one, two) = bytes[first..].split_at_mut(size);
    one.swap_with_slice(&mut two[..size]);
    std::fs::write(&path, bytes).unwrap();
    let damages = check(&path).unwrap().damages;
    let faults: Vec<_> = damages.iter().map(|damage| damage.fault).collect();
    assert_eq!(faults, [Fault::Checksum; 2]);
}

#[test]
fn damage_to_the_head_is_found() {
    let folder = folder();
    let path = image(folder.path(), &SPEC);
    let bytes = std::fs::read(&path).unwrap();
    let error = |at: usize| match flipped(&path, &bytes, at) {
        Err(VerifyError::Image(ImageError::Format { error, .. })) => error,
        other => panic!("byte {at}: {other:?}"),
    };
    assert_eq!(error(3), FormatError::NotAnImage);
    assert!(matches!(error(8), FormatError::Version { .. }));
    assert_eq!(error(64), FormatError::SuperblockChecksum);
    assert_eq!(error(9000), FormatError::SuperblockChecksum);
    assert_eq!(error(16384 + 70), FormatError::TableChecksum);
}

#[test]
fn gaps_and_the_id_are_checked() {
    let folder = folder();
    let path = image(folder.path(), &SPEC);
    let mut bytes = std::fs::read(&path).unwrap();
    let file = ImageFile::open(&path).unwrap();
    let first = file.image().section(0).offset as usize;
    let damages = flipped(&path, &bytes, first - 1).unwrap();
    assert_eq!(damages.len(), 1);
    assert!(
        damages[0]
            .to_string()
            .starts_with("gap between sections at byte"),
        "{damages:?}"
    );

    // A right checksum over another id.
    bytes[30] ^= 1;
    let crc = (tessera_kernels::Kernels::SCALAR.crc32c)(0, &bytes[..16380]);
    bytes[16380..16384].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let damages = check(&path).unwrap().damages;
    assert_eq!(
        damages
            .iter()
            .map(|damage| damage.fault)
            .collect::<Vec<_>>(),
        [Fault::ImageId]
    );
}

#[test]
fn a_short_image_is_refused() {
    let folder = folder();
    let path = image(folder.path(), &SPEC);
    let bytes = std::fs::read(&path).unwrap();
    for len in [0, 5, 100, 16384, 16384 + 64, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let text = check(&path).unwrap_err().to_string();
        assert!(
            text.ends_with("bytes, 16384 are needed: it was cut short") || len > 16383,
            "{text}"
        );
        assert!(text.ends_with("it was cut short"), "{text}");
    }
    // What holds an image may be longer than it: a partition.
    std::fs::write(&path, [&bytes[..], &[7; 5000]].concat()).unwrap();
    assert_eq!(check(&path).unwrap().damages, []);
}

#[test]
fn much_damage_is_counted() {
    let folder = folder();
    let spec = Spec {
        ffn_dim: 1024,
        ..SPEC
    };
    let path = image(folder.path(), &spec);
    let mut bytes = std::fs::read(&path).unwrap();
    let file = ImageFile::open(&path).unwrap();
    let map = file.image().ffn(1, 0);
    for bundle in 0..30 {
        bytes[map.offset as usize + bundle * map.bundle.bytes() + 7] ^= 1;
    }
    std::fs::write(&path, bytes).unwrap();
    let text = check(&path).unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 22, "{text}");
    assert!(
        lines[0].starts_with("ffn, layer 1, bundle 0 at byte"),
        "{text}"
    );
    assert_eq!(lines[20], "and 10 more");
    assert!(
        lines[21].ends_with("30 damaged places, copy or pack the image again"),
        "{text}"
    );
}
