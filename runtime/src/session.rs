//! The public API: a model in a region of memory, tokens in, logits out.

use core::sync::atomic::{AtomicBool, Ordering};

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;

use crate::arena::{Arena, OutOfMemory};
use crate::budget::Sizes;
use crate::chunk::Chunk;
use crate::format::{Image, TileLayout, VectorsLayout};
use crate::kv::{KvCache, Place};
use crate::limits::{EMBED_SLOTS_MAX, FEW_TOKENS_MAX, SEQUENCES_MAX};
use crate::model::{Model, Pass};
use crate::observe::Observer;
use crate::plan::{Mode, Plan};
use crate::product::Machine;
use crate::sparse::Sparse;
use crate::stats::Stats;
use crate::stream::{ReadBuffers, Stream};
use crate::weights::Weights;
use crate::work::{Work, take_lanes};

mod batch;
mod error;
mod memory;
mod side;

pub use error::SessionError;
use side::{read_seeds, read_thresholds, read_vectors, side_read};

/// Logits of one position, wherever they stand.
#[derive(Clone, Copy)]
pub struct Logits<'a> {
    all: &'a [f32],
    row: usize,
    rows: usize,
}

/// What a pass is for.
#[derive(Clone, Copy)]
enum Kind<'a> {
    /// All neurons are computed.
    Prompt,
    /// By the plan's mode.
    Decode,
    /// As a prompt, seen by a profiler.
    Observed(&'a dyn Observer),
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
    /// Tokens in the context of each sequence.
    positions: heapless::Vec<usize, SEQUENCES_MAX>,
    /// The sequence that tokens are appended to.
    sequence: usize,
    /// Of the tokens of a pass.
    places: &'m mut [Place],
    /// The stream is not where a pass begins, since the last one ended early.
    astray: bool,
    /// Prompts are computed as decoding is, with the plan's mode.
    as_decoded: bool,
}

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// Carves `region` and reads what is small; [`Session::load`] reads the resident weights.
    ///
    /// # Errors
    /// A region smaller than `plan.budget`, or flash that cannot be read.
    #[inline(never)]
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
        let slots = arena.take(sizes.n_reads())?;
        let resident = arena.take::<u8>(sizes.resident_bytes)?;
        let sparse = match sizes.sparse {
            Some(sparse) => Some(Sparse::take(&mut arena, &image, sparse)?),
            None => None,
        };
        let thresholds = arena.take(sizes.n_thresholds)?;
        let kv = KvCache::new(&mut arena, &shape, &sizes)?;
        let bufs = take_buffers(&mut arena, &sizes)?;
        let work = Work::take(&mut arena, &shape, &sizes)?;
        let places = arena.take(sizes.batch_tokens)?;
        let lanes = take_lanes(&mut arena, &shape, &sizes)?;
        let stream = Stream::new(flash, bufs, slots, sizes.n_slots, EMBED_SLOTS_MAX);
        // Made in one piece and only then used: a session is kilobytes, and each move another copy
        // on a small stack.
        let mut session = Session {
            model: Model {
                weights: Weights::new(image, stream, chunks, resident, &kernels),
                vectors,
                kv,
                work,
                lanes,
                sparse,
                thresholds,
            },
            cores,
            clock,
            kernels,
            plan,
            cancel: None,
            positions: (0..sizes.sequences).map(|_| 0).collect(),
            sequence: 0,
            places,
            astray: false,
            as_decoded: false,
        };
        session.read_small()?;
        Ok(session)
    }

    /// Reads vectors and thresholds.
    fn read_small(&mut self) -> Result<(), SessionError> {
        let Model {
            weights,
            vectors,
            thresholds,
            ..
        } = &mut self.model;
        read_vectors(weights, &self.clock, &self.kernels, vectors)?;
        read_thresholds(weights, &self.clock, &self.kernels, thresholds)?;
        Ok(())
    }

    /// Reads the weights that stay in memory. `progress(done, all)` in bytes.
    #[inline(never)]
    pub fn load(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), SessionError> {
        let cancel = self.cancel;
        if let Some(sparse) = &mut self.model.sparse {
            // A call that failed may have left reads in flight.
            let crc32c = self.kernels.crc32c;
            sparse.settle(&mut self.model.weights, crc32c, &self.clock)?;
            sparse.load(&mut self.model.weights, &self.clock)?;
            let cache = &mut sparse.cold.books.cache;
            read_seeds(&mut self.model.weights, &self.clock, &self.kernels, cache)?;
        }
        let done = self
            .model
            .weights
            .load(&self.cores, &self.clock, &mut |done, all| {
                progress(done, all);
                !is_set(cancel)
            })?;
        let weights = &mut self.model.weights;
        let (crc32c, go_on) = (self.kernels.crc32c, || !is_set(cancel));
        let filled = match &mut self.model.sparse {
            Some(sparse) if done => sparse.fill(weights, crc32c, &self.clock, &go_on)?,
            _ => done,
        };
        if filled {
            Ok(())
        } else {
            Err(SessionError::Cancelled)
        }
    }

    /// Work stops soon after `flag` is set, with [`SessionError::Cancelled`].
    pub fn cancel_with(&mut self, flag: &'m AtomicBool) {
        self.cancel = Some(flag);
    }

    /// From now on prompts are computed as decoding is: a few tokens a pass, by the plan's mode, so
    /// that the loss of an approximate mode can be measured.
    pub fn prompt_as_decoded(&mut self, on: bool) {
        self.as_decoded = on;
    }

    /// Makes `sequence` the one that tokens are appended to, and that is asked about; 0 at the
    /// start.
    ///
    /// # Errors
    /// [`SessionError::SequenceOutOfRange`].
    pub fn select(&mut self, sequence: usize) -> Result<(), SessionError> {
        self.check_sequence(sequence)?;
        self.sequence = sequence;
        Ok(())
    }

    /// Tokens in the context.
    pub fn pos(&self) -> usize {
        self.positions[self.sequence]
    }

    /// Positions of the context.
    pub fn seq_len(&self) -> usize {
        self.model.kv.seq_len()
    }

    /// Forgets all tokens from position `pos` on.
    pub fn truncate(&mut self, pos: usize) {
        self.positions[self.sequence] = self.pos().min(pos);
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
        let decodes = tokens.len() == 1 || self.as_decoded;
        self.append_with(tokens, if decodes { Kind::Decode } else { Kind::Prompt })
    }

    /// [`Session::append`] for profiling: the same logits, while `observer` is shown the inputs
    /// and the gate and up products of every feed-forward section. A pass carries at most
    /// `plan().sizes.batch_tokens` of the tokens.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub fn append_observed(
        &mut self,
        tokens: &[u32],
        observer: &dyn Observer,
    ) -> Result<&[f32], SessionError> {
        self.append_with(tokens, Kind::Observed(observer))
    }

    fn append_with(&mut self, tokens: &[u32], kind: Kind<'_>) -> Result<&[f32], SessionError> {
        self.check_tokens(tokens)?;
        let begun_at = self.pos();
        match self.append_all(tokens, kind) {
            Ok(()) => Ok(self.logits()),
            Err(error) => {
                (self.positions[self.sequence], self.astray) = (begun_at, true);
                Err(error)
            }
        }
    }

    #[inline(never)]
    fn append_all(&mut self, tokens: &[u32], kind: Kind<'_>) -> Result<(), SessionError> {
        let batch = self.batch();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            self.place(now);
            self.pass(now.len(), later.is_empty(), kind)?;
            if later.is_empty() {
                self.compute_logits(now.len() - 1, 1, &mut |_, _| {})?;
            }
            self.positions[self.sequence] += now.len();
            rest = later;
        }
        Ok(())
    }

    /// The logits after the last token, (vocab_size,): those that [`Session::append`] returned.
    /// After any other call that computes logits the contents are undefined.
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
        let begun_at = self.pos();
        let result = self.each_all(tokens, from, visit);
        if result.is_err() {
            (self.positions[self.sequence], self.astray) = (begun_at, true);
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
        let kind = if self.as_decoded {
            Kind::Decode
        } else {
            Kind::Prompt
        };
        for now in tokens.chunks(self.batch()) {
            let first = from.saturating_sub(done).min(now.len());
            self.place(now);
            self.pass(now.len(), first < now.len(), kind)?;
            for (index, start) in (first..now.len()).step_by(sizes.logits_rows).enumerate() {
                if index > 0 {
                    let offset = self.image().lm_head().offset;
                    self.model.weights.seek_offset(offset, &self.clock)?;
                }
                let rows = sizes.logits_rows.min(now.len() - start);
                self.compute_logits(start, rows, visit)?;
            }
            self.positions[self.sequence] += now.len();
            done += now.len();
        }
        Ok(())
    }

    /// Most tokens of a pass of a prompt.
    fn batch(&self) -> usize {
        let batch = self.plan.sizes.batch_tokens;
        if self.as_decoded {
            batch.min(FEW_TOKENS_MAX)
        } else {
            batch
        }
    }

    fn check_sequence(&self, sequence: usize) -> Result<(), SessionError> {
        let max = self.positions.len();
        if sequence < max {
            Ok(())
        } else {
            Err(SessionError::SequenceOutOfRange { sequence, max })
        }
    }

    fn check_token(&self, token: u32) -> Result<(), SessionError> {
        let vocab_size = self.image().shape().vocab_size;
        if (token as usize) < vocab_size {
            Ok(())
        } else {
            Err(SessionError::TokenOutOfRange { token, vocab_size })
        }
    }

    fn check_tokens(&self, tokens: &[u32]) -> Result<(), SessionError> {
        if tokens.is_empty() {
            return Err(SessionError::NoTokens);
        }
        for &token in tokens {
            self.check_token(token)?;
        }
        let (need, max) = (self.pos() + tokens.len(), self.seq_len());
        if need > max {
            return Err(SessionError::ContextLengthExceeded { need, max });
        }
        Ok(())
    }

    /// Where `tokens` stand that are appended.
    fn place(&mut self, tokens: &[u32]) {
        let (pos, sequence) = (self.pos() as u32, self.sequence as u32);
        for (pos, (place, &token)) in (pos..).zip(self.places.iter_mut().zip(tokens)) {
            *place = Place {
                token,
                sequence,
                pos,
            };
        }
    }

    /// One pass of the first `tokens` places through all layers.
    #[inline(never)]
    fn pass(
        &mut self,
        tokens: usize,
        with_logits: bool,
        kind: Kind<'_>,
    ) -> Result<(), SessionError> {
        let decodes = matches!(kind, Kind::Decode);
        let sparse = decodes && self.plan.mode != Mode::Exact && tokens <= FEW_TOKENS_MAX;
        let stream = &mut self.model.weights.stream;
        if stream.skips_ffn() != sparse && self.plan.mode == Mode::Predict {
            // What was read ahead was for a pass of the other kind.
            stream.skip_ffn(sparse);
            self.astray = true;
        }
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
            observer: match kind {
                Kind::Observed(observer) => Some(observer),
                Kind::Prompt | Kind::Decode => None,
            },
        };
        let places = &self.places[..tokens];
        let pass = Pass { places, sparse };
        let cancel = self.cancel;
        if !self.model.layers(&machine, pass, &mut || !is_set(cancel))? {
            return Err(SessionError::Cancelled);
        }
        Ok(())
    }

    /// Logits of tokens `first..first + rows` of the last pass.
    #[inline(never)]
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
            observer: None,
        };
        let all = self.model.logits(&machine, first, rows)?;
        let pos = |row: usize| self.places[first + row].pos as usize;
        if let Some(at) = all.iter().position(|logit| !logit.is_finite()) {
            return Err(SessionError::NotFinite {
                pos: pos(at % rows),
            });
        }
        for row in 0..rows {
            visit(pos(row), Logits { all, row, rows });
        }
        Ok(())
    }

    /// Embedding row of each of the first `tokens` places, to `work.x` (tokens, dim).
    #[inline(never)]
    fn embed(&mut self, tokens: usize) -> Result<(), SessionError> {
        let map = self.image().embedding();
        let dim = map.tile.cols;
        let places = &self.places[..tokens];
        let x = &mut self.model.work.x[..tokens * dim];
        let weights = &mut self.model.weights;
        let place = |token: u32| {
            let tile = token as usize / map.tile.rows;
            (tile, map.tile_place(tile))
        };
        let tied = weights.image.shape().tied_embeddings;
        let in_memory =
            |weights: &Weights<'m, F>, token: u32| tied && weights.is_resident(place(token).1.0);
        let batch = weights.stream.side_slots();
        for (places, xs) in places.chunks(batch).zip(x.chunks_mut(batch * dim)) {
            for (index, &Place { token, .. }) in places.iter().enumerate() {
                let (_, (offset, bytes)) = place(token);
                if !in_memory(weights, token) {
                    weights.stream.side_start(index, offset, bytes);
                }
            }
            let rows = places.iter().zip(xs.chunks_exact_mut(dim));
            for (index, (&Place { token, .. }, x)) in rows.enumerate() {
                let (tile, (offset, bytes)) = place(token);
                let rows = map.tile_rows(tile);
                let row = token as usize % map.tile.rows;
                let mut put = |tile: &[u8]| {
                    let view = map.tile.view(rows, tile);
                    view.dequantize(row, x);
                };
                if in_memory(weights, token) {
                    put(weights.ready().tile(offset, bytes));
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

/// Buffers of all reads, in the order of their tags.
fn take_buffers<'m>(arena: &mut Arena<'m>, sizes: &Sizes) -> Result<ReadBuffers<'m>, OutOfMemory> {
    let cold = sizes.sparse.as_ref().map(|sparse| sparse.cold);
    let kinds = [
        (sizes.n_slots, sizes.slot_bytes),
        (EMBED_SLOTS_MAX, sizes.embed_bytes),
        cold.map_or((0, 0), |cold| (cold.n_reads, cold.read_bytes)),
    ];
    let mut bufs = ReadBuffers::new();
    for (count, bytes) in kinds {
        for _ in 0..count {
            let _ = bufs.push(Some(arena.take_pages(bytes)?));
        }
    }
    Ok(bufs)
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// A session stands on its caller's stack, which may be 16 KiB: what is large is in the region.
const SESSION_BYTES_MAX: usize = 880 * size_of::<usize>();
const _: () = assert!(size_of::<Session<'static, (), (), ()>>() <= SESSION_BYTES_MAX);
const _: () = assert!(
    cfg!(target_endian = "little"),
    "images are little-endian, and so are vectors"
);
