//! The cold segment of the neuron cache: which bundle is in which slot, and which one goes next.
//!
//! A bundle's way: [`Cache::acquire`] finds it or reserves a slot for it, whoever reserved reads
//! it and calls [`Cache::arrived`] (or [`Cache::abandon`], when the read failed), and everyone who
//! acquired it calls [`Cache::release`]. A bundle that is held or being read is never evicted;
//! evicting is forgetting, since weights are never written. The bytes of the slots are not here:
//! this module only keeps the books, and each call takes constant time.
//!
//! Speculative reads ([`Cache::prefetch`]) hold no pin. Those that nobody has asked for yet are
//! *guesses* and kept apart from what the policy rules, so that a bad guesser cannot empty it.

mod frequency;
mod list;
mod policy;
mod slot;
#[cfg(test)]
mod tests;

use crate::arena::{Arena, CARVE_BYTES, OutOfMemory, carved_bytes};

use list::{Link, Links, List};
use policy::{Policy, Rule};
use slot::{Slot, State};

pub use policy::PolicyKind;

/// One part in so many of the slots, and of the evictions, is for guesses.
const GUESS_PART: usize = 16;
/// No bundle, or no slot.
const NONE: u32 = u32::MAX;

/// A bundle of the whole image: section index * bundles per section + bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct BundleIndex(pub u32);

/// A place for one bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SlotIndex(pub u32);

/// Where an acquired bundle is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Acquired {
    /// In memory; pinned once more.
    Present(SlotIndex),
    /// Being read already for somebody else, or on a guess; pinned once more.
    Loading(SlotIndex),
    /// A slot was taken for it, and pinned once. The caller must read the bundle, and then call
    /// [`Cache::arrived`] or [`Cache::abandon`].
    Reserved(SlotIndex),
}

/// Told of each bundle that changes its slot: from which, to which.
pub type Moved<'a> = &'a mut dyn FnMut(SlotIndex, SlotIndex);

/// Every slot is pinned or being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Full;

/// The books of the cold segment.
pub struct Cache<'m> {
    /// Slot of each bundle.
    slot_of: &'m mut [u32],
    /// Bundle of each slot.
    bundle_of: &'m mut [u32],
    slots: &'m mut [Slot],
    links: Links<'m>,
    free: List,
    /// Guesses in memory.
    guesses: List,
    /// Idle slots that are no guesses.
    rule: Rule<'m>,
    limit: usize,
    n_loading: usize,
    n_pinned: usize,
    /// Guesses in memory or being read.
    n_guesses: usize,
    /// Slots from `limit` on that are not closed yet.
    n_owed: usize,
    /// Evictions for demands, modulo [`GUESS_PART`].
    turn: usize,
}

impl<'m> Cache<'m> {
    /// Bytes that [`Cache::new`] carves; saturated where no memory could hold them.
    pub const fn bytes(n_bundles: usize, n_slots: usize, policy: PolicyKind) -> usize {
        carve(n_bundles, size_of::<u32>())
            .saturating_add(carve(n_slots, size_of::<u32>()))
            .saturating_add(carve(n_slots, size_of::<Slot>()))
            .saturating_add(carve(n_slots, size_of::<Link>()))
            .saturating_add(Rule::bytes(policy, n_bundles, n_slots))
    }

    /// An empty cache of `n_slots` slots for the bundles of an image.
    ///
    /// # Errors
    /// [`OutOfMemory`] where `arena` has fewer than [`Cache::bytes`] left.
    ///
    /// # Panics
    /// Where a number is too large for an index.
    pub fn new(
        arena: &mut Arena<'m>,
        n_bundles: usize,
        n_slots: usize,
        policy: PolicyKind,
    ) -> Result<Self, OutOfMemory> {
        assert!(n_bundles < NONE as usize, "{n_bundles} bundles");
        assert!(n_slots < NONE as usize, "{n_slots} slots");
        let slot_of = arena.take(n_bundles)?;
        slot_of.fill(NONE);
        let bundle_of = arena.take(n_slots)?;
        bundle_of.fill(NONE);
        let slots = arena.take(n_slots)?;
        slots.fill(Slot::new(State::CLOSED));
        let mut cache = Cache {
            slot_of,
            bundle_of,
            slots,
            links: Links::new(arena.take(n_slots)?),
            free: List::EMPTY,
            guesses: List::EMPTY,
            rule: Rule::new(policy, arena, n_bundles, n_slots)?,
            limit: 0,
            n_loading: 0,
            n_pinned: 0,
            n_guesses: 0,
            n_owed: 0,
            turn: 0,
        };
        cache.set_limit(n_slots);
        Ok(cache)
    }

    /// Tells the policy that `bundle` is used by `share` / 255 of all tokens, as the image's
    /// statistics say. To be called before the bundle's first use; LRU does not care.
    pub fn seed(&mut self, bundle: BundleIndex, share: u8) {
        if let Rule::Frequency(rule) = &mut self.rule {
            rule.seed(bundle.0 as usize, share);
        }
    }

    /// A pass of tokens through the model begins: what policies measure time by.
    pub fn next_pass(&mut self) {
        if let Rule::Frequency(rule) = &mut self.rule {
            rule.next_pass();
        }
    }

    /// Finds `bundle`, or takes a slot for it, evicting another bundle if need be.
    ///
    /// # Errors
    /// [`Full`]; then nothing has changed.
    pub fn acquire(&mut self, bundle: BundleIndex) -> Result<Acquired, Full> {
        let index = bundle.0 as usize;
        if let Some(slot) = self.find(index) {
            self.rule.asked(index);
            self.pin(slot);
            let place = SlotIndex(slot as u32);
            return Ok(match self.slots[slot].state {
                State::PRESENT => Acquired::Present(place),
                State::LOADING => Acquired::Loading(place),
                state => panic!("bundle {index} in slot {slot}, which is {state:?}"),
            });
        }
        let slot = self.slot_for_demand().ok_or(Full)?;
        self.rule.asked(index);
        self.start(slot, index);
        self.pin(slot);
        Ok(Acquired::Reserved(SlotIndex(slot as u32)))
    }

    /// Takes a slot for a bundle that is likely to be wanted soon, without pinning it. The caller
    /// must read the bundle as if it had been reserved.
    ///
    /// `None` if the bundle is here or coming, or if no slot is cheap enough for a guess: a free
    /// slot is; so is the policy's victim, unless guesses have a sixteenth of all slots; and so is
    /// a slot with an older guess. Demands evict the oldest guess instead of the policy's victim
    /// one time in sixteen, and while guesses have more than their part.
    pub fn prefetch(&mut self, bundle: BundleIndex) -> Option<SlotIndex> {
        let index = bundle.0 as usize;
        if self.find(index).is_some() {
            return None;
        }
        let slot = self.slot_for_guess()?;
        self.start(slot, index);
        self.slots[slot].set_guess(true);
        self.n_guesses += 1;
        Some(SlotIndex(slot as u32))
    }

    /// Takes a free slot for a bundle that statistics name, without pinning it. The caller must
    /// read the bundle as if it had been reserved. `None` if it is here or coming, or none is free.
    pub fn fill(&mut self, bundle: BundleIndex) -> Option<SlotIndex> {
        let index = bundle.0 as usize;
        if self.find(index).is_some() {
            return None;
        }
        let slot = self.take_free()?;
        self.start(slot, index);
        Some(SlotIndex(slot as u32))
    }

    /// The bundle of `slot` has been read.
    ///
    /// # Panics
    /// Where the slot is not loading.
    pub fn arrived(&mut self, slot: SlotIndex) {
        let slot = self.loaded(slot, State::PRESENT);
        if self.slots[slot].pins == 0 {
            self.rest(slot);
        }
    }

    /// The bundle of `slot` will not come. It is forgotten, and asking for it again reserves
    /// another slot; those who hold the slot must still release it.
    ///
    /// # Panics
    /// Where the slot is not loading.
    pub fn abandon(&mut self, slot: SlotIndex) {
        let slot = self.loaded(slot, State::ABANDONED);
        self.forget(slot);
        if self.slots[slot].pins == 0 {
            self.vacate(slot);
        }
    }

    /// Drops one pin of `slot`.
    ///
    /// # Panics
    /// Where nobody holds the slot.
    pub fn release(&mut self, slot: SlotIndex) {
        let index = slot.0 as usize;
        let slot = &mut self.slots[index];
        assert!(slot.pins > 0, "slot {index} released without a pin");
        slot.pins -= 1;
        if slot.pins > 0 {
            return;
        }
        let state = slot.state;
        self.n_pinned -= 1;
        match state {
            State::PRESENT => self.rest(index),
            State::ABANDONED => self.vacate(index),
            State::LOADING => {} // Whoever reads it still calls `arrived` or `abandon`.
            state => panic!("slot {index} was pinned while {state:?}"),
        }
    }

    /// Whether `bundle` is in memory.
    pub fn is_present(&self, bundle: BundleIndex) -> bool {
        self.find(bundle.0 as usize)
            .is_some_and(|slot| self.slots[slot].state == State::PRESENT)
    }

    /// Whether `bundle` is here or coming only because it was guessed.
    pub fn is_guess(&self, bundle: BundleIndex) -> bool {
        self.find(bundle.0 as usize)
            .is_some_and(|slot| self.slots[slot].is_guess())
    }

    /// The slot that holds `bundle` or waits for it.
    pub fn slot(&self, bundle: BundleIndex) -> Option<SlotIndex> {
        let slot = self.find(bundle.0 as usize)?;
        Some(SlotIndex(slot as u32))
    }

    /// The bundle that `slot` holds or waits for.
    pub fn bundle(&self, slot: SlotIndex) -> Option<BundleIndex> {
        let bundle = self.bundle_of[slot.0 as usize];
        (bundle != NONE).then_some(BundleIndex(bundle))
    }

    /// Slots that may be used at present.
    pub fn slots(&self) -> usize {
        self.limit
    }

    /// Slots that somebody holds.
    pub fn pinned(&self) -> usize {
        self.n_pinned
    }

    /// Slots whose bundle is being read.
    pub fn loading(&self) -> usize {
        self.n_loading
    }

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

    fn find(&self, bundle: usize) -> Option<usize> {
        let count = self.slot_of.len();
        assert!(bundle < count, "bundle {bundle} of {count}");
        let slot = self.slot_of[bundle];
        (slot != NONE).then_some(slot as usize)
    }

    /// Guesses that may stay.
    fn guesses_max(&self) -> usize {
        self.limit.div_ceil(GUESS_PART)
    }

    /// An empty slot in no list for a bundle that was asked for.
    fn slot_for_demand(&mut self) -> Option<usize> {
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
    fn slot_for_guess(&mut self) -> Option<usize> {
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

    fn take_free(&mut self) -> Option<usize> {
        let slot = self.free.newest()?;
        self.links.remove(&mut self.free, slot);
        Some(slot)
    }

    /// `slot`, empty and in no list, begins to wait for `bundle`.
    fn start(&mut self, slot: usize, bundle: usize) {
        self.slots[slot] = Slot::new(State::LOADING);
        self.n_loading += 1;
        self.bundle_of[slot] = bundle as u32;
        self.slot_of[bundle] = slot as u32;
    }

    /// One more holds `slot`: it is no guess any more, and not idle.
    fn pin(&mut self, slot: usize) {
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
    fn loaded(&mut self, slot: SlotIndex, state: State) -> usize {
        let index = slot.0 as usize;
        let slot = &mut self.slots[index];
        assert_eq!(slot.state, State::LOADING, "slot {index} is not loading");
        slot.state = state;
        self.n_loading -= 1;
        index
    }

    /// Nobody holds `slot`, whose bundle is in memory.
    fn rest(&mut self, slot: usize) {
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
    fn evict(&mut self, slot: usize) {
        let Slot { pins, state, .. } = self.slots[slot];
        assert_eq!((pins, state), (0, State::PRESENT), "slot {slot} evicted");
        self.unlist(slot);
        self.forget(slot);
    }

    /// `slot`, in no list, holds no bundle any more.
    fn forget(&mut self, slot: usize) {
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
    fn vacate(&mut self, slot: usize) {
        if slot < self.limit {
            self.slots[slot] = Slot::new(State::FREE);
            self.links.push(&mut self.free, slot);
        } else {
            self.slots[slot] = Slot::new(State::CLOSED);
            self.n_owed -= 1;
        }
    }
}

/// What `count` elements of `size_bytes` take of the arena.
const fn carve(count: usize, size_bytes: usize) -> usize {
    let bytes = count.saturating_mul(size_bytes);
    if bytes > usize::MAX - CARVE_BYTES {
        return usize::MAX;
    }
    carved_bytes(bytes)
}
