//! Fork-join over lanes.

/// Lanes that run pieces of work side by side.
///
/// Callers may rely on: every item is visited exactly once, on some lane; `for_each` returns only
/// when all visits are over; what a visit wrote is visible to the caller afterwards. They may not
/// rely on which lane visits which item, nor on any order: results must not depend on it.
pub trait Cores {
    /// Number of lanes, the caller's own included: at least 1.
    fn lanes(&self) -> usize;

    /// Visits each of `items`; `visit` also gets the lane's index, below [`Cores::lanes`]. No two
    /// visits run on one lane at the same time.
    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync));
}

impl<C: Cores> Cores for &C {
    fn lanes(&self) -> usize {
        (**self).lanes()
    }

    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync)) {
        (**self).for_each(items, visit);
    }
}

/// The caller's core alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct OneLane;

impl Cores for OneLane {
    fn lanes(&self) -> usize {
        1
    }

    fn for_each<T: Send>(&self, items: &mut [T], visit: &(dyn Fn(usize, &mut T) + Sync)) {
        for item in items {
            visit(0, item);
        }
    }
}
