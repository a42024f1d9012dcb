//! Small things that are read by side reads: embedding rows, vectors, thresholds.

use tessera_hal::{Clock, Flash};
use tessera_kernels::Kernels;

use crate::cache::{BundleIndex, Cache};
use crate::format::{PAGE_BYTES, Section, SectionKind, Statistics};
use crate::limits::READ_TRIES_MAX;
use crate::stream::StreamError;
use crate::weights::{Weights, WeightsError};

/// Waits for a side read that was started, until its contents are intact.
pub fn side_read<'w, 'm, F: Flash<'m>>(
    weights: &'w mut Weights<'m, F>,
    index: usize,
    offset: u64,
    clock: &impl Clock,
    intact: &dyn Fn(&[u8]) -> bool,
) -> Result<&'w [u8], WeightsError> {
    let unit = weights.image.unit_at(offset);
    let fail = |error: StreamError| WeightsError::Read { unit, error };
    let mut tries = 0;
    while !intact(
        weights
            .stream
            .side_wait(index, tries > 0, clock)
            .map_err(fail)?,
    ) {
        tries += 1;
        if tries == READ_TRIES_MAX {
            return Err(WeightsError::Damaged { unit, offset });
        }
    }
    weights.stream.side_wait(index, false, clock).map_err(fail)
}

/// Reads the vectors section, in pieces.
pub fn read_vectors<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    vectors: &mut [f32],
) -> Result<(), WeightsError> {
    let section = weights.image.vectors();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(vectors);
    let piece_bytes = weights.stream.side_bytes();
    for _ in 0..READ_TRIES_MAX {
        for (index, piece) in bytes.chunks_mut(piece_bytes).enumerate() {
            let offset = section.offset + (index * piece_bytes) as u64;
            let pages_bytes = piece.len().next_multiple_of(PAGE_BYTES);
            weights.stream.side_start(0, offset, pages_bytes);
            let data = side_read(weights, 0, offset, clock, &|_| true)?;
            piece.copy_from_slice(&data[..piece.len()]);
        }
        if (kernels.crc32c)(0, bytes) == section.crc {
            return Ok(());
        }
    }
    let offset = section.offset;
    Err(WeightsError::Damaged {
        unit: weights.image.unit_at(offset),
        offset,
    })
}

/// Reads the threshold of every feed-forward section, where `thresholds` has room for them.
pub fn read_thresholds<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    thresholds: &mut [f32],
) -> Result<(), WeightsError> {
    let n_ffns = weights.image.shape().n_ffns();
    for (index, threshold) in thresholds.iter_mut().enumerate() {
        let (layer, expert) = (index / n_ffns, index % n_ffns);
        *threshold = read_threshold(weights, clock, kernels, layer, expert)?;
    }
    Ok(())
}

/// The threshold of one section; all of its statistics are read and checked.
fn read_threshold<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    layer: usize,
    expert: usize,
) -> Result<f32, WeightsError> {
    let section = weights
        .image
        .find_of(SectionKind::Statistics, layer, expert);
    let Some(section) = section else {
        panic!("layer {layer}, expert {expert} has no statistics")
    };
    let mut threshold = f32::NAN;
    read_pieces(weights, clock, kernels, &section, &mut |at, piece| {
        if at == 0 {
            threshold = Statistics::threshold_of(piece);
        }
    })?;
    if threshold >= 0.0 {
        return Ok(threshold);
    }
    let (offset, unit) = (section.offset, None);
    Err(WeightsError::Damaged { unit, offset }.named(&weights.image))
}

/// Tells the cache how often each bundle is used, where the image knows: as often as that of its
/// neurons that is used most.
pub fn read_seeds<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    cache: &mut Cache<'_>,
) -> Result<(), WeightsError> {
    let shape = *weights.image.shape();
    for index in 0..shape.n_layers * shape.n_ffns() {
        let (layer, expert) = (index / shape.n_ffns(), index % shape.n_ffns());
        let image = &weights.image;
        let k = image.ffn(layer, expert).bundle.neurons;
        let Some(section) = image.find_of(SectionKind::Statistics, layer, expert) else {
            continue;
        };
        let (first, mut most) = (index * shape.ffn_dim / k, 0);
        let mut seed = |neuron: usize, share| {
            most = if neuron.is_multiple_of(k) {
                share
            } else {
                share.max(most)
            };
            cache.seed(BundleIndex((first + neuron / k) as u32), most);
        };
        read_pieces(weights, clock, kernels, &section, &mut |at, piece| {
            Statistics::shares_of(piece, at as usize, shape.ffn_dim, &mut seed);
        })?;
    }
    Ok(())
}

/// Reads a section of bytes by side reads, piece by piece, and checks it; where it has to be read
/// again `visit(at, piece)` sees it from its beginning again.
fn read_pieces<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    section: &Section,
    visit: &mut dyn FnMut(u64, &[u8]),
) -> Result<(), WeightsError> {
    let piece_bytes = weights.stream.side_bytes() as u64;
    for _ in 0..READ_TRIES_MAX {
        let (mut crc, mut at) = (0, 0);
        while at < section.data_bytes {
            let bytes = piece_bytes.min(section.data_bytes - at) as usize;
            let offset = section.offset + at;
            weights
                .stream
                .side_start(0, offset, bytes.next_multiple_of(PAGE_BYTES));
            let data = &side_read(weights, 0, offset, clock, &|_| true)?[..bytes];
            visit(at, data);
            crc = (kernels.crc32c)(crc, data);
            at += bytes as u64;
        }
        if crc == section.crc {
            return Ok(());
        }
    }
    let (offset, unit) = (section.offset, None);
    Err(WeightsError::Damaged { unit, offset }.named(&weights.image))
}
