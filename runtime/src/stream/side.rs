//! Side reads: single rows and small sections, by index, each into a buffer of its own.

use tessera_hal::{Clock, Flash};

use super::{State, Stream, StreamError};

impl<'m, F: Flash<'m>> Stream<'m, F> {
    /// Number of side reads that can be in flight.
    pub fn side_slots(&self) -> usize {
        self.n_side
    }

    /// Bytes of the largest side read.
    pub fn side_bytes(&self) -> usize {
        self.buffer_bytes(self.n_ring)
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
