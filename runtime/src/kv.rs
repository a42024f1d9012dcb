//! The KV cache: keys and values of every layer, key-value head, sequence and position.

use bytemuck::{Pod, Zeroable};
use tessera_kernels::attention::{SEGMENT, Segment};
use tessera_kernels::kv::{KV_ALIGN, KvRowsMut, KvType, kv_dim};

use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::budget::Sizes;
use crate::shape::Shape;

/// A token, and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Place {
    /// The token.
    pub token: u32,
    /// Its sequence.
    pub sequence: u32,
    /// Its position there.
    pub pos: u32,
}

/// Sizes of a cache, for the budget and for carving.
#[derive(Debug, Clone, Copy)]
pub struct KvLayout {
    /// How elements are stored.
    pub ty: KvType,
    /// Elements of a key.
    pub dim: usize,
    /// Positions of a sequence, whole blocks.
    pub positions: usize,
    /// Keys of all layers, heads, sequences and positions.
    pub rows: usize,
}

impl KvLayout {
    /// Sizes for `shape` and `sizes`.
    pub fn new(shape: &Shape, sizes: &Sizes) -> Self {
        let positions = sizes.seq_len.next_multiple_of(KV_ALIGN);
        KvLayout {
            ty: sizes.kv,
            dim: kv_dim(shape.head_dim),
            positions,
            rows: (shape.n_layers * shape.n_kv_heads)
                .saturating_mul(sizes.sequences)
                .saturating_mul(positions),
        }
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        let element_bytes = self.dim * self.ty.element_bytes();
        let codes = carved_bytes(self.rows.saturating_mul(element_bytes));
        let scales = carved_bytes(self.rows.saturating_mul(self.ty.scale_bytes()));
        codes.saturating_add(scales).saturating_mul(2)
    }

    fn take<'m>(&self, arena: &mut Arena<'m>) -> Result<KvRowsMut<'m>, OutOfMemory> {
        let elements = self.rows.saturating_mul(self.dim);
        Ok(match self.ty {
            KvType::F32 => KvRowsMut::F32(arena.take(elements)?),
            KvType::F16 => KvRowsMut::F16(arena.take(elements)?),
            KvType::Q8 => KvRowsMut::Q8(arena.take(elements)?, arena.take(self.rows)?),
        })
    }
}

/// Keys and values of all layers: (layers, kv heads, sequences, positions, dim).
pub struct KvCache<'m> {
    keys: KvRowsMut<'m>,
    values: KvRowsMut<'m>,
    layout: KvLayout,
    n_kv_heads: usize,
    sequences: usize,
    seq_len: usize,
}

impl<'m> KvCache<'m> {
    /// Carves an empty cache.
    pub fn new(arena: &mut Arena<'m>, shape: &Shape, sizes: &Sizes) -> Result<Self, OutOfMemory> {
        let layout = KvLayout::new(shape, sizes);
        Ok(KvCache {
            keys: layout.take(arena)?,
            values: layout.take(arena)?,
            layout,
            n_kv_heads: shape.n_kv_heads,
            sequences: sizes.sequences,
            seq_len: sizes.seq_len,
        })
    }

    /// Positions there are in each sequence.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Positions of a head that one sequence takes.
    pub fn positions(&self) -> usize {
        self.layout.positions
    }

    /// The segment of a head and a sequence that begins at position `start`.
    pub fn segment(&self, layer: usize, head: usize, sequence: u32, start: usize) -> Segment<'_> {
        let &KvLayout { dim, positions, .. } = &self.layout;
        let head = layer * self.n_kv_heads + head;
        let first = (head * self.sequences + sequence as usize) * positions + start;
        let count = SEGMENT.min(positions - start);
        Segment {
            dim,
            start,
            count,
            keys: self.keys.rows().slice(dim, first, count),
            values: self.values.rows().slice(dim, first, count),
        }
    }

    /// Keys and values of each head of a layer, to be written.
    pub fn heads_mut(
        &mut self,
        layer: usize,
    ) -> impl Iterator<Item = (KvRowsMut<'_>, KvRowsMut<'_>)> {
        let dim = self.layout.dim;
        let count = self.sequences * self.layout.positions;
        let before = layer * self.n_kv_heads * count;
        let (mut keys, mut values) = (self.keys.reborrow(), self.values.reborrow());
        keys.take_first(dim, before);
        values.take_first(dim, before);
        (0..self.n_kv_heads)
            .map(move |_| (keys.take_first(dim, count), values.take_first(dim, count)))
    }
}
