//! Time, from outside.

/// Monotonic time, the same for all lanes.
pub trait Clock: Sync {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

impl<T: Clock + ?Sized> Clock for &T {
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }
}
