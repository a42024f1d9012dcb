//! The cold segment: slots, which bundle is in which, and which reads are under way.

use tessera_hal::Slots;

use super::cluster::{AWAITED, Cluster, NOWHERE, RESIDENT};
use crate::arena::{Arena, OutOfMemory, carved_bytes};
use crate::cache::{BundleIndex, Cache, PolicyKind, SlotIndex};
use crate::format::FfnMap;
use crate::limits::{COLD_READS_MAX, COLD_RUN_MAX};
use crate::plan::Without;

/// Sizes of the cold segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ColdSizes {
    /// Bundles of the whole image.
    pub n_bundles: usize,
    /// Slots of one bundle each.
    pub n_slots: usize,
    /// The fewest slots with which decoding gets on.
    pub slots_least: usize,
    /// Bytes of a slot: of a bundle in memory.
    pub slot_bytes: usize,
    /// Which bundle is given up.
    pub policy: PolicyKind,
    /// Reads in flight.
    pub n_reads: usize,
    /// Reads in flight up to which more are begun for the next section, on a guess; fewer than
    /// `n_reads`, 0 for none.
    pub guesses: usize,
    /// Bytes of one read, at most.
    pub read_bytes: usize,
    /// Bundles of one read, at most.
    pub run_bundles: usize,
    /// Bundles that nobody asked for are read along where no more of them lie between two that are
    /// read: another command would cost more.
    pub gap: usize,
    /// Gates are read first, the rest of a bundle only where its gate is alive.
    pub two_phase: bool,
    /// What is left out, for comparison.
    pub without: Without,
}

impl ColdSizes {
    /// Bytes of slots and books; the reads' buffers are counted with the stream's.
    pub fn bytes(&self) -> usize {
        let slots = self.n_slots.saturating_mul(self.slot_bytes);
        carved_bytes(slots)
            .saturating_add(carved_bytes(self.n_slots * size_of::<u32>()))
            .saturating_add(carved_bytes(self.n_slots))
            .saturating_add(carved_bytes(self.n_reads * size_of::<Flight>()))
            .saturating_add(Cache::bytes(self.n_bundles, self.n_slots, self.policy))
    }
}

/// A read of a run of bundles of one section.
#[derive(Debug, Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub struct Flight {
    /// Its section.
    pub section: u32,
    /// First bundle in the section.
    pub first: u32,
    /// Bundles of the run that were asked for: a bit each.
    pub wanted: u16,
    /// What it reads of each.
    pub part: Part,
}

/// What of its bundles a flight reads: a number, since flights are in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(transparent)]
pub struct Part(u16);

impl Part {
    /// All of it.
    pub const WHOLE: Self = Part(0);
    /// The gate's part.
    pub const FIRST: Self = Part(1);
    /// The other part.
    pub const REST: Self = Part(2);
}

/// Books of slots and reads.
pub struct Books<'m> {
    /// Which bundle is in which slot.
    pub cache: Cache<'m>,
    /// (slots,): 1 where all of the bundle is there, 0 where only its first part is.
    pub whole: &'m mut [u8],
    /// What each read brings.
    pub flights: &'m mut [Flight],
    /// Reads that are free: a bit each.
    pub free: u64,
    /// Sizes.
    pub sizes: ColdSizes,
}

/// The cold segment: slots, and their books.
pub struct Cold<'m> {
    /// Bytes of the bundles.
    pub slots: Slots<'m>,
    /// Books.
    pub books: Books<'m>,
}

impl<'m> Cold<'m> {
    /// Carves slots and books.
    pub fn take(arena: &mut Arena<'m>, sizes: ColdSizes) -> Result<Self, OutOfMemory> {
        let bytes = arena.take(sizes.n_slots * sizes.slot_bytes)?;
        let states = arena.take(sizes.n_slots)?;
        let whole = arena.take(sizes.n_slots)?;
        let flights = arena.take::<Flight>(sizes.n_reads)?;
        flights.fill(bytemuck::Zeroable::zeroed());
        let free = u64::MAX.checked_shr(64 - sizes.n_reads as u32).unwrap_or(0);
        Ok(Cold {
            slots: Slots::new(bytes, states, sizes.slot_bytes),
            books: Books {
                cache: Cache::new(arena, sizes.n_bundles, sizes.n_slots, sizes.policy)?,
                whole,
                flights,
                free,
                sizes,
            },
        })
    }
}

impl Books<'_> {
    /// Checks what a read brought and puts it into its slots; false if it is damaged.
    pub fn take_in(
        &mut self,
        flight: &Flight,
        map: &FfnMap,
        n_bundles: usize,
        bytes: &[u8],
        slots: &Slots<'_>,
        crc32c: fn(u32, &[u8]) -> u32,
    ) -> bool {
        let (layout, size) = (map.bundle, map.bundle.bytes());
        let offset = |bit: usize| map.offset + (flight.first as usize + bit) as u64 * size as u64;
        let intact = |bit: usize| match flight.part {
            Part::WHOLE => layout.is_intact(&bytes[bit * size..][..size], offset(bit), crc32c),
            Part::FIRST => layout.first_is_intact(bytes, offset(0), crc32c),
            _ => {
                let slot = slots.read(self.slot_of(flight, n_bundles, 0));
                layout.rest_fits(&slot, bytes, crc32c)
            }
        };
        if !bits(flight.wanted).all(intact) {
            return false;
        }
        for bit in bits(flight.wanted) {
            let slot = self.slot_of(flight, n_bundles, bit);
            let mut target = slots.write(slot);
            match flight.part {
                Part::WHOLE => layout.pack(&bytes[bit * size..][..size], &mut target),
                Part::FIRST => layout.pack_first(bytes, &mut target),
                _ => layout.pack_rest(bytes, &mut target),
            }
            if flight.part != Part::REST {
                self.cache.arrived(SlotIndex(slot as u32));
            }
        }
        true
    }

    /// The slot that waits for, or holds, a bundle of a flight.
    fn slot_of(&self, flight: &Flight, n_bundles: usize, bit: usize) -> usize {
        let bundle = flight.section as usize * n_bundles + flight.first as usize + bit;
        match self.cache.slot(BundleIndex(bundle as u32)) {
            Some(slot) => slot.0 as usize,
            None => panic!("bundle {bundle} has no slot"),
        }
    }

    /// The bundles of a flight will not come.
    pub fn give_up(&mut self, flight: &Flight, n_bundles: usize) {
        for bit in bits(flight.wanted) {
            let slot = self.slot_of(flight, n_bundles, bit);
            match flight.part {
                Part::WHOLE | Part::FIRST => self.cache.abandon(SlotIndex(slot as u32)),
                _ => self.whole[slot] = 0,
            }
        }
    }

    /// Second parts that are still in flight were waited for long enough: their bundles may be
    /// evicted from now on, and are not whole. What they bring, should they come, is dropped.
    pub fn disown_rests(&mut self, n_bundles: usize) {
        for index in 0..self.flights.len() {
            let flight = self.flights[index];
            if self.free >> index & 1 == 0 && flight.part == Part::REST {
                self.give_up(&flight, n_bundles);
                self.flights[index].wanted = 0;
            }
        }
    }

    /// Drops the places that a cluster holds.
    pub fn release(&mut self, cluster: &mut Cluster<'_>) {
        for place in &mut cluster.places[..cluster.n_needed] {
            if *place < RESIDENT {
                self.cache.release(SlotIndex(*place & !AWAITED));
            }
            *place = NOWHERE;
        }
    }
}

/// Indices of the bits that are set.
pub fn bits(mask: u16) -> impl Iterator<Item = usize> {
    (0..u16::BITS as usize).filter(move |bit| mask >> bit & 1 == 1)
}

const _: () = assert!(COLD_RUN_MAX <= u16::BITS as usize && COLD_READS_MAX <= 64);
