//! What comes out of the device, and whom it is for.

use tessera_hal::Flash;

use super::books::{Flight, bits};
use super::cluster::{AWAITED, RESIDENT};
use super::owner::Owner;
use crate::stream::{Patience, StreamError};
use crate::weights::WeightsError;

impl<'m, F: Flash<'m>> Owner<'_, '_, '_, '_, 'm, F> {
    /// Takes in every read that has come out of the device.
    pub fn arrivals(&mut self) -> bool {
        let mut moved = false;
        loop {
            let (index, outcome) = match self.stream.cold_next() {
                None => {
                    if moved {
                        self.patience = Patience::default();
                    }
                    return moved;
                }
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
}
