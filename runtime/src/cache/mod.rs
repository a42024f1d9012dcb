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
mod limit;
mod list;
mod policy;
mod slot;
mod steps;
#[cfg(test)]
mod tests;

use crate::arena::{Arena, CARVE_BYTES, OutOfMemory, carved_bytes};

use list::{Link, Links, List};
use policy::{Policy, Rule};
use slot::{Slot, State};

pub use limit::Moved;
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

    fn find(&self, bundle: usize) -> Option<usize> {
        let count = self.slot_of.len();
        assert!(bundle < count, "bundle {bundle} of {count}");
        let slot = self.slot_of[bundle];
        (slot != NONE).then_some(slot as usize)
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
