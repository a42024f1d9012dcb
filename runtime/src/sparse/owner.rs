//! What the one lane does that owns the flash queue.

use spin::mutex::SpinMutex;
use tessera_hal::{Clock, Flash, Slots};

use super::books::Books;
use super::cluster::Cluster;
use super::foresight::{Ahead, Worth};
use super::guess::Guesses;
use crate::format::FfnMap;
use crate::pipeline::Pipeline;
use crate::shape::Shape;
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

impl<'a> Place<'a> {
    /// Of section `section`, of which the first `prefix` neurons never leave memory.
    pub fn new(
        shape: &Shape,
        section: usize,
        prefix: usize,
        map_of: &'a (dyn Fn(usize) -> FfnMap + Sync),
        crc32c: fn(u32, &[u8]) -> u32,
    ) -> Self {
        let bundles = |neurons: usize| neurons / shape.bundle_neurons;
        Place {
            section,
            n_bundles: bundles(shape.ffn_dim),
            resident: bundles(prefix),
            cluster_bundles: bundles(shape.cluster_neurons),
            map_of,
            crc32c,
        }
    }
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
    /// How long reads were waited for since one came.
    pub patience: Patience,
    /// Why the section cannot be finished.
    pub error: Option<WeightsError>,
}

impl<'a, 'b, 'c, 'n, 'm, F: Flash<'m>> Owner<'a, 'b, 'c, 'n, 'm, F> {
    /// One for whom nobody waits: no clusters.
    pub fn new(
        stream: &'a mut Stream<'m, F>,
        (books, slots): (&'a mut Books<'b>, &'a Slots<'b>),
        place: &'a Place<'a>,
        pipeline: &'a SpinMutex<Pipeline>,
    ) -> Self {
        Owner {
            stream,
            books,
            slots,
            place,
            pipeline,
            clusters: &[],
            ahead: &[],
            guesses: None,
            worth: None,
            first_bundle: 0,
            unflushed: 0,
            cursor: 0,
            misses: 0,
            patience: Patience::default(),
            error: None,
        }
    }

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

    /// The section cannot be finished.
    pub fn fail(&mut self, error: WeightsError) {
        self.error.get_or_insert(error);
        self.pipeline.lock().fail();
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
}
