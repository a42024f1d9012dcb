//! The texts of a vocabulary, found by id and by text, in three allocations.

use std::hash::{BuildHasher, RandomState};

/// Ids are below this: sixteen times the largest vocabulary in use.
pub(super) const VOCAB_MAX: usize = 1 << 22;

/// Marks a free place of the index.
const FREE: u32 = u32::MAX;

/// Where a token's text lies; an empty text is no token.
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    start: u32,
    len: u32,
}

/// Texts of tokens as the vocabulary spells them. Built by [`Vocab::insert`], then
/// [`Vocab::finish`]; until then nothing is found by text.
#[derive(Debug, Default)]
pub(super) struct Vocab {
    texts: String,
    spans: Vec<Span>,
    /// Open addressing with linear steps; ids, a power of two of places, at most two thirds used.
    index: Vec<u32>,
    hasher: RandomState,
}

impl Vocab {
    /// Adds a token. False where the id is taken or too large, or the text is too much.
    pub(super) fn insert(&mut self, id: u32, text: &str) -> bool {
        let index = id as usize;
        if index >= VOCAB_MAX || self.texts.len() + text.len() > u32::MAX as usize {
            return false;
        }
        if index >= self.spans.len() {
            self.spans.resize(index + 1, Span::default());
        }
        let span = &mut self.spans[index];
        if span.len > 0 {
            return false;
        }
        *span = Span {
            start: self.texts.len() as u32,
            len: text.len() as u32,
        };
        self.texts.push_str(text);
        true
    }

    /// Gives back what growing took too much, and builds the index. Of equal texts the lowest id
    /// is found.
    pub(super) fn finish(&mut self) {
        self.texts.shrink_to_fit();
        self.spans.shrink_to_fit();
        let places = (self.spans.len() * 3 / 2 + 2).next_power_of_two();
        self.index = vec![FREE; places];
        for id in 0..self.spans.len() as u32 {
            if let Some(text) = self.text(id)
                && let Err(place) = self.find(text)
            {
                self.index[place] = id;
            }
        }
    }

    /// The token's text; `None` where there is no such token.
    pub(super) fn text(&self, id: u32) -> Option<&str> {
        let span = self.spans.get(id as usize).filter(|span| span.len > 0)?;
        Some(&self.texts[span.start as usize..][..span.len as usize])
    }

    /// The id of the token that has just this text.
    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.find(text).ok()
    }

    /// Ids are below this.
    pub(super) fn id_end(&self) -> u32 {
        self.spans.len() as u32
    }

    /// The id, or the free place where it would be.
    fn find(&self, text: &str) -> Result<u32, usize> {
        assert!(!self.index.is_empty(), "finish comes first");
        let mask = self.index.len() - 1;
        let mut place = self.hasher.hash_one(text) as usize & mask;
        loop {
            let id = self.index[place];
            if id == FREE {
                return Err(place);
            }
            if self.text(id) == Some(text) {
                return Ok(id);
            }
            place = (place + 1) & mask;
        }
    }
}

#[test]
fn found_by_id_and_by_text() {
    let mut vocab = Vocab::default();
    for id in 0..1000 {
        assert!(vocab.insert(id * 2, &format!("t{id}")));
    }
    assert!(!vocab.insert(4, "again"));
    assert!(!vocab.insert(VOCAB_MAX as u32, "far"));
    vocab.finish();
    assert_eq!(vocab.id_end(), 1999);
    for id in 0..1000 {
        assert_eq!(vocab.text(id * 2), Some(&*format!("t{id}")));
        assert_eq!(vocab.id(&format!("t{id}")), Some(id * 2));
        assert_eq!(vocab.text(id * 2 + 1), None);
    }
    assert_eq!(vocab.id("again"), None);
    assert_eq!(vocab.id(""), None);
}

#[test]
fn an_empty_vocabulary_finds_nothing() {
    let mut vocab = Vocab::default();
    vocab.finish();
    assert_eq!(
        (vocab.id("a"), vocab.text(0), vocab.id_end()),
        (None, None, 0)
    );
}
