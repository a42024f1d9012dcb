//! A synthetic model straight to an image: every piece is made where it is written.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use tessera_kernels::{GROUP, Kernels, WeightType, interleave};
use tessera_runtime::format::{
    FfnMap, FfnMatrix, Image, MatrixMap, NO_INDEX, PAGE_BYTES, Quality, SectionKind, Statistics,
    Superblock, TileLayout, VectorsLayout,
};
use tessera_runtime::shape::Shape;

use super::design::Design;
use super::predictor;
use super::rows::{Matrix, Row, Section, TYPE};
use super::statistics::Behaviour;
use crate::pack::{
    Blobs, Output, PackError, Progress, Tail, Types, bundle_layout, image_head, image_id,
    model_shape, view, write_superblock,
};
use crate::parallel;

/// Bytes that a job makes, about.
const JOB_BYTES: usize = 1 << 20;

/// Which part of an image a job makes.
#[derive(Debug, Clone)]
enum Part {
    Tiles(Matrix, MatrixMap, Range<usize>),
    /// Bundles of these neurons of a section.
    Bundles(usize, Range<usize>),
    /// The predictor of a section.
    Predictor(usize),
    /// The statistics of all sections: they follow the same process.
    Statistics,
}

/// What a job reports.
#[derive(Debug, Default)]
struct Made {
    bytes: u64,
    unit_crcs: Vec<u32>,
    /// Checksums of tails, with their index.
    tails: Vec<(usize, u32)>,
    quality: Option<Quality>,
    overlap: Option<f64>,
}

/// What is known of an image when it is written.
#[derive(Debug, Clone)]
pub struct Written {
    /// Superblock and table.
    pub head: Vec<u8>,
    /// Of each section's predictor, in file order.
    pub qualities: Vec<Quality>,
    /// Share of a token's active neurons that were active for the token before it.
    pub overlap: f64,
}

/// Working memory of a thread.
#[derive(Debug, Default)]
struct Memory {
    out: Vec<u8>,
    codes: Vec<u8>,
    scales: Vec<u8>,
    mixing: Vec<f32>,
}

impl Memory {
    fn row(&mut self, cols: usize) -> Row<'_> {
        self.codes.resize(TYPE.code_bytes(cols), 0);
        self.scales.resize(TYPE.scale_bytes(cols), 0);
        Row {
            codes: &mut self.codes,
            scales: &mut self.scales,
        }
    }
}

struct Jobs<'a> {
    design: &'a Design,
    image: Image<'a>,
    output: &'a Output,
    crc32c: fn(u32, &[u8]) -> u32,
}

/// The shape of the image of a synthetic model: bundles of the fewest neurons that fill two pages.
pub fn shape(design: &Design, cluster_neurons: usize) -> Shape {
    let fills = |neurons: &usize| {
        let layout = bundle_layout(design.config.dim, *neurons, [TYPE; 3]);
        2 * layout.weight_bytes() > layout.bytes()
    };
    Shape {
        bundle_neurons: [1, 2, 4, 8, 16].into_iter().find(fills).unwrap_or(GROUP),
        cluster_neurons,
        ..model_shape(&design.config)
    }
}

fn blobs(design: &Design, shape: &Shape) -> Blobs {
    let layout = VectorsLayout::new(shape);
    let mut vectors = vec![1.0f32; layout.len()];
    vectors[layout.inv_freq()].copy_from_slice(&design.config.rope.inv_freq);
    for layer in 0..shape.n_layers {
        vectors[layout.router(layer)].copy_from_slice(&design.router(layer));
    }
    Blobs {
        vectors: vectors.iter().flat_map(|x| x.to_le_bytes()).collect(),
        tokenizer: None,
        chat_template: None,
    }
}

/// A predictor and statistics for each section, in turn.
fn tails(design: &Design, shape: &Shape) -> Vec<Tail> {
    let sizes = [
        (SectionKind::Predictor, predictor::layout(design).bytes()),
        (SectionKind::Statistics, Statistics::bytes(shape.ffn_dim)),
    ];
    let sections = (0..shape.n_layers * shape.n_ffns()).flat_map(|index| {
        let expert = match shape.n_experts {
            0 => NO_INDEX,
            _ => (index % shape.n_ffns()) as u16,
        };
        let layer = (index / shape.n_ffns()) as u16;
        sizes.map(|(kind, bytes)| Tail {
            kind,
            layer,
            expert,
            data_bytes: bytes as u64,
            crc: 0,
        })
    });
    sections.collect()
}

/// Writes the image.
///
/// # Errors
/// [`PackError`]: shapes that no image has, files that cannot be written.
pub fn write(
    design: &Design,
    cluster_neurons: usize,
    target: &Path,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Written, PackError> {
    let shape = shape(design, cluster_neurons);
    shape.validate()?;
    let (blobs, mut tails) = (blobs(design, &shape), tails(design, &shape));
    let types = Types {
        embedding: TYPE,
        lm_head: TYPE,
        attention: vec![[TYPE; 4]; shape.n_layers],
        ffn: vec![[TYPE; 3]; shape.n_layers * shape.n_ffns()],
    };
    let head = image_head(&design.config, &shape, &types, &blobs, &tails);
    let image = view(&head);
    let image_bytes = image.superblock().image_bytes;
    let output = Output::create(target, image_bytes)?;
    output.write_at(image.vectors().offset, &blobs.vectors)?;
    let jobs = Jobs {
        design,
        image: view(&head),
        output: &output,
        crc32c: Kernels::best().crc32c,
    };
    let parts = jobs.parts();
    let done = AtomicU64::new(0);
    let made = output.flush_behind(|flusher| {
        parallel::in_order(threads, parts.len(), Memory::default, |memory, index| {
            let made = jobs.run(&parts[index], memory)?;
            flusher.written(made.bytes);
            let before = done.fetch_add(made.bytes, Ordering::Relaxed);
            progress(before + made.bytes, image_bytes);
            Ok::<Made, PackError>(made)
        })
    })?;
    for (index, crc) in made.iter().flat_map(|made| &made.tails) {
        tails[*index].crc = *crc;
    }
    let mut head = image_head(&design.config, &shape, &types, &blobs, &tails);
    let crcs = made.iter().flat_map(|made| made.unit_crcs.iter().copied());
    let superblock = Superblock {
        image_id: image_id(&head, crcs),
        ..*view(&head).superblock()
    };
    write_superblock(&superblock, &mut head);
    output.write_at(0, &head)?;
    progress(image_bytes, image_bytes);
    output.finish()?;
    Ok(Written {
        head,
        qualities: made.iter().filter_map(|made| made.quality).collect(),
        overlap: made.iter().find_map(|made| made.overlap).unwrap_or(0.0),
    })
}

impl Jobs<'_> {
    /// All parts, in file order but for the statistics, which take longest and are begun first.
    fn parts(&self) -> Vec<Part> {
        let (image, shape) = (&self.image, self.image.shape());
        let mut parts = vec![Part::Statistics];
        add_tiles(&mut parts, Matrix::Embedding, image.embedding());
        for layer in 0..shape.n_layers {
            let matrices = [
                Matrix::Q(layer),
                Matrix::K(layer),
                Matrix::V(layer),
                Matrix::O(layer),
            ];
            for (matrix, map) in matrices.into_iter().zip(image.attention(layer)) {
                add_tiles(&mut parts, matrix, map);
            }
            for expert in 0..shape.n_ffns() {
                let section = layer * shape.n_ffns() + expert;
                let group_bytes = image.ffn(layer, expert).run_bytes(GROUP);
                let step = (JOB_BYTES / group_bytes).max(1) * GROUP;
                for start in (0..shape.ffn_dim).step_by(step) {
                    let neurons = start..(start + step).min(shape.ffn_dim);
                    parts.push(Part::Bundles(section, neurons));
                }
            }
        }
        add_tiles(&mut parts, Matrix::LmHead, image.lm_head());
        parts.extend((0..shape.n_layers * shape.n_ffns()).map(Part::Predictor));
        parts
    }

    fn run(&self, part: &Part, memory: &mut Memory) -> Result<Made, PackError> {
        match part {
            Part::Tiles(matrix, map, tiles) => self.tiles(*matrix, map, tiles.clone(), memory),
            Part::Bundles(section, neurons) => self.bundles(*section, neurons.clone(), memory),
            Part::Predictor(section) => self.predictor(*section, memory),
            Part::Statistics => self.statistics(memory),
        }
    }

    fn tiles(
        &self,
        matrix: Matrix,
        map: &MatrixMap,
        tiles: Range<usize>,
        memory: &mut Memory,
    ) -> Result<Made, PackError> {
        let ty: WeightType = map.tile.ty;
        let (code, scale) = (ty.code_bytes(map.tile.cols), ty.scale_bytes(map.tile.cols));
        let (first, _) = map.tile_place(tiles.start);
        let (last, last_bytes) = map.tile_place(tiles.end - 1);
        let out = &mut memory.out;
        out.clear();
        out.resize((last - first) as usize + last_bytes, 0);
        let mut unit_crcs = Vec::with_capacity(tiles.len());
        for tile in tiles {
            let (place, bytes) = map.tile_place(tile);
            let count = map.tile_rows(tile);
            let tile_bytes = &mut out[(place - first) as usize..][..bytes];
            let (codes, rest) = tile_bytes.split_at_mut(map.tile.scales_at(count));
            let rows = codes.chunks_exact_mut(code).zip(rest.chunks_mut(scale));
            for (index, (codes, scales)) in rows.enumerate() {
                let row = &mut Row { codes, scales };
                self.design.row(matrix, tile * map.tile.rows + index, row);
                interleave(ty, map.tile.cols, row.codes);
            }
            unit_crcs.push(TileLayout::seal(tile_bytes, place, self.crc32c));
        }
        self.output.write_at(first, out)?;
        Ok(Made {
            bytes: out.len() as u64,
            unit_crcs,
            ..Made::default()
        })
    }

    fn section(&self, index: usize) -> (Section<'_>, FfnMap) {
        let n_ffns = self.image.shape().n_ffns();
        let (layer, expert) = (index / n_ffns, index % n_ffns);
        let section = Section::new(self.design, layer, expert);
        (section, self.image.ffn(layer, expert))
    }

    fn bundles(
        &self,
        index: usize,
        neurons: Range<usize>,
        memory: &mut Memory,
    ) -> Result<Made, PackError> {
        let (section, map) = self.section(index);
        let layout = map.bundle;
        let mut out = std::mem::take(&mut memory.out);
        out.clear();
        out.resize(map.run_bytes(neurons.len()), 0);
        let mut mixing = std::mem::take(&mut memory.mixing);
        let start = map.bundle_offset(neurons.start);
        let mut unit_crcs = Vec::with_capacity(neurons.len() / layout.neurons);
        let firsts = neurons.step_by(layout.neurons);
        for (place, (bundle, first)) in out.chunks_exact_mut(layout.bytes()).zip(firsts).enumerate()
        {
            for within in 0..layout.neurons {
                for which in FfnMatrix::ALL {
                    let mut row = memory.row(layout.dim);
                    match which {
                        FfnMatrix::Gate => section.gate(first + within, &mut mixing, &mut row),
                        FfnMatrix::Up => section.up(first + within, &mut row),
                        FfnMatrix::Down => section.down(first + within, &mut row),
                    }
                    if which != FfnMatrix::Down {
                        interleave(TYPE, layout.dim, row.codes);
                    }
                    layout.put_row(bundle, within, which, (row.codes, row.scales));
                }
            }
            let offset = start + (place * layout.bytes()) as u64;
            unit_crcs.push(layout.seal(bundle, offset, self.crc32c));
        }
        self.output.write_at(start, &out)?;
        let bytes = out.len() as u64;
        (memory.out, memory.mixing) = (out, mixing);
        Ok(Made {
            bytes,
            unit_crcs,
            ..Made::default()
        })
    }

    /// Writes tail `index`; returns its checksum.
    fn write_tail(&self, index: usize, bytes: &[u8]) -> Result<(usize, u32), PackError> {
        let first = self.image.n_sections() - 2 * self.n_sections();
        let place = self.image.section(first + index).offset;
        self.output.write_at(place, bytes)?;
        Ok((index, (self.crc32c)(0, bytes)))
    }

    fn n_sections(&self) -> usize {
        self.image.shape().n_layers * self.image.shape().n_ffns()
    }

    fn predictor(&self, index: usize, memory: &mut Memory) -> Result<Made, PackError> {
        let (section, _) = self.section(index);
        let out = &mut memory.out;
        out.clear();
        out.resize(predictor::layout(self.design).bytes(), 0);
        let quality = section.predictor(self.design, out);
        Ok(Made {
            bytes: out.len().next_multiple_of(PAGE_BYTES) as u64,
            tails: vec![self.write_tail(2 * index, out)?],
            quality: Some(quality),
            ..Made::default()
        })
    }

    fn statistics(&self, memory: &mut Memory) -> Result<Made, PackError> {
        let shape = self.image.shape();
        let behaviour = Behaviour::new(self.design, shape.bundle_neurons);
        let out = &mut memory.out;
        out.clear();
        out.resize(Statistics::bytes(shape.ffn_dim), 0);
        behaviour.source().write(shape.ffn_dim, out);
        let count = self.n_sections();
        let tails = (0..count).map(|index| self.write_tail(2 * index + 1, out));
        Ok(Made {
            bytes: (count * out.len().next_multiple_of(PAGE_BYTES)) as u64,
            tails: tails.collect::<Result<_, _>>()?,
            overlap: Some(behaviour.overlap),
            ..Made::default()
        })
    }
}

fn add_tiles(parts: &mut Vec<Part>, matrix: Matrix, map: MatrixMap) {
    let step = (JOB_BYTES / map.tile.tile_bytes(map.tile.rows)).max(1);
    for first in (0..map.n_tiles()).step_by(step) {
        let tiles = first..(first + step).min(map.n_tiles());
        parts.push(Part::Tiles(matrix, map, tiles));
    }
}
