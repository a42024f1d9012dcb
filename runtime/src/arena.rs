//! Memory handed out once, front to back, and never given back.

use bytemuck::Pod;

/// Carves one region; afterwards it is dropped, and no one can carve.
pub struct Arena<'m> {
    free: &'m mut [u8],
    taken_bytes: usize,
}

/// The region is too small; `short_bytes` more would have been enough for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct OutOfMemory {
    /// Bytes that were missing.
    pub short_bytes: usize,
}

/// Every piece begins at a multiple of this, and takes a multiple of it.
pub const CARVE_BYTES: usize = 64;

/// What a piece of `size_bytes` takes of the region.
pub const fn carved_bytes(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(CARVE_BYTES)
}

impl<'m> Arena<'m> {
    /// Uses `region` from its first 4,096-aligned byte on.
    pub fn new(region: &'m mut [u8]) -> Self {
        let pad_bytes = region.as_ptr().align_offset(4096).min(region.len());
        Arena {
            free: &mut region[pad_bytes..],
            taken_bytes: 0,
        }
    }

    /// Carves `count` elements, aligned to 64 bytes. Their contents are what the region held: the
    /// caller writes before it reads, and memory that is never used is never touched.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then nothing was taken.
    pub fn take<T: Pod>(&mut self, count: usize) -> Result<&'m mut [T], OutOfMemory> {
        const { assert!(align_of::<T>() <= CARVE_BYTES) };
        let size_bytes = count.saturating_mul(size_of::<T>());
        if size_bytes > self.free.len() {
            return Err(OutOfMemory {
                short_bytes: size_bytes - self.free.len(),
            });
        }
        let step_bytes = carved_bytes(size_bytes).min(self.free.len());
        let (taken, free) = core::mem::take(&mut self.free).split_at_mut(step_bytes);
        self.free = free;
        self.taken_bytes += step_bytes;
        Ok(bytemuck::cast_slice_mut(&mut taken[..size_bytes]))
    }

    /// Carves whole flash pages, aligned to 4,096 bytes, for direct reads.
    ///
    /// # Errors
    /// [`OutOfMemory`]; then nothing was taken.
    pub fn take_pages(&mut self, size_bytes: usize) -> Result<&'m mut [u8], OutOfMemory> {
        assert!(
            size_bytes.is_multiple_of(4096),
            "{size_bytes} bytes are not whole pages"
        );
        let pad_bytes = self.free.as_ptr().align_offset(4096);
        let need_bytes = pad_bytes.saturating_add(size_bytes);
        if need_bytes > self.free.len() {
            return Err(OutOfMemory {
                short_bytes: need_bytes - self.free.len(),
            });
        }
        let (taken, free) = core::mem::take(&mut self.free).split_at_mut(need_bytes);
        self.free = free;
        self.taken_bytes += need_bytes;
        Ok(&mut taken[pad_bytes..])
    }

    /// Bytes carved so far, padding included.
    pub fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Region([u8; 16384]);

    #[test]
    fn a_refused_request_takes_nothing() {
        let mut region = Region([7; 16384]);
        let mut arena = Arena::new(&mut region.0);
        assert_eq!(
            arena.take::<u64>(2049).unwrap_err(),
            OutOfMemory { short_bytes: 8 }
        );
        assert_eq!(
            arena.take::<u64>(usize::MAX).unwrap_err().short_bytes,
            usize::MAX - 16384
        );
        assert!(
            arena
                .take::<u64>(2048)
                .unwrap()
                .iter()
                .all(|&word| word == 0x0707070707070707)
        );
        assert_eq!(
            arena.take::<u8>(1).unwrap_err(),
            OutOfMemory { short_bytes: 1 }
        );
    }

    #[test]
    fn pieces_are_aligned_and_counted() {
        let mut region = Region([0; 16384]);
        let mut arena = Arena::new(&mut region.0);
        let odd = arena.take::<u8>(3).unwrap();
        assert_eq!(odd.len(), 3);
        assert_eq!(arena.taken_bytes(), 64);
        let pages = arena.take_pages(4096).unwrap();
        assert_eq!(pages.as_ptr().align_offset(4096), 0);
        assert_eq!(arena.taken_bytes(), 8192);
        assert_eq!(
            arena.take_pages(12288).unwrap_err(),
            OutOfMemory { short_bytes: 4096 }
        );
    }
}
