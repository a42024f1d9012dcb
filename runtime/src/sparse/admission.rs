//! Places for the bundles that a cluster needs, and reads for those that are not there.

use tessera_hal::Flash;

use super::books::Part;
use super::cluster::{AWAITED, Cluster, RESIDENT};
use super::owner::Owner;
use super::reads::Run;
use crate::cache::{Acquired, BundleIndex, Full};

impl<'m, F: Flash<'m>> Owner<'_, '_, '_, '_, 'm, F> {
    /// Finds a place for each bundle that `cluster` needs, and reads those that are not there.
    /// False if it must go on later, for want of slots or reads.
    pub fn admit(&mut self, index: usize, started: &mut bool) -> bool {
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

    /// Reads the rest of the bundles whose gates are alive. False if it must go on later.
    pub fn admit_rest(&mut self, index: usize, started: &mut bool) -> bool {
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
