//! The weight stream: a ring of buffers that flash fills in the order of use.
//!
//! Chunks that are not resident are read ahead, in file order and round and round, as far as there
//! are free buffers; the consumer takes them in the same order. So the flash always has requests,
//! whatever layer is being computed, and the next token's first chunks are read while the sampler
//! runs.

use tessera_hal::{Clock, Flash, IoError, PAGE_BYTES, PageIndex, Read};

use crate::chunk::Chunk;
use crate::limits::{EXPERTS_MAX, READ_BUFFERS_MAX, READ_DEADLINE_NS, READ_TRIES_MAX};
use crate::stats::Stats;

mod cold;
mod slot;

pub use slot::Slot;
use slot::State;

/// One wait on the device, so that a cancel flag and the deadline are looked at.
const WAIT_NS: u64 = 50_000_000;

/// Why weights did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum StreamError {
    /// The device failed a read every time it was tried.
    Device {
        /// Byte of the image at which the read began.
        offset: u64,
        /// What the device said last.
        error: IoError,
    },
    /// A read did not finish in time.
    Deadline {
        /// Byte of the image at which the read began.
        offset: u64,
    },
}

/// Buffers of all reads: of the ring, of side reads, of cold reads; `None` while in the device.
pub type ReadBuffers<'m> = heapless::Vec<Option<&'m mut [u8]>, READ_BUFFERS_MAX>;

/// Which chunks the stream reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// Those that will be resident, once: the start.
    Resident,
    /// Those that are not, round and round.
    Streamed,
}

/// Which experts of which layer are needed, once the router has spoken.
#[derive(Debug, Clone, Copy)]
struct Routing {
    pass: u64,
    layer: u32,
    experts: [u64; EXPERTS_MAX / 64],
}

/// How long reads were waited for. A wait that took much longer than it was given counts as little
/// more: the machine slept, or the process was stopped, and the device had no time either.
#[derive(Debug, Default)]
pub struct Patience {
    waited_ns: u64,
}

impl Patience {
    /// Waits once; false when it is time to give up.
    fn wait<'m>(&mut self, flash: &mut impl Flash<'m>, clock: &impl Clock) -> bool {
        let begun_ns = clock.now_ns();
        flash.wait(WAIT_NS);
        // A wait that returns at once counts a little, so that a device that lost a read cannot
        // keep its caller for ever.
        let waited_ns = clock.now_ns().saturating_sub(begun_ns);
        self.waited_ns += waited_ns.clamp(1_000, 2 * WAIT_NS);
        self.waited_ns < READ_DEADLINE_NS
    }
}

/// See the module's text.
pub struct Stream<'m, F> {
    flash: F,
    /// A read's index is its tag: first those of the ring, then side reads, then cold reads.
    slots: &'m mut [Slot],
    bufs: ReadBuffers<'m>,
    n_ring: usize,
    n_side: usize,
    /// Cold reads that came out of the device, and those it had no room for: a bit each.
    cold_out: u64,
    cold_waiting: u64,
    /// Sequence numbers of reads: oldest not released, end of those in use, end of those submitted.
    head: u64,
    held: u64,
    tail: u64,
    /// Chunk that is looked at next for reading, and the pass it will be used in.
    next: usize,
    next_pass: u64,
    /// Pass of the consumer.
    pass: u64,
    select: Select,
    /// False where all that is selected is resident: nothing to do.
    any: bool,
    routing: Option<Routing>,
    /// Chunks of this layer number are not wanted (the lm_head's, in a pass without logits).
    skipped_layer: Option<u32>,
    /// Chunks of feed-forward sections are not wanted: a cache serves them.
    skips_ffn: bool,
    /// Counters.
    pub stats: Stats,
}

impl<'m, F: Flash<'m>> Stream<'m, F> {
    /// A stream with the buffers `bufs`, and the table `slots` of as many: `n_ring` of one size,
    /// `n_side` for single rows, the others for runs of cold bundles.
    pub fn new(
        flash: F,
        bufs: ReadBuffers<'m>,
        slots: &'m mut [Slot],
        n_ring: usize,
        n_side: usize,
    ) -> Self {
        assert_eq!(slots.len(), bufs.len());
        slots.fill(bytemuck::Zeroable::zeroed());
        Stream {
            flash,
            slots,
            bufs,
            n_ring,
            n_side,
            cold_out: 0,
            cold_waiting: 0,
            head: 0,
            held: 0,
            tail: 0,
            next: 0,
            next_pass: 0,
            pass: 0,
            select: Select::Streamed,
            any: false,
            routing: None,
            skipped_layer: None,
            skips_ffn: false,
            stats: Stats::default(),
        }
    }

    fn slot_index(&self, sequence: u64) -> usize {
        (sequence % self.n_ring as u64) as usize
    }

    /// Tells which experts of `layer` are needed; chunks of other experts are passed over.
    pub fn route(&mut self, layer: usize, experts: impl Iterator<Item = usize>) {
        let (pass, layer) = (self.pass, layer as u32);
        let mut routing = Routing {
            pass,
            layer,
            experts: [0; EXPERTS_MAX / 64],
        };
        for expert in experts {
            routing.experts[expert / 64] |= 1 << (expert % 64);
        }
        self.routing = Some(routing);
    }

    /// A new pass over the weights begins, in which chunks of `skipped_layer` are not wanted.
    pub fn begin_pass(&mut self, skipped_layer: Option<usize>) {
        self.pass += 1;
        self.skipped_layer = skipped_layer.map(|layer| layer as u32);
    }

    /// True: read it. False: pass over it. `None`: not known before the router has spoken.
    fn wants(&self, chunk: &Chunk) -> Option<bool> {
        match self.select {
            Select::Resident => Some(chunk.resident().is_some()),
            Select::Streamed if chunk.resident().is_some() => Some(false),
            Select::Streamed if self.skipped_layer == Some(chunk.layer) => Some(false),
            Select::Streamed if self.skips_ffn && chunk.is_ffn() => Some(false),
            Select::Streamed => {
                let Some(expert) = chunk.expert() else {
                    return Some(true);
                };
                let here = (self.next_pass, chunk.layer);
                let routing = self
                    .routing
                    .filter(|routing| (routing.pass, routing.layer) == here)?;
                Some(routing.experts[expert / 64] >> (expert % 64) & 1 == 1)
            }
        }
    }

    /// Takes in finished reads and starts new ones as far as there are buffers.
    pub fn pump(&mut self, chunks: &[Chunk]) {
        if !self.any {
            return;
        }
        self.reap();
        let mut started = false;
        let mut passed = 0;
        while self.tail - self.head < self.n_ring as u64 && passed < chunks.len() {
            if self.next == chunks.len() {
                if self.select == Select::Resident {
                    break;
                }
                self.next = 0;
                self.next_pass += 1;
            }
            let chunk = &chunks[self.next];
            let Some(wanted) = self.wants(chunk) else {
                break;
            };
            if wanted {
                let index = self.slot_index(self.tail);
                let slot = &mut self.slots[index];
                slot.chunk = self.next as u32;
                slot.offset = chunk.offset;
                slot.bytes = chunk.bytes;
                slot.tries = 0;
                if !self.submit(index) {
                    break;
                }
                self.tail += 1;
                started = true;
                passed = 0;
            } else {
                passed += 1;
            }
            self.next += 1;
        }
        if started {
            self.flash.flush();
        }
    }

    /// What a read brought.
    fn filled(&self, index: usize) -> &[u8] {
        let slot = &self.slots[index];
        match &self.bufs[index] {
            Some(buf) => &buf[..slot.bytes as usize],
            None => panic!("byte {} is still being read", slot.offset),
        }
    }

    /// Starts the read that the slot describes; false if the device's queue is full.
    fn submit(&mut self, index: usize) -> bool {
        let slot = &mut self.slots[index];
        let Some(buf) = self.bufs[index].take() else {
            panic!("the buffer of read {index} is in use")
        };
        let start = PageIndex((slot.offset / PAGE_BYTES) as u32);
        let (bytes, tag) = (slot.bytes as usize, index as u32);
        slot.set(State::Loading);
        slot.tries += 1;
        let Err((error, read)) = self.flash.submit(Read {
            start,
            buf,
            bytes,
            tag,
        }) else {
            self.stats.reads += 1;
            self.stats.bytes_read += bytes as u64;
            return true;
        };
        self.bufs[index] = Some(read.buf);
        if error == IoError::Busy {
            // The device did not try it.
            slot.tries -= 1;
            slot.set(State::Idle);
            return false;
        }
        slot.set(State::Failed(error));
        true
    }

    fn reap(&mut self) {
        while let Some((read, result)) = self.flash.reap() {
            let index = read.tag as usize;
            if let Some(cold) = index.checked_sub(self.first_cold()) {
                self.cold_out |= 1 << cold;
            }
            self.bufs[index] = Some(read.buf);
            self.slots[index].set(match result {
                Ok(()) => State::Arrived,
                Err(error) => State::Failed(error),
            });
        }
    }

    /// Blocks until the slot's read has arrived, trying again what failed.
    fn settle(&mut self, index: usize, clock: &impl Clock) -> Result<(), StreamError> {
        let begun_ns = clock.now_ns();
        let mut patience = Patience::default();
        let result = loop {
            self.reap();
            let slot = &mut self.slots[index];
            if slot.state() != State::Loading && slot.next_bytes > 0 {
                slot.begin(slot.next_offset, slot.next_bytes);
            }
            let (offset, tries) = (slot.offset, slot.tries);
            match slot.state() {
                State::Arrived | State::Checked => break Ok(()),
                State::Failed(error) if tries >= READ_TRIES_MAX => {
                    break Err(StreamError::Device { offset, error });
                }
                State::Failed(_) | State::Idle => {
                    if self.submit(index) {
                        self.stats.retries += u64::from(tries > 0);
                        self.flash.flush();
                    } else if !patience.wait(&mut self.flash, clock) {
                        break Err(StreamError::Deadline { offset });
                    }
                }
                State::Loading => {
                    if !patience.wait(&mut self.flash, clock) {
                        break Err(StreamError::Deadline { offset });
                    }
                }
            }
        };
        self.stats.stall_ns += clock.now_ns().saturating_sub(begun_ns);
        result
    }

    /// Waits for `chunk`, which must come next among the chunks that are read, and holds it.
    /// Chunks read before it that nobody asked for are dropped.
    ///
    /// # Errors
    /// [`StreamError`]; the stream stays usable: the chunk can be asked for again.
    pub fn acquire(
        &mut self,
        chunks: &[Chunk],
        chunk: usize,
        clock: &impl Clock,
    ) -> Result<(), StreamError> {
        let mut patience = Patience::default();
        loop {
            self.pump(chunks);
            if self.held == self.tail {
                // The reader waits for a router whose layer was passed over, or was misled.
                (self.next, self.next_pass) = (chunk, self.pass);
                self.pump(chunks);
            }
            if self.held == self.tail {
                // The device's queue is full, of reads of neurons.
                assert!(self.any, "chunk {chunk} is not on its way");
                if !patience.wait(&mut self.flash, clock) {
                    let offset = chunks[chunk].offset;
                    return Err(StreamError::Deadline { offset });
                }
                continue;
            }
            let index = self.slot_index(self.held);
            self.settle(index, clock)?;
            if self.slots[index].chunk == chunk as u32 {
                self.held += 1;
                return Ok(());
            }
            assert_eq!(
                self.held, self.head,
                "chunk {chunk} was asked for out of order"
            );
            self.slots[index].set(State::Idle);
            self.head += 1;
            self.held += 1;
        }
    }

    /// Holds `chunk` too if it has arrived; never blocks.
    pub fn acquire_if_ready(&mut self, chunk: usize) -> bool {
        let index = self.slot_index(self.held);
        let slot = &self.slots[index];
        let ready = self.held < self.tail
            && slot.chunk == chunk as u32
            && matches!(slot.state(), State::Arrived | State::Checked);
        self.held += ready as u64;
        ready
    }

    /// Gives back the buffers of held chunks that end at or before byte `offset` of the image.
    pub fn release_before(&mut self, offset: u64) {
        while self.head < self.held {
            let index = self.slot_index(self.head);
            let slot = &mut self.slots[index];
            if slot.offset + u64::from(slot.bytes) > offset {
                break;
            }
            slot.set(State::Idle);
            self.head += 1;
        }
    }

    /// Indices of the held chunks' reads.
    fn held_slots(&self) -> impl Iterator<Item = usize> {
        (self.head..self.held).map(|sequence| self.slot_index(sequence))
    }

    /// The bytes of a held chunk.
    pub fn bytes(&self, chunk: usize) -> &[u8] {
        match self.held().find(|&(held, _)| held == chunk) {
            Some((_, bytes)) => bytes,
            None => panic!("chunk {chunk} is not held"),
        }
    }

    /// Every held chunk with its bytes.
    pub fn held(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let held = self.held_slots();
        held.map(|index| (self.slots[index].chunk as usize, self.filled(index)))
    }

    /// True between acquiring a chunk and releasing it.
    pub fn is_held(&self, chunk: usize) -> bool {
        let mut held = self.held_slots().map(|index| &self.slots[index]);
        held.any(|slot| slot.chunk == chunk as u32)
    }

    /// True once [`Stream::set_checked`] was called for a held chunk.
    pub fn is_checked(&self, chunk: usize) -> bool {
        let mut held = self.held_slots().map(|index| &self.slots[index]);
        held.any(|slot| slot.chunk == chunk as u32 && slot.state() == State::Checked)
    }

    /// Marks a held chunk's checksums as verified.
    pub fn set_checked(&mut self, chunk: usize) {
        for sequence in self.head..self.held {
            let index = self.slot_index(sequence);
            if self.slots[index].chunk == chunk as u32 {
                self.slots[index].set(State::Checked);
            }
        }
    }

    /// Reads a held chunk again, whose checksum was wrong. False once it was tried often enough.
    pub fn read_again(&mut self, chunk: usize, clock: &impl Clock) -> Result<bool, StreamError> {
        for sequence in self.head..self.held {
            let index = self.slot_index(sequence);
            if self.slots[index].chunk != chunk as u32 {
                continue;
            }
            if self.slots[index].tries >= READ_TRIES_MAX {
                return Ok(false);
            }
            self.slots[index].set(State::Idle);
            self.settle(index, clock)?;
        }
        Ok(true)
    }

    /// Drops everything read ahead and goes on with `chunk`. Waits for what is in flight.
    pub fn seek(
        &mut self,
        select: Select,
        chunks: &[Chunk],
        chunk: usize,
        clock: &impl Clock,
    ) -> Result<(), StreamError> {
        self.drain_first(self.n_ring, clock)?;
        for slot in &mut self.slots[..self.n_ring] {
            slot.set(State::Idle);
        }
        (self.head, self.held, self.tail) = (0, 0, 0);
        (self.select, self.next, self.routing) = (select, chunk, None);
        self.next_pass = self.pass;
        let resident = select == Select::Resident;
        let skips_ffn = select == Select::Streamed && self.skips_ffn;
        self.any = chunks
            .iter()
            .any(|chunk| chunk.resident().is_some() == resident && !(skips_ffn && chunk.is_ffn()));
        Ok(())
    }

    /// Waits until the device has none of the first `count` reads.
    fn drain_first(&mut self, count: usize, clock: &impl Clock) -> Result<(), StreamError> {
        let mut patience = Patience::default();
        loop {
            self.reap();
            let mut slots = self.slots[..count].iter();
            let Some(slot) = slots.find(|slot| slot.state() == State::Loading) else {
                return Ok(());
            };
            let offset = slot.offset;
            if !self.wait(&mut patience, clock) {
                return Err(StreamError::Deadline { offset });
            }
        }
    }

    /// Waits until the device has no read any more. What those brought that a call left behind
    /// which failed is forgotten.
    ///
    /// # Errors
    /// A read that does not come out of the device.
    pub fn drain(&mut self, clock: &impl Clock) -> Result<(), StreamError> {
        self.drain_first(self.slots.len(), clock)?;
        (self.cold_out, self.cold_waiting) = (0, 0);
        Ok(())
    }

    /// Whether feed-forward chunks are passed over from now on; takes effect with the next
    /// [`Stream::seek`].
    pub fn skip_ffn(&mut self, skips: bool) {
        self.skips_ffn = skips;
    }

    /// What was said last to [`Stream::skip_ffn`].
    pub fn skips_ffn(&self) -> bool {
        self.skips_ffn
    }

    /// Blocks until a read has finished, for a moment; false when it is time to give up.
    pub fn wait(&mut self, patience: &mut Patience, clock: &impl Clock) -> bool {
        patience.wait(&mut self.flash, clock)
    }

    /// True if some weights are read for every token.
    pub fn is_streaming(&self) -> bool {
        self.select == Select::Streamed && self.any
    }

    /// Number of side reads that can be in flight.
    pub fn side_slots(&self) -> usize {
        self.n_side
    }

    /// Bytes of the largest side read.
    pub fn side_bytes(&self) -> usize {
        self.buffer_bytes(self.n_ring)
    }

    /// Bytes of the buffer of a read, 0 where there is none or the device has it.
    fn buffer_bytes(&self, index: usize) -> usize {
        let buf = self.bufs.get(index).and_then(|buf| buf.as_ref());
        buf.map_or(0, |buf| buf.len())
    }

    /// Starts a side read of whole pages into side slot `index`. If a call that failed left a read
    /// in flight there, it starts when that has come out, in [`Stream::side_wait`].
    pub fn side_start(&mut self, index: usize, offset: u64, bytes: usize) {
        let index = self.n_ring + index;
        let slot = &mut self.slots[index];
        if slot.state() == State::Loading {
            (slot.next_offset, slot.next_bytes) = (offset, bytes as u32);
            return;
        }
        slot.begin(offset, bytes as u32);
        if self.submit(index) {
            self.flash.flush();
        }
    }

    /// Waits for side read `index` and gives its bytes. `again` reads anew what had arrived.
    pub fn side_wait(
        &mut self,
        index: usize,
        again: bool,
        clock: &impl Clock,
    ) -> Result<&[u8], StreamError> {
        let index = self.n_ring + index;
        let slot = &mut self.slots[index];
        if again && slot.state() == State::Arrived {
            slot.set(State::Idle);
        }
        self.settle(index, clock)?;
        Ok(self.filled(index))
    }
}
