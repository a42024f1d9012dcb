//! How many slots the cache may use, which changes while it is used.

use super::policy::Policy;
use super::slot::{Slot, State};
use super::{Cache, NONE, SlotIndex};

/// Told of each bundle that changes its slot: from which, to which.
pub type Moved<'a> = &'a mut dyn FnMut(SlotIndex, SlotIndex);

impl Cache<'_> {
    /// Lets the cache use the first `limit` slots only, for memory pressure, or more of them again.
    ///
    /// What lies in the slots from `limit` on and is not in use is forgotten at once, the rest when
    /// its pins are dropped and its reads are done; until then it can still be found. Returns
    /// how many slots are still to be given up: call again with the same limit to ask anew.
    /// Takes time in proportion to the slots that come or go.
    ///
    /// # Panics
    /// Where there are fewer slots than `limit`.
    pub fn set_limit(&mut self, limit: usize) -> usize {
        self.change_limit(limit, None)
    }

    /// The same, but what is forgotten are the bundles that the policy would evict first, wherever
    /// they lie: others are moved to slots that may stay, and `moved(from, to)` is to copy them.
    ///
    /// # Panics
    /// As [`Cache::set_limit`].
    pub fn shrink(&mut self, limit: usize, moved: Moved<'_>) -> usize {
        self.change_limit(limit, Some(moved))
    }

    fn change_limit(&mut self, limit: usize, mut moved: Option<Moved<'_>>) -> usize {
        let count = self.slots.len();
        assert!(limit <= count, "limit of {limit} slots of {count}");
        let old = core::mem::replace(&mut self.limit, limit);
        for slot in (old..limit).rev() {
            match self.slots[slot].state {
                State::CLOSED => self.vacate(slot),
                _ => self.n_owed -= 1, // In use since before the limit fell; it may stay.
            }
        }
        self.n_owed += old.saturating_sub(limit);
        // First what nobody misses, so that only slots that may stay are left to move to.
        for slot in limit..old {
            match self.slots[slot].state {
                State::FREE => {
                    self.links.remove(&mut self.free, slot);
                    self.vacate(slot);
                }
                _ if self.is_idle(slot) && (moved.is_none() || self.slots[slot].is_guess()) => {
                    self.evict(slot);
                    self.vacate(slot);
                }
                _ => {}
            }
        }
        if let Some(moved) = &mut moved {
            for slot in limit..old {
                self.save(slot, moved);
            }
        }
        self.n_owed
    }

    /// In memory, and held by nobody.
    fn is_idle(&self, slot: usize) -> bool {
        let Slot { pins, state, .. } = self.slots[slot];
        (pins, state) == (0, State::PRESENT)
    }

    /// Closes `slot`, past the limit and idle, unless it is in use; its bundle goes to a slot that
    /// is empty, or holds a bundle that is worth less, if there is one.
    fn save(&mut self, slot: usize, moved: Moved<'_>) {
        while self.is_idle(slot) {
            let to = match self.take_free() {
                Some(free) => free,
                None => {
                    let victim = self.rule.victim(&mut self.links, self.bundle_of);
                    let victim = victim.expect("an idle slot");
                    self.evict(victim);
                    if victim >= self.limit {
                        self.vacate(victim);
                        continue;
                    }
                    victim
                }
            };
            self.rule.moved(&mut self.links, slot, to);
            let bundle = core::mem::replace(&mut self.bundle_of[slot], NONE);
            self.bundle_of[to] = bundle;
            self.slot_of[bundle as usize] = to as u32;
            self.slots[to] = Slot::new(State::PRESENT);
            self.vacate(slot);
            moved(SlotIndex(slot as u32), SlotIndex(to as u32));
        }
    }
}
