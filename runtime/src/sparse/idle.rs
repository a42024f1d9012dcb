//! Reads of the cold segment while nothing is computed.

use spin::mutex::SpinMutex;
use tessera_hal::{Clock, Flash};

use super::Sparse;
use super::owner::{Owner, Place};
use crate::cache::{BundleIndex, PolicyKind};
use crate::pipeline::Pipeline;
use crate::weights::{Weights, WeightsError};

impl<'m> Sparse<'m> {
    /// Calls `act` with an owner of the flash queue for whom nobody waits; an error that it leaves
    /// behind is returned.
    fn own<'f, F: Flash<'f>>(
        &mut self,
        weights: &mut Weights<'f, F>,
        crc32c: fn(u32, &[u8]) -> u32,
        act: impl FnOnce(&mut Owner<'_, 'm, '_, '_, 'f, F>),
    ) -> Result<(), WeightsError> {
        let shape = *weights.image.shape();
        let map = weights.image.ffn(0, 0);
        let (image, stream, _) = weights.split(&map, 0);
        let map_of = |section: usize| image.ffn(section / shape.n_ffns(), section % shape.n_ffns());
        let no_section = usize::MAX;
        let place = Place::new(&shape, no_section, 0, &map_of, crc32c);
        let pipeline = SpinMutex::new(Pipeline::new(0, 0, true));
        let cold = (&mut self.cold.books, &self.cold.slots);
        let mut owner = Owner::new(stream, cold, &place, &pipeline);
        act(&mut owner);
        match owner.error {
            Some(error) => Err(error.named(&image)),
            None => Ok(()),
        }
    }

    /// Waits for all reads, which may have been begun on guesses, and takes them in.
    ///
    /// # Errors
    /// A read that does not come out of the device.
    pub fn settle<'f, F: Flash<'f>>(
        &mut self,
        weights: &mut Weights<'f, F>,
        crc32c: fn(u32, &[u8]) -> u32,
        clock: &impl Clock,
    ) -> Result<(), WeightsError> {
        self.own(weights, crc32c, |owner| {
            while owner.is_reading() && owner.step_or_wait(clock) {}
        })
    }

    /// Fills free slots with the neurons of each section that come after its prefix: the image has
    /// the hottest first, so that these are read in sequence. Only where the policy knows what they
    /// are worth; designs that are compared with begin with an empty cache, and so does a cache
    /// that is emptied before each pass. `go_on` is asked before each section; false if it said no.
    ///
    /// # Errors
    /// A read that does not come out of the device. Bundles that cannot be read are left out.
    pub fn fill<'f, F: Flash<'f>>(
        &mut self,
        weights: &mut Weights<'f, F>,
        crc32c: fn(u32, &[u8]) -> u32,
        clock: &impl Clock,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, WeightsError> {
        let (shape, sizes) = (*weights.image.shape(), self.sizes);
        if sizes.cold.policy != PolicyKind::Frequency || sizes.cold.without.cache {
            return Ok(true);
        }
        let k = weights.image.ffn(0, 0).bundle.neurons;
        let sections = shape.n_layers * shape.n_ffns();
        let first = (sizes.hot_clusters * shape.cluster_neurons).min(shape.ffn_dim) / k;
        let bundles = first..(first + sizes.cold.n_slots / sections).min(shape.ffn_dim / k);
        let mut goes_on = true;
        self.own(weights, crc32c, |owner| {
            for section in 0..sections {
                goes_on = goes_on && go_on();
                if !goes_on || !owner.fill(section, bundles.clone(), clock) {
                    break;
                }
            }
            while owner.is_reading() && owner.step_or_wait(clock) {}
        })?;
        Ok(goes_on)
    }
}

impl<'f, F: Flash<'f>> Owner<'_, '_, '_, '_, 'f, F> {
    /// Takes in what has arrived, or waits; false when it is time to give up.
    fn step_or_wait(&mut self, clock: &impl Clock) -> bool {
        self.arrivals() || self.wait(clock)
    }

    /// Begins to read bundles of a section into free slots; false when it is time to give up.
    fn fill(
        &mut self,
        section: usize,
        bundles: core::ops::Range<usize>,
        clock: &impl Clock,
    ) -> bool {
        let (mut run, mut started) = (None, false);
        for bundle in bundles {
            let name = BundleIndex((section * self.place.n_bundles + bundle) as u32);
            let Some(slot) = self.books.cache.fill(name) else {
                continue;
            };
            self.books.whole[slot.0 as usize] = 1;
            while !self.extend(&mut run, section, bundle, &mut started) {
                self.flush();
                if !self.step_or_wait(clock) {
                    self.books.cache.abandon(slot);
                    return false;
                }
            }
        }
        self.start_run(run, &mut started);
        self.flush();
        true
    }
}
