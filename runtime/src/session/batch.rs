//! Several sequences side by side: one token of each in one pass.

use tessera_hal::{Clock, Cores, Flash};

use super::pass::Kind;
use super::{Logits, Session, SessionError};
use crate::kv::Place;
use crate::limits::{BATCH_TOKENS_MAX, FEW_TOKENS_MAX};
use crate::plan::Mode;

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// Advances each of the given sequences by one token, all in one pass over the weights (in
    /// passes of [`FEW_TOKENS_MAX`] where the plan's mode leaves neurons out, since larger ones
    /// compute all), and shows the logits after each: index into `steps`, logits. They are the same
    /// bits as if the sequence were alone.
    ///
    /// # Errors
    /// [`SessionError`]; on an error every sequence is as it was before.
    pub fn decode(
        &mut self,
        steps: &[(usize, u32)],
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        self.check_steps(steps)?;
        self.begin_call();
        let result = self.decode_all(steps, visit);
        match result {
            Ok(()) => {
                for &(sequence, _) in steps {
                    self.positions[sequence] += 1;
                }
            }
            Err(_) => self.take_back(),
        }
        result
    }

    fn decode_all(
        &mut self,
        steps: &[(usize, u32)],
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        let at_once = match self.plan.mode {
            Mode::Exact => BATCH_TOKENS_MAX,
            Mode::Predict | Mode::Threshold => FEW_TOKENS_MAX,
        };
        let mut index = 0;
        for steps in steps.chunks(at_once) {
            for (place, &(sequence, token)) in self.places.iter_mut().zip(steps) {
                *place = Place {
                    token,
                    sequence: sequence as u32,
                    pos: self.positions[sequence] as u32,
                };
            }
            self.pass(steps.len(), true, Kind::Decode)?;
            self.compute_logits(0, steps.len(), &mut |_, logits| {
                visit(index, logits);
                index += 1;
            })?;
        }
        Ok(())
    }
}
