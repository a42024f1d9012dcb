//! Shape and plan to bytes of every piece of memory, and their total.

use tessera_kernels::attention::{scratch_len, state_len};
use tessera_kernels::kv::{KvType, kv_dim};
use tessera_kernels::{GROUP, Kernels, STRIP};

use crate::arena::carved_bytes;
use crate::chunk::Chunk;
use crate::ffn::choice_floats;
use crate::format::{PAGE_BYTES, VectorsLayout};
use crate::kv::{KvLayout, Place};
use crate::limits::{ATTEND_UNITS_MAX, EMBED_SLOTS_MAX, FEW_TOKENS_MAX, JOBS_MAX};
use crate::shape::Shape;
use crate::sparse::{SparseSizes, window_bytes};
use crate::stream::Slot;
use crate::work::Inputs;

/// Choices that size memory besides the shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Sizes {
    /// Chunks of the image.
    pub n_chunks: usize,
    /// Bytes of weights that stay.
    pub resident_bytes: usize,
    /// Positions of the context of each sequence.
    pub seq_len: usize,
    /// Sequences.
    pub sequences: usize,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Tokens that one pass carries.
    pub batch_tokens: usize,
    /// Positions whose logits are kept at once.
    pub logits_rows: usize,
    /// Lanes.
    pub lanes: usize,
    /// Buffers of the weight stream, and bytes of each.
    pub n_slots: usize,
    /// Bytes of one buffer.
    pub slot_bytes: usize,
    /// Bytes of one embedding tile.
    pub embed_bytes: usize,
    /// Thresholds that are kept, one for each feed-forward section.
    pub n_thresholds: usize,
    /// What passes with predictors need, where there are any.
    pub sparse: Option<SparseSizes>,
}

impl Sizes {
    /// Reads that can be in flight, each with a buffer.
    pub fn n_reads(&self) -> usize {
        let cold = self.sparse.map_or(0, |sparse| sparse.cold.n_reads);
        self.n_slots + EMBED_SLOTS_MAX + cold
    }
}

/// Bytes of each piece of the region, in the order in which it is carved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Budget {
    /// Norms, biases, routers, rotary frequencies.
    pub vectors_bytes: usize,
    /// Tables of chunks and of reads.
    pub chunks_bytes: usize,
    /// Weights that stay.
    pub resident_bytes: usize,
    /// Predictors, and what their first layers give; thresholds.
    pub predictors_bytes: usize,
    /// Slots of cold bundles, their books, and the state of the clusters that are computed.
    pub cold_bytes: usize,
    /// Keys and values.
    pub kv_bytes: usize,
    /// Buffers of the weight stream and of embedding rows, whole pages.
    pub io_bytes: usize,
    /// Residual stream, projections, hidden neurons, logits.
    pub activation_bytes: usize,
    /// Working memory of each lane.
    pub scratch_bytes: usize,
}

impl Budget {
    /// The sum, plus what the region's alignment may cost. `None` if it does not fit a `usize`.
    pub fn total_bytes(&self) -> Option<usize> {
        self.parts()
            .iter()
            .try_fold(PAGE_BYTES, |sum, &(_, bytes)| sum.checked_add(bytes))
    }

    /// Names and bytes, in order.
    pub fn parts(&self) -> [(&'static str, usize); 9] {
        [
            ("vectors", self.vectors_bytes),
            ("chunk table", self.chunks_bytes),
            ("resident weights", self.resident_bytes),
            ("predictors", self.predictors_bytes),
            ("cold cache", self.cold_bytes),
            ("kv cache", self.kv_bytes),
            ("i/o buffers", self.io_bytes),
            ("activations", self.activation_bytes),
            ("lane scratch", self.scratch_bytes),
        ]
    }

    /// Where the i/o buffers stand in a region that begins at a page, for registering them.
    pub fn io_range(&self) -> core::ops::Range<usize> {
        let before = self
            .parts()
            .iter()
            .take(6)
            .map(|&(_, bytes)| bytes)
            .sum::<usize>();
        let start = before.next_multiple_of(PAGE_BYTES);
        start..start + self.io_bytes - PAGE_BYTES
    }

    /// Bytes of every piece.
    pub fn new(shape: &Shape, sizes: &Sizes) -> Self {
        let floats = |count: usize| carved_bytes(count.saturating_mul(4));
        let cold = sizes.sparse.map(|sparse| sparse.cold);
        let cold_io = cold.map_or(0, |cold| cold.n_reads * cold.read_bytes);
        let io_pages =
            sizes.n_slots * sizes.slot_bytes + EMBED_SLOTS_MAX * sizes.embed_bytes + cold_io;
        let b = Buffers::new(shape, sizes);
        // In a mixture also those of one expert's tokens.
        let inputs = Inputs::bytes(b.tokens, b.wide) * if shape.n_experts == 0 { 1 } else { 2 };
        Budget {
            vectors_bytes: floats(VectorsLayout::new(shape).len()),
            chunks_bytes: carved_bytes(sizes.n_chunks * size_of::<Chunk>())
                + carved_bytes(sizes.n_reads() * size_of::<Slot>()),
            resident_bytes: carved_bytes(sizes.resident_bytes),
            predictors_bytes: floats(sizes.n_thresholds)
                + sizes
                    .sparse
                    .map_or(0, |sparse| sparse.predictors_bytes(shape)),
            cold_bytes: sizes.sparse.map_or(0, |sparse| {
                sparse
                    .cold
                    .bytes()
                    .saturating_add(window_bytes(shape, sparse.tokens))
            }),
            kv_bytes: KvLayout::new(shape, sizes).bytes(),
            io_bytes: PAGE_BYTES + io_pages,
            activation_bytes: floats(b.x)
                + inputs
                + floats(b.qkv)
                + floats(b.q)
                + floats(b.states)
                + floats(b.parts)
                + 2 * floats(b.rope)
                + floats(b.sum)
                + 2 * floats(b.hidden)
                + floats(b.partials)
                + floats(b.logits)
                + carved_bytes(b.tokens * size_of::<Place>()),
            scratch_bytes: sizes.lanes * (floats(b.lane_floats) + carved_bytes(b.lane_bytes)),
        }
    }
}

/// Elements of every activation buffer: used to size the budget and to carve it.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// Tokens of a pass.
    pub tokens: usize,
    /// Widest product input.
    pub wide: usize,
    /// Residual stream (tokens, dim).
    pub x: usize,
    /// q, k and v (rows, tokens); afterwards, in a mixture, what experts each token uses.
    pub qkv: usize,
    /// q after the rotary embedding (kv heads, tokens, group, dim).
    pub q: usize,
    /// States of attention (kv heads, tokens, group, state).
    pub states: usize,
    /// States of segments (units, group, state).
    pub parts: usize,
    /// Cosines, and sines (tokens, head_dim / 2).
    pub rope: usize,
    /// Output of a product or of the feed-forward network (dim, tokens).
    pub sum: usize,
    /// Gate, and up, of the neurons of a run (neurons, tokens).
    pub hidden: usize,
    /// Partial sums of clusters (clusters, dim, tokens), and of a mixture's expert (dim, tokens).
    pub partials: usize,
    /// Logits (vocab_size, rows).
    pub logits: usize,
    /// Floats of a lane: scores and sums of attention, partial sums of a strip.
    pub lane_floats: usize,
    /// Bytes of a lane: working memory of the kernels.
    pub lane_bytes: usize,
}

/// Outputs of a strip of down sums of many tokens, at most: eight blocks, whose scales are turned
/// together.
const STRIP_COLS_MAX: usize = 4 * STRIP;
/// Sums of a wider strip than [`STRIP`] fit a core's second cache, beside what is added to them.
const STRIP_FLOATS_MAX: usize = STRIP_COLS_MAX * 128;
/// Neurons whose hidden values are held at once when a pass carries several tokens, at least.
const RUN_NEURONS_MIN: usize = 512;

impl Buffers {
    /// Elements of every buffer.
    pub fn new(shape: &Shape, sizes: &Sizes) -> Self {
        let tokens = sizes.batch_tokens;
        let wide = shape.dim.max(shape.q_dim());
        let run = Self::run_neurons(shape);
        let strip_cols = STRIP_COLS_MAX.min(shape.dim.next_multiple_of(STRIP));
        let strip = (strip_cols * tokens)
            .min(STRIP_FLOATS_MAX)
            .max(STRIP * tokens);
        let dim = kv_dim(shape.head_dim);
        Buffers {
            tokens,
            wide,
            x: tokens * shape.dim,
            qkv: tokens * (shape.q_dim() + 2 * shape.kv_dim()).max(choice_floats(shape)),
            q: tokens * shape.n_heads * dim,
            states: tokens * shape.n_heads * state_len(dim),
            parts: ATTEND_UNITS_MAX * shape.n_heads / shape.n_kv_heads * state_len(dim),
            rope: tokens * shape.head_dim / 2,
            sum: tokens * shape.dim,
            hidden: run * tokens,
            partials: shape.dim * (JOBS_MAX * tokens.min(FEW_TOKENS_MAX)).max(2 * tokens),
            logits: shape.vocab_size * sizes.logits_rows,
            lane_floats: scratch_len(dim)
                .max(strip)
                .max(3 * GROUP * tokens.min(FEW_TOKENS_MAX))
                .max(2 * shape.cluster_neurons),
            lane_bytes: Kernels::scratch_bytes(
                wide.max(sizes.sparse.map_or(0, |sparse| sparse.rank)),
            ),
        }
    }

    /// Neurons of a run: whole clusters.
    pub fn run_neurons(shape: &Shape) -> usize {
        let run = RUN_NEURONS_MIN.next_multiple_of(shape.cluster_neurons);
        run.min(shape.ffn_dim.next_multiple_of(shape.cluster_neurons))
    }
}
