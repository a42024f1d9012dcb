//! The system's monotonic clock.

use super::sys;
use crate::clock::Clock;

/// `CLOCK_MONOTONIC`: nanoseconds since some moment near the start of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        sys::monotonic_ns()
    }
}

#[test]
fn time_goes_forward() {
    let start_ns = MonotonicClock.now_ns();
    std::thread::sleep(std::time::Duration::from_millis(2));
    let passed_ns = MonotonicClock.now_ns() - start_ns;
    assert!(
        (2_000_000..60_000_000_000).contains(&passed_ns),
        "{passed_ns}"
    );
}
