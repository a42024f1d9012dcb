//! Counters of what a session did.

/// Counters since the session began (or since they were taken).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Stats {
    /// Bytes read from flash.
    pub bytes_read: u64,
    /// Reads.
    pub reads: u64,
    /// Nanoseconds that compute waited for flash.
    pub stall_ns: u64,
    /// Reads that were tried again.
    pub retries: u64,
    /// Bytes of weights used that were resident.
    pub hit_bytes: u64,
    /// Bytes of weights used that were read for this use.
    pub miss_bytes: u64,
    /// Neurons that were computed, in sparse passes.
    pub active_neurons: u64,
    /// Neurons there were to compute, in sparse passes.
    pub all_neurons: u64,
}

impl Stats {
    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Stats) -> Stats {
        Stats {
            bytes_read: self.bytes_read - earlier.bytes_read,
            reads: self.reads - earlier.reads,
            stall_ns: self.stall_ns - earlier.stall_ns,
            retries: self.retries - earlier.retries,
            hit_bytes: self.hit_bytes - earlier.hit_bytes,
            miss_bytes: self.miss_bytes - earlier.miss_bytes,
            active_neurons: self.active_neurons - earlier.active_neurons,
            all_neurons: self.all_neurons - earlier.all_neurons,
        }
    }
}
