//! A device that counts what is asked of the one inside.

use crate::flash::{Flash, IoError, Read};

/// Sizes of requests that are remembered one by one, the latest ones.
pub const REQUEST_LOG_MAX: usize = 256;

/// What was asked of a device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Meter {
    /// Reads accepted.
    pub reads: u64,
    /// Bytes of these reads.
    pub bytes: u64,
    /// Reads refused because the queue was full.
    pub busy: u64,
    /// Reads that came out as failures.
    pub failed: u64,
    /// Reads in flight now.
    pub in_flight: usize,
    /// Most reads in flight at once.
    pub in_flight_max: usize,
    /// Calls of `wait`.
    pub waits: u64,
    /// Sizes of the latest requests in bytes, the newest last.
    pub sizes_bytes: heapless::HistoryBuf<u32, REQUEST_LOG_MAX>,
}

/// Counts reads of the device inside.
#[derive(Debug)]
pub struct Metered<F> {
    inner: F,
    meter: Meter,
}

impl<F> Metered<F> {
    /// Counts from zero.
    pub fn new(inner: F) -> Self {
        Metered {
            inner,
            meter: Meter::default(),
        }
    }

    /// The counters so far.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Starts to count anew; reads in flight stay counted as such.
    pub fn reset(&mut self) {
        let in_flight = self.meter.in_flight;
        self.meter = Meter {
            in_flight,
            in_flight_max: in_flight,
            ..Meter::default()
        };
    }

    /// The device inside.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// The device inside, to be changed.
    pub fn inner_mut(&mut self) -> &mut F {
        &mut self.inner
    }
}

impl<'m, F: Flash<'m>> Flash<'m> for Metered<F> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn align_bytes(&self) -> usize {
        self.inner.align_bytes()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)> {
        let bytes = read.bytes;
        let outcome = self.inner.submit(read);
        let meter = &mut self.meter;
        match &outcome {
            Ok(()) => {
                meter.reads += 1;
                meter.bytes += bytes as u64;
                meter.in_flight += 1;
                meter.in_flight_max = meter.in_flight_max.max(meter.in_flight);
                meter
                    .sizes_bytes
                    .write(u32::try_from(bytes).unwrap_or(u32::MAX));
            }
            Err((IoError::Busy, _)) => meter.busy += 1,
            Err(_) => meter.failed += 1,
        }
        outcome
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)> {
        let done = self.inner.reap()?;
        self.meter.in_flight -= 1;
        self.meter.failed += u64::from(done.1.is_err());
        Some(done)
    }

    fn wait(&mut self, timeout_ns: u64) -> bool {
        self.meter.waits += 1;
        self.inner.wait(timeout_ns)
    }
}
