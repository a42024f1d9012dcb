//! The image with its neurons in a new order and sections added at the end.
//!
//! Neurons are moved, never rounded again. All units are sealed anew, since a checksum covers the
//! place of what it protects.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_kernels::Kernels;
use tessera_runtime::format::{
    FfnMap, Image, MatrixMap, NO_INDEX, Section, SectionKind, Superblock, TileLayout,
};
use tessera_runtime::limits::SECTIONS_MAX;

use super::analysis::Found;
use super::error::ProfileError;
use crate::image_file::ImageFile;
use crate::neuron_order::{NeuronOrder, gather};
use crate::pack::{Output, Tail, crc32c, extended, image_id, view, write_superblock};
use crate::parallel;

/// Bytes that are moved at once, about.
const PIECE_BYTES: usize = 1 << 20;

/// What there is to move, and where to.
struct Move<'a> {
    file: &'a ImageFile,
    output: &'a Output,
    from: Section,
    to: Section,
    crc32c: fn(u32, &[u8]) -> u32,
}

/// Writes the new image; returns its id and size. `progress(done, all)` in bytes; false ends it.
///
/// # Errors
/// [`ProfileError`]; then there is no new image.
pub fn write(
    file: &ImageFile,
    found: &[Found],
    target: &Path,
    threads: usize,
    progress: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<([u8; 16], u64), ProfileError> {
    let old = file.image();
    let (tails, data): (Vec<Tail>, Vec<Vec<u8>>) = tails(file, found)?.into_iter().unzip();
    let kept = kept(&old);
    if kept.len() + tails.len() > SECTIONS_MAX {
        return Err(ProfileError::OutOfRange {
            what: "the number of sections",
            have: (kept.len() + tails.len()).to_string(),
            range: "at most 524288",
        });
    }
    let mut head = extended(&old, &kept, &tails);
    let new = view(&head);
    let image_bytes = new.superblock().image_bytes;
    let output = Output::create(target, image_bytes)?;
    for (index, data) in data.iter().enumerate() {
        let section = new.section(kept.len() + index);
        output.write_at(section.offset, data)?;
    }
    let done = AtomicU64::new(0);
    let crcs = output.flush_behind(|flusher| {
        Ok(parallel::in_order(
            threads,
            kept.len(),
            || (),
            |(), index| {
                let to = new.section(index);
                let job = Move {
                    file,
                    output: &output,
                    from: kept[index],
                    to,
                    crc32c: Kernels::best().crc32c,
                };
                let crcs = job.run(&old, found)?;
                flusher.written(to.bytes);
                let done = done.fetch_add(to.bytes, Ordering::Relaxed) + to.bytes;
                match progress(done, image_bytes) {
                    true => Ok(crcs),
                    false => Err(ProfileError::Stopped),
                }
            },
        ))
    })??;
    let superblock = Superblock {
        image_id: image_id(&head, crcs.into_iter().flatten()),
        ..*new.superblock()
    };
    write_superblock(&superblock, &mut head);
    output.write_at(0, &head)?;
    output.finish()?;
    Ok((superblock.image_id, image_bytes))
}

/// Sections of the old image that the new one has too.
fn kept(old: &Image<'_>) -> Vec<Section> {
    let replaced = [
        SectionKind::Statistics,
        SectionKind::Predictor,
        SectionKind::NeuronOrder,
    ];
    (0..old.n_sections())
        .map(|index| old.section(index))
        .filter(|section| !replaced.iter().any(|kind| section.kind == *kind as u16))
        .collect()
}

/// The sections that calibration adds, with their contents.
fn tails(file: &ImageFile, found: &[Found]) -> Result<Vec<(Tail, Vec<u8>)>, ProfileError> {
    let image = file.image();
    let shape = image.shape();
    let mut tails = Vec::new();
    for (index, found) in found.iter().enumerate() {
        let (layer, expert) = (index / shape.n_ffns(), index % shape.n_ffns());
        let before = NeuronOrder::read(file, layer, expert)?;
        let order = before.then(&found.order).bytes();
        let parts = [
            (SectionKind::Statistics, Some(found.statistics.clone())),
            (SectionKind::Predictor, found.predictor.clone()),
            (SectionKind::NeuronOrder, Some(order)),
        ];
        for (kind, data) in parts {
            let Some(data) = data else { continue };
            let tail = Tail {
                kind,
                layer: layer as u16,
                expert: match shape.n_experts {
                    0 => NO_INDEX,
                    _ => expert as u16,
                },
                data_bytes: data.len() as u64,
                crc: crc32c(&data),
            };
            tails.push((tail, data));
        }
    }
    Ok(tails)
}

impl Move<'_> {
    /// Moves the section; returns the checksums of its units.
    fn run(&self, old: &Image<'_>, found: &[Found]) -> Result<Vec<u32>, ProfileError> {
        match SectionKind::from_u16(self.from.kind) {
            Some(SectionKind::Ffn) => {
                let layer = usize::from(self.from.layer);
                let expert = match self.from.expert {
                    NO_INDEX => 0,
                    expert => usize::from(expert),
                };
                let map = old.ffn(layer, expert);
                let section = layer * old.shape().n_ffns() + expert;
                self.bundles(&map, &found[section].order)
            }
            Some(kind) if !kind.is_blob() => self.tiles(),
            _ => self.bytes(),
        }
    }

    fn damaged(&self, offset: u64) -> ProfileError {
        let image = self.file.image();
        let unit = image.unit_at(offset);
        let unit = unit.map_or("a section".to_owned(), |unit| unit.to_string());
        let name = self.file.path().display();
        ProfileError::Run(format!(
            "{name}: {unit} at byte {offset} is damaged, copy or pack the image again"
        ))
    }

    fn bundles(&self, map: &FfnMap, order: &[u32]) -> Result<Vec<u32>, ProfileError> {
        let layout = map.bundle;
        let bytes = layout.bytes();
        let mut old = vec![0; map.bytes() as usize];
        self.file.read_at(map.offset, &mut old)?;
        for (index, bundle) in old.chunks_exact(bytes).enumerate() {
            let offset = map.offset + (index * bytes) as u64;
            if !layout.is_intact(bundle, offset, self.crc32c) {
                return Err(self.damaged(offset));
            }
        }
        let step = (PIECE_BYTES / bytes).max(1);
        let mut new = Vec::new();
        let mut crcs = Vec::new();
        for (piece, neurons) in order.chunks(step * layout.neurons).enumerate() {
            new.clear();
            new.resize(neurons.len() / layout.neurons * bytes, 0);
            gather(&layout, &old, neurons, &mut new);
            let at = self.to.offset + (piece * step * bytes) as u64;
            for (index, bundle) in new.chunks_exact_mut(bytes).enumerate() {
                let offset = at + (index * bytes) as u64;
                crcs.push(layout.seal(bundle, offset, self.crc32c));
            }
            self.output.write_at(at, &new)?;
        }
        Ok(crcs)
    }

    fn tiles(&self) -> Result<Vec<u32>, ProfileError> {
        let Some(ty) = self.from.weight_type(0) else {
            return Err(self.damaged(self.from.offset));
        };
        let tile = TileLayout {
            ty,
            cols: self.from.cols as usize,
            rows: self.from.unit_rows as usize,
        };
        let map = MatrixMap {
            offset: self.from.offset,
            rows: self.from.rows as usize,
            tile,
        };
        let mut bytes = Vec::new();
        let mut crcs = Vec::new();
        for index in 0..map.n_tiles() {
            let (offset, tile_bytes) = map.tile_place(index);
            bytes.resize(tile_bytes, 0);
            self.file.read_at(offset, &mut bytes)?;
            if !TileLayout::is_intact(&bytes, offset, self.crc32c) {
                return Err(self.damaged(offset));
            }
            let to = self.to.offset + (offset - self.from.offset);
            crcs.push(TileLayout::seal(&mut bytes, to, self.crc32c));
            self.output.write_at(to, &bytes)?;
        }
        Ok(crcs)
    }

    fn bytes(&self) -> Result<Vec<u32>, ProfileError> {
        let mut bytes = Vec::new();
        let (mut at, mut crc) = (0, 0);
        while at < self.from.bytes {
            let len = (self.from.bytes - at).min(PIECE_BYTES as u64);
            bytes.resize(len as usize, 0);
            self.file.read_at(self.from.offset + at, &mut bytes)?;
            let data = self.from.data_bytes.saturating_sub(at).min(len);
            crc = (self.crc32c)(crc, &bytes[..data as usize]);
            self.output.write_at(self.to.offset + at, &bytes)?;
            at += len;
        }
        let known = SectionKind::from_u16(self.from.kind).is_some();
        if known && crc != self.from.crc {
            return Err(self.damaged(self.from.offset));
        }
        Ok(Vec::new())
    }
}
