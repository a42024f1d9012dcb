//! The cold segment gives memory back, and takes it again.
//!
//! Slots go from the end, so that what is given back is one run of pages; the bundles that are lost
//! are those that the policy would evict first, wherever they lie. Nothing is in use between two
//! calls of a session but what is still read on a guess, and that is waited for.

use core::ops::Range;

use tessera_hal::Reclaim;

use super::books::Cold;

/// Where the slots lie, in addresses.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: usize,
    slot_bytes: usize,
    count: usize,
    page_bytes: usize,
}

impl Span {
    /// Where the last whole page ends.
    fn end(&self) -> usize {
        (self.start + self.count * self.slot_bytes) / self.page_bytes * self.page_bytes
    }

    /// Bytes of the whole pages that are free where `limit` slots stay.
    fn given_bytes(&self, limit: usize) -> usize {
        let first = (self.start + limit * self.slot_bytes).next_multiple_of(self.page_bytes);
        self.end().saturating_sub(first)
    }

    /// The most slots that may stay where `bytes` are free in whole pages; `None` if no number of
    /// slots leaves that many.
    fn limit_for(&self, bytes: usize) -> Option<usize> {
        if bytes == 0 {
            return Some(self.count);
        }
        let first = self.end().checked_sub(bytes)? / self.page_bytes * self.page_bytes;
        Some(first.checked_sub(self.start)? / self.slot_bytes)
    }

    /// The whole pages of slots `limits`, as a range of the bytes from the first of them on.
    fn pages(&self, limits: Range<usize>) -> Range<usize> {
        let start = self.start + limits.start * self.slot_bytes;
        match self.given_bytes(limits.start) - self.given_bytes(limits.end) {
            0 => 0..0,
            bytes => {
                let first = start.next_multiple_of(self.page_bytes) - start;
                first..first + bytes
            }
        }
    }
}

impl Cold<'_> {
    fn span(&self, page_bytes: usize) -> Span {
        Span {
            start: self.slots.address(),
            slot_bytes: self.books.sizes.slot_bytes,
            count: self.books.sizes.n_slots,
            page_bytes,
        }
    }

    /// Bytes that can be given back now, in whole pages.
    pub fn spare_bytes(&self, page_bytes: usize) -> usize {
        let (limit, span) = (self.books.cache.slots(), self.span(page_bytes));
        let least = self.books.sizes.slots_least.min(limit);
        span.given_bytes(least) - span.given_bytes(limit)
    }

    /// Gives at least `bytes` back, which must not be more than [`Cold::spare_bytes`]; returns how
    /// many it gave. Nothing is in flight or held.
    pub fn shrink(&mut self, bytes: usize, reclaim: &mut impl Reclaim) -> usize {
        let (old, span) = (self.books.cache.slots(), self.span(reclaim.page_bytes()));
        let given = span.given_bytes(old);
        let limit = given.checked_add(bytes).and_then(|all| span.limit_for(all));
        let Some(limit) = limit else {
            panic!("{bytes} bytes of {} slots", span.count)
        };
        let limit = limit.min(old);
        let (slots, whole) = (&self.slots, &mut *self.books.whole);
        let owed = self.books.cache.shrink(limit, &mut |from, to| {
            let (from, to) = (from.0 as usize, to.0 as usize);
            slots.copy(from, to);
            whole[to] = whole[from];
        });
        assert_eq!(owed, 0, "slots are in use between two passes");
        let pages = span.pages(limit..old);
        let bytes = pages.len();
        if bytes > 0 {
            reclaim.give_back(&mut self.slots.bytes_from(limit)[pages]);
        }
        bytes
    }

    /// Takes at most `bytes` back; returns how many it took.
    pub fn grow(&mut self, bytes: usize, page_bytes: usize) -> usize {
        let (old, span) = (self.books.cache.slots(), self.span(page_bytes));
        let given = span.given_bytes(old);
        let limit = span.limit_for(given.saturating_sub(bytes));
        let limit = limit.map_or(old, |limit| limit.max(old));
        self.books.cache.set_limit(limit);
        given - span.given_bytes(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_pages_of_any_size() {
        for page_bytes in [1, 64, 4096] {
            for slot_bytes in [64, 100, 4096, 5120, 9000] {
                for start in [0, 64, 4095, 8192] {
                    let span = Span {
                        start: 1 << 20 | start,
                        slot_bytes,
                        count: 37,
                        page_bytes,
                    };
                    assert_eq!(span.given_bytes(37), 0);
                    let all = span.given_bytes(0);
                    for bytes in (0..=all).step_by(97).chain([all]) {
                        let limit = span.limit_for(bytes).unwrap();
                        assert!(span.given_bytes(limit) >= bytes, "{span:?} {bytes}");
                        if limit < 37 {
                            assert!(span.given_bytes(limit + 1) < bytes, "{span:?} {bytes}");
                        }
                        let pages = span.pages(limit..37);
                        assert!(pages.end <= (37 - limit) * slot_bytes, "{span:?} {bytes}");
                        let first = span.start + limit * slot_bytes + pages.start;
                        assert!(pages.is_empty() || first.is_multiple_of(page_bytes));
                        assert_eq!(pages.len(), span.given_bytes(limit));
                    }
                    assert_eq!(span.limit_for(all + page_bytes), None, "{span:?}");
                }
            }
        }
    }
}
