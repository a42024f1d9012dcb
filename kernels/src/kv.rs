//! Keys and values of one head, as they lie in the cache.

use crate::dispatch::Kernels;

/// Keys are stored in blocks of so many positions, dimension by dimension.
pub const KEY_BLOCK: usize = 8;
/// Positions of a cache are a multiple of this; past the last one anything may stand.
pub const KV_ALIGN: usize = 32;
/// Widest head.
pub const HEAD_DIM_MAX: usize = 256;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    #[default]
    F16,
    /// 8-bit codes, and one f32 scale for each position (see [`Kernels::to_q8`]).
    Q8,
}

impl KvType {
    /// Bytes of one element.
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q8 => 1,
        }
    }

    /// Bytes of the scale that each position of a head has.
    pub const fn scale_bytes(self) -> usize {
        match self {
            Self::Q8 => 4,
            _ => 0,
        }
    }
}

/// Width of a head in the cache: `head_dim` filled up with zeros to a multiple of 8.
pub const fn kv_dim(head_dim: usize) -> usize {
    head_dim.next_multiple_of(8)
}

/// Where element `i` of the key at `pos` stands: blocks of [`KEY_BLOCK`] positions; in a block of
/// floats (dim, 8), in one of codes (dim / 4, 8, 4).
pub(crate) const fn key_place(ty: KvType, dim: usize, pos: usize, i: usize) -> usize {
    let (block, lane) = (pos / KEY_BLOCK * KEY_BLOCK * dim, pos % KEY_BLOCK);
    match ty {
        KvType::Q8 => block + (i / 4 * KEY_BLOCK + lane) * 4 + i % 4,
        _ => block + i * KEY_BLOCK + lane,
    }
}

/// Keys or values of some positions.
#[derive(Debug, Clone, Copy)]
pub enum KvRows<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half floats.
    F16(&'a [u16]),
    /// Codes, and a scale for each position.
    Q8(&'a [i8], &'a [f32]),
}

impl<'a> KvRows<'a> {
    /// Positions `start..start + count`.
    ///
    /// # Panics
    /// If these are not multiples of [`KEY_BLOCK`], or not there.
    pub fn slice(self, dim: usize, start: usize, count: usize) -> Self {
        assert!(start.is_multiple_of(KEY_BLOCK) && count.is_multiple_of(KEY_BLOCK));
        let (at, len) = (start * dim, count * dim);
        match self {
            Self::F32(all) => Self::F32(&all[at..][..len]),
            Self::F16(all) => Self::F16(&all[at..][..len]),
            Self::Q8(codes, scales) => Self::Q8(&codes[at..][..len], &scales[start..][..count]),
        }
    }

    /// How they are stored.
    pub const fn ty(&self) -> KvType {
        match self {
            Self::F32(_) => KvType::F32,
            Self::F16(_) => KvType::F16,
            Self::Q8(..) => KvType::Q8,
        }
    }

    /// Panics unless there are `count` positions of `dim` elements.
    pub(crate) fn check(&self, dim: usize, count: usize) {
        let (elements, scales) = match self {
            Self::F32(all) => (all.len(), count),
            Self::F16(all) => (all.len(), count),
            Self::Q8(codes, scales) => (codes.len(), scales.len()),
        };
        assert_eq!((elements, scales), (count * dim, count));
    }
}

/// The same, to be written.
#[derive(Debug)]
pub enum KvRowsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// IEEE half floats.
    F16(&'a mut [u16]),
    /// Codes, and a scale for each position.
    Q8(&'a mut [i8], &'a mut [f32]),
}

impl KvRowsMut<'_> {
    /// To be read.
    pub fn rows(&self) -> KvRows<'_> {
        match self {
            Self::F32(all) => KvRows::F32(all),
            Self::F16(all) => KvRows::F16(all),
            Self::Q8(codes, scales) => KvRows::Q8(codes, scales),
        }
    }

    /// For a while.
    pub fn reborrow(&mut self) -> KvRowsMut<'_> {
        match self {
            Self::F32(all) => KvRowsMut::F32(all),
            Self::F16(all) => KvRowsMut::F16(all),
            Self::Q8(codes, scales) => KvRowsMut::Q8(codes, scales),
        }
    }

    /// Stores the key `x` (dim,) at `pos`.
    ///
    /// # Panics
    /// If `x` is longer than [`HEAD_DIM_MAX`], there is no such position, or its length is not a
    /// multiple of 8 where keys are codes.
    pub fn put_key(&mut self, kernels: &Kernels, pos: usize, x: &[f32]) {
        let dim = x.len();
        assert!(dim <= HEAD_DIM_MAX, "{dim} elements");
        match self {
            Self::F32(all) => {
                for (i, x) in x.iter().enumerate() {
                    all[key_place(KvType::F32, dim, pos, i)] = *x;
                }
            }
            Self::F16(all) => {
                let mut halves = [0; HEAD_DIM_MAX];
                let halves = &mut halves[..dim];
                (kernels.to_f16)(x, halves);
                for (i, half) in halves.iter().enumerate() {
                    all[key_place(KvType::F16, dim, pos, i)] = *half;
                }
            }
            Self::Q8(all, scales) => {
                let mut codes = [0; HEAD_DIM_MAX];
                let codes = &mut codes[..dim];
                scales[pos] = (kernels.to_q8)(x, codes);
                for (i, code) in codes.iter().enumerate() {
                    all[key_place(KvType::Q8, dim, pos, i)] = *code;
                }
            }
        }
    }

    /// Stores the value `x` (dim,) at `pos`.
    ///
    /// # Panics
    /// If there is no such position, or the length of `x` is not a multiple of 8 where values are
    /// codes.
    pub fn put_value(&mut self, kernels: &Kernels, pos: usize, x: &[f32]) {
        let at = pos * x.len()..(pos + 1) * x.len();
        match self {
            Self::F32(all) => all[at].copy_from_slice(x),
            Self::F16(all) => (kernels.to_f16)(x, &mut all[at]),
            Self::Q8(codes, scales) => scales[pos] = (kernels.to_q8)(x, &mut codes[at]),
        }
    }
}

impl<'a> KvRowsMut<'a> {
    /// Takes the first `count` positions away.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn take_first(&mut self, dim: usize, count: usize) -> KvRowsMut<'a> {
        match self {
            Self::F32(all) => Self::F32(cut(all, count * dim)),
            Self::F16(all) => Self::F16(cut(all, count * dim)),
            Self::Q8(codes, scales) => Self::Q8(cut(codes, count * dim), cut(scales, count)),
        }
    }
}

fn cut<'a, T>(all: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    let (first, rest) = core::mem::take(all).split_at_mut(count);
    *all = rest;
    first
}
