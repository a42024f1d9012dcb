//! The KV cache: keys and values of every layer, per key-value head and position.

use tessera_kernels::Kernels;

use crate::arena::{Arena, OutOfMemory};
use crate::budget::Buffers;
use crate::shape::Shape;

/// Storage of one of keys and values: (layers, kv heads, positions, head_dim).
pub enum KvStore<'m> {
    /// IEEE half floats.
    F16(&'m mut [u16]),
    /// 32-bit floats: reference images.
    F32(&'m mut [f32]),
}

/// Keys or values of one head, by position.
#[derive(Clone, Copy)]
pub enum KvHead<'a> {
    /// IEEE half floats.
    F16(&'a [u16]),
    /// 32-bit floats.
    F32(&'a [f32]),
}

/// The same, to be written.
pub enum KvHeadMut<'a> {
    /// IEEE half floats.
    F16(&'a mut [u16]),
    /// 32-bit floats.
    F32(&'a mut [f32]),
}

impl<'m> KvStore<'m> {
    fn take(arena: &mut Arena<'m>, shape: &Shape, seq_len: usize) -> Result<Self, OutOfMemory> {
        let count = Buffers::kv_elements(shape, seq_len);
        Ok(match shape.kv_f32 {
            true => Self::F32(arena.take(count)?),
            false => Self::F16(arena.take(count)?),
        })
    }

    fn head(&self, index: usize, len: usize) -> KvHead<'_> {
        match self {
            Self::F16(all) => KvHead::F16(&all[index * len..][..len]),
            Self::F32(all) => KvHead::F32(&all[index * len..][..len]),
        }
    }

    fn heads_mut(
        &mut self,
        first: usize,
        count: usize,
        len: usize,
    ) -> impl Iterator<Item = KvHeadMut<'_>> {
        let (half, full) = match self {
            Self::F16(all) => (Some(&mut all[first * len..][..count * len]), None),
            Self::F32(all) => (None, Some(&mut all[first * len..][..count * len])),
        };
        let half = half
            .into_iter()
            .flat_map(move |all| all.chunks_exact_mut(len));
        let full = full
            .into_iter()
            .flat_map(move |all| all.chunks_exact_mut(len));
        half.map(KvHeadMut::F16).chain(full.map(KvHeadMut::F32))
    }
}

impl KvHeadMut<'_> {
    /// Stores `x` (head_dim,) at position `pos`.
    pub fn put(&mut self, pos: usize, x: &[f32], kernels: &Kernels) {
        let at = pos * x.len()..(pos + 1) * x.len();
        match self {
            Self::F16(all) => (kernels.to_f16)(x, &mut all[at]),
            Self::F32(all) => all[at].copy_from_slice(x),
        }
    }
}

/// Keys and values of all layers.
pub struct KvCache<'m> {
    keys: KvStore<'m>,
    values: KvStore<'m>,
    n_kv_heads: usize,
    head_dim: usize,
    seq_len: usize,
}

impl<'m> KvCache<'m> {
    /// Carves an empty cache of `seq_len` positions.
    pub fn new(arena: &mut Arena<'m>, shape: &Shape, seq_len: usize) -> Result<Self, OutOfMemory> {
        Ok(KvCache {
            keys: KvStore::take(arena, shape, seq_len)?,
            values: KvStore::take(arena, shape, seq_len)?,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            seq_len,
        })
    }

    /// Positions there is room for.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Keys and values of one head of a layer.
    pub fn head(&self, layer: usize, head: usize) -> (KvHead<'_>, KvHead<'_>) {
        let index = layer * self.n_kv_heads + head;
        let len = self.seq_len * self.head_dim;
        (self.keys.head(index, len), self.values.head(index, len))
    }

    /// Keys and values of each head of a layer, to be written.
    pub fn heads_mut(
        &mut self,
        layer: usize,
    ) -> impl Iterator<Item = (KvHeadMut<'_>, KvHeadMut<'_>)> {
        let (first, count) = (layer * self.n_kv_heads, self.n_kv_heads);
        let len = self.seq_len * self.head_dim;
        self.keys
            .heads_mut(first, count, len)
            .zip(self.values.heads_mut(first, count, len))
    }
}
