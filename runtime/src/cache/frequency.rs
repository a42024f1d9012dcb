//! Least frequently used, by a rate that begins with the image's statistics and follows the text.

use bytemuck::{Pod, Zeroable};

use crate::arena::{Arena, OutOfMemory};

use super::carve;
use super::list::{Links, List};
use super::policy::Policy;

/// Lists of idle slots: eight to an octave of 16-bit scores, so that rates differ by at most an
/// eighth within one.
const BUCKETS: usize = 128;
/// Passes in which the slow rate falls by half.
const SLOW_PASSES: u32 = 32;
/// Passes in which the fast rate falls by half.
const FAST_PASSES: u32 = 2;
/// Slots whose bucket is looked at again for each eviction.
const REFRESHED: usize = 8;

/// How often a bundle is asked for: demands a pass in units of 1 / 65536, forgotten exponentially.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rate {
    /// Over some fifty passes; begins with the image's statistics.
    slow: u16,
    /// Over a few passes: the topic that the text is at.
    fast: u16,
    /// Pass in which the bundle was last asked for. Wraps: one that comes back after 65,536 passes
    /// is taken for recent once.
    pass: u16,
}

/// The policy [`super::PolicyKind::Frequency`].
///
/// A bundle's score is the sum of a slow and a fast moving average of its demands. Idle slots lie
/// in buckets of equal score; the victim is the newest of the lowest bucket, since passes go
/// through the layers in order: what was just used is used again last. Scores fall while
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
    pass: u16,
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
            pass: 0,
        })
    }

    /// `bundle` is used by `share` / 255 of all tokens.
    pub(super) fn seed(&mut self, bundle: usize, share: u8) {
        self.rates[bundle].slow = share as u16 * 257;
    }

    /// A pass begins.
    pub(super) fn next_pass(&mut self) {
        self.pass = self.pass.wrapping_add(1);
    }

    #[cfg(test)]
    pub(super) fn lists(&self) -> &[List] {
        self.buckets
    }

    /// The rate of `bundle` as of now.
    fn rate(&self, bundle: usize) -> Rate {
        let Rate { slow, fast, pass } = self.rates[bundle];
        let passes = self.pass.wrapping_sub(pass) as u32;
        Rate {
            slow: decayed(slow, passes, SLOW_PASSES),
            fast: decayed(fast, passes, FAST_PASSES),
            pass: self.pass,
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
        let mut rate = self.rate(bundle);
        // What decays in a pass by the line in `decayed`, so that a demand in each pass is 65536.
        rate.slow = rate.slow.saturating_add((32768 / SLOW_PASSES) as u16);
        rate.fast = rate.fast.saturating_add((32768 / FAST_PASSES) as u16);
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
            .newest()
    }
}

/// `value * 2 ^ (-passes / half_passes)`, with a straight line between whole halvings.
fn decayed(value: u16, passes: u32, half_passes: u32) -> u16 {
    let halvings = passes / half_passes;
    let high = (value as u32).checked_shr(halvings).unwrap_or(0);
    (high - high * (passes % half_passes) / (2 * half_passes)) as u16
}

/// Eight buckets to an octave.
fn bucket(score: u16) -> usize {
    let octave = (score | 1).ilog2() as usize;
    let eighth = ((score as usize) << 3 >> octave) & 7;
    octave * 8 + eighth
}
