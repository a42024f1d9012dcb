//! Memory in equal slots that lanes share: many may read a slot, or one may fill it.
//!
//! Whoever plans the work sees to it that a slot is not filled while it is read, by pins in a cache
//! for instance. So nobody waits here: a conflict is a mistake of the planner, and panics.

#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::slice;
use core::sync::atomic::{AtomicU32, Ordering};

/// State of a slot that is being filled; other values count its readers.
const FILLING: u32 = u32::MAX;

/// Slots of `slot_bytes` bytes each.
pub struct Slots<'m> {
    bytes: NonNull<u8>,
    slot_bytes: usize,
    /// One word a slot: its readers, or [`FILLING`].
    states: &'m [AtomicU32],
    owned: PhantomData<&'m mut [u8]>,
}

// SAFETY: the bytes are exclusively borrowed for `'m`, and bytes may be sent.
unsafe impl Send for Slots<'_> {}
// SAFETY: bytes are only reached through `SlotRead` and `SlotWrite`; the slot's state admits many
// of the first or one of the second.
unsafe impl Sync for Slots<'_> {}

impl<'m> Slots<'m> {
    /// Slots in `bytes`; `states` has one word for each.
    ///
    /// # Panics
    /// If `bytes` are fewer than `states.len()` slots.
    pub fn new(bytes: &'m mut [u8], states: &'m mut [u32], slot_bytes: usize) -> Self {
        let need_bytes = states.len().checked_mul(slot_bytes);
        assert!(
            need_bytes.is_some_and(|need| need <= bytes.len()),
            "{} slots of {slot_bytes} bytes in {}",
            states.len(),
            bytes.len()
        );
        states.fill(0);
        // SAFETY: `AtomicU32` has size, alignment and values of `u32`, and the words are
        // exclusively borrowed for `'m`.
        let states = unsafe { &*(core::ptr::from_mut(states) as *const [AtomicU32]) };
        Slots {
            bytes: NonNull::from(bytes).cast(),
            slot_bytes,
            states,
            owned: PhantomData,
        }
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// True if there is no slot.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The bytes of a slot, to read.
    ///
    /// # Panics
    /// If it is being filled, or there is no such slot.
    pub fn read(&self, slot: usize) -> SlotRead<'_> {
        let state = &self.states[slot];
        let entered = state.try_update(Ordering::Acquire, Ordering::Relaxed, |readers| {
            readers.checked_add(1).filter(|&count| count != FILLING)
        });
        assert!(entered.is_ok(), "slot {slot} is read while it is filled");
        // SAFETY: `slot` is in bounds by the index above, and `new` checked the bytes. The state
        // counts this reader, so nobody fills the slot until `SlotRead` is dropped.
        let bytes = unsafe { slice::from_raw_parts(self.start(slot), self.slot_bytes) };
        SlotRead { bytes, state }
    }

    /// The bytes of a slot, to fill.
    ///
    /// # Panics
    /// If it is being read or filled, or there is no such slot.
    pub fn write(&self, slot: usize) -> SlotWrite<'_> {
        let state = &self.states[slot];
        let entered = state.compare_exchange(0, FILLING, Ordering::Acquire, Ordering::Relaxed);
        assert!(entered.is_ok(), "slot {slot} is filled while it is in use");
        // SAFETY: as in `read`; the state keeps everybody else out until `SlotWrite` is dropped.
        let bytes = unsafe { slice::from_raw_parts_mut(self.start(slot), self.slot_bytes) };
        SlotWrite { bytes, state }
    }

    /// Address of the first byte.
    pub fn address(&self) -> usize {
        self.bytes.as_ptr().addr()
    }

    /// Copies a slot to another one.
    ///
    /// # Panics
    /// If they are the same, or the first is filled or the other in use.
    pub fn copy(&self, from: usize, to: usize) {
        let from = self.read(from);
        self.write(to).copy_from_slice(&from);
    }

    /// The bytes of all slots from `first` on, which nobody can reach meanwhile.
    ///
    /// # Panics
    /// If there are fewer slots than `first`.
    pub fn bytes_from(&mut self, first: usize) -> &mut [u8] {
        let count = self.len().checked_sub(first);
        let Some(count) = count else {
            panic!("slot {first} of {}", self.len())
        };
        // SAFETY: `new` checked the bytes of all slots, and `first` is at most their number.
        // Whoever reads or fills a slot borrows `self`, so nobody does.
        unsafe {
            let start = self.bytes.as_ptr().add(first * self.slot_bytes);
            slice::from_raw_parts_mut(start, count * self.slot_bytes)
        }
    }

    fn start(&self, slot: usize) -> *mut u8 {
        // SAFETY: `slot` is below `states.len()` in both callers, so its bytes are inside the
        // memory that `new` was given.
        unsafe { self.bytes.as_ptr().add(slot * self.slot_bytes) }
    }
}

impl core::fmt::Debug for Slots<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slots")
            .field("len", &self.len())
            .field("slot_bytes", &self.slot_bytes)
            .finish_non_exhaustive()
    }
}

/// A slot that is read.
#[derive(Debug)]
pub struct SlotRead<'a> {
    bytes: &'a [u8],
    state: &'a AtomicU32,
}

impl Deref for SlotRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for SlotRead<'_> {
    fn drop(&mut self) {
        // Release: what was read is over before the slot is filled anew.
        self.state.fetch_sub(1, Ordering::Release);
    }
}

/// A slot that is filled.
#[derive(Debug)]
pub struct SlotWrite<'a> {
    bytes: &'a mut [u8],
    state: &'a AtomicU32,
}

impl Deref for SlotWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for SlotWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

impl Drop for SlotWrite<'_> {
    fn drop(&mut self) {
        // Release: readers that enter see what was written.
        self.state.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap() {
        let (mut bytes, mut states) = ([0u8; 24], [7u32; 3]);
        let slots = Slots::new(&mut bytes, &mut states, 8);
        assert_eq!((slots.len(), slots.is_empty()), (3, false));
        for slot in 0..3 {
            slots.write(slot).fill(slot as u8 + 1);
        }
        let all: Vec<_> = (0..3).map(|slot| slots.read(slot)).collect();
        let again = slots.read(1);
        assert_eq!(&*again, [2; 8]);
        for (slot, read) in all.iter().enumerate() {
            assert_eq!(&**read, [slot as u8 + 1; 8]);
        }
    }

    #[test]
    fn slots_are_copied_and_reached_together() {
        let (mut bytes, mut states) = ([0u8; 27], [0u32; 3]);
        let mut slots = Slots::new(&mut bytes, &mut states, 8);
        for slot in 0..3 {
            slots.write(slot).fill(slot as u8 + 1);
        }
        slots.copy(2, 0);
        assert_eq!(*slots.bytes_from(0), [[3u8; 8], [2; 8], [3; 8]].concat());
        slots.bytes_from(1).fill(9);
        assert_eq!(
            (&*slots.read(0), &*slots.read(2)),
            (&[3; 8][..], &[9; 8][..])
        );
        assert!(slots.bytes_from(3).is_empty());
    }

    #[test]
    #[should_panic(expected = "slot 1 is read while it is filled")]
    fn reading_what_is_filled_panics() {
        let (mut bytes, mut states) = ([0u8; 16], [0u32; 2]);
        let slots = Slots::new(&mut bytes, &mut states, 8);
        let _write = slots.write(1);
        let _read = slots.read(1);
    }

    #[test]
    #[should_panic(expected = "slot 0 is filled while it is in use")]
    fn filling_what_is_read_panics() {
        let (mut bytes, mut states) = ([0u8; 16], [0u32; 2]);
        let slots = Slots::new(&mut bytes, &mut states, 8);
        let _read = slots.read(0);
        let _write = slots.write(0);
    }

    #[test]
    #[should_panic(expected = "2 slots of 9 bytes in 16")]
    fn too_few_bytes_are_refused() {
        let (mut bytes, mut states) = ([0u8; 16], [0u32; 2]);
        let _slots = Slots::new(&mut bytes, &mut states, 9);
    }

    /// Two threads hand slots to each other; each sees what the other wrote.
    #[test]
    fn what_one_thread_filled_another_reads() {
        use core::sync::atomic::AtomicUsize;
        let (mut bytes, mut states) = (vec![0u8; 4 * 64], [0u32; 4]);
        let slots = Slots::new(&mut bytes, &mut states, 64);
        let (filled, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..1000 {
                    while filled.load(Ordering::Acquire) <= round {
                        std::thread::yield_now();
                    }
                    assert!(slots.read(round % 4).iter().all(|&b| b == round as u8));
                    read.store(round + 1, Ordering::Release);
                }
            });
            for round in 0..1000 {
                while read.load(Ordering::Acquire) + 4 <= round {
                    std::thread::yield_now();
                }
                slots.write(round % 4).fill(round as u8);
                filled.store(round + 1, Ordering::Release);
            }
        });
    }
}
