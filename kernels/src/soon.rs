//! What will be needed soon.

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Bytes that will be needed soon: stretches of equal length, at equal distances. They are asked
/// for cache line by cache line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Soon<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) stride_bytes: usize,
    pub(crate) stretch_bytes: usize,
    stretches: usize,
}

impl<'a> Soon<'a> {
    /// The first `stretch_bytes` of each `stride_bytes` of `bytes`.
    ///
    /// # Panics
    /// If a stretch is longer than its stride.
    #[inline]
    pub fn stretches(bytes: &'a [u8], stride_bytes: usize, stretch_bytes: usize) -> Self {
        assert!(stretch_bytes <= stride_bytes);
        let stretches = match bytes.len() {
            0 => 0,
            len => len.div_ceil(stride_bytes),
        };
        Soon {
            bytes,
            stride_bytes,
            stretch_bytes,
            stretches,
        }
    }

    /// How often `bytes` of a stretch are asked for, until all of it was.
    #[inline(always)]
    pub(crate) fn times(&self, bytes: usize) -> usize {
        self.stretches * self.stretch_bytes.div_ceil(bytes)
    }
}

impl<'a> From<&'a [u8]> for Soon<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Soon::stretches(bytes, bytes.len(), bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stretch_counts_all_its_lines() {
        let bytes = [0; 512 + 130];
        assert_eq!(Soon::stretches(&bytes, 256, 130).times(LINE_BYTES), 9);
        assert_eq!(Soon::stretches(&bytes, 256, 130).times(2 * LINE_BYTES), 6);
        assert_eq!(Soon::from(&bytes[..65]).times(LINE_BYTES), 2);
        assert_eq!(Soon::default().times(LINE_BYTES), 0);
        assert_eq!(Soon::from(&bytes[..0]).times(LINE_BYTES), 0);
    }
}
