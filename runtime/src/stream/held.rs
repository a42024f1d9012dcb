//! Chunks in the consumer's hands, in the order in which they were read ahead.

use tessera_hal::{Clock, Flash};

use super::{Patience, State, Stream, StreamError};
use crate::chunk::Chunk;
use crate::limits::READ_TRIES_MAX;

impl<'m, F: Flash<'m>> Stream<'m, F> {
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
}
