//! Every limit, and the compile-time relations between them.

use static_assertions::const_assert;
use tessera_kernels::FEW_TOKENS;

/// Model width.
pub const DIM_MAX: usize = 1 << 16;
/// Feed-forward width of a layer (of an expert, in a mixture).
pub const FFN_DIM_MAX: usize = 1 << 18;
/// Transformer blocks.
pub const LAYERS_MAX: usize = 1 << 10;
/// Query heads, and so key-value heads.
pub const HEADS_MAX: usize = 1 << 10;
/// Width of one head.
pub const HEAD_DIM_MAX: usize = 256;
/// Tokens of the vocabulary.
pub const VOCAB_MAX: usize = 1 << 21;
/// Positions of a context.
pub const SEQ_LEN_MAX: usize = 1 << 24;
/// Experts of a layer.
pub const EXPERTS_MAX: usize = 256;
/// Experts that one token uses.
pub const EXPERTS_USED_MAX: usize = 16;
/// End tokens an image may name.
pub const EOS_MAX: usize = 8;
/// Rank of a predictor.
pub const PREDICTOR_RANK_MAX: usize = 4096;
/// Entries of an image's section table.
pub const SECTIONS_MAX: usize = 1 << 19;
/// Largest tile or bundle, in bytes.
pub const UNIT_BYTES_MAX: usize = 1 << 28;

/// Lanes a session can use.
pub const LANES_MAX: usize = 16;
/// Sequences that one session can hold.
pub const SEQUENCES_MAX: usize = 64;
/// Segments of the KV cache that are worked on side by side.
pub const ATTEND_UNITS_MAX: usize = 64;
/// Pieces that one fork-join is cut into.
pub const JOBS_MAX: usize = 32;
/// Buffers of the weight stream.
pub const SLOTS_MAX: usize = 32;
/// Buffers for single embedding rows.
pub const EMBED_SLOTS_MAX: usize = 8;
/// Reads of cold bundles that can be in flight.
pub const COLD_READS_MAX: usize = 64;
/// Buffers of all reads.
pub const READ_BUFFERS_MAX: usize = SLOTS_MAX + EMBED_SLOTS_MAX + COLD_READS_MAX;
/// Bundles that one such read may span.
pub const COLD_RUN_MAX: usize = 16;
/// Times that one read is tried before its error is reported.
pub const READ_TRIES_MAX: u32 = 3;
/// How long reads are waited for before their error is reported.
pub const READ_DEADLINE_NS: u64 = 20_000_000_000;
/// Passes of up to so many tokens are computed cluster by cluster, larger ones product by product.
pub const FEW_TOKENS_MAX: usize = FEW_TOKENS;
/// Tokens that one pass over the weights may carry.
pub const BATCH_TOKENS_MAX: usize = 512;

/// Sizes of random reads that a device profile holds.
pub const PROFILE_BLOCKS_MAX: usize = 8;
/// Numbers of reads in flight that a device profile holds.
pub const PROFILE_DEPTHS_MAX: usize = 6;
/// Address ranges that a device profile holds.
pub const PROFILE_RANGES_MAX: usize = 4;

const_assert!(HEAD_DIM_MAX <= tessera_kernels::kv::HEAD_DIM_MAX);
const_assert!(SEQUENCES_MAX <= BATCH_TOKENS_MAX);
const_assert!(LANES_MAX <= JOBS_MAX);
const_assert!(EXPERTS_USED_MAX <= EXPERTS_MAX);
// A cold cluster's masks have a bit for each token (`sparse/cluster.rs`).
const_assert!(FEW_TOKENS_MAX <= u8::BITS as usize);
