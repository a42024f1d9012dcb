//! Byte-pair encoding over compact tables.
//!
//! The `tokenizers` crate keeps each token twice in hash maps and needs 60 MB for a vocabulary of
//! 150,000; these tables need 6 MB and read the same JSON without building anything in between.
//! The tests compare both on random text.

mod json;
#[cfg(test)]
mod tests;

use super::vocab::Vocab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One rule: `left` and `right` next to each other become `merged`; the lowest rank goes first.
#[derive(Debug, Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    rank: u32,
    merged: u32,
}

/// A vocabulary and its merge rules.
#[derive(Debug)]
pub(super) struct Bpe {
    vocab: Vocab,
    /// By left and right, each pair once.
    merges: Vec<Merge>,
    /// The token for characters that the vocabulary does not have.
    unknown: Option<u32>,
    /// Several unknown characters in a row become one unknown token.
    fuse_unknown: bool,
    /// The tokens `<0x00>` to `<0xFF>`, for characters that the vocabulary does not have.
    byte_tokens: Option<Box<[u32; 256]>>,
    /// A word that is a token as a whole is not split, whatever the rules would give.
    whole_words: bool,
}

/// The vocabulary has no token for this character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnknownCharacter(pub(super) char);

/// A part of a word on its way to be merged: a doubly linked list in an array.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    /// False once it became part of the symbol before it.
    alive: bool,
}

/// Ends the list of symbols.
const NONE: u32 = u32::MAX;

/// A pair that could be merged: the lowest rank first, then the leftmost. It is out of date where
/// the symbols there no longer merge to `merged`.
type Waiting = Reverse<(u32, u32, u32)>;

/// Memory of [`Bpe::encode_word`], kept from word to word.
#[derive(Debug, Default)]
pub(super) struct Work {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Waiting>,
}

impl Bpe {
    pub(super) fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    pub(super) fn has_byte_tokens(&self) -> bool {
        self.byte_tokens.is_some()
    }

    /// Appends the ids of one word, as the pre-tokenizer gave it.
    ///
    /// # Errors
    ///
    /// A character that is not in the vocabulary, where there is no unknown token either.
    pub(super) fn encode_word(
        &self,
        word: &str,
        work: &mut Work,
        ids: &mut Vec<u32>,
    ) -> Result<(), UnknownCharacter> {
        if self.whole_words
            && let Some(id) = self.vocab.id(word)
        {
            ids.push(id);
            return Ok(());
        }
        self.split(word, &mut work.symbols)?;
        self.merge(work);
        ids.extend(
            work.symbols
                .iter()
                .filter(|symbol| symbol.alive)
                .map(|symbol| symbol.id),
        );
        Ok(())
    }

    /// One symbol for each character, or for each byte of those that are unknown.
    fn split(&self, word: &str, symbols: &mut Vec<Symbol>) -> Result<(), UnknownCharacter> {
        symbols.clear();
        let mut push = |id| {
            let index = symbols.len() as u32;
            let previous = index.checked_sub(1).unwrap_or(NONE);
            symbols.push(Symbol {
                id,
                previous,
                next: index + 1,
                alive: true,
            });
        };
        let mut after_unknown = false;
        for (start, character) in word.char_indices() {
            let text = &word[start..start + character.len_utf8()];
            let was_after_unknown = std::mem::take(&mut after_unknown);
            if let Some(id) = self.vocab.id(text) {
                push(id);
            } else if let Some(tokens) = &self.byte_tokens {
                text.bytes().for_each(|byte| push(tokens[byte as usize]));
            } else if let Some(id) = self.unknown {
                after_unknown = true;
                if !(was_after_unknown && self.fuse_unknown) {
                    push(id);
                }
            } else {
                return Err(UnknownCharacter(character));
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        Ok(())
    }

    /// Merges the best pair until there is none. O(n log n) for n symbols: some tokenizers have
    /// no pre-tokenizer, and the whole text is one word.
    fn merge(&self, work: &mut Work) {
        work.queue.clear();
        for index in 1..work.symbols.len() as u32 {
            self.enqueue(work, index - 1);
        }
        while let Some(Reverse((_, index, merged))) = work.queue.pop() {
            let symbol = work.symbols[index as usize];
            if !symbol.alive || symbol.next == NONE {
                continue;
            }
            let right = work.symbols[symbol.next as usize];
            if self
                .rule(symbol.id, right.id)
                .is_none_or(|rule| rule.merged != merged)
            {
                continue;
            }
            work.symbols[symbol.next as usize].alive = false;
            work.symbols[index as usize] = Symbol {
                id: merged,
                next: right.next,
                ..symbol
            };
            if right.next != NONE {
                work.symbols[right.next as usize].previous = index;
            }
            if symbol.previous != NONE {
                self.enqueue(work, symbol.previous);
            }
            self.enqueue(work, index);
        }
    }

    /// Notes that the symbol and the one after it could be merged, if there is a rule for them.
    fn enqueue(&self, work: &mut Work, index: u32) {
        let symbol = work.symbols[index as usize];
        if symbol.next == NONE {
            return;
        }
        let right = work.symbols[symbol.next as usize].id;
        if let Some(rule) = self.rule(symbol.id, right) {
            work.queue.push(Reverse((rule.rank, index, rule.merged)));
        }
    }

    fn rule(&self, left: u32, right: u32) -> Option<&Merge> {
        let found = self
            .merges
            .binary_search_by_key(&(left, right), |m| (m.left, m.right));
        found.ok().map(|index| &self.merges[index])
    }
}
