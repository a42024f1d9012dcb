//! One pass: embedding rows, all layers, logits.

use tessera_hal::{Clock, Cores, Flash};

use super::side::side_read;
use super::{Session, SessionError, is_set};
use crate::format::TileLayout;
use crate::kv::Place;
use crate::limits::FEW_TOKENS_MAX;
use crate::model::Pass;
use crate::observe::Observer;
use crate::plan::Mode;
use crate::product::Machine;
use crate::weights::Weights;

/// Logits of one position, wherever they stand.
#[derive(Clone, Copy)]
pub struct Logits<'a> {
    all: &'a [f32],
    row: usize,
    rows: usize,
}

impl<'a> Logits<'a> {
    /// Logit of each token, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = f32> + use<'a> {
        self.all[self.row..].iter().step_by(self.rows).copied()
    }
}

/// What a pass is for.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    /// All neurons are computed.
    Prompt,
    /// By the plan's mode.
    Decode,
    /// As a prompt, seen by a profiler.
    Observed(&'a dyn Observer),
}

impl<'m, F: Flash<'m>, C: Cores, K: Clock> Session<'m, F, C, K> {
    /// One pass of the first `tokens` places through all layers.
    #[inline(never)]
    pub(super) fn pass(
        &mut self,
        tokens: usize,
        with_logits: bool,
        kind: Kind<'_>,
    ) -> Result<(), SessionError> {
        let decodes = matches!(kind, Kind::Decode);
        let sparse = decodes && self.plan.mode != Mode::Exact && tokens <= FEW_TOKENS_MAX;
        let stream = &mut self.model.weights.stream;
        if stream.skips_ffn() != sparse && self.plan.mode == Mode::Predict {
            // What was read ahead was for a pass of the other kind.
            stream.skip_ffn(sparse);
            self.astray = true;
        }
        let n_layers = self.image().shape().n_layers;
        self.model
            .weights
            .stream
            .begin_pass((!with_logits).then_some(n_layers));
        if self.astray {
            self.model.weights.rewind(&self.clock)?;
            self.astray = false;
        }
        self.model.weights.pump();
        self.embed(tokens)?;
        let machine = Machine {
            cores: &self.cores,
            clock: &self.clock,
            kernels: &self.kernels,
            observer: match kind {
                Kind::Observed(observer) => Some(observer),
                Kind::Prompt | Kind::Decode => None,
            },
        };
        let places = &self.places[..tokens];
        let pass = Pass { places, sparse };
        let cancel = self.cancel;
        if !self.model.layers(&machine, pass, &mut || !is_set(cancel))? {
            return Err(SessionError::Cancelled);
        }
        Ok(())
    }

    /// Logits of tokens `first..first + rows` of the last pass.
    #[inline(never)]
    pub(super) fn compute_logits(
        &mut self,
        first: usize,
        rows: usize,
        visit: &mut dyn FnMut(usize, Logits<'_>),
    ) -> Result<(), SessionError> {
        let machine = Machine {
            cores: &self.cores,
            clock: &self.clock,
            kernels: &self.kernels,
            observer: None,
        };
        let all = self.model.logits(&machine, first, rows)?;
        let pos = |row: usize| self.places[first + row].pos as usize;
        if let Some(at) = all.iter().position(|logit| !logit.is_finite()) {
            return Err(SessionError::NotFinite {
                pos: pos(at % rows),
            });
        }
        for row in 0..rows {
            visit(pos(row), Logits { all, row, rows });
        }
        Ok(())
    }

    /// Embedding row of each of the first `tokens` places, to `work.x` (tokens, dim).
    #[inline(never)]
    fn embed(&mut self, tokens: usize) -> Result<(), SessionError> {
        let map = self.image().embedding();
        let dim = map.tile.cols;
        let places = &self.places[..tokens];
        let x = &mut self.model.work.x[..tokens * dim];
        let weights = &mut self.model.weights;
        let place = |token: u32| {
            let tile = token as usize / map.tile.rows;
            (tile, map.tile_place(tile))
        };
        let tied = weights.image.shape().tied_embeddings;
        let in_memory =
            |weights: &Weights<'m, F>, token: u32| tied && weights.is_resident(place(token).1.0);
        let batch = weights.stream.side_slots();
        for (places, xs) in places.chunks(batch).zip(x.chunks_mut(batch * dim)) {
            for (index, &Place { token, .. }) in places.iter().enumerate() {
                let (_, (offset, bytes)) = place(token);
                if !in_memory(weights, token) {
                    weights.stream.side_start(index, offset, bytes);
                }
            }
            let rows = places.iter().zip(xs.chunks_exact_mut(dim));
            for (index, (&Place { token, .. }, x)) in rows.enumerate() {
                let (tile, (offset, bytes)) = place(token);
                let rows = map.tile_rows(tile);
                let row = token as usize % map.tile.rows;
                let mut put = |tile: &[u8]| {
                    let view = map.tile.view(rows, tile);
                    view.dequantize(row, x);
                };
                if in_memory(weights, token) {
                    put(weights.ready().tile(offset, bytes));
                } else {
                    let crc32c = self.kernels.crc32c;
                    let intact = |tile: &[u8]| TileLayout::is_intact(tile, offset, crc32c);
                    put(side_read(weights, index, offset, &self.clock, &intact)?);
                }
            }
        }
        Ok(())
    }
}
