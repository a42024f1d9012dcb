//! Pieces of an image that are made independently: runs of tiles and of bundles.

use std::ops::Range;

use tessera_kernels::{Kernels, Loss, WeightType};
use tessera_runtime::format::{FfnMap, FfnMatrix, Image, MatrixMap, TileLayout};

use super::convert::{Row, Scratch, convert_rows};
use super::down::{STRIP_NEURONS, Shared, turn};
use super::error::PackError;
use super::output::Output;
use super::types;
use crate::source::{Model, Role, Tensor};

/// Bytes that a job of tiles makes, about.
const JOB_BYTES: usize = 1 << 20;

/// Which part of an image a job makes.
#[derive(Debug, Clone)]
enum Part<'m> {
    /// Tiles of a matrix.
    Tiles {
        map: MatrixMap,
        tensor: Tensor<'m>,
        tiles: Range<usize>,
    },
    /// Bundles of neurons `start..start + count` of feed-forward section `section`.
    Bundles {
        map: FfnMap,
        section: usize,
        start: usize,
        count: usize,
    },
}

/// All jobs of an image, in file order.
pub struct Jobs<'m> {
    model: &'m Model,
    parts: Vec<Part<'m>>,
    downs: Vec<Shared>,
    kernels: Kernels,
}

/// What a job reports.
#[derive(Debug, Default)]
pub struct Made {
    /// Bytes written.
    pub bytes: u64,
    /// Checksums of the units made.
    pub unit_crcs: Vec<u32>,
    /// Feed-forward section of bundles, and the loss of their down columns.
    pub down: Option<(usize, Loss)>,
}

/// Working memory of one thread.
#[derive(Debug, Default)]
pub struct Memory {
    scratch: Scratch,
    rows: [Row; 3],
    turned: Vec<f32>,
    out: Vec<u8>,
}

impl<'m> Jobs<'m> {
    /// The jobs that fill the image whose head is `image`.
    pub fn new(model: &'m Model, image: &Image<'_>) -> Self {
        let shape = image.shape();
        let mut jobs = Jobs {
            model,
            parts: Vec::new(),
            downs: Vec::new(),
            kernels: Kernels::best(),
        };
        if !shape.tied_embeddings {
            jobs.add_matrix(image.embedding(), types::tensor(model, Role::Embedding));
        }
        for layer in 0..shape.n_layers {
            let tensors = types::attention(model, layer);
            for (map, tensor) in image.attention(layer).into_iter().zip(tensors) {
                jobs.add_matrix(map, tensor);
            }
            for expert in 0..shape.n_ffns() {
                jobs.add_ffn(image.ffn(layer, expert));
            }
        }
        jobs.add_matrix(image.lm_head(), types::lm_head(model));
        jobs
    }

    /// Number of jobs.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    fn add_matrix(&mut self, map: MatrixMap, tensor: Tensor<'m>) {
        let tiles = (JOB_BYTES / map.tile.tile_bytes(map.tile.rows)).max(1);
        for start in (0..map.n_tiles()).step_by(tiles) {
            let tiles = start..(start + tiles).min(map.n_tiles());
            self.parts.push(Part::Tiles { map, tensor, tiles });
        }
    }

    fn add_ffn(&mut self, map: FfnMap) {
        let section = self.downs.len();
        for start in (0..map.neurons).step_by(STRIP_NEURONS) {
            let count = STRIP_NEURONS.min(map.neurons - start);
            self.parts.push(Part::Bundles {
                map,
                section,
                start,
                count,
            });
        }
        self.downs
            .push(Shared::new(map.neurons.div_ceil(STRIP_NEURONS)));
    }

    /// Does job `index`: reads, converts, writes.
    ///
    /// # Errors
    /// Of reading, of weights that do not fit, of writing.
    pub fn run(
        &self,
        index: usize,
        memory: &mut Memory,
        output: &Output,
    ) -> Result<Made, PackError> {
        let (offset, made) = match &self.parts[index] {
            Part::Tiles { map, tensor, tiles } => {
                let crcs = make_tiles(map, tensor, tiles.clone(), memory, self.kernels.crc32c)?;
                (
                    map.tile_place(tiles.start).0,
                    Made {
                        unit_crcs: crcs,
                        ..Made::default()
                    },
                )
            }
            Part::Bundles {
                map,
                section,
                start,
                count,
            } => {
                let run = (*start, *count);
                (
                    map.bundle_offset(*start),
                    self.make_bundles(map, *section, run, memory)?,
                )
            }
        };
        output.write_at(offset, &memory.out)?;
        Ok(Made {
            bytes: memory.out.len() as u64,
            ..made
        })
    }

    fn make_bundles(
        &self,
        map: &FfnMap,
        section: usize,
        (start, count): (usize, usize),
        memory: &mut Memory,
    ) -> Result<Made, PackError> {
        let n_ffns = self.model.config.n_experts.max(1);
        let [gate, up, down] = types::ffn(self.model, section / n_ffns, section % n_ffns);
        let layout = map.bundle;
        let Memory {
            scratch,
            rows,
            turned,
            out,
        } = memory;
        out.clear();
        out.resize(map.run_bytes(count), 0);
        let mut bundles = Bundles { map, out };
        // Neurons past the source's are zeros, so that every cluster is whole groups.
        let real = down.cols.saturating_sub(start).min(count);
        for (which, tensor, ty) in [
            (FfnMatrix::Gate, gate, layout.gate),
            (FfnMatrix::Up, up, layout.up),
        ] {
            let row = &mut rows[which as usize];
            convert_rows(&tensor, (start, real), ty, scratch, row, |index, row| {
                bundles.put(index, which, row);
            })?;
        }
        let mut loss = Loss::default();
        rows[2].resize(layout.down, layout.dim);
        self.downs[section].with(&down, |stored| {
            turn(&down, stored, (start, real), layout.down, turned)
        })?;
        for (index, weights) in turned.chunks_exact(layout.dim).enumerate() {
            let Row { codes, scales } = &mut rows[2];
            let quantizer = &mut scratch.quantizer;
            loss = loss + quantizer.rows(layout.down, layout.dim, weights, codes, scales);
            bundles.put(index, FfnMatrix::Down, &rows[2]);
        }
        if real < count {
            let types = [layout.gate, layout.up, layout.down];
            for (which, ty) in FfnMatrix::ALL.into_iter().zip(types) {
                let zeros = Row::zeros(ty, layout.dim);
                (real..count).for_each(|index| bundles.put(index, which, &zeros));
            }
        }
        let unit_crcs = bundles.seal(map.bundle_offset(start), self.kernels.crc32c);
        Ok(Made {
            bytes: 0,
            unit_crcs,
            down: Some((section, loss)),
        })
    }
}

/// A run of bundles that is being filled.
struct Bundles<'a> {
    map: &'a FfnMap,
    out: &'a mut [u8],
}

impl Bundles<'_> {
    /// Puts matrix `which` of neuron `index` of the run.
    fn put(&mut self, index: usize, which: FfnMatrix, row: &Row) {
        let layout = &self.map.bundle;
        let bundle = &mut self.out[index / layout.neurons * layout.bytes()..][..layout.bytes()];
        layout.put_row(bundle, index % layout.neurons, which, row.parts());
    }

    /// Writes all checksums, the first bundle being at `offset`; returns the one of each bundle
    /// that covers all of it.
    fn seal(&mut self, offset: u64, crc32c: fn(u32, &[u8]) -> u32) -> Vec<u32> {
        let layout = &self.map.bundle;
        let offsets = (offset..).step_by(layout.bytes());
        let bundles = self.out.chunks_exact_mut(layout.bytes());
        bundles
            .zip(offsets)
            .map(|(bundle, offset)| layout.seal(bundle, offset, crc32c))
            .collect()
    }
}

/// Makes tiles `tiles` of a matrix in `memory.out`; returns their checksums.
fn make_tiles(
    map: &MatrixMap,
    tensor: &Tensor<'_>,
    tiles: Range<usize>,
    memory: &mut Memory,
    crc32c: fn(u32, &[u8]) -> u32,
) -> Result<Vec<u32>, PackError> {
    let Memory {
        scratch,
        rows: [row, ..],
        out,
        ..
    } = memory;
    let ty: WeightType = map.tile.ty;
    let (code, scale) = (ty.code_bytes(tensor.cols), ty.scale_bytes(tensor.cols));
    let (first, _) = map.tile_place(tiles.start);
    let (last, last_bytes) = map.tile_place(tiles.end - 1);
    out.clear();
    out.resize((last - first) as usize + last_bytes, 0);
    let mut crcs = Vec::with_capacity(tiles.len());
    for tile in tiles {
        let (place, bytes) = map.tile_place(tile);
        let count = map.tile_rows(tile);
        let tile_bytes = &mut out[(place - first) as usize..][..bytes];
        let scales_at = map.tile.scales_at(count);
        let start = tile * map.tile.rows;
        convert_rows(tensor, (start, count), ty, scratch, row, |index, row| {
            tile_bytes[index * code..][..code].copy_from_slice(&row.codes);
            tile_bytes[scales_at + index * scale..][..scale].copy_from_slice(&row.scales);
        })?;
        crcs.push(TileLayout::seal(tile_bytes, place, crc32c));
    }
    Ok(crcs)
}
