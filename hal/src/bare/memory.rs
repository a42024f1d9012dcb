//! An image that already lies in memory: flash that is mapped, or was loaded before.

use crate::flash::{Flash, IoError, Read};

/// Reads that wait to be reaped.
const DEPTH: usize = 32;

/// Flash over bytes in memory. Reads are copies, made when they are reaped.
pub struct MemoryFlash<'i, 'm> {
    image: &'i [u8],
    queue: heapless::Deque<Read<'m>, DEPTH>,
}

impl<'i, 'm> MemoryFlash<'i, 'm> {
    /// The image is `image`.
    pub const fn new(image: &'i [u8]) -> Self {
        MemoryFlash {
            image,
            queue: heapless::Deque::new(),
        }
    }
}

impl core::fmt::Debug for MemoryFlash<'_, '_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MemoryFlash")
            .field("bytes", &self.image.len())
            .field("waiting", &self.queue.len())
            .finish_non_exhaustive()
    }
}

impl<'m> Flash<'m> for MemoryFlash<'_, 'm> {
    fn size_bytes(&self) -> u64 {
        self.image.len() as u64
    }

    fn align_bytes(&self) -> usize {
        1
    }

    fn depth(&self) -> usize {
        DEPTH
    }

    fn submit(&mut self, read: Read<'m>) -> Result<(), (IoError, Read<'m>)> {
        if let Err(error) = read.check(self.size_bytes(), self.align_bytes()) {
            return Err((error, read));
        }
        self.queue
            .push_back(read)
            .map_err(|read| (IoError::Busy, read))
    }

    fn flush(&mut self) {}

    fn reap(&mut self) -> Option<(Read<'m>, Result<(), IoError>)> {
        let read = self.queue.pop_front()?;
        // In bounds, and so in `usize`: `submit` compared with the image's length.
        let start = read.start.offset_bytes() as usize;
        read.buf[..read.bytes].copy_from_slice(&self.image[start..start + read.bytes]);
        Some((read, Ok(())))
    }

    fn wait(&mut self, _timeout_ns: u64) -> bool {
        !self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageIndex;

    fn read(start: u32, buf: &mut [u8]) -> Read<'_> {
        let bytes = buf.len();
        Read {
            start: PageIndex(start),
            buf,
            bytes,
            tag: start,
        }
    }

    #[test]
    fn reads_come_out_once_with_the_image() {
        let image: Vec<u8> = (0..4 * 4096u32).map(|i| (i / 4096) as u8 + 1).collect();
        let (mut one, mut two) = (vec![0; 4096], vec![0; 8192]);
        let mut flash = MemoryFlash::new(&image);
        assert!(!flash.wait(0));
        flash.submit(read(3, &mut one)).unwrap();
        flash.submit(read(1, &mut two)).unwrap();
        assert!(flash.wait(0));
        for (start, first, last) in [(3, 4, 4), (1, 2, 3)] {
            let (read, result) = flash.reap().unwrap();
            assert_eq!((read.tag, result), (start, Ok(())));
            assert_eq!((read.buf[0], read.buf[read.bytes - 1]), (first, last));
        }
        assert!(flash.reap().is_none());
    }

    #[test]
    fn what_is_outside_is_refused_even_where_its_offset_wraps_in_32_bits() {
        let image = vec![0; 2 * 4096];
        let mut pages = [[0; 4096]; 3];
        let mut short = [0; 100];
        let mut flash = MemoryFlash::new(&image);
        for (buf, start) in pages.iter_mut().zip([2, 1 << 20, u32::MAX]) {
            let (error, _) = flash.submit(read(start, buf)).unwrap_err();
            assert_eq!(error, IoError::EndOfImage, "{start}");
        }
        let (error, _) = flash.submit(read(0, &mut short)).unwrap_err();
        assert_eq!(error, IoError::Unaligned);
    }

    #[test]
    fn a_full_queue_hands_the_read_back() {
        let image = vec![0; 4096];
        let mut memory = vec![0; (DEPTH + 1) * 4096];
        let mut flash = MemoryFlash::new(&image);
        let mut pieces = memory.chunks_mut(4096);
        for buf in pieces.by_ref().take(DEPTH) {
            flash.submit(read(0, buf)).unwrap();
        }
        let (error, _) = flash.submit(read(0, pieces.next().unwrap())).unwrap_err();
        assert_eq!(error, IoError::Busy);
    }
}
