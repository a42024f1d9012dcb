//! How long a simulated device takes.

/// Times of a flash device: a pipeline of parallel accesses and one transfer at a time.
///
/// A read that is submitted alone takes `access_ns + request_ns + bytes * byte_ps / 1000`. Many at
/// once overlap their accesses, so that the device gives one read each `request_ns + bytes *
/// byte_ps / 1000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// From the start of a request to its first byte; overlaps with other requests.
    pub access_ns: u64,
    /// Share of the access time, in percent, by which it varies at random, up and down.
    pub jitter_pct: u32,
    /// Time that each request occupies the device.
    pub request_ns: u64,
    /// Time that each byte occupies the device, in picoseconds.
    pub byte_ps: u64,
    /// Requests out of 1000 that take `slow_ns` longer: error correction, housekeeping.
    pub slow_pml: u32,
    /// How much longer those take.
    pub slow_ns: u64,
}

impl Latency {
    /// No time at all.
    pub const NONE: Latency = Latency {
        access_ns: 0,
        jitter_pct: 0,
        request_ns: 0,
        byte_ps: 0,
        slow_pml: 0,
        slow_ns: 0,
    };

    /// UFS 4.0, reads within some 128 MiB: 4 KiB blocks at 1 GB/s, 512 KiB blocks at 3.9 GB/s
    /// (PowerInfer-2, section 2.3: 1 GB/s, and 3.5 GB/s at random to 4 GB/s in sequence). The
    /// access time is assumed.
    pub const UFS_4_0: Latency = Latency {
        access_ns: 60_000,
        jitter_pct: 30,
        request_ns: 3_000,
        byte_ps: 250,
        slow_pml: 1,
        slow_ns: 1_000_000,
    };

    /// UFS 4.0, reads over a wide range, where the device must look up its own tables: 4 KiB
    /// blocks at 450 MB/s.
    pub const UFS_4_0_WIDE: Latency = Latency {
        request_ns: 8_000,
        ..Self::UFS_4_0
    };

    /// UFS 3.1: 2.1 GB/s in sequence by its rating; the times of a request are assumed.
    pub const UFS_3_1: Latency = Latency {
        access_ns: 80_000,
        jitter_pct: 30,
        request_ns: 6_000,
        byte_ps: 476,
        slow_pml: 1,
        slow_ns: 2_000_000,
    };

    /// Time that a request of `bytes` occupies the device.
    pub fn occupied_ns(&self, bytes: usize) -> u64 {
        let transfer_ns = (bytes as u64).saturating_mul(self.byte_ps) / 1000;
        self.request_ns.saturating_add(transfer_ns)
    }
}

#[test]
fn presets_give_the_published_bandwidth() {
    let mb_per_s = |latency: Latency, bytes| bytes as u64 * 1000 / latency.occupied_ns(bytes);
    assert!((950..1_100).contains(&mb_per_s(Latency::UFS_4_0, 4096)));
    assert!((3_500..4_000).contains(&mb_per_s(Latency::UFS_4_0, 512 << 10)));
    assert!((430..470).contains(&mb_per_s(Latency::UFS_4_0_WIDE, 4096)));
    assert!((2_000..2_100).contains(&mb_per_s(Latency::UFS_3_1, 512 << 10)));
}
