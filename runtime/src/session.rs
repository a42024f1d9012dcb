//! The public API: a model in a region of memory, tokens in, logits out.

use core::sync::atomic::{AtomicBool, Ordering};

use tessera_hal::{Clock, Cores, Flash};
use tessera_kernels::Kernels;

use crate::arena::{Arena, OutOfMemory};
use crate::budget::Sizes;
use crate::chunk::Chunk;
use crate::format::{Image, VectorsLayout};
use crate::kv::{KvCache, Place};
use crate::limits::{EMBED_SLOTS_MAX, SEQUENCES_MAX};
use crate::model::Model;
use crate::plan::Plan;
use crate::sparse::{Recency, Sparse};
use crate::stats::Stats;
use crate::stream::{ReadBuffers, Stream};
use crate::weights::Weights;
use crate::work::{Work, take_lanes};

mod append;
mod batch;
mod check;
mod error;
mod memory;
mod pass;
mod side;

pub use error::SessionError;
pub use pass::Logits;
use side::{read_seeds, read_thresholds, read_vectors};

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
    /// All weights that stay in memory are there.
    loaded: bool,
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
            loaded: false,
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

    /// Reads the weights that stay in memory; nothing is computed before. `progress(done, all)` in
    /// bytes.
    ///
    /// # Errors
    /// [`SessionError::Weights`], and [`SessionError::Cancelled`]; it can be called again.
    #[inline(never)]
    pub fn load(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), SessionError> {
        self.loaded = false;
        let Model {
            weights, sparse, ..
        } = &mut self.model;
        let (clock, kernels, cancel) = (&self.clock, &self.kernels, self.cancel);
        // A call that failed may have left reads in flight.
        if let Some(sparse) = sparse {
            sparse.settle(weights, kernels.crc32c, clock)?;
        }
        weights.drain(clock)?;
        if let Some(sparse) = sparse {
            sparse.load(weights, clock)?;
            read_seeds(weights, clock, kernels, &mut sparse.cold.books.cache)?;
        }
        self.loaded = weights.load(&self.cores, clock, &mut |done, all| {
            progress(done, all);
            !is_set(cancel)
        })?;
        if let Some(sparse) = sparse.as_mut().filter(|_| self.loaded) {
            self.loaded = false;
            self.loaded = sparse.fill(weights, kernels.crc32c, clock, &|| !is_set(cancel))?;
        }
        match self.loaded {
            true => Ok(()),
            false => Err(SessionError::Cancelled),
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
        if pos < self.pos() {
            self.positions[self.sequence] = pos;
            if let Some(recency) = self.recency() {
                recency.forget();
            }
        }
    }

    /// Some passes begin that are one call: none of them counts if one fails.
    fn begin_call(&mut self) {
        if let Some(recency) = self.recency() {
            recency.begin_call();
        }
    }

    /// The call failed.
    fn take_back(&mut self) {
        self.astray = true;
        if let Some(recency) = self.recency() {
            recency.take_back();
        }
    }

    fn recency(&mut self) -> Option<&mut Recency<'m>> {
        self.model.sparse.as_mut()?.recency()
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
