//! Reads of cold bundles, by index: each has a buffer of its own, and they finish in any order.

use tessera_hal::{Clock, Flash, IoError, PAGE_BYTES};

use super::{Patience, State, Stream, StreamError};
use crate::limits::READ_TRIES_MAX;

impl<'m, F: Flash<'m>> Stream<'m, F> {
    /// Index of the first cold read.
    pub(super) fn first_cold(&self) -> usize {
        self.n_ring + self.n_side
    }

    /// Number of cold reads that can be in flight.
    pub fn cold_slots(&self) -> usize {
        self.slots.len() - self.first_cold()
    }

    /// Starts a read of whole pages into the buffer of cold read `index`, which must not be in
    /// flight. A read that the device has no room for is started by a later
    /// [`Stream::cold_next`]. [`Stream::cold_flush`] hands all to the hardware.
    pub fn cold_start(&mut self, index: usize, offset: u64, bytes: usize, again: bool) {
        let at = self.first_cold() + index;
        let slot = &mut self.slots[at];
        assert_ne!(slot.state(), State::Loading, "cold read {index}");
        (slot.offset, slot.bytes) = (offset, bytes as u32);
        slot.set(State::Idle);
        slot.tries = if again { slot.tries } else { 0 };
        self.stats.retries += u64::from(again);
        self.cold_submit(index);
    }

    fn cold_submit(&mut self, index: usize) {
        let at = self.first_cold() + index;
        if !self.submit(at) {
            self.cold_waiting |= 1 << index;
        } else if matches!(self.slots[at].state(), State::Failed(_)) {
            self.cold_out |= 1 << index;
        }
    }

    /// Hands the cold reads that were started to the hardware.
    pub fn cold_flush(&mut self) {
        self.flash.flush();
    }

    /// The next cold read that has come out of the device: its index, and its bytes, or the error
    /// and whether it may be tried again.
    pub fn cold_next(&mut self) -> Option<(usize, Result<&[u8], (IoError, bool)>)> {
        self.reap();
        while self.cold_waiting != 0 && self.cold_out == 0 {
            let index = self.cold_waiting.trailing_zeros() as usize;
            self.cold_waiting &= !(1 << index);
            self.cold_submit(index);
            if self.cold_waiting >> index & 1 == 1 {
                break;
            }
        }
        if self.cold_out == 0 {
            return None;
        }
        let index = self.cold_out.trailing_zeros() as usize;
        self.cold_out &= self.cold_out - 1;
        let at = self.first_cold() + index;
        let slot = &self.slots[at];
        Some((
            index,
            match slot.state() {
                State::Failed(error) => Err((error, slot.tries < READ_TRIES_MAX)),
                _ => Ok(self.filled(at)),
            },
        ))
    }

    /// Fills `bytes` from `offset` on, in pieces of `piece_bytes` that are read side by side. No
    /// cold read is in flight.
    pub fn cold_window(
        &mut self,
        offset: u64,
        piece_bytes: usize,
        bytes: &mut [u8],
        clock: &impl Clock,
    ) -> Result<(), StreamError> {
        let place = |index: usize, len: usize| {
            let at = offset + (index * piece_bytes) as u64;
            (at, len.next_multiple_of(PAGE_BYTES as usize))
        };
        let mut awaited = 0;
        for (index, piece) in bytes.chunks(piece_bytes).enumerate() {
            let (at, read_bytes) = place(index, piece.len());
            self.cold_start(index, at, read_bytes, false);
            awaited += 1;
        }
        self.cold_flush();
        let mut patience = Patience::default();
        let mut failure = None;
        while awaited > 0 {
            let (index, error) = match self.cold_next() {
                None => {
                    if !self.wait(&mut patience, clock) {
                        return Err(StreamError::Deadline { offset });
                    }
                    continue;
                }
                Some((index, Ok(data))) => {
                    patience = Patience::default();
                    let piece = bytes.chunks_mut(piece_bytes).nth(index);
                    if let Some(piece) = piece {
                        piece.copy_from_slice(&data[..piece.len()]);
                    }
                    awaited -= 1;
                    continue;
                }
                Some((index, Err(error))) => (index, error),
            };
            let len = piece_bytes.min(bytes.len() - index * piece_bytes);
            let (offset, read_bytes) = place(index, len);
            if let (error, false) = error {
                failure = Some(StreamError::Device { offset, error });
                awaited -= 1;
            } else {
                self.cold_start(index, offset, read_bytes, true);
                self.cold_flush();
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// True if cold read `index` was not tried often enough yet.
    pub fn cold_may_retry(&self, index: usize) -> bool {
        self.slots[self.first_cold() + index].tries < READ_TRIES_MAX
    }

    /// Bytes of the buffer of one cold read.
    pub fn cold_bytes(&self) -> usize {
        self.buffer_bytes(self.first_cold())
    }
}
