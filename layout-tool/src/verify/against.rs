//! An image against the model that it was made from, weight by weight.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_kernels::{GROUP, WeightType};
use tessera_runtime::format::{FfnMap, MatrixMap, SectionKind};

use super::comparison::{Comparison, KindComparison, Mismatch};
use super::{VerifyError, small};
use crate::image_file::ImageFile;
use crate::neuron_order::{NeuronOrder, gather};
use crate::pack::{
    Fidelity, Progress, STRIP_NEURONS, Shared, attention, ffn, fidelity, lm_head, tensor, turn,
};
use crate::parallel;
use crate::source::{self, Model, Role, SourceType, Tensor, dequantize};

/// Bytes of tiles that are compared at once, about.
const RUN_BYTES: usize = 1 << 20;
/// A piece of the comparison.
enum Part<'m> {
    Tiles {
        name: &'static str,
        map: MatrixMap,
        tensor: Tensor<'m>,
        first: usize,
        end: usize,
    },
    Bundles {
        map: FfnMap,
        section: usize,
        start: usize,
        count: usize,
    },
}

/// Compares every weight, every vector and the texts of an image with a model.
///
/// # Errors
/// If either cannot be read.
pub fn compare(
    path: &Path,
    source: &Path,
    threads: Option<usize>,
    progress: Progress<'_>,
) -> Result<Comparison, VerifyError> {
    let file = ImageFile::open(path)?;
    let image = file.image();
    // An image without a tokenizer may be of a model whose tokenizer cannot be read.
    let tokenizer = image.find(SectionKind::Tokenizer).is_some();
    let model = source::open_with(source, source::Options { tokenizer })?;
    let mut mismatches = small::fields(&image, &model);
    if !mismatches.is_empty() {
        return Ok(Comparison {
            kinds: Vec::new(),
            mismatches,
        });
    }
    small::blobs(&file, &model, &mut mismatches)?;
    let threads = threads.unwrap_or_else(parallel::threads).max(1);
    let work = Work::new(&file, &model)?;
    let image_bytes = image.superblock().image_bytes;
    let done = AtomicU64::new(0);
    let results = parallel::in_order(
        threads,
        work.parts.len(),
        Buffers::default,
        |buffers, index| {
            let result = work.run(index, buffers)?;
            let bytes = buffers.image.len() as u64;
            progress(
                done.fetch_add(bytes, Ordering::Relaxed) + bytes,
                image_bytes,
            );
            Ok::<_, VerifyError>(result)
        },
    )?;
    let mut kinds: Vec<KindComparison> = Vec::new();
    for kind in results.iter().flat_map(|result| &result.kinds) {
        if !kinds.iter_mut().any(|known| known.add(kind)) {
            kinds.push(*kind);
        }
    }
    if results.iter().any(|result| result.padding_neurons) {
        mismatches.push(Mismatch::PaddingNeurons);
    }
    let far = kinds.iter().filter(|kind| !kind.is_good());
    mismatches.extend(far.map(|kind| {
        let KindComparison { name, unequal, .. } = *kind;
        Mismatch::Weights { name, unequal }
    }));
    progress(image_bytes, image_bytes);
    Ok(Comparison { kinds, mismatches })
}

struct Work<'m> {
    file: &'m ImageFile,
    model: &'m Model,
    parts: Vec<Part<'m>>,
    downs: Vec<Shared>,
    /// Of each feed-forward section: the places of the model's neurons, where they moved.
    places: Vec<Option<Vec<u32>>>,
}

#[derive(Default)]
struct Buffers {
    image: Vec<u8>,
    stored: Vec<u8>,
    want: Vec<f32>,
    have: Vec<f32>,
}

#[derive(Default)]
struct PartResult {
    kinds: Vec<KindComparison>,
    padding_neurons: bool,
}

impl<'m> Work<'m> {
    fn new(file: &'m ImageFile, model: &'m Model) -> Result<Self, VerifyError> {
        let image = file.image();
        let shape = image.shape();
        let mut parts = Vec::new();
        let mut matrix = |kind: SectionKind, map: MatrixMap, tensor: Tensor<'m>| {
            let step = (RUN_BYTES / map.tile.tile_bytes(map.tile.rows)).max(1);
            for first in (0..map.n_tiles()).step_by(step) {
                let end = (first + step).min(map.n_tiles());
                parts.push(Part::Tiles {
                    name: kind.name(),
                    map,
                    tensor,
                    first,
                    end,
                });
            }
        };
        if !shape.tied_embeddings {
            let tensor = tensor(model, Role::Embedding);
            matrix(SectionKind::Embedding, image.embedding(), tensor);
        }
        let kinds = [
            SectionKind::AttnQ,
            SectionKind::AttnK,
            SectionKind::AttnV,
            SectionKind::AttnO,
        ];
        for layer in 0..shape.n_layers {
            let tensors = attention(model, layer);
            for ((kind, map), tensor) in kinds.into_iter().zip(image.attention(layer)).zip(tensors)
            {
                matrix(kind, map, tensor);
            }
        }
        matrix(SectionKind::LmHead, image.lm_head(), lm_head(model));
        let n_sections = shape.n_layers * shape.n_ffns();
        for section in 0..n_sections {
            let map = image.ffn(section / shape.n_ffns(), section % shape.n_ffns());
            for start in (0..map.neurons).step_by(STRIP_NEURONS) {
                let count = STRIP_NEURONS.min(map.neurons - start);
                parts.push(Part::Bundles {
                    map,
                    section,
                    start,
                    count,
                });
            }
        }
        let users = shape.ffn_dim.div_ceil(STRIP_NEURONS);
        let downs = (0..n_sections).map(|_| Shared::new(users)).collect();
        let order = |section: usize| {
            NeuronOrder::read(file, section / shape.n_ffns(), section % shape.n_ffns())
        };
        let places = (0..n_sections)
            .map(|section| order(section).map(|order| order.places()))
            .collect::<Result<_, _>>()?;
        Ok(Work {
            file,
            model,
            parts,
            downs,
            places,
        })
    }

    fn run(&self, index: usize, buffers: &mut Buffers) -> Result<PartResult, VerifyError> {
        match &self.parts[index] {
            Part::Tiles {
                name,
                map,
                tensor,
                first,
                end,
            } => {
                let kind = self.tiles(name, map, tensor, (*first, *end), buffers)?;
                Ok(PartResult {
                    kinds: vec![kind],
                    padding_neurons: false,
                })
            }
            Part::Bundles {
                map,
                section,
                start,
                count,
            } => self.bundles(map, *section, (*start, *count), buffers),
        }
    }

    fn tiles(
        &self,
        name: &'static str,
        map: &MatrixMap,
        tensor: &Tensor<'_>,
        (first, end): (usize, usize),
        buffers: &mut Buffers,
    ) -> Result<KindComparison, VerifyError> {
        let Buffers {
            image,
            stored,
            want,
            have,
        } = buffers;
        let (offset, _) = map.tile_place(first);
        let (last, last_bytes) = map.tile_place(end - 1);
        image.resize((last - offset) as usize + last_bytes, 0);
        self.file.read_at(offset, image)?;
        let (from, to) = (tensor.ty, map.tile.ty);
        let mut kind = KindComparison::new(name, from, to, fidelity(from, to));
        for tile in first..end {
            let (place, bytes) = map.tile_place(tile);
            let count = map.tile_rows(tile);
            let rows = map
                .tile
                .view(count, &image[(place - offset) as usize..][..bytes]);
            tensor.read_rows(tile * map.tile.rows, count, stored)?;
            source_floats(tensor, stored, count, want);
            kind.add_rows(&rows, 0..count, want, have);
        }
        Ok(kind)
    }

    /// Reads the neurons in `places` of a section, as if they stood side by side.
    fn gather(&self, map: &FfnMap, places: &[u32], image: &mut [u8]) -> Result<(), VerifyError> {
        let (k, bytes) = (map.bundle.neurons, map.bundle.bytes());
        let mut from = vec![0; k * bytes];
        for (to, places) in image.chunks_exact_mut(bytes).zip(places.chunks_exact(k)) {
            let mut rows = [0; GROUP];
            for (index, &place) in places.iter().enumerate() {
                let place = place as usize;
                let bundle = &mut from[index * bytes..][..bytes];
                self.file
                    .read_at(map.bundle_offset(place / k * k), bundle)?;
                rows[index] = (index * k + place % k) as u32;
            }
            gather(&map.bundle, &from, &rows[..k], to);
        }
        Ok(())
    }

    fn bundles(
        &self,
        map: &FfnMap,
        section: usize,
        (start, count): (usize, usize),
        buffers: &mut Buffers,
    ) -> Result<PartResult, VerifyError> {
        let n_ffns = self.model.config.n_experts.max(1);
        let [gate, up, down] = ffn(self.model, section / n_ffns, section % n_ffns);
        let Buffers {
            image,
            stored,
            want,
            have,
        } = buffers;
        let layout = map.bundle;
        image.clear();
        image.resize(map.run_bytes(count), 0);
        match &self.places[section] {
            None => self.file.read_at(map.bundle_offset(start), image)?,
            Some(places) => self.gather(map, &places[start..start + count], image)?,
        }
        let real = down.cols.saturating_sub(start).min(count);
        let mut result = PartResult::default();
        let parts = [
            ("gate", gate, layout.gate),
            ("up", up, layout.up),
            ("down", down, layout.down),
        ];
        for (which, (name, tensor, ty)) in parts.into_iter().enumerate() {
            let turned = which == 2;
            if turned {
                self.downs[section].with(&tensor, |stored| {
                    turn(&tensor, stored, (start, real), WeightType::F32, want)
                })?;
            } else {
                tensor.read_rows(start, real, stored)?;
                source_floats(&tensor, stored, real, want);
            }
            want.resize(count * layout.dim, 0.0);
            let fidelity = if turned {
                turned_fidelity(tensor.ty, ty)
            } else {
                fidelity(tensor.ty, ty)
            };
            let mut kind = KindComparison::new(name, tensor.ty, ty, fidelity);
            for (index, bundle) in image.chunks_exact(layout.bytes()).enumerate() {
                let view = layout.view(bundle);
                let rows = [view.gate, view.up, view.down][which];
                let first = index * layout.neurons;
                let inside = real.saturating_sub(first).min(layout.neurons);
                let want = &want[first * layout.dim..][..layout.neurons * layout.dim];
                kind.add_rows(&rows, 0..inside, want, have);
                let mut padding = KindComparison::new(name, tensor.ty, ty, fidelity);
                padding.add_rows(&rows, inside..layout.neurons, want, have);
                result.padding_neurons |= padding.unequal > 0;
            }
            result.kinds.push(kind);
        }
        Ok(result)
    }
}

/// What becomes of weights whose blocks are cut anew.
fn turned_fidelity(from: SourceType, to: WeightType) -> Fidelity {
    let exact = to == WeightType::F32 || (from, to) == (SourceType::F16, WeightType::F16);
    if exact {
        Fidelity::Exact
    } else {
        Fidelity::Rounded
    }
}

fn source_floats(tensor: &Tensor<'_>, stored: &[u8], rows: usize, out: &mut Vec<f32>) {
    out.clear();
    out.resize(rows * tensor.cols, 0.0);
    dequantize(tensor.ty, stored, out);
}
