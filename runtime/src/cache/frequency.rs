//! Least frequently used, by a rate that begins with the image's statistics and follows the text.

use bytemuck::{Pod, Zeroable};

use crate::arena::{Arena, OutOfMemory};

use super::carve;
use super::list::{Links, List};
use super::policy::Policy;

/// Lists of idle slots: eight to an octave of 16-bit scores, so that rates differ by at most an
/// eighth within one.
const BUCKETS: usize = 128;
/// Ticks in which the slow rate falls by half.
const SLOW_TICKS: u32 = 256;
/// Ticks in which the fast rate falls by half.
const FAST_TICKS: u32 = 16;
/// Bundles of the image for each demand of a tick. Where a tenth of them is active, a token makes
/// about six ticks, so that the slow rate is that of some forty tokens.
const TICK_BUNDLES: u32 = 64;
/// Shift that turns the share of tokens that use a bundle into a share of ticks, roughly.
const SEED_SHIFT: u32 = 2;
/// Slots whose bucket is looked at again for each eviction.
const REFRESHED: usize = 8;

/// How often a bundle is asked for: demands a tick in units of 1 / 65536, forgotten exponentially.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rate {
    /// Over some hundred ticks; begins with the image's statistics.
    slow: u16,
    /// Over a few ticks: the topic that the text is at.
    fast: u16,
    /// When the bundle was last asked for, in ticks. Wraps: one that comes back after 65,536 ticks
    /// is taken for recent once.
    tick: u16,
}

/// The policy [`super::PolicyKind::Frequency`].
///
/// A bundle's score is the sum of a slow and a fast moving average of its demands. Idle slots lie
/// in buckets of equal score; the victim is the oldest of the lowest bucket. Scores fall while
/// nobody asks, so with each eviction a hand looks at a few slots, round and round, and corrects
/// their buckets.
pub struct Frequency<'m> {
    rates: &'m mut [Rate],
    /// Bucket that a slot was last put into.
    bucket_of: &'m mut [u8],
    buckets: &'m mut [List],
    /// Bit b is set when bucket b holds a slot.
    occupied: u128,
    /// Slot that the hand looks at next.
    hand: usize,
    demands: u32,
    /// Demands of one tick.
    tick_demands: u32,
    tick: u16,
}

impl<'m> Frequency<'m> {
    pub(super) const fn bytes(n_bundles: usize, n_slots: usize) -> usize {
        carve(n_bundles, size_of::<Rate>())
            .saturating_add(carve(n_slots, 1))
            .saturating_add(carve(BUCKETS, size_of::<List>()))
    }

    pub(super) fn new(
        arena: &mut Arena<'m>,
        n_bundles: usize,
        n_slots: usize,
    ) -> Result<Self, OutOfMemory> {
        let rates = arena.take(n_bundles)?;
        rates.fill(Rate::zeroed());
        let bucket_of = arena.take(n_slots)?;
        bucket_of.fill(NOWHERE as u8);
        let buckets = arena.take(BUCKETS)?;
        buckets.fill(List::EMPTY);
        Ok(Frequency {
            rates,
            bucket_of,
            buckets,
            occupied: 0,
            hand: 0,
            demands: 0,
            tick_demands: (n_bundles as u32 / TICK_BUNDLES).max(1),
            tick: 0,
        })
    }

    /// `bundle` is used by `share` / 255 of all tokens.
    pub(super) fn seed(&mut self, bundle: usize, share: u8) {
        self.rates[bundle].slow = (share as u16 * 257) >> SEED_SHIFT;
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> &[List] {
        self.buckets
    }

    /// The rate of `bundle` as of now.
    fn rate(&self, bundle: usize) -> Rate {
        let Rate { slow, fast, tick } = self.rates[bundle];
        let ticks = self.tick.wrapping_sub(tick) as u32;
        Rate {
            slow: decayed(slow, ticks, SLOW_TICKS),
            fast: decayed(fast, ticks, FAST_TICKS),
            tick: self.tick,
        }
    }

    fn score(&self, bundle: usize) -> u16 {
        let rate = self.rate(bundle);
        rate.slow.saturating_add(rate.fast)
    }

    fn put(&mut self, links: &mut Links<'_>, slot: usize, bucket: usize) {
        links.push(&mut self.buckets[bucket], slot);
        self.bucket_of[slot] = bucket as u8;
        self.occupied |= 1 << bucket;
    }

    /// Corrects the buckets of the next few slots.
    fn refresh(&mut self, links: &mut Links<'_>, bundle_of: &[u32]) {
        for _ in 0..REFRESHED.min(self.bucket_of.len()) {
            let slot = self.hand;
            self.hand = (slot + 1) % self.bucket_of.len();
            let old = self.bucket_of[slot] as usize;
            if old == NOWHERE {
                continue;
            }
            let new = bucket(self.score(bundle_of[slot] as usize));
            if new != old {
                self.busy(links, slot);
                self.put(links, slot, new);
            }
        }
    }
}

/// Bucket number of a slot that is not idle.
const NOWHERE: usize = BUCKETS;

impl Policy for Frequency<'_> {
    fn asked(&mut self, bundle: usize) {
        self.demands += 1;
        if self.demands == self.tick_demands {
            self.demands = 0;
            self.tick = self.tick.wrapping_add(1);
        }
        let mut rate = self.rate(bundle);
        // What decays in a tick by the line in `decayed`, so that a demand in each tick is 65536.
        rate.slow = rate.slow.saturating_add((32768 / SLOW_TICKS) as u16);
        rate.fast = rate.fast.saturating_add((32768 / FAST_TICKS) as u16);
        self.rates[bundle] = rate;
    }

    fn idle(&mut self, links: &mut Links<'_>, slot: usize, bundle: usize) {
        let bucket = bucket(self.score(bundle));
        self.put(links, slot, bucket);
    }

    fn busy(&mut self, links: &mut Links<'_>, slot: usize) {
        let bucket = self.bucket_of[slot] as usize;
        links.remove(&mut self.buckets[bucket], slot);
        self.bucket_of[slot] = NOWHERE as u8;
        if self.buckets[bucket].oldest().is_none() {
            self.occupied &= !(1 << bucket);
        }
    }

    fn moved(&mut self, links: &mut Links<'_>, from: usize, to: usize) {
        let bucket = self.bucket_of[from];
        links.replace(&mut self.buckets[bucket as usize], from, to);
        (self.bucket_of[from], self.bucket_of[to]) = (NOWHERE as u8, bucket);
    }

    fn victim(&mut self, links: &mut Links<'_>, bundle_of: &[u32]) -> Option<usize> {
        self.refresh(links, bundle_of);
        self.buckets
            .get(self.occupied.trailing_zeros() as usize)?
            .oldest()
    }
}

/// `value * 2 ^ (-ticks / half_ticks)`, with a straight line between whole halvings.
fn decayed(value: u16, ticks: u32, half_ticks: u32) -> u16 {
    let halvings = ticks / half_ticks;
    let high = (value as u32).checked_shr(halvings).unwrap_or(0);
    (high - high * (ticks % half_ticks) / (2 * half_ticks)) as u16
}

/// Eight buckets to an octave.
fn bucket(score: u16) -> usize {
    let octave = (score | 1).ilog2() as usize;
    let eighth = ((score as usize) << 3 >> octave) & 7;
    octave * 8 + eighth
}
