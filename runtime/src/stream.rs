//! The weight stream: a ring of buffers that flash fills in the order of use.
//!
//! Chunks that are not resident are read ahead, in file order and round and round, as far as there
//! are free buffers; the consumer takes them in the same order. So the flash always has requests,
//! whatever layer is being computed, and the next token's first chunks are read while the sampler
//! runs.

use tessera_hal::{Clock, Flash, IoError, PAGE_BYTES, PageIndex, Read};

use crate::limits::{READ_BUFFERS_MAX, READ_DEADLINE_NS, READ_TRIES_MAX};
use crate::stats::Stats;

mod ahead;
mod cold;
mod held;
mod side;
mod slot;

use ahead::Routing;
pub use ahead::Select;
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

    /// Blocks until a read has finished, for a moment; false when it is time to give up.
    pub fn wait(&mut self, patience: &mut Patience, clock: &impl Clock) -> bool {
        patience.wait(&mut self.flash, clock)
    }

    /// Bytes of the buffer of a read, 0 where there is none or the device has it.
    fn buffer_bytes(&self, index: usize) -> usize {
        let buf = self.bufs.get(index).and_then(|buf| buf.as_ref());
        buf.map_or(0, |buf| buf.len())
    }
}
