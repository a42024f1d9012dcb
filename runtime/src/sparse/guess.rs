//! Reads for the next section, begun while this one is computed.

use tessera_hal::Flash;

use super::foresight::Worth;
use super::owner::Owner;
use crate::cache::BundleIndex;

/// How far reads for the next section have got.
pub struct Guesses<'a> {
    section: usize,
    worth: &'a mut Worth,
    /// Cluster, and bundle in it, from which to go on.
    cursor: (usize, usize),
}

impl<'a> Guesses<'a> {
    /// None begun yet.
    pub fn new(section: usize, worth: &'a mut Worth) -> Self {
        let cursor = (0, 0);
        Guesses {
            section,
            worth,
            cursor,
        }
    }
}

impl<'m, F: Flash<'m>> Owner<'_, '_, '_, '_, 'm, F> {
    /// Begins reads for the next section where the device has nothing better to do.
    pub fn guess(&mut self, guesses: &mut Guesses<'_>, started: &mut bool) {
        let (place, guesses_max) = (self.place, self.books.sizes.guesses);
        let k = (place.map_of)(guesses.section).bundle.neurons;
        let mut run = None;
        while let Some(ahead) = self.ahead.get(guesses.cursor.0) {
            let Some(ahead) = ahead.try_lock().filter(|ahead| ahead.is_known) else {
                break;
            };
            while let Some(&likely) = ahead.likely.get(guesses.cursor.1) {
                let in_flight = self.books.flights.len() - self.books.free.count_ones() as usize;
                if in_flight >= guesses_max {
                    return self.start_run(run, started);
                }
                let bundle = ahead.first / k + guesses.cursor.1;
                let name = BundleIndex((guesses.section * place.n_bundles + bundle) as u32);
                if likely == 1
                    && bundle >= place.resident
                    && let Some(slot) = self.books.cache.prefetch(name)
                {
                    self.books.whole[slot.0 as usize] = 1;
                    guesses.worth.guessed();
                    self.extend(&mut run, guesses.section, bundle, started);
                }
                guesses.cursor.1 += 1;
            }
            guesses.cursor = (guesses.cursor.0 + 1, 0);
        }
        self.start_run(run, started);
    }
}
