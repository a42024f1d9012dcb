//! Everything of an image that is no matrix, against its source.

use tessera_runtime::format::{Image, SectionKind};
use tessera_runtime::shape::Shape;

use super::comparison::Mismatch;
use super::{VerifyError, section_name};
use crate::image_file::ImageFile;
use crate::pack::{model_shape, vectors};
use crate::source::Model;

/// Hyper-parameters and special tokens that differ.
pub fn fields(image: &Image<'_>, model: &Model) -> Vec<Mismatch> {
    let (superblock, shape) = (image.superblock(), image.shape());
    let Shape {
        bundle_neurons,
        cluster_neurons,
        kv_f32,
        ..
    } = *shape;
    let want = Shape {
        bundle_neurons,
        cluster_neurons,
        kv_f32,
        ..model_shape(&model.config)
    };
    let config = &model.config;
    let eos = &config.eos_tokens[..config.eos_tokens.len().min(superblock.eos_tokens.len())];
    let all = [
        ("dim", shape.dim == want.dim),
        ("ffn_dim", shape.ffn_dim == want.ffn_dim),
        ("n_layers", shape.n_layers == want.n_layers),
        ("vocab_size", shape.vocab_size == want.vocab_size),
        ("a hyper-parameter", *shape == want),
        ("the begin token", superblock.bos_token == config.bos_token),
        (
            "whether a begin token is added",
            superblock.add_bos == config.add_bos,
        ),
        ("the list of end tokens", superblock.eos_tokens() == eos),
    ];
    let bad = all
        .iter()
        .filter(|(_, same)| !same)
        .map(|(what, _)| Mismatch::Field(what));
    bad.take(1).collect()
}

/// Adds vectors and texts that differ.
///
/// # Errors
/// If either cannot be read.
pub fn blobs(
    file: &ImageFile,
    model: &Model,
    mismatches: &mut Vec<Mismatch>,
) -> Result<(), VerifyError> {
    let image = file.image();
    let blob = |kind: SectionKind| -> Result<Vec<u8>, VerifyError> {
        let Some(section) = image.find(kind) else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; section.data_bytes as usize];
        file.read_at(section.offset, &mut bytes)?;
        Ok(bytes)
    };
    let have = blob(SectionKind::Vectors)?;
    let want = vectors(model, image.shape())?;
    let same = |(have, want): (&[u8; 4], &f32)| f32::from_le_bytes(*have) == *want;
    let first = have
        .as_chunks()
        .0
        .iter()
        .zip(&want)
        .position(|pair| !same(pair));
    mismatches.extend(first.map(|index| Mismatch::Vectors { index }));
    let Some(files) = &model.tokenizer else {
        return Ok(());
    };
    let template = files.chat_template.as_deref().unwrap_or_default();
    for (kind, want) in [
        (SectionKind::Tokenizer, &*files.tokenizer_json),
        (SectionKind::ChatTemplate, template),
    ] {
        if blob(kind)? != want.as_bytes() {
            mismatches.push(Mismatch::Text(section_name(kind as u16)));
        }
    }
    Ok(())
}
