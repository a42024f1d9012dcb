//! Time, from outside.

/// Monotonic time.
pub trait Clock {
    /// Nanoseconds since some fixed moment; never goes back.
    fn now_ns(&self) -> u64;
}

impl<T: Clock + ?Sized> Clock for &T {
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }
}
