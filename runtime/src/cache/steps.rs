//! The single steps of a slot's way: taken, loading, held, idle, empty again.

use super::policy::Policy;
use super::slot::{Slot, State};
use super::{Cache, GUESS_PART, NONE, SlotIndex};

impl Cache<'_> {
    /// Guesses that may stay.
    fn guesses_max(&self) -> usize {
        self.limit.div_ceil(GUESS_PART)
    }

    /// An empty slot in no list for a bundle that was asked for.
    pub(super) fn slot_for_demand(&mut self) -> Option<usize> {
        if let Some(slot) = self.take_free() {
            return Some(slot);
        }
        let guess = self.guesses.oldest();
        let guess_first = self.n_guesses > self.guesses_max() || self.turn == 0;
        let slot = match guess {
            Some(guess) if guess_first => guess,
            _ => self
                .rule
                .victim(&mut self.links, self.bundle_of)
                .or(guess)?,
        };
        self.turn = (self.turn + 1) % GUESS_PART;
        self.evict(slot);
        Some(slot)
    }

    /// An empty slot in no list for a bundle that somebody might ask for.
    pub(super) fn slot_for_guess(&mut self) -> Option<usize> {
        if let Some(slot) = self.take_free() {
            return Some(slot);
        }
        let slot = match self.n_guesses < self.guesses_max() {
            true => self.rule.victim(&mut self.links, self.bundle_of),
            false => None,
        };
        let slot = slot.or(self.guesses.oldest())?;
        self.evict(slot);
        Some(slot)
    }

    pub(super) fn take_free(&mut self) -> Option<usize> {
        let slot = self.free.newest()?;
        self.links.remove(&mut self.free, slot);
        Some(slot)
    }

    /// `slot`, empty and in no list, begins to wait for `bundle`.
    pub(super) fn start(&mut self, slot: usize, bundle: usize) {
        self.slots[slot] = Slot::new(State::LOADING);
        self.n_loading += 1;
        self.bundle_of[slot] = bundle as u32;
        self.slot_of[bundle] = slot as u32;
    }

    /// One more holds `slot`: it is no guess any more, and not idle.
    pub(super) fn pin(&mut self, slot: usize) {
        let Slot { pins, state, .. } = self.slots[slot];
        if pins == 0 {
            self.n_pinned += 1;
            if state == State::PRESENT {
                self.unlist(slot);
            }
            self.clear_guess(slot);
        }
        self.slots[slot].pins = pins.checked_add(1).expect("fewer than 2^32 pins of a slot");
    }

    /// `slot`, loading until now, goes over to `state`.
    pub(super) fn loaded(&mut self, slot: SlotIndex, state: State) -> usize {
        let index = slot.0 as usize;
        let slot = &mut self.slots[index];
        assert_eq!(slot.state, State::LOADING, "slot {index} is not loading");
        slot.state = state;
        self.n_loading -= 1;
        index
    }

    /// Nobody holds `slot`, whose bundle is in memory.
    pub(super) fn rest(&mut self, slot: usize) {
        if slot >= self.limit {
            self.forget(slot);
            self.vacate(slot);
        } else if self.slots[slot].is_guess() {
            self.links.push(&mut self.guesses, slot);
        } else {
            let bundle = self.bundle_of[slot] as usize;
            self.rule.idle(&mut self.links, slot, bundle);
        }
    }

    /// Takes `slot`, whose bundle is in memory and held by nobody, out of its list.
    fn unlist(&mut self, slot: usize) {
        if self.slots[slot].is_guess() {
            self.links.remove(&mut self.guesses, slot);
        } else {
            self.rule.busy(&mut self.links, slot);
        }
    }

    /// Forgets the bundle of `slot`, which is in memory and held by nobody.
    pub(super) fn evict(&mut self, slot: usize) {
        let Slot { pins, state, .. } = self.slots[slot];
        assert_eq!((pins, state), (0, State::PRESENT), "slot {slot} evicted");
        self.unlist(slot);
        self.forget(slot);
    }

    /// `slot`, in no list, holds no bundle any more.
    pub(super) fn forget(&mut self, slot: usize) {
        let bundle = core::mem::replace(&mut self.bundle_of[slot], NONE);
        self.slot_of[bundle as usize] = NONE;
        self.clear_guess(slot);
    }

    fn clear_guess(&mut self, slot: usize) {
        if self.slots[slot].is_guess() {
            self.slots[slot].set_guess(false);
            self.n_guesses -= 1;
        }
    }

    /// `slot`, empty and in no list, is free, or closed where it is past the limit.
    pub(super) fn vacate(&mut self, slot: usize) {
        if slot < self.limit {
            self.slots[slot] = Slot::new(State::FREE);
            self.links.push(&mut self.free, slot);
        } else {
            self.slots[slot] = Slot::new(State::CLOSED);
            self.n_owed -= 1;
        }
    }
}
