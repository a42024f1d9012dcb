//! What the one lane does that owns the flash queue.

use spin::mutex::SpinMutex;
use tessera_hal::{Clock, Flash, Slots};

use super::books::{Books, Flight, Part, bits};
use super::cluster::{AWAITED, Cluster, RESIDENT};
use super::foresight::{Ahead, Worth};
use super::guess::Guesses;
use crate::cache::{Acquired, BundleIndex, Full};
use crate::format::FfnMap;
use crate::pipeline::Pipeline;
use crate::stream::{Patience, Stream, StreamError};
use crate::weights::WeightsError;

/// Reads that are handed to the hardware together while more are likely to follow at once.
const FLUSH_READS: usize = 16;

/// The section that is computed, as its reads see it.
pub struct Place<'a> {
    /// Index of the section.
    pub section: usize,
    /// Bundles of a section.
    pub n_bundles: usize,
    /// Bundles of it that never leave memory: a prefix.
    pub resident: usize,
    /// Bundles of a full cluster.
    pub cluster_bundles: usize,
    /// Where the bundles of a section are.
    pub map_of: &'a (dyn Fn(usize) -> FfnMap + Sync),
    /// Checksum kernel.
    pub crc32c: fn(u32, &[u8]) -> u32,
}

/// The owner of the flash queue while a window of a section's clusters is computed.
pub struct Owner<'a, 'b, 'c, 'n, 'm, F> {
    /// The device.
    pub stream: &'a mut Stream<'m, F>,
    /// Books of the cold segment.
    pub books: &'a mut Books<'b>,
    /// Bytes of the cold segment.
    pub slots: &'a Slots<'b>,
    /// The section.
    pub place: &'a Place<'a>,
    /// Stages of the clusters.
    pub pipeline: &'a SpinMutex<Pipeline>,
    /// The clusters.
    pub clusters: &'a [SpinMutex<Cluster<'c>>],
    /// Clusters of the next section.
    pub ahead: &'a [SpinMutex<Ahead<'n>>],
    /// Reads for the next section, if any are to be begun.
    pub guesses: Option<Guesses<'a>>,
    /// What guesses about this section were worth.
    pub worth: Option<&'a mut Worth>,
    /// First bundle of the first cluster.
    pub first_bundle: usize,
    /// Reads that were begun and not handed to the hardware yet.
    pub unflushed: usize,
    /// Bundle of the cluster that is being admitted from which to go on.
    pub cursor: usize,
    /// Bundles of that cluster that had to be waited for.
    pub misses: u64,
    /// How long reads were waited for.
    pub patience: Patience,
    /// Why the section cannot be finished.
    pub error: Option<WeightsError>,
}

/// A run of bundles that is about to be read.
pub struct Run {
    section: usize,
    first: usize,
    wanted: u16,
}

impl<'m, F: Flash<'m>> Owner<'_, '_, '_, '_, 'm, F> {
    /// Does what can be done without waiting; true if anything was.
    #[inline(never)]
    pub fn step(&mut self) -> bool {
        let mut moved = self.arrivals();
        if self.pipeline.lock().has_failed() {
            return moved;
        }
        moved |= self.releases();
        let mut started = false;
        loop {
            let Some(cluster) = self.pipeline.lock().take_predicted() else {
                break;
            };
            let admitted = self.admit(cluster, &mut started);
            moved |= started | admitted;
            if !admitted {
                break;
            }
        }
        loop {
            let Some(cluster) = self.pipeline.lock().take_gated() else {
                break;
            };
            if !self.admit_rest(cluster, &mut started) {
                break;
            }
            moved = true;
        }
        if let Some(mut guesses) = self.guesses.take() {
            if self.pipeline.lock().has_admitted_all() {
                self.guess(&mut guesses, &mut started);
            }
            self.guesses = Some(guesses);
        }
        // Handing reads over costs more than starting one: not for each cluster.
        let more = !self.books.sizes.two_phase && self.pipeline.lock().is_predicting();
        if self.unflushed >= if more { FLUSH_READS } else { 1 } {
            self.flush();
        }
        moved
    }

    /// Hands the reads that were begun to the hardware.
    pub fn flush(&mut self) {
        self.stream.cold_flush();
        self.unflushed = 0;
    }

    /// True while a read is in the device.
    pub fn is_reading(&self) -> bool {
        self.books.free.count_ones() as usize != self.books.flights.len()
    }

    /// Waits for a read, counting the time as stall; false when it is time to give up.
    pub fn wait(&mut self, clock: &impl Clock) -> bool {
        let begun_ns = clock.now_ns();
        let patient = self.stream.wait(&mut self.patience, clock);
        if !patient {
            let busy = !self.books.free;
            let flight = self.books.flights[busy.trailing_zeros() as usize];
            let offset = self.offset_and_bytes(&flight).0;
            self.fail(WeightsError::Read {
                unit: None,
                error: StreamError::Deadline { offset },
            });
        }
        self.stream.stats.stall_ns += clock.now_ns().saturating_sub(begun_ns);
        patient
    }

    fn fail(&mut self, error: WeightsError) {
        self.error.get_or_insert(error);
        self.pipeline.lock().fail();
    }

    /// Offset and bytes of a flight.
    fn offset_and_bytes(&self, flight: &Flight) -> (u64, usize) {
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

    /// Takes in every read that has come out of the device.
    pub fn arrivals(&mut self) -> bool {
        let mut moved = false;
        loop {
            let (index, outcome) = match self.stream.cold_next() {
                None => return moved,
                Some((index, Ok(bytes))) => {
                    let flight = self.books.flights[index];
                    let map = (self.place.map_of)(flight.section as usize);
                    let crc32c = self.place.crc32c;
                    let taken = self.books.take_in(
                        &flight,
                        &map,
                        self.place.n_bundles,
                        bytes,
                        self.slots,
                        crc32c,
                    );
                    (index, taken.then_some(()).ok_or(None))
                }
                Some((index, Err((error, again)))) => (
                    index,
                    Err((!again).then_some(StreamError::Device { offset: 0, error })),
                ),
            };
            moved = true;
            let flight = self.books.flights[index];
            match outcome {
                Ok(()) => {
                    self.books.free |= 1 << index;
                    self.tell(&flight);
                }
                Err(error) => self.try_again(index, error),
            }
        }
    }

    /// A read that failed with `error`, or whose contents are damaged, is tried again or given up.
    fn try_again(&mut self, index: usize, error: Option<StreamError>) {
        let flight = self.books.flights[index];
        let (offset, bytes) = self.offset_and_bytes(&flight);
        let again = error.is_none()
            && self.stream.cold_may_retry(index)
            && !self.pipeline.lock().has_failed();
        if again {
            self.stream.cold_start(index, offset, bytes, true);
            self.stream.cold_flush();
            return;
        }
        let awaited = self.is_awaited(&flight);
        self.books.give_up(&flight, self.place.n_bundles);
        self.books.free |= 1 << index;
        if !awaited {
            return;
        }
        self.fail(match error {
            Some(StreamError::Device { error, .. }) => WeightsError::Read {
                unit: None,
                error: StreamError::Device { offset, error },
            },
            _ => WeightsError::Damaged { unit: None, offset },
        });
    }

    /// Calls `visit(cluster, place)` for each place that awaits a bundle of `flight`.
    fn for_each_awaited(&self, flight: &Flight, mut visit: impl FnMut(usize, &mut u32)) {
        if flight.section as usize != self.place.section {
            return;
        }
        for bit in bits(flight.wanted) {
            let bundle = flight.first as usize + bit;
            let Some(at) = bundle.checked_sub(self.first_bundle) else {
                continue;
            };
            let (index, at) = (
                at / self.place.cluster_bundles,
                at % self.place.cluster_bundles,
            );
            let Some(cluster) = self.clusters.get(index) else {
                continue;
            };
            let mut cluster = cluster.lock();
            let Some(at) = cluster.position(at) else {
                continue;
            };
            let place = &mut cluster.places[at];
            if *place < RESIDENT && *place & AWAITED != 0 {
                visit(index, place);
            }
        }
    }

    /// Tells the clusters that await bundles of `flight`.
    fn tell(&self, flight: &Flight) {
        self.for_each_awaited(flight, |cluster, place| {
            *place &= !AWAITED;
            self.pipeline.lock().arrived(cluster);
        });
    }

    /// Whether a cluster awaits a bundle of `flight`, which may be a guess that nobody asked for.
    fn is_awaited(&self, flight: &Flight) -> bool {
        let mut awaited = false;
        self.for_each_awaited(flight, |_, _| awaited = true);
        awaited
    }

    /// Gives back the places of clusters that are finished.
    fn releases(&mut self) -> bool {
        let mut moved = false;
        loop {
            let Some(cluster) = self.pipeline.lock().take_finished() else {
                return moved;
            };
            self.books.release(&mut self.clusters[cluster].lock());
            moved = true;
        }
    }

    /// Ends the section: takes in what is still in flight and gives back every place. Why the
    /// section is not finished, if it is not.
    #[inline(never)]
    pub fn close(mut self, clock: &impl Clock) -> Option<WeightsError> {
        // Guesses go on while the next section is waited for, but nothing stays after an error.
        let mut patient = true;
        while self.error.is_some() && self.is_reading() && patient {
            if !self.arrivals() {
                patient = self.wait(clock);
            }
        }
        if self.error.is_some() {
            self.books.disown_rests(self.place.n_bundles);
        }
        for cluster in self.clusters {
            self.books.release(&mut cluster.lock());
        }
        self.flush();
        self.error
    }

    /// Finds a place for each bundle that `cluster` needs, and reads those that are not there.
    /// False if it must go on later, for want of slots or reads.
    fn admit(&mut self, index: usize, started: &mut bool) -> bool {
        let clusters = self.clusters;
        let mut cluster = clusters[index].lock();
        let first = self.first_bundle + index * self.place.cluster_bundles;
        let mut run: Option<Run> = None;
        while self.cursor < cluster.n_needed {
            let at = self.cursor;
            let bundle = first + cluster.needed[at] as usize;
            if bundle < self.place.resident {
                cluster.places[at] = RESIDENT;
            } else if !self.find(&mut cluster, index, at, bundle, &mut run, started) {
                self.start_run(run, started);
                return false;
            }
            self.cursor += 1;
        }
        self.start_run(run, started);
        self.cursor = 0;
        self.count(&cluster);
        self.pipeline.lock().all_admitted(index);
        true
    }

    /// A place for one bundle; false if there is none now.
    fn find(
        &mut self,
        cluster: &mut Cluster<'_>,
        index: usize,
        at: usize,
        bundle: usize,
        run: &mut Option<Run>,
        started: &mut bool,
    ) -> bool {
        let name = BundleIndex((self.place.section * self.place.n_bundles + bundle) as u32);
        if run.is_none() && self.books.free == 0 && !self.books.cache.is_present(name) {
            return false;
        }
        if let Some(worth) = &mut self.worth
            && self.books.cache.is_guess(name)
        {
            worth.was_right();
        }
        let (slot, awaited) = match self.books.cache.acquire(name) {
            Err(Full) => {
                // Where stages wait for each other, they may wait for slots of each other.
                if !self.is_reading() && run.is_none() {
                    self.pipeline.lock().overlap();
                }
                return false;
            }
            Ok(Acquired::Present(slot)) => (slot, false),
            Ok(Acquired::Loading(slot)) => (slot, true),
            Ok(Acquired::Reserved(slot)) => {
                self.books.whole[slot.0 as usize] = u8::from(!self.books.sizes.two_phase);
                if !self.extend(run, self.place.section, bundle, started) {
                    // No read is free: the slot is given back, and asked for again.
                    self.books.cache.abandon(slot);
                    self.books.cache.release(slot);
                    return false;
                }
                (slot, true)
            }
        };
        cluster.places[at] = slot.0 | if awaited { AWAITED } else { 0 };
        if awaited {
            self.misses += 1;
            self.pipeline.lock().expect(index);
        }
        true
    }

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

    fn start(&mut self, section: usize, first: usize, wanted: u16, part: Part) {
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

    /// Reads the rest of the bundles whose gates are alive. False if it must go on later.
    fn admit_rest(&mut self, index: usize, started: &mut bool) -> bool {
        let bundle = (self.place.map_of)(self.place.section).bundle;
        let clusters = self.clusters;
        let mut cluster = clusters[index].lock();
        let first = self.first_bundle + index * self.place.cluster_bundles;
        if self.books.sizes.two_phase {
            for at in 0..cluster.n_needed {
                let place = cluster.places[at];
                let here = place >= AWAITED || self.books.whole[place as usize] == 1;
                let needed = cluster.needed[at] as usize;
                if here || !cluster.needs(needed, bundle.neurons) {
                    continue;
                }
                // Without bundles up and down are apart: a second command brings the same again.
                let commands = 1 + u32::from(self.books.sizes.without.bundles);
                if self.books.free.count_ones() < commands {
                    return false;
                }
                self.books.whole[place as usize] = 1;
                cluster.places[at] = place | AWAITED;
                self.pipeline.lock().expect(index);
                let section = self.place.section;
                self.start(section, first + needed, 1, Part::REST);
                if commands == 2 {
                    self.start(section, first + needed, 0, Part::REST);
                }
                *started = true;
            }
        }
        self.pipeline.lock().all_admitted(index);
        true
    }

    /// Counts the bytes of a cluster's bundles as hits or misses.
    fn count(&mut self, cluster: &Cluster<'_>) {
        let bytes = (self.place.map_of)(self.place.section).bundle.bytes() as u64;
        // Not those that are awaited still: some came while others had no read yet.
        let misses = core::mem::take(&mut self.misses);
        let stats = &mut self.stream.stats;
        stats.miss_bytes += misses * bytes;
        stats.hit_bytes += (cluster.n_needed as u64 - misses) * bytes;
        stats.active_neurons += cluster.masks.iter().filter(|&&mask| mask != 0).count() as u64;
        stats.all_neurons += cluster.masks.len() as u64;
    }
}
