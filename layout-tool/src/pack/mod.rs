//! From a model to an image.
//!
//! [`pack`] first decides everything that sizes depend on (types, bundles, places: the head of the
//! image), checks it with the reader's own code, and then fills the image with pieces that are made
//! independently by several threads. The same source and options give the same bytes, whatever the
//! number of threads; there are no dates or random numbers in an image.

mod convert;
mod down;
mod error;
mod jobs;
mod layout;
mod moves;
mod options;
mod output;
mod report;
mod shape;
mod types;
mod vectors;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tessera_kernels::Loss;
use tessera_runtime::format::{Image, SectionKind, Superblock};
use tessera_runtime::limits::EOS_MAX;

pub(crate) use down::{STRIP_NEURONS, Shared, turn};
pub use down::{down_error_max, relative_error};
pub use error::PackError;
pub(crate) use layout::{
    Blobs, Tail, crc32c, extended, head as image_head, image_id, view, write_superblock,
};
pub use moves::{Fidelity, fidelity};
pub use options::{Choice, PackOptions, Weights};
pub(crate) use output::Output;
pub use output::check_target;
pub use report::{DownReport, PackReport};
pub(crate) use shape::{bundle_layout, model_shape};
pub use types::weight_type;
pub(crate) use types::{Types, attention, ffn, lm_head, tensor};
pub(crate) use vectors::vectors;

use crate::parallel;
use crate::source::{self, Model};
use jobs::{Jobs, Made, Memory};

/// Told of bytes done and bytes in all, from any thread.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Packs a model into an image. The image appears under its name when it is complete and on disk.
///
/// # Errors
/// [`PackError`]; then there is no image, and one that existed is untouched.
pub fn pack(options: &PackOptions, progress: Progress<'_>) -> Result<PackReport, PackError> {
    let start = Instant::now();
    check_target(Some(&options.source), &options.target, options.force)?;
    let model = source::open_with(
        &options.source,
        source::Options {
            tokenizer: options.tokenizer,
        },
    )?;
    let threads = options.threads.unwrap_or_else(parallel::threads).max(1);
    let mut head = head(&model, options, threads)?;
    let losses = fill(&mut head, &model, options, threads, progress)?;
    let image = layout::view(&head);
    let mut notes = model.notes;
    if model.config.eos_tokens.len() > EOS_MAX {
        let count = model.config.eos_tokens.len();
        notes.push(format!(
            "the model has {count} end tokens, the image keeps {EOS_MAX} of them"
        ));
    }
    Ok(PackReport::new(&image, losses, notes, start.elapsed()))
}

/// Superblock and table; blobs are made again when they are written, so that they are not held.
fn head(model: &Model, options: &PackOptions, threads: usize) -> Result<Vec<u8>, PackError> {
    let types = types::choose(model, options, threads)?;
    let shape = shape::shape(&model.config, &types, options)?;
    let blobs = vectors::blobs(model, &shape)?;
    Ok(layout::head(&model.config, &shape, &types, &blobs, &[]))
}

/// Writes all of the image and puts its id into `head`.
fn fill(
    head: &mut [u8],
    model: &Model,
    options: &PackOptions,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<Loss>, PackError> {
    let image = layout::view(head);
    let image_bytes = image.superblock().image_bytes;
    let output = Output::create(&options.target, image_bytes)?;
    write_blobs(&image, model, &output)?;
    let jobs = Jobs::new(model, &image);
    let done = AtomicU64::new(0);
    let made = output.flush_behind(|flusher| {
        parallel::in_order(threads, jobs.len(), Memory::default, |memory, index| {
            let made = jobs.run(index, memory, &output)?;
            flusher.written(made.bytes);
            progress(
                done.fetch_add(made.bytes, Ordering::Relaxed) + made.bytes,
                image_bytes,
            );
            Ok::<Made, PackError>(made)
        })
    })?;
    let shape = image.shape();
    let mut losses = vec![Loss::default(); shape.n_layers * shape.n_ffns()];
    for (section, loss) in made.iter().filter_map(|made| made.down) {
        losses[section] = losses[section] + loss;
    }
    let crcs = made.iter().flat_map(|made| made.unit_crcs.iter().copied());
    let image_id = layout::image_id(head, crcs);
    let superblock = Superblock {
        image_id,
        ..*image.superblock()
    };
    layout::write_superblock(&superblock, head);
    output.write_at(0, head)?;
    progress(image_bytes, image_bytes);
    output.finish()?;
    Ok(losses)
}

fn write_blobs(image: &Image<'_>, model: &Model, output: &Output) -> Result<(), PackError> {
    let blobs = vectors::blobs(model, image.shape())?;
    for kind in [
        SectionKind::Vectors,
        SectionKind::Tokenizer,
        SectionKind::ChatTemplate,
    ] {
        if let (Some(section), Some(data)) = (image.find(kind), blobs.get(kind)) {
            output.write_at(section.offset, data)?;
        }
    }
    Ok(())
}
