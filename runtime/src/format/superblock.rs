//! The first 16 KiB of an image.

use tessera_kernels::Activation;

use super::field::{f32_at, put_u32, put_u64, u32_at, u64_at};
use super::{FormatError, checksum};
use crate::limits::{EOS_MAX, SECTIONS_MAX};
use crate::shape::{Shape, ShapeError};

/// Size of the superblock.
pub const SUPERBLOCK_BYTES: usize = 16384;
/// Version of the format that this build reads and writes.
pub const VERSION: u32 = 4;

const MAGIC: &[u8; 8] = b"TESSERA\n";
/// No token, where a token may be absent.
const NO_TOKEN: u32 = u32::MAX;

mod at {
    pub const VERSION: usize = 8;
    pub const SUPERBLOCK_BYTES: usize = 12;
    pub const IMAGE_BYTES: usize = 16;
    pub const IMAGE_ID: usize = 24;
    pub const TABLE_OFFSET: usize = 40;
    pub const TABLE_ENTRIES: usize = 48;
    pub const TABLE_CRC: usize = 52;
    pub const SHAPE: usize = 64;
    pub const ACTIVATION: usize = 108;
    pub const RMS_EPS: usize = 112;
    pub const ATTENTION_FACTOR: usize = 116;
    pub const FLAGS: usize = 120;
    pub const BUNDLE_NEURONS: usize = 124;
    pub const CLUSTER_NEURONS: usize = 128;
    pub const BOS: usize = 132;
    pub const EOS_COUNT: usize = 136;
    pub const EOS: usize = 140;
    pub const NAME: usize = 256;
    pub const NAME_END: usize = 384;
    pub const CRC: usize = super::SUPERBLOCK_BYTES - 4;
}

mod flag {
    pub const QKV_BIAS: u32 = 1 << 0;
    pub const QK_NORM: u32 = 1 << 1;
    pub const TIED: u32 = 1 << 2;
    pub const NORM_TOPK: u32 = 1 << 3;
    pub const KV_F32: u32 = 1 << 4;
    pub const ADD_BOS: u32 = 1 << 5;
}

/// What the first 16 KiB of an image say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Superblock {
    /// Size of the whole image.
    pub image_bytes: u64,
    /// Names the contents: images that differ have different ids.
    pub image_id: [u8; 16],
    /// Where the section table begins.
    pub table_offset: u64,
    /// Its number of entries.
    pub table_entries: u32,
    /// CRC-32C of the table.
    pub table_crc: u32,
    /// The model.
    pub shape: Shape,
    /// Token that begins a text, if the vocabulary has one.
    pub bos_token: Option<u32>,
    /// Whether a text is begun with `bos_token`.
    pub add_bos: bool,
    /// Tokens that end a text; the first `eos_count` are valid.
    pub eos_tokens: [u32; EOS_MAX],
    /// Number of end tokens.
    pub eos_count: usize,
    /// Name of the model, UTF-8, zero padded.
    pub name: [u8; at::NAME_END - at::NAME],
}

impl Superblock {
    /// Name of the model.
    pub fn name(&self) -> &str {
        let len = self
            .name
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..len]).unwrap_or("")
    }

    /// Tokens that end a text.
    pub fn eos_tokens(&self) -> &[u32] {
        &self.eos_tokens[..self.eos_count]
    }

    /// Reads and checks a superblock; `file_bytes` is the size of what holds the image.
    pub fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self, FormatError> {
        let have_bytes = bytes.len() as u64;
        if bytes.len() >= 8 && &bytes[..8] != MAGIC {
            return Err(FormatError::NotAnImage);
        }
        if bytes.len() < SUPERBLOCK_BYTES {
            let need_bytes = SUPERBLOCK_BYTES as u64;
            return Err(FormatError::Truncated {
                have_bytes,
                need_bytes,
            });
        }
        let version = u32_at(bytes, at::VERSION);
        if version != VERSION {
            return Err(FormatError::Version {
                have: version,
                want: VERSION,
            });
        }
        if checksum(&bytes[..at::CRC]) != u32_at(bytes, at::CRC) {
            return Err(FormatError::SuperblockChecksum);
        }
        let superblock = Self::fields(bytes)?;
        superblock.shape.validate()?;
        if superblock.table_entries as usize > SECTIONS_MAX {
            let (have, need) = (superblock.table_entries, SECTIONS_MAX as u32);
            return Err(FormatError::EntryCount { have, need });
        }
        if superblock.image_bytes > file_bytes {
            let need_bytes = superblock.image_bytes;
            return Err(FormatError::Truncated {
                have_bytes: file_bytes,
                need_bytes,
            });
        }
        Ok(superblock)
    }

    fn fields(bytes: &[u8]) -> Result<Self, FormatError> {
        let number = |index: usize| u32_at(bytes, at::SHAPE + 4 * index) as usize;
        let flags = u32_at(bytes, at::FLAGS);
        let activation = u32_at(bytes, at::ACTIVATION);
        let eos_count = u32_at(bytes, at::EOS_COUNT) as usize;
        let range =
            |what, have, max| FormatError::Shape(ShapeError::OutOfRange { what, have, max });
        let shape = Shape {
            dim: number(0),
            ffn_dim: number(1),
            n_layers: number(2),
            n_heads: number(3),
            n_kv_heads: number(4),
            head_dim: number(5),
            vocab_size: number(6),
            seq_len: number(7),
            n_experts: number(8),
            n_experts_used: number(9),
            sliding_window: number(10),
            activation: u8::try_from(activation)
                .ok()
                .and_then(Activation::from_u8)
                .ok_or(range("activation", activation as usize, 3))?,
            rms_eps: f32_at(bytes, at::RMS_EPS),
            attention_factor: f32_at(bytes, at::ATTENTION_FACTOR),
            qkv_bias: flags & flag::QKV_BIAS != 0,
            qk_norm: flags & flag::QK_NORM != 0,
            tied_embeddings: flags & flag::TIED != 0,
            norm_topk_prob: flags & flag::NORM_TOPK != 0,
            kv_f32: flags & flag::KV_F32 != 0,
            bundle_neurons: u32_at(bytes, at::BUNDLE_NEURONS) as usize,
            cluster_neurons: u32_at(bytes, at::CLUSTER_NEURONS) as usize,
        };
        if eos_count > EOS_MAX {
            return Err(range("eos_count", eos_count, EOS_MAX));
        }
        let bos = u32_at(bytes, at::BOS);
        Ok(Superblock {
            image_bytes: u64_at(bytes, at::IMAGE_BYTES),
            image_id: core::array::from_fn(|i| bytes[at::IMAGE_ID + i]),
            table_offset: u64_at(bytes, at::TABLE_OFFSET),
            table_entries: u32_at(bytes, at::TABLE_ENTRIES),
            table_crc: u32_at(bytes, at::TABLE_CRC),
            shape,
            bos_token: (bos != NO_TOKEN).then_some(bos),
            add_bos: flags & flag::ADD_BOS != 0,
            eos_tokens: core::array::from_fn(|i| u32_at(bytes, at::EOS + 4 * i)),
            eos_count,
            name: core::array::from_fn(|i| bytes[at::NAME + i]),
        })
    }

    /// Writes the superblock; the inverse of [`Superblock::parse`].
    pub fn write(&self, bytes: &mut [u8; SUPERBLOCK_BYTES]) {
        bytes.fill(0);
        bytes[..8].copy_from_slice(MAGIC);
        put_u32(bytes, at::VERSION, VERSION);
        put_u32(bytes, at::SUPERBLOCK_BYTES, SUPERBLOCK_BYTES as u32);
        put_u64(bytes, at::IMAGE_BYTES, self.image_bytes);
        bytes[at::IMAGE_ID..at::IMAGE_ID + 16].copy_from_slice(&self.image_id);
        put_u64(bytes, at::TABLE_OFFSET, self.table_offset);
        put_u32(bytes, at::TABLE_ENTRIES, self.table_entries);
        put_u32(bytes, at::TABLE_CRC, self.table_crc);
        let s = &self.shape;
        let numbers = [
            s.dim,
            s.ffn_dim,
            s.n_layers,
            s.n_heads,
            s.n_kv_heads,
            s.head_dim,
            s.vocab_size,
            s.seq_len,
            s.n_experts,
            s.n_experts_used,
            s.sliding_window,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            put_u32(bytes, at::SHAPE + 4 * index, number as u32);
        }
        put_u32(bytes, at::ACTIVATION, s.activation as u32);
        put_u32(bytes, at::RMS_EPS, s.rms_eps.to_bits());
        put_u32(bytes, at::ATTENTION_FACTOR, s.attention_factor.to_bits());
        let flags = [
            (s.qkv_bias, flag::QKV_BIAS),
            (s.qk_norm, flag::QK_NORM),
            (s.tied_embeddings, flag::TIED),
            (s.norm_topk_prob, flag::NORM_TOPK),
            (s.kv_f32, flag::KV_F32),
            (self.add_bos, flag::ADD_BOS),
        ];
        let flags = flags
            .iter()
            .fold(0, |all, &(on, bit)| if on { all | bit } else { all });
        put_u32(bytes, at::FLAGS, flags);
        put_u32(bytes, at::BUNDLE_NEURONS, s.bundle_neurons as u32);
        put_u32(bytes, at::CLUSTER_NEURONS, s.cluster_neurons as u32);
        put_u32(bytes, at::BOS, self.bos_token.unwrap_or(NO_TOKEN));
        put_u32(bytes, at::EOS_COUNT, self.eos_count as u32);
        for (index, &token) in self.eos_tokens.iter().enumerate() {
            put_u32(bytes, at::EOS + 4 * index, token);
        }
        bytes[at::NAME..at::NAME_END].copy_from_slice(&self.name);
        let crc = checksum(&bytes[..at::CRC]);
        put_u32(bytes, at::CRC, crc);
    }
}
