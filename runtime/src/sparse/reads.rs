//! Reads of the cold segment: neighbours in one.

use tessera_hal::Flash;

use super::books::{Flight, Part};
use super::owner::Owner;

/// A run of bundles that is about to be read.
pub struct Run {
    section: usize,
    first: usize,
    wanted: u16,
}

impl<'m, F: Flash<'m>> Owner<'_, '_, '_, '_, 'm, F> {
    /// Adds `bundle` to the run, or starts the run and begins another; false if no read is free.
    pub fn extend(
        &mut self,
        run: &mut Option<Run>,
        section: usize,
        bundle: usize,
        started: &mut bool,
    ) -> bool {
        let sizes = &self.books.sizes;
        if let Some(open) = run {
            let last = open.first + (u16::BITS - open.wanted.leading_zeros()) as usize - 1;
            let span = bundle - open.first + 1;
            let joins =
                bundle - last - 1 <= sizes.gap && span <= sizes.run_bundles && !sizes.two_phase;
            if joins {
                open.wanted |= 1 << (bundle - open.first);
                return true;
            }
            self.start_run(run.take(), started);
        }
        if self.books.free == 0 {
            return false;
        }
        *run = Some(Run {
            section,
            first: bundle,
            wanted: 1,
        });
        true
    }

    /// Begins the read of a run.
    pub fn start_run(&mut self, run: Option<Run>, started: &mut bool) {
        let Some(run) = run else { return };
        let part = match self.books.sizes.two_phase && run.section == self.place.section {
            true => Part::FIRST,
            false => Part::WHOLE,
        };
        self.start(run.section, run.first, run.wanted, part);
        *started = true;
    }

    /// Begins a read of `wanted` bundles from `first` on, a bit each.
    pub fn start(&mut self, section: usize, first: usize, wanted: u16, part: Part) {
        let index = self.books.free.trailing_zeros() as usize;
        self.books.free &= self.books.free - 1;
        let flight = Flight {
            section: section as u32,
            first: first as u32,
            wanted,
            part,
        };
        self.books.flights[index] = flight;
        let (offset, bytes) = self.offset_and_bytes(&flight);
        self.stream.cold_start(index, offset, bytes, false);
        self.unflushed += 1;
    }

    /// Offset and bytes of a flight.
    pub fn offset_and_bytes(&self, flight: &Flight) -> (u64, usize) {
        let map = (self.place.map_of)(flight.section as usize);
        let bundle = map.bundle;
        let offset = map.offset + u64::from(flight.first) * bundle.bytes() as u64;
        match flight.part {
            Part::WHOLE => {
                let count = (u16::BITS - flight.wanted.leading_zeros()) as usize;
                (offset, count * bundle.bytes())
            }
            Part::FIRST => (offset, bundle.first_bytes()),
            _ => {
                let first = bundle.first_bytes();
                (offset + first as u64, bundle.bytes() - first)
            }
        }
    }
}
