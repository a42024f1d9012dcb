//! Tokens in, logits out: one sequence.

use tessera_hal::{Clock, Cores, Flash};

use super::pass::Kind;
use super::{Logits, Session, SessionError};
use crate::kv::Place;
use crate::limits::FEW_TOKENS_MAX;
use crate::observe::Observer;

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// Appends `tokens`; the logits are those after the last one, (vocab_size,).
    ///
    /// # Errors
    /// [`SessionError`]; on an error the context is as it was before.
    pub fn append(&mut self, tokens: &[u32]) -> Result<&[f32], SessionError> {
        let decodes = tokens.len() == 1 || self.as_decoded;
        self.append_with(tokens, if decodes { Kind::Decode } else { Kind::Prompt })
    }

    /// [`Session::append`] for profiling: the same logits, while `observer` is shown the inputs
    /// and the gate and up products of every feed-forward section. A pass carries at most
    /// `plan().sizes.batch_tokens` of the tokens.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub fn append_observed(
        &mut self,
        tokens: &[u32],
        observer: &dyn Observer,
    ) -> Result<&[f32], SessionError> {
        self.append_with(tokens, Kind::Observed(observer))
    }

    fn append_with(&mut self, tokens: &[u32], kind: Kind<'_>) -> Result<&[f32], SessionError> {
        self.check_tokens(tokens)?;
        let begun_at = self.pos();
        self.begin_call();
        match self.append_all(tokens, kind) {
            Ok(()) => Ok(self.logits()),
            Err(error) => {
                self.positions[self.sequence] = begun_at;
                self.take_back();
                Err(error)
            }
        }
    }

    #[inline(never)]
    fn append_all(&mut self, tokens: &[u32], kind: Kind<'_>) -> Result<(), SessionError> {
        let batch = self.batch();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch.min(rest.len()));
            self.place(now);
            self.pass(now.len(), later.is_empty(), kind)?;
            if later.is_empty() {
                self.compute_logits(now.len() - 1, 1, &mut |_, _| {})?;
            }
            self.positions[self.sequence] += now.len();
            rest = later;
        }
        Ok(())
    }

    /// The logits after the last token, (vocab_size,): those that [`Session::append`] returned.
    /// After any other call that computes logits the contents are undefined.
    pub fn logits(&self) -> &[f32] {
        &self.model.work.logits[..self.image().shape().vocab_size]
    }

    /// Appends `tokens` and shows the logits after each from index `from` on, in order, with its
    /// position.
    ///
    /// # Errors
    /// As [`Session::append`].
    pub fn append_each(
        &mut self,
        tokens: &[u32],
        from: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        self.check_tokens(tokens)?;
        let begun_at = self.pos();
        self.begin_call();
        let result = self.each_all(tokens, from, visit);
        if result.is_err() {
            self.positions[self.sequence] = begun_at;
            self.take_back();
        }
        result
    }

    fn each_all(
        &mut self,
        tokens: &[u32],
        from: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        let sizes = self.plan.sizes;
        let mut done = 0;
        let kind = if self.as_decoded {
            Kind::Decode
        } else {
            Kind::Prompt
        };
        for now in tokens.chunks(self.batch()) {
            let first = from.saturating_sub(done).min(now.len());
            self.place(now);
            self.pass(now.len(), first < now.len(), kind)?;
            for (index, start) in (first..now.len()).step_by(sizes.logits_rows).enumerate() {
                if index > 0 {
                    let offset = self.image().lm_head().offset;
                    self.model.weights.seek_offset(offset, &self.clock)?;
                }
                let rows = sizes.logits_rows.min(now.len() - start);
                self.compute_logits(start, rows, visit)?;
            }
            self.positions[self.sequence] += now.len();
            done += now.len();
        }
        Ok(())
    }

    /// Most tokens of a pass of a prompt.
    fn batch(&self) -> usize {
        let batch = self.plan.sizes.batch_tokens;
        if self.as_decoded {
            batch.min(FEW_TOKENS_MAX)
        } else {
            batch
        }
    }

    /// Where `tokens` stand that are appended.
    fn place(&mut self, tokens: &[u32]) {
        let (pos, sequence) = (self.pos() as u32, self.sequence as u32);
        for (pos, (place, &token)) in (pos..).zip(self.places.iter_mut().zip(tokens)) {
            *place = Place {
                token,
                sequence,
                pos,
            };
        }
    }
}
