//! The public API: a model in a region of memory, tokens in, logits out.

use core::sync::atomic::{AtomicBool, Ordering};

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;
use tessera_kernels::quantize::dequantize_row;

use crate::arena::{Arena, OutOfMemory};
use crate::chunk::Chunk;
use crate::format::{Image, PAGE_BYTES, TileLayout, VectorsLayout};
use crate::kv::KvCache;
use crate::limits::{EMBED_SLOTS_MAX, READ_TRIES_MAX};
use crate::model::{Model, Pass};
use crate::plan::Plan;
use crate::product::Machine;
use crate::stats::Stats;
use crate::stream::{Stream, StreamError};
use crate::weights::{Weights, WeightsError};
use crate::work::{Work, take_lanes};

/// Why a session cannot go on with what was asked. It stays usable.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum SessionError {
    /// The region is smaller than the plan.
    OutOfMemory(OutOfMemory),
    /// Weights cannot be read, or are damaged.
    Weights(WeightsError),
    /// The tokens do not fit the context.
    ContextLengthExceeded {
        /// Positions needed.
        need: usize,
        /// Positions there are.
        max: usize,
    },
    /// A token is not in the vocabulary.
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
    /// No tokens were given.
    NoTokens,
    /// The cancel flag was set.
    Cancelled,
    /// A logit is not a finite number: the weights or the arithmetic are broken.
    NotFinite {
        /// Position of the token whose logits they are.
        pos: usize,
    },
}

impl From<WeightsError> for SessionError {
    fn from(error: WeightsError) -> Self {
        Self::Weights(error)
    }
}

impl From<OutOfMemory> for SessionError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl core::fmt::Display for SessionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::OutOfMemory(OutOfMemory { short_bytes }) => {
                write!(f, "the region is {short_bytes} bytes smaller than the plan")
            }
            Self::Weights(error) => error.fmt(f),
            Self::ContextLengthExceeded { need, max } => {
                write!(
                    f,
                    "context length exceeded: {need} positions are needed, {max} there are"
                )
            }
            Self::TokenOutOfRange { token, vocab_size } => {
                write!(f, "token {token} is not in the vocabulary of {vocab_size}")
            }
            Self::NoTokens => write!(f, "there is no token to begin with"),
            Self::Cancelled => write!(f, "cancelled"),
            Self::NotFinite { pos } => {
                write!(f, "the logits at position {pos} are not finite numbers")
            }
        }
    }
}

impl core::error::Error for SessionError {}

/// Logits of one position, wherever they stand.
#[derive(Clone, Copy)]
pub struct Logits<'a> {
    all: &'a [f32],
    row: usize,
    rows: usize,
}

impl<'a> Logits<'a> {
    /// Logit of each token, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f32> + use<'a> {
        self.all[self.row..].iter().step_by(self.rows).copied()
    }
}

/// A model in a region of memory. No global state; time, lanes and flash come from outside.
pub struct Session<'m, F, C, K> {
    model: Model<'m, F>,
    cores: C,
    clock: K,
    kernels: Kernels,
    plan: Plan,
    cancel: Option<&'m AtomicBool>,
    pos: usize,
    /// The stream is not where a pass begins, since the last one ended early.
    astray: bool,
}

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// Carves `region` and reads what is small; [`Session::load`] reads the resident weights.
    ///
    /// # Errors
    /// A region smaller than `plan.budget`, or flash that cannot be read.
    pub fn new(
        image: Image<'m>,
        plan: Plan,
        region: &'m mut [u8],
        flash: F,
        cores: C,
        clock: K,
        kernels: Kernels,
    ) -> Result<Self, SessionError> {
        let shape = *image.shape();
        let sizes = plan.sizes;
        assert!(
            cores.lanes() <= sizes.lanes,
            "{} lanes, {} planned",
            cores.lanes(),
            sizes.lanes
        );
        let mut arena = Arena::new(region);
        let vectors = arena.take::<f32>(VectorsLayout::new(&shape).len())?;
        let chunks = arena.take::<Chunk>(sizes.n_chunks)?;
        plan.write_chunks(&image, chunks);
        let resident = arena.take::<u8>(sizes.resident_bytes)?;
        let kv = KvCache::new(&mut arena, &shape, sizes.seq_len)?;
        let mut slots = heapless::Vec::new();
        for _ in 0..sizes.n_slots {
            let _ = slots.push(arena.take_pages(sizes.slot_bytes)?);
        }
        let mut side = heapless::Vec::new();
        for _ in 0..EMBED_SLOTS_MAX {
            let _ = side.push(arena.take_pages(sizes.embed_bytes)?);
        }
        let work = Work::take(&mut arena, &shape, &sizes)?;
        let lanes = take_lanes(&mut arena, &shape, &sizes)?;
        let stream = Stream::new(flash, slots, side);
        let mut weights = Weights::new(image, stream, chunks, resident, &kernels);
        read_vectors(&mut weights, &clock, &kernels, vectors)?;
        let model = Model {
            weights,
            vectors,
            kv,
            work,
            lanes,
        };
        let (cancel, pos, astray) = (None, 0, false);
        Ok(Session {
            model,
            cores,
            clock,
            kernels,
            plan,
            cancel,
            pos,
            astray,
        })
    }

    /// Reads the weights that stay in memory. `progress(done, all)` in bytes.
    pub fn load(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), SessionError> {
        let cancel = self.cancel;
        let done = self
            .model
            .weights
            .load(&self.cores, &self.clock, &mut |done, all| {
                progress(done, all);
                !is_set(cancel)
            })?;
        if done {
            Ok(())
        } else {
            Err(SessionError::Cancelled)
        }
    }

    /// Work stops soon after `flag` is set, with [`SessionError::Cancelled`].
    pub fn cancel_with(&mut self, flag: &'m AtomicBool) {
        self.cancel = Some(flag);
    }

    /// Tokens in the context.
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// Positions of the context.
    pub fn seq_len(&self) -> usize {
        self.model.kv.seq_len()
    }

    /// Forgets all tokens from position `pos` on.
    pub fn truncate(&mut self, pos: usize) {
        self.pos = self.pos.min(pos);
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.model.weights.stream.stats
    }

    /// What was decided before the start.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The image.
    pub fn image(&self) -> &Image<'m> {
        &self.model.weights.image
    }

    /// Nanoseconds on the session's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Appends `tokens`; the logits are those after the last one, (vocab_size,).
    ///
    /// # Errors
    /// [`SessionError`]; on an error the context is as it was before.
    pub fn append(&mut self, tokens: &[u32]) -> Result<&[f32], SessionError> {
        self.check_tokens(tokens)?;
        let begun_at = self.pos;
        match self.append_all(tokens) {
            Ok(()) => Ok(self.logits()),
            Err(error) => {
                (self.pos, self.astray) = (begun_at, true);
                Err(error)
            }
        }
    }

    fn append_all(&mut self, tokens: &[u32]) -> Result<(), SessionError> {
        let batch = self.plan.sizes.batch_tokens;
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            self.pass(now, later.is_empty())?;
            if later.is_empty() {
                self.compute_logits(now.len() - 1, 1, &mut |_, _| {})?;
            }
            self.pos += now.len();
            rest = later;
        }
        Ok(())
    }

    /// The logits after the last token that was appended, (vocab_size,).
    pub fn logits(&self) -> &[f32] {
        &self.model.work.logits[..self.image().shape().vocab_size]
    }

    /// Appends `tokens` and shows the logits after each from index `from` on, in order, with its
    /// position.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub fn append_each(
        &mut self,
        tokens: &[u32],
        from: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        self.check_tokens(tokens)?;
        let begun_at = self.pos;
        let result = self.each_all(tokens, from, visit);
        if result.is_err() {
            (self.pos, self.astray) = (begun_at, true);
        }
        result
    }

    fn each_all(
        &mut self,
        tokens: &[u32],
        from: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        let sizes = self.plan.sizes;
        let mut done = 0;
        for now in tokens.chunks(sizes.batch_tokens) {
            let first = from.saturating_sub(done).min(now.len());
            self.pass(now, first < now.len())?;
            for (index, start) in (first..now.len()).step_by(sizes.logits_rows).enumerate() {
                if index > 0 {
                    let offset = self.image().lm_head().offset;
                    self.model.weights.seek_offset(offset, &self.clock)?;
                }
                let rows = sizes.logits_rows.min(now.len() - start);
                self.compute_logits(start, rows, visit)?;
            }
            self.pos += now.len();
            done += now.len();
        }
        Ok(())
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), SessionError> {
        let vocab_size = self.image().shape().vocab_size;
        if tokens.is_empty() {
            return Err(SessionError::NoTokens);
        }
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(SessionError::TokenOutOfRange { token, vocab_size });
        }
        let (need, max) = (self.pos + tokens.len(), self.seq_len());
        if need > max {
            return Err(SessionError::ContextLengthExceeded { need, max });
        }
        Ok(())
    }

    /// One pass of `tokens` through all layers.
    fn pass(&mut self, tokens: &[u32], with_logits: bool) -> Result<(), SessionError> {
        let n_layers = self.image().shape().n_layers;
        self.model
            .weights
            .stream
            .begin_pass((!with_logits).then_some(n_layers));
        if self.astray {
            self.model.weights.rewind(&self.clock)?;
            self.astray = false;
        }
        self.model.weights.pump();
        self.embed(tokens)?;
        let machine = Machine {
            cores: &self.cores,
            clock: &self.clock,
            kernels: &self.kernels,
        };
        let pass = Pass {
            pos: self.pos,
            tokens: tokens.len(),
        };
        let cancel = self.cancel;
        if !self.model.layers(&machine, pass, &mut || !is_set(cancel))? {
            return Err(SessionError::Cancelled);
        }
        Ok(())
    }

    /// Logits of tokens `first..first + rows` of the last pass.
    fn compute_logits(
        &mut self,
        first: usize,
        rows: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        let machine = Machine {
            cores: &self.cores,
            clock: &self.clock,
            kernels: &self.kernels,
        };
        let pos = self.pos + first;
        let all = self.model.logits(&machine, first, rows)?;
        if !all.iter().all(|logit| logit.is_finite()) {
            return Err(SessionError::NotFinite { pos });
        }
        for row in 0..rows {
            visit(pos + row, Logits { all, row, rows });
        }
        Ok(())
    }

    /// Embedding row of each token, to `work.x` (tokens, dim).
    fn embed(&mut self, tokens: &[u32]) -> Result<(), SessionError> {
        let map = self.image().embedding();
        let dim = map.tile.cols;
        let x = &mut self.model.work.x[..tokens.len() * dim];
        let weights = &mut self.model.weights;
        let place = |token: u32| {
            let tile = token as usize / map.tile.rows;
            (tile, map.tile_place(tile))
        };
        let tied = weights.image.shape().tied_embeddings;
        let in_memory =
            |weights: &Weights<'m, F>, token: u32| tied && weights.is_resident(place(token).1.0);
        let batch = weights.stream.side_slots();
        for (tokens, xs) in tokens.chunks(batch).zip(x.chunks_mut(batch * dim)) {
            for (index, &token) in tokens.iter().enumerate() {
                let (_, (offset, bytes)) = place(token);
                if !in_memory(weights, token) {
                    weights.stream.side_start(index, offset, bytes);
                }
            }
            for (index, (&token, x)) in tokens.iter().zip(xs.chunks_exact_mut(dim)).enumerate() {
                let (tile, (offset, bytes)) = place(token);
                let rows = map.tile_rows(tile);
                let row = token as usize % map.tile.rows;
                let mut put = |tile: &[u8]| {
                    let view = map.tile.view(rows, tile);
                    dequantize_row(map.tile.ty, dim, view.codes(row), view.scales(row), x);
                };
                if in_memory(weights, token) {
                    put(weights.ready().bytes(offset, bytes));
                } else {
                    let crc32c = self.kernels.crc32c;
                    let intact = |tile: &[u8]| TileLayout::is_intact(tile, offset, crc32c);
                    put(side_read(weights, index, offset, &self.clock, &intact)?);
                }
            }
        }
        Ok(())
    }
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Waits for a side read that was started, until its contents are intact.
fn side_read<'w, 'm, F: Flash<'m>>(
    weights: &'w mut Weights<'m, F>,
    index: usize,
    offset: u64,
    clock: &impl Clock,
    intact: &dyn Fn(&[u8]) -> bool,
) -> Result<&'w [u8], WeightsError> {
    let unit = weights.image.unit_at(offset);
    let fail = |error: StreamError| WeightsError::Read { unit, error };
    let mut tries = 0;
    while !intact(
        weights
            .stream
            .side_wait(index, tries > 0, clock)
            .map_err(fail)?,
    ) {
        tries += 1;
        if tries == READ_TRIES_MAX {
            return Err(WeightsError::Damaged { unit, offset });
        }
    }
    weights.stream.side_wait(index, false, clock).map_err(fail)
}

/// Reads the vectors section, in pieces.
fn read_vectors<'m, F: Flash<'m>>(
    weights: &mut Weights<'m, F>,
    clock: &impl Clock,
    kernels: &Kernels,
    vectors: &mut [f32],
) -> Result<(), WeightsError> {
    let section = weights.image.vectors();
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(vectors);
    let piece_bytes = weights.stream.side_bytes();
    for _ in 0..READ_TRIES_MAX {
        for (index, piece) in bytes.chunks_mut(piece_bytes).enumerate() {
            let offset = section.offset + (index * piece_bytes) as u64;
            let pages_bytes = piece.len().next_multiple_of(PAGE_BYTES);
            weights.stream.side_start(0, offset, pages_bytes);
            let data = side_read(weights, 0, offset, clock, &|_| true)?;
            piece.copy_from_slice(&data[..piece.len()]);
        }
        if (kernels.crc32c)(0, bytes) == section.crc {
            return Ok(());
        }
    }
    let offset = section.offset;
    Err(WeightsError::Damaged {
        unit: weights.image.unit_at(offset),
        offset,
    })
}

const _: () = assert!(
    cfg!(target_endian = "little"),
    "images are little-endian, and so are vectors"
);
