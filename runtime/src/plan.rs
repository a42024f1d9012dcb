//! What is decided before the first token: which chunks stay, how the others are streamed.

mod sparse;

use tessera_kernels::kv::KvType;

use crate::arena::CARVE_BYTES;
use crate::budget::{Budget, Sizes};
use crate::cache::PolicyKind;
use crate::chunk::{Chunk, Cut, for_each_chunk};
use crate::format::{FormatError, Image};
use crate::limits::{BATCH_TOKENS_MAX, COLD_READS_MAX, LANES_MAX, SEQUENCES_MAX};
use crate::sparse::{SparseSizes, predictor_sizes};
use sparse::{ffn_bytes, has_statistics, prefix_bytes, sections};

/// Which neurons decoding computes. Prompts are always computed densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Mode {
    /// All but those whose activation is zero: the same bits as the dense model.
    #[default]
    Exact,
    /// Those that the predictors name.
    Predict,
    /// Those whose activated gate reaches the threshold of their section.
    Threshold,
}

impl Mode {
    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Predict => "predict",
            Self::Threshold => "threshold",
        }
    }
}

/// How the cold segment is used; the numbers come from the planner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColdOptions {
    /// Which bundle is given up.
    pub policy: PolicyKind,
    /// Per cent of the memory for neurons that go to the resident prefix, the rest to the cold
    /// segment.
    pub hot_pct: usize,
    /// Gates are read first, the rest of a bundle only where its gate is alive.
    pub two_phase: bool,
    /// Bundles that may lie between two that one read brings.
    pub gap: usize,
    /// Reads in flight.
    pub reads: usize,
    /// Reads in flight up to which more are begun for the next layer, on a guess; 0 for none.
    pub guesses: usize,
    /// Neurons that no pass needed lately are left out, unless their scores exceed the one below
    /// which predicted neurons carry no more than so many thousandths of the activations' magnitude
    /// on the calibration text, rounded down to one of
    /// [`Cuts::LOSSES_PML`](crate::format::Cuts::LOSSES_PML); 0 leaves out none. Only for one
    /// sequence. The result then depends on the passes since the last prompt or truncation too, but
    /// not on memory, lanes or the order of reads.
    pub absent_loss_pml: u16,
    /// What is left out, for comparison.
    pub without: Without,
}

/// Techniques that are left out, to show what each is worth (PAPER section 11.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Without {
    /// Gate, up and down of a neuron are read by one command each.
    pub bundles: bool,
    /// The cold segment is emptied before each pass.
    pub cache: bool,
    /// A matrix is begun only when all that is read of it has arrived.
    pub pipeline: bool,
}

impl Default for ColdOptions {
    fn default() -> Self {
        ColdOptions {
            policy: PolicyKind::Frequency,
            hot_pct: 50,
            two_phase: false,
            gap: 1,
            reads: COLD_READS_MAX,
            guesses: COLD_READS_MAX / 4 * 3,
            absent_loss_pml: 0,
            without: Without {
                bundles: false,
                cache: false,
                pipeline: false,
            },
        }
    }
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// Bytes of the region.
    pub memory_bytes: usize,
    /// Positions of the context of each sequence.
    pub seq_len: usize,
    /// Sequences that are held, and can be decoded, side by side.
    pub sequences: usize,
    /// How keys and values are stored; images packed with f32 keep theirs in f32.
    pub kv: KvType,
    /// Most tokens of one pass over the weights; less where memory is short.
    pub batch_tokens: usize,
    /// Positions whose logits are wanted at once.
    pub logits_rows: usize,
    /// Lanes.
    pub lanes: usize,
    /// Which neurons decoding computes.
    pub mode: Mode,
    /// How the cold segment is used.
    pub cold: ColdOptions,
}

impl Default for PlanOptions {
    /// One sequence on one lane, token by token, in a context of no positions.
    fn default() -> Self {
        PlanOptions {
            memory_bytes: 0,
            seq_len: 0,
            sequences: 1,
            kv: KvType::F16,
            batch_tokens: 1,
            logits_rows: 1,
            lanes: 1,
            mode: Mode::Exact,
            cold: ColdOptions::default(),
        }
    }
}

/// How a model is run inside a budget. A pure function of image and options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Plan {
    /// Sizes of everything.
    pub sizes: Sizes,
    /// Bytes of everything.
    pub budget: Budget,
    /// Which neurons decoding computes.
    pub mode: Mode,
    /// How weights are cut into chunks.
    pub cut: Cut,
    /// Weights that one token needs, in bytes (all experts of a mixture counted).
    pub weight_bytes: u64,
    /// What they take in memory where all stay.
    pub kept_bytes: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PlanError {
    /// The region is too small.
    Memory {
        /// Bytes offered.
        have_bytes: usize,
        /// The smallest number that would do.
        need_bytes: usize,
    },
    /// A context longer than the model's.
    Context {
        /// Positions asked for.
        have: usize,
        /// Positions the model was trained for.
        max: usize,
    },
    /// Lanes out of range.
    Lanes {
        /// Lanes asked for.
        have: usize,
        /// The most there can be.
        max: usize,
    },
    /// Sequences out of range.
    Sequences {
        /// Sequences asked for.
        have: usize,
        /// The most there can be.
        max: usize,
    },
    /// Several sequences, and neurons are left out that one did not need lately.
    AbsentLoss {
        /// Sequences asked for.
        sequences: usize,
    },
    /// The image has no predictors, or not for every section.
    Predictors,
    /// The image has no statistics, and so no thresholds.
    Statistics,
}

impl core::fmt::Display for PlanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Memory {
                have_bytes,
                need_bytes,
            } => write!(
                f,
                "{have_bytes} bytes of memory are too few for this model and context, \
                 {need_bytes} is the least"
            ),
            Self::Context { have, max } => {
                write!(
                    f,
                    "a context of {have} positions was asked for, the model has 1 to {max}"
                )
            }
            Self::Lanes { have, max } => {
                write!(f, "{have} lanes were asked for, 1 to {max} can be")
            }
            Self::Sequences { have, max } => {
                write!(f, "{have} sequences were asked for, 1 to {max} can be")
            }
            Self::AbsentLoss { sequences } => write!(
                f,
                "{sequences} sequences were asked for; where neurons are left out that were not \
                 needed lately there can be only one"
            ),
            Self::Predictors => write!(
                f,
                "the image has no predictors, or not for every layer and expert; \
                 layout-tool profile makes an image that has, of a model with ReLU gates"
            ),
            Self::Statistics => write!(
                f,
                "the image has no thresholds; layout-tool profile makes an image that has"
            ),
        }
    }
}

impl core::error::Error for PlanError {}

/// Chunk sizes are chosen between these: large enough for the flash, small beside the budget.
const CHUNK_BYTES_MIN: usize = 256 << 10;
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Buffers of the stream: reads in flight, one in use, one behind it.
const STREAM_SLOTS: usize = 16;
const STREAM_SLOTS_MIN: usize = 4;
/// Bytes of all of them, where that leaves the fewest: what covers a device's latency, and more
/// only where memory is plenty.
const STREAM_BYTES: usize = 24 << 20;

impl Plan {
    /// Decides everything for `image`.
    ///
    /// # Errors
    /// [`PlanError`]; a budget that is too small is answered with the smallest that would do.
    pub fn new(image: &Image<'_>, options: PlanOptions) -> Result<Self, PlanError> {
        let shape = image.shape();
        if options.seq_len == 0 || options.seq_len > shape.seq_len {
            return Err(PlanError::Context {
                have: options.seq_len,
                max: shape.seq_len,
            });
        }
        if options.lanes == 0 || options.lanes > LANES_MAX {
            return Err(PlanError::Lanes {
                have: options.lanes,
                max: LANES_MAX,
            });
        }
        if options.sequences == 0 || options.sequences > SEQUENCES_MAX {
            return Err(PlanError::Sequences {
                have: options.sequences,
                max: SEQUENCES_MAX,
            });
        }
        let sequences = options.sequences;
        if options.mode == Mode::Predict && options.cold.absent_loss_pml > 0 && sequences > 1 {
            return Err(PlanError::AbsentLoss { sequences });
        }
        if options.mode == Mode::Predict && predictor_sizes(image).is_none() {
            return Err(PlanError::Predictors);
        }
        if options.mode == Mode::Threshold && !has_statistics(image) {
            return Err(PlanError::Statistics);
        }
        // A pass carries one token of each sequence at least.
        let batch_max = options
            .batch_tokens
            .clamp(1, BATCH_TOKENS_MAX)
            .min(options.seq_len)
            .max(options.sequences);
        let logits_rows = options.logits_rows.max(options.sequences);
        let scale = (options.memory_bytes / 64).next_power_of_two() / 2;
        let mut chunk_bytes = scale.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        loop {
            let draft = Draft::new(image, options, chunk_bytes);
            if let Some(plan) = draft.largest(batch_max, logits_rows) {
                return Ok(plan);
            }
            if chunk_bytes == CHUNK_BYTES_MIN {
                let least = draft.plan(options.sequences, logits_rows, STREAM_SLOTS_MIN, 0);
                let (have_bytes, need_bytes) = (options.memory_bytes, least.total_bytes());
                return Err(PlanError::Memory {
                    have_bytes,
                    need_bytes,
                });
            }
            // What fits a smaller budget, with its smaller chunks, fits this one too.
            chunk_bytes /= 2;
        }
    }

    /// Bytes of the resident prefixes of all feed-forward sections.
    fn hot_bytes(&self, image: &Image<'_>) -> u64 {
        let clusters = self.sizes.sparse.map_or(0, |sparse| sparse.hot_clusters);
        prefix_bytes(image, clusters)
    }

    fn total_bytes(&self) -> usize {
        self.budget.total_bytes().unwrap_or(usize::MAX)
    }

    fn fits(&self, memory_bytes: usize) -> bool {
        self.total_bytes() <= memory_bytes
    }

    /// Calls `visit` for each chunk, in file order. Chunks that stay are spread evenly over the
    /// image, so that reads for the others go on while these are computed; of feed-forward sections
    /// with a cold part the front stays.
    pub fn for_each_chunk(&self, image: &Image<'_>, mut visit: impl FnMut(Chunk)) {
        let hot_bytes = self.hot_bytes(image);
        let mut fixed = self.sizes.resident_bytes as u64 - hot_bytes;
        let mut total = self.kept_bytes;
        if self.sizes.sparse.is_some() {
            total -= ffn_bytes(image);
            fixed = fixed.min(total);
        }
        let (mut spread, mut at) = (Spread::new(fixed, total), 0);
        for_each_chunk(image, self.cut, |mut chunk| {
            let stays = match self.sizes.sparse {
                Some(sparse) if chunk.is_ffn() => {
                    let map = image.ffn(chunk.layer as usize, chunk.expert().unwrap_or(0));
                    let prefix = sparse.hot_clusters * image.shape().cluster_neurons;
                    chunk.end() <= map.offset + map.run_bytes(prefix.min(map.neurons)) as u64
                }
                _ => spread.take(chunk.kept_bytes as u64),
            };
            if stays {
                chunk.set_resident(at);
                at += chunk.kept_bytes as usize;
            }
            visit(chunk);
        });
    }

    /// Writes the chunk table.
    pub fn write_chunks(&self, image: &Image<'_>, chunks: &mut [Chunk]) {
        let mut index = 0;
        self.for_each_chunk(image, |chunk| {
            chunks[index] = chunk;
            index += 1;
        });
        assert_eq!(index, self.sizes.n_chunks);
    }
}

/// What a caller does with an image's head before it trusts the weights: checks it, plans, and
/// looks units up. For fuzzing: any bytes give an answer or an error, never a panic.
///
/// # Errors
/// [`FormatError`] for a head that is refused.
pub fn check(head: &[u8], file_bytes: u64) -> Result<(), FormatError> {
    let image = Image::new_checked(head, file_bytes)?;
    for memory_bytes in [1 << 16, 1 << 22, 1 << 30] {
        let options = PlanOptions {
            memory_bytes,
            seq_len: 16,
            batch_tokens: 4,
            lanes: 2,
            ..PlanOptions::default()
        };
        if let Ok(plan) = Plan::new(&image, options) {
            let (mut chunks, mut bytes) = (0, 0);
            for_each_chunk(&image, plan.cut, |chunk| {
                chunks += 1;
                bytes += u64::from(chunk.bytes);
            });
            assert_eq!((chunks, bytes), (plan.sizes.n_chunks, plan.weight_bytes));
            assert!(plan.total_bytes() <= memory_bytes);
        }
    }
    for index in 0..image.n_sections() {
        let section = image.section(index);
        let last = section.offset + section.bytes.saturating_sub(1);
        for offset in [section.offset, last] {
            let unit = image.unit_at(offset).filter(|_| section.bytes > 0);
            assert!(unit.is_none_or(|unit| unit.kind == section.kind));
        }
    }
    Ok(())
}

/// Chooses chunks that stay, evenly over the image, never more than the budget.
struct Spread {
    limit: u64,
    total: u64,
    seen: u64,
    taken: u64,
}

impl Spread {
    fn new(limit: u64, total: u64) -> Self {
        Spread {
            limit,
            total,
            seen: 0,
            taken: 0,
        }
    }

    /// True if the next chunk stays.
    fn take(&mut self, bytes: u64) -> bool {
        self.seen += bytes;
        let due = (self.seen as u128 * self.limit as u128).div_ceil(self.total as u128) as u64;
        let stays = self.taken + bytes <= due.min(self.limit);
        self.taken += if stays { bytes } else { 0 };
        stays
    }
}

/// What is known of the image before sizes are chosen.
struct Draft<'a> {
    image: &'a Image<'a>,
    options: PlanOptions,
    chunk_bytes: usize,
    n_chunks: usize,
    slot_bytes: usize,
    weight_bytes: u64,
    kept_bytes: u64,
}

impl<'a> Draft<'a> {
    fn new(image: &'a Image<'a>, options: PlanOptions, chunk_bytes: usize) -> Self {
        let (mut n_chunks, mut slot_bytes) = (0, 0);
        let (mut weight_bytes, mut kept_bytes) = (0, 0);
        let cut = Cut {
            chunk_bytes,
            hot_clusters: usize::MAX,
        };
        for_each_chunk(image, cut, |chunk| {
            n_chunks += 1;
            slot_bytes = slot_bytes.max(chunk.bytes as usize);
            weight_bytes += chunk.bytes as u64;
            kept_bytes += chunk.kept_bytes as u64;
        });
        Draft {
            image,
            options,
            chunk_bytes,
            n_chunks,
            slot_bytes,
            weight_bytes,
            kept_bytes,
        }
    }

    /// The plan that keeps most in memory, if there is one with these chunks.
    fn largest(&self, batch_max: usize, logits_rows: usize) -> Option<Plan> {
        let memory_bytes = self.options.memory_bytes;
        if self.options.mode == Mode::Predict {
            return self.largest_sparse(batch_max, logits_rows);
        }
        let full = self.plan(batch_max, logits_rows, STREAM_SLOTS_MIN, self.kept_bytes);
        if full.fits(memory_bytes) {
            return Some(full);
        }
        // Memory is short: a prompt's activations may take an eighth of it, the stream's buffers
        // another, and what is left holds weights.
        for n_slots in [self.stream_slots(), STREAM_SLOTS_MIN] {
            let (batch, empty) = self.largest_batch(batch_max, logits_rows, n_slots);
            if empty.fits(memory_bytes) {
                let left = memory_bytes - empty.total_bytes();
                let whole_left = (left / CARVE_BYTES * CARVE_BYTES) as u64;
                let resident_bytes = whole_left.min(self.kept_bytes);
                return Some(self.plan(batch, logits_rows, n_slots, resident_bytes));
            }
        }
        None
    }

    /// Buffers of the stream where memory is short.
    fn stream_slots(&self) -> usize {
        let bytes = STREAM_BYTES.min(self.options.memory_bytes / 8);
        (bytes / self.slot_bytes).clamp(STREAM_SLOTS_MIN, STREAM_SLOTS)
    }

    /// The most tokens of a pass, halved from `batch_max`, that fit and cost at most an eighth of
    /// the memory more than the fewest; and the plan with nothing resident.
    fn largest_batch(&self, batch_max: usize, logits_rows: usize, n_slots: usize) -> (usize, Plan) {
        let memory_bytes = self.options.memory_bytes;
        let least = self.options.sequences;
        let least_bytes = self.plan(least, logits_rows, n_slots, 0).total_bytes();
        let mut batch = batch_max;
        loop {
            let empty = self.plan(batch, logits_rows, n_slots, 0);
            let extra_bytes = empty.total_bytes() - least_bytes;
            let fits = empty.fits(memory_bytes) && extra_bytes <= memory_bytes / 8;
            if batch == least || fits {
                return (batch, empty);
            }
            batch = (batch / 2).max(least);
        }
    }

    fn plan(&self, batch: usize, logits_rows: usize, n_slots: usize, resident: u64) -> Plan {
        let sparse = match self.options.mode {
            Mode::Exact | Mode::Threshold => None,
            Mode::Predict => self.sparse_sizes(batch, 0, self.slots_min()),
        };
        self.plan_with(batch, logits_rows, n_slots, resident, sparse)
    }

    fn plan_with(
        &self,
        batch: usize,
        logits_rows: usize,
        n_slots: usize,
        resident: u64,
        sparse: Option<SparseSizes>,
    ) -> Plan {
        let embedding = self.image.embedding();
        let kv = match self.image.shape().kv_f32 {
            true => KvType::F32,
            false => self.options.kv,
        };
        let hot_clusters = sparse.map_or(usize::MAX, |sparse| sparse.hot_clusters);
        let sizes = Sizes {
            // The cut before the cold part makes one more chunk of a section at most.
            n_chunks: match sparse {
                None => self.n_chunks,
                Some(_) => self.count_chunks(hot_clusters),
            },
            resident_bytes: usize::try_from(resident).unwrap_or(usize::MAX),
            seq_len: self.options.seq_len,
            sequences: self.options.sequences,
            kv,
            batch_tokens: batch,
            logits_rows,
            lanes: self.options.lanes,
            n_slots,
            slot_bytes: self.slot_bytes,
            embed_bytes: embedding.tile.tile_bytes(embedding.tile.rows),
            n_thresholds: match self.options.mode {
                Mode::Threshold => sections(self.image).count(),
                Mode::Exact | Mode::Predict => 0,
            },
            sparse,
        };
        Plan {
            sizes,
            budget: Budget::new(self.image.shape(), &sizes),
            mode: self.options.mode,
            cut: self.cut(hot_clusters),
            weight_bytes: self.weight_bytes,
            kept_bytes: self.kept_bytes,
        }
    }
}
