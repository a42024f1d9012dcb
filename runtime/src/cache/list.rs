//! Doubly linked lists of slots, by index, in the caller's storage.

use bytemuck::{Pod, Zeroable};

/// No slot.
const NONE: u32 = u32::MAX;

/// Neighbours of a slot in the list that it is in.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Link {
    previous: u32,
    next: u32,
}

/// First and last slot of a list.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct List {
    first: u32,
    last: u32,
}

/// The links of all slots. A slot is in at most one list at a time, and its owner knows in which.
pub struct Links<'m>(&'m mut [Link]);

impl List {
    /// A list of no slots.
    pub const EMPTY: List = List {
        first: NONE,
        last: NONE,
    };

    /// The slot that was pushed last, of those still here.
    pub fn newest(&self) -> Option<usize> {
        (self.first != NONE).then_some(self.first as usize)
    }

    /// The slot that was pushed first, of those still here.
    pub fn oldest(&self) -> Option<usize> {
        (self.last != NONE).then_some(self.last as usize)
    }
}

impl<'m> Links<'m> {
    /// Links of slots that are in no list.
    pub fn new(links: &'m mut [Link]) -> Self {
        Links(links)
    }

    /// Puts `slot`, which is in no list, at the front of `list`.
    pub fn push(&mut self, list: &mut List, slot: usize) {
        self.0[slot] = Link {
            previous: NONE,
            next: list.first,
        };
        match list.newest() {
            Some(first) => self.0[first].previous = slot as u32,
            None => list.last = slot as u32,
        }
        list.first = slot as u32;
    }

    /// Takes `slot` out of `list`, which it is in.
    pub fn remove(&mut self, list: &mut List, slot: usize) {
        let Link { previous, next } = self.0[slot];
        match previous {
            NONE => {
                assert_eq!(list.first, slot as u32, "slot {slot} is not in this list");
                list.first = next;
            }
            previous => self.0[previous as usize].next = next,
        }
        match next {
            NONE => {
                assert_eq!(list.last, slot as u32, "slot {slot} is not in this list");
                list.last = previous;
            }
            next => self.0[next as usize].previous = previous,
        }
    }

    /// `to`, which is in no list, takes the place of `from` in `list`.
    pub fn replace(&mut self, list: &mut List, from: usize, to: usize) {
        let link = self.0[from];
        self.0[to] = link;
        match link.previous {
            NONE => {
                assert_eq!(list.first, from as u32, "slot {from} is not in this list");
                list.first = to as u32;
            }
            previous => self.0[previous as usize].next = to as u32,
        }
        match link.next {
            NONE => {
                assert_eq!(list.last, from as u32, "slot {from} is not in this list");
                list.last = to as u32;
            }
            next => self.0[next as usize].previous = to as u32,
        }
    }

    /// Slots of `list` from the newest on, or from the oldest.
    #[cfg(test)]
    pub fn walk(&self, list: List, newest_first: bool) -> Vec<usize> {
        let mut slots = Vec::new();
        let mut at = if newest_first { list.first } else { list.last };
        while at != NONE {
            assert!(slots.len() < self.0.len(), "a list without an end");
            slots.push(at as usize);
            let link = self.0[at as usize];
            at = if newest_first {
                link.next
            } else {
                link.previous
            };
        }
        slots
    }
}
