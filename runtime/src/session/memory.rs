//! Memory that a session gives back while others need it.

use tessera_hal::{Clock, Cores, Flash, Reclaim};

use super::{Session, SessionError};

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// Gives at least `bytes` of the cache of cold neurons back to the system, in whole pages, for
    /// as long as memory is short: what Android's `onTrimMemory` asks for. The bundles that are
    /// forgotten are those that would have left the cache first. Logits stay the same bits, only
    /// more is read. Returns how many bytes the cache gave up: `reclaim` may have kept them, where
    /// the system does not take them.
    ///
    /// The memory stays the session's: [`Session::grow`] takes it into use again. Reads that are
    /// still in flight are waited for. A session is busy during a call; one that is to give memory
    /// back at once can be cancelled first ([`Session::cancel_with`]).
    ///
    /// # Errors
    /// [`SessionError::NotEnoughCache`] where so much cannot be given, with what can be; nothing is
    /// given then. Only plans for [`Mode::Predict`](crate::Mode::Predict) have such a cache.
    pub fn shrink(
        &mut self,
        bytes: usize,
        reclaim: &mut impl Reclaim,
    ) -> Result<usize, SessionError> {
        let have_bytes = self.spare_bytes(reclaim);
        let enough = bytes <= have_bytes;
        let Some(sparse) = self.model.sparse.as_mut().filter(|_| enough) else {
            let want_bytes = bytes;
            return match bytes {
                0 => Ok(0),
                _ => Err(SessionError::NotEnoughCache {
                    want_bytes,
                    have_bytes,
                }),
            };
        };
        let (weights, crc32c) = (&mut self.model.weights, self.kernels.crc32c);
        sparse.settle(weights, crc32c, &self.clock)?;
        Ok(sparse.cold.shrink(bytes, reclaim))
    }

    /// Bytes that [`Session::shrink`] could give back now: all of the cache but the few slots
    /// without which decoding would wait for itself.
    pub fn spare_bytes(&self, reclaim: &impl Reclaim) -> usize {
        let page_bytes = reclaim.page_bytes();
        let sparse = self.model.sparse.as_ref();
        sparse.map_or(0, |sparse| sparse.cold.spare_bytes(page_bytes))
    }

    /// Takes at most `bytes` of what was given back into use again, never more than was planned.
    /// Returns how many.
    pub fn grow(&mut self, bytes: usize, reclaim: &impl Reclaim) -> usize {
        let page_bytes = reclaim.page_bytes();
        let sparse = self.model.sparse.as_mut();
        sparse.map_or(0, |sparse| sparse.cold.grow(bytes, page_bytes))
    }
}
