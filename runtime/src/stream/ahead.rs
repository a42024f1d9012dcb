//! Which chunks are read ahead, as far as there are buffers.

use tessera_hal::{Clock, Flash};

use super::{State, Stream, StreamError};
use crate::chunk::Chunk;
use crate::limits::EXPERTS_MAX;

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
pub(super) struct Routing {
    pass: u64,
    layer: u32,
    experts: [u64; EXPERTS_MAX / 64],
}

impl<'m, F: Flash<'m>> Stream<'m, F> {
    /// Index of the read with this sequence number.
    pub(super) fn slot_index(&self, sequence: u64) -> usize {
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

    /// Whether feed-forward chunks are passed over from now on; takes effect with the next
    /// [`Stream::seek`].
    pub fn skip_ffn(&mut self, skips: bool) {
        self.skips_ffn = skips;
    }

    /// What was said last to [`Stream::skip_ffn`].
    pub fn skips_ffn(&self) -> bool {
        self.skips_ffn
    }

    /// True if some weights are read for every token.
    pub fn is_streaming(&self) -> bool {
        self.select == Select::Streamed && self.any
    }
}
