//! What is asked of a session, checked before anything is computed.

use tessera_hal::{Clock, Cores, Flash};

use super::{Session, SessionError};

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    fn check_loaded(&self) -> Result<(), SessionError> {
        match self.loaded {
            true => Ok(()),
            false => Err(SessionError::NotLoaded),
        }
    }

    pub(super) fn check_sequence(&self, sequence: usize) -> Result<(), SessionError> {
        let max = self.positions.len();
        if sequence < max {
            Ok(())
        } else {
            Err(SessionError::SequenceOutOfRange { sequence, max })
        }
    }

    fn check_token(&self, token: u32) -> Result<(), SessionError> {
        let vocab_size = self.image().shape().vocab_size;
        if (token as usize) < vocab_size {
            Ok(())
        } else {
            Err(SessionError::TokenOutOfRange { token, vocab_size })
        }
    }

    pub(super) fn check_tokens(&self, tokens: &[u32]) -> Result<(), SessionError> {
        self.check_loaded()?;
        if tokens.is_empty() {
            return Err(SessionError::NoTokens);
        }
        for &token in tokens {
            self.check_token(token)?;
        }
        let (need, max) = (self.pos() + tokens.len(), self.seq_len());
        if need > max {
            return Err(SessionError::ContextLengthExceeded { need, max });
        }
        Ok(())
    }

    pub(super) fn check_steps(&self, steps: &[(usize, u32)]) -> Result<(), SessionError> {
        self.check_loaded()?;
        if steps.is_empty() {
            return Err(SessionError::NoTokens);
        }
        for (index, &(sequence, token)) in steps.iter().enumerate() {
            self.check_sequence(sequence)?;
            self.check_token(token)?;
            let (need, max) = (self.positions[sequence] + 1, self.seq_len());
            if need > max {
                return Err(SessionError::ContextLengthExceeded { need, max });
            }
            if steps[..index].iter().any(|&(before, _)| before == sequence) {
                return Err(SessionError::SequenceTwice { sequence });
            }
        }
        Ok(())
    }
}
