//! Which bundle the cold cache gives up: one trait, and the rules that implement it.

use crate::arena::{Arena, OutOfMemory};

use super::frequency::Frequency;
use super::list::{Links, List};

/// Names of the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum PolicyKind {
    /// The bundle that has not been used for longest goes, as in the paper (section 5).
    Lru,
    /// The bundle that is least often used goes, by the image's statistics and by what was seen.
    Frequency,
}

/// A rule of eviction.
///
/// The cache tells it of each demand, and which slots are *idle*: their bundle is in memory, nobody
/// holds it, and it is no guess. Only idle slots can be victims. Slots that were filled on a guess
/// become known to the policy once somebody asks for them.
pub trait Policy {
    /// `bundle` was asked for, whether or not it is in memory.
    fn asked(&mut self, bundle: usize);

    /// `slot`, in no list so far, is idle from now on and holds `bundle`.
    fn idle(&mut self, links: &mut Links<'_>, slot: usize, bundle: usize);

    /// `slot` is idle no longer: it is in use again, or given up.
    fn busy(&mut self, links: &mut Links<'_>, slot: usize);

    /// `to`, in no list so far, holds from now on what idle slot `from` held, which is empty.
    fn moved(&mut self, links: &mut Links<'_>, from: usize, to: usize);

    /// The idle slot that should be given up first. `bundle_of[slot]` is what a slot holds.
    fn victim(&mut self, links: &mut Links<'_>, bundle_of: &[u32]) -> Option<usize>;
}

/// The policy of a cache.
pub enum Rule<'m> {
    /// See [`PolicyKind::Lru`].
    Lru(Lru),
    /// See [`PolicyKind::Frequency`].
    Frequency(Frequency<'m>),
}

impl<'m> Rule<'m> {
    /// Bytes that [`Rule::new`] carves.
    pub const fn bytes(kind: PolicyKind, n_bundles: usize, n_slots: usize) -> usize {
        match kind {
            PolicyKind::Lru => 0,
            PolicyKind::Frequency => Frequency::bytes(n_bundles, n_slots),
        }
    }

    /// Carves the books of a policy.
    ///
    /// # Errors
    /// [`OutOfMemory`] where `arena` has fewer than [`Rule::bytes`] left.
    pub fn new(
        kind: PolicyKind,
        arena: &mut Arena<'m>,
        n_bundles: usize,
        n_slots: usize,
    ) -> Result<Self, OutOfMemory> {
        Ok(match kind {
            PolicyKind::Lru => Rule::Lru(Lru { idle: List::EMPTY }),
            PolicyKind::Frequency => Rule::Frequency(Frequency::new(arena, n_bundles, n_slots)?),
        })
    }
}

impl Policy for Rule<'_> {
    fn asked(&mut self, bundle: usize) {
        match self {
            Rule::Lru(rule) => rule.asked(bundle),
            Rule::Frequency(rule) => rule.asked(bundle),
        }
    }

    fn idle(&mut self, links: &mut Links<'_>, slot: usize, bundle: usize) {
        match self {
            Rule::Lru(rule) => rule.idle(links, slot, bundle),
            Rule::Frequency(rule) => rule.idle(links, slot, bundle),
        }
    }

    fn busy(&mut self, links: &mut Links<'_>, slot: usize) {
        match self {
            Rule::Lru(rule) => rule.busy(links, slot),
            Rule::Frequency(rule) => rule.busy(links, slot),
        }
    }

    fn moved(&mut self, links: &mut Links<'_>, from: usize, to: usize) {
        match self {
            Rule::Lru(rule) => rule.moved(links, from, to),
            Rule::Frequency(rule) => rule.moved(links, from, to),
        }
    }

    fn victim(&mut self, links: &mut Links<'_>, bundle_of: &[u32]) -> Option<usize> {
        match self {
            Rule::Lru(rule) => rule.victim(links, bundle_of),
            Rule::Frequency(rule) => rule.victim(links, bundle_of),
        }
    }
}

/// Least recently used: idle slots in the order in which they were let go.
pub struct Lru {
    idle: List,
}

impl Lru {
    #[cfg(test)]
    pub(super) fn lists(&self) -> &[List] {
        core::slice::from_ref(&self.idle)
    }
}

impl Policy for Lru {
    fn asked(&mut self, _bundle: usize) {}

    fn idle(&mut self, links: &mut Links<'_>, slot: usize, _bundle: usize) {
        links.push(&mut self.idle, slot);
    }

    fn busy(&mut self, links: &mut Links<'_>, slot: usize) {
        links.remove(&mut self.idle, slot);
    }

    fn moved(&mut self, links: &mut Links<'_>, from: usize, to: usize) {
        links.replace(&mut self.idle, from, to);
    }

    fn victim(&mut self, _links: &mut Links<'_>, _bundle_of: &[u32]) -> Option<usize> {
        self.idle.oldest()
    }
}
