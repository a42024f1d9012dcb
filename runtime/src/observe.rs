//! Watching the feed-forward network at work, for profiling.

/// Sees what goes into every feed-forward section, and what its gate and up rows make of it.
///
/// For each section that serves a pass: in a mixture [`Observer::routed`] for each token that it
/// serves, in order; then [`Observer::inputs`] once; then [`Observer::products`] for runs of
/// neurons that cover the section in ascending order. How many neurons a run has may differ from
/// pass to pass. Calls come one after the other, from the thread that runs the session.
pub trait Observer: Sync {
    /// Token `token` of the pass is among those that `expert` of `layer` serves.
    fn routed(&self, layer: usize, expert: usize, token: usize);

    /// Inputs of the section, `x` (tokens, dim).
    fn inputs(&self, layer: usize, expert: usize, x: &[f32]);

    /// Products before the activation, `gate` and `up` (neurons, tokens), of the neurons from
    /// `first` on.
    fn products(
        &self,
        layer: usize,
        expert: usize,
        first: usize,
        tokens: usize,
        gate: &[f32],
        up: &[f32],
    );
}
