//! How long ago each bundle was needed, for masks that prefer neurons in memory.
//!
//! Whether a bundle is in memory depends on how much there is and on when reads came, so a mask
//! that asked the cache would give other bits in every run (as the cache-aware masks of DIP, 2024,
//! do). A bundle that one of the last few passes needed is likely to be there still; which these
//! are depends on the passes alone.

use crate::arena::{Arena, OutOfMemory, carved_bytes};

/// A bundle that one of so many passes needed is taken to be in memory.
const NEAR_PASSES: u8 = 16;

/// Passes since each bundle of the image was last needed, up to one more than matter.
pub struct Recency<'m> {
    /// (sections, bundles)
    ages: &'m mut [u8],
    /// The same when the current call began.
    before: &'m mut [u8],
}

/// Bytes of the ages of `n_bundles` bundles.
pub const fn bytes(n_bundles: usize) -> usize {
    2 * carved_bytes(n_bundles)
}

impl<'m> Recency<'m> {
    /// Carves the ages of `n_bundles` bundles.
    pub fn take(arena: &mut Arena<'m>, n_bundles: usize) -> Result<Self, OutOfMemory> {
        let (ages, before) = (arena.take(n_bundles)?, arena.take(n_bundles)?);
        ages.fill(0);
        Ok(Recency { ages, before })
    }

    /// A text begins: all bundles are taken to be in memory, until passes have shown otherwise.
    pub fn forget(&mut self) {
        self.ages.fill(0);
    }

    /// Some passes begin that count together or, where one of them fails, not at all.
    pub fn begin_call(&mut self) {
        self.before.copy_from_slice(self.ages);
    }

    /// What has been since [`Recency::begin_call`] does not count.
    pub fn take_back(&mut self) {
        self.ages.copy_from_slice(self.before);
    }

    /// A pass begins.
    pub fn begin_pass(&mut self) {
        for age in self.ages.iter_mut() {
            *age = (*age + 1).min(NEAR_PASSES + 1);
        }
    }

    /// Ages of section `section`, and of the one after it (empty after the last); sections have
    /// `n_bundles` bundles each. The age of a bundle that the pass needs is 0 from then on.
    pub fn of(&mut self, section: usize, n_bundles: usize) -> (&mut [u8], &[u8]) {
        let (now, rest) = self.ages[section * n_bundles..].split_at_mut(n_bundles);
        (now, &rest[..n_bundles.min(rest.len())])
    }
}

/// True if a bundle of this age is taken to be in memory.
pub fn is_near(age: u8) -> bool {
    age <= NEAR_PASSES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_needed_for_a_while_is_far() {
        let mut region = [0; 8192];
        let mut arena = Arena::new(&mut region);
        let mut recency = Recency::take(&mut arena, 6).unwrap();
        assert_eq!(arena.taken_bytes(), bytes(6));
        for pass in 0..300u32 {
            // Every third pass is taken back after it has needed something, and tried again.
            for is_taken_back in [true, false].into_iter().skip(usize::from(pass % 3 > 0)) {
                recency.begin_call();
                recency.begin_pass();
                let (now, next) = recency.of(1, 2);
                assert_eq!((now.len(), next.len()), (2, 2));
                assert!(is_near(now[0]));
                assert_eq!(is_near(now[1]), pass < u32::from(NEAR_PASSES), "{pass}");
                if pass % 2 == 0 {
                    now[0] = 0;
                }
                if is_taken_back {
                    now[1] = 0;
                    recency.take_back();
                }
            }
        }
        let far = NEAR_PASSES + 1;
        assert_eq!(recency.of(2, 2), (&mut [far, far][..], &[][..]));
        recency.forget();
        assert_eq!(recency.of(0, 2), (&mut [0, 0][..], &[0, 0][..]));
    }
}
