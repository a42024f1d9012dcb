//! Long texts in windows: the pre-tokenizer needs about 100 bytes of memory for a byte of text.

use super::{Markup, Tokenizer, TokenizerError};
use crate::text::token_bytes::Spelling;

/// A window has at least so many bytes.
#[cfg(not(test))]
const WINDOW_BYTES: usize = 32 << 10;
#[cfg(test)]
const WINDOW_BYTES: usize = 64;

/// A cut is tried on so many bytes to both sides.
const CONTEXT_BYTES: usize = 256;

/// After so many cuts that changed the ids the text is left whole.
const TRIES_MAX: usize = 64;

impl Tokenizer {
    /// Appends the ids of `text`, window by window, the same as those of the whole.
    pub(super) fn encode_windows(
        &self,
        mut text: &str,
        markup: Markup,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        while let Some(cut) = self.find_cut(text, markup)? {
            let (window, rest) = text.split_at(cut);
            self.encode_window(window, markup, ids)?;
            text = rest;
        }
        self.encode_window(text, markup, ids)
    }

    /// Where a long text can be cut without a change of its ids; `None` leaves it whole.
    ///
    /// Only byte-level vocabularies are cut: the others may have no pre-tokenizer, and put a space
    /// before each part. The place is at a space between two letters or at a letter after a single
    /// line's end: the pre-tokenizers in use always begin a word there. That it holds for this one
    /// too is tried on what is around the place.
    fn find_cut(&self, text: &str, markup: Markup) -> Result<Option<usize>, TokenizerError> {
        if self.spelling != Spelling::ByteLevel || text.len() < 2 * WINDOW_BYTES {
            return Ok(None);
        }
        let bytes = text.as_bytes();
        let is_place = |&cut: &usize| {
            let around = [bytes[cut - 2], bytes[cut - 1], bytes[cut], bytes[cut + 1]];
            let [graphic, letter] = [u8::is_ascii_graphic, u8::is_ascii_alphabetic];
            (letter(&around[1]) && around[2] == b' ' && letter(&around[3]))
                || (graphic(&around[0]) && around[1] == b'\n' && letter(&around[2]))
        };
        for cut in (WINDOW_BYTES..text.len() - 1)
            .filter(is_place)
            .take(TRIES_MAX)
        {
            let start = text.floor_char_boundary(cut - CONTEXT_BYTES.min(cut));
            let end = text.ceil_char_boundary(cut + CONTEXT_BYTES);
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            self.encode_window(&text[start..end], markup, &mut whole)?;
            self.encode_window(&text[start..cut], markup, &mut parts)?;
            self.encode_window(&text[cut..end], markup, &mut parts)?;
            if whole == parts {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }
}
