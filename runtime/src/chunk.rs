//! Chunks: runs of tiles or clusters that are read from flash in one piece.
//!
//! The chunks of an image, in file order, are the order of one token's way through the weights.
//! Each is either resident or streamed (see `stream.rs`).

use bytemuck::{Pod, Zeroable};

use crate::format::{Image, MatrixMap};

/// Offset of a chunk that is not resident.
const STREAMED: u64 = u64::MAX;
/// Expert number of a chunk that every token needs.
const EVERY_TOKEN: u16 = u16::MAX;

/// One chunk of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Chunk {
    /// Where it begins in the image, in bytes; whole pages.
    pub offset: u64,
    /// Where it stands in the resident weights, or `u64::MAX`.
    resident: u64,
    /// Its size, whole pages.
    pub bytes: u32,
    /// Its size where it stays in memory: without what fills pages of bundles up.
    pub kept_bytes: u32,
    /// Layer, `n_layers` for the lm_head.
    pub layer: u32,
    /// Expert that it belongs to, or `u16::MAX`.
    expert: u16,
    /// 1 for a part of a feed-forward section.
    ffn: u16,
}

impl Chunk {
    /// Where the chunk stands in the resident weights, unless it is streamed.
    pub fn resident(&self) -> Option<usize> {
        (self.resident != STREAMED).then_some(self.resident as usize)
    }

    /// Makes the chunk resident at `at`.
    pub fn set_resident(&mut self, at: usize) {
        self.resident = at as u64;
    }

    /// Where the chunk ends in the image.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }

    /// True for a part of a feed-forward section.
    pub fn is_ffn(&self) -> bool {
        self.ffn != 0
    }

    /// Expert that the chunk belongs to, in a mixture.
    pub fn expert(&self) -> Option<usize> {
        (self.expert != EVERY_TOKEN).then_some(self.expert as usize)
    }
}

/// How weights are cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Cut {
    /// Most bytes of a chunk, unless one unit is larger.
    pub chunk_bytes: usize,
    /// A chunk ends before this cluster of each feed-forward section.
    pub hot_clusters: usize,
}

/// Calls `visit(chunk)` for each chunk of the image, in file order. Chunks hold at least one unit
/// (tile or cluster) and as many more of their layer's half as `cut` allows.
pub fn for_each_chunk(image: &Image<'_>, cut: Cut, mut visit: impl FnMut(Chunk)) {
    let shape = *image.shape();
    let mut open: Option<Chunk> = None;
    let mut unit = |offset: u64, [bytes, kept]: [usize; 2], layer: usize, expert, ffn: Ffn| {
        let expert = Option::map_or(expert, EVERY_TOKEN, |expert: usize| expert as u16);
        if let Some(chunk) = &mut open {
            let joins = chunk.end() == offset
                && (chunk.layer, chunk.expert) == (layer as u32, expert)
                && chunk.is_ffn() == (ffn != Ffn::No)
                && ffn != Ffn::First
                && chunk.bytes as usize + bytes <= cut.chunk_bytes;
            if joins {
                chunk.bytes += bytes as u32;
                chunk.kept_bytes += kept as u32;
                return;
            }
            visit(*chunk);
        }
        open = Some(Chunk {
            offset,
            resident: STREAMED,
            bytes: bytes as u32,
            kept_bytes: kept as u32,
            layer: layer as u32,
            expert,
            ffn: (ffn != Ffn::No) as u16,
        });
    };
    let matrix = |map: &MatrixMap, unit: &mut dyn FnMut(u64, usize)| {
        for tile in 0..map.n_tiles() {
            let (offset, bytes) = map.tile_place(tile);
            unit(offset, bytes);
        }
    };
    for layer in 0..shape.n_layers {
        for map in image.attention(layer) {
            matrix(&map, &mut |offset, bytes| {
                unit(offset, [bytes; 2], layer, None, Ffn::No)
            });
        }
        for expert in 0..shape.n_ffns() {
            let map = image.ffn(layer, expert);
            let name = (shape.n_experts > 0).then_some(expert);
            for cluster in 0..shape.n_clusters() {
                let offset = map.bundle_offset(cluster * shape.cluster_neurons);
                let bundles = shape.cluster_len(cluster) / map.bundle.neurons;
                let bytes = [map.bundle.bytes(), map.bundle.packed_bytes()];
                let ffn = match cluster == cut.hot_clusters {
                    true => Ffn::First,
                    false => Ffn::Yes,
                };
                unit(offset, bytes.map(|bytes| bundles * bytes), layer, name, ffn);
            }
        }
    }
    matrix(&image.lm_head(), &mut |offset, bytes| {
        unit(offset, [bytes; 2], shape.n_layers, None, Ffn::No)
    });
    if let Some(chunk) = open {
        visit(chunk);
    }
}

/// What a unit is to a feed-forward section: no part, a part, the first of the cold part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ffn {
    No,
    Yes,
    First,
}

/// Index of the chunk that holds the byte at `offset`; `chunks` are in file order.
pub fn chunk_at(chunks: &[Chunk], offset: u64) -> usize {
    let after = chunks.partition_point(|chunk| chunk.offset <= offset);
    assert!(
        after > 0 && offset < chunks[after - 1].end(),
        "no chunk holds byte {offset}"
    );
    after - 1
}
