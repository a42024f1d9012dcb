//! Tokens' bytes as they are generated to text that can be printed.

#[cfg(test)]
mod tests;

use super::stop::{StopError, StopFilter};
use super::utf8::Utf8Stream;

/// What a token added. Bytes and text that are held back come with a later piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'s> {
    /// Printable text, of whole characters.
    pub text: &'s str,
    /// The raw bytes that are known to lie before any stop string.
    pub bytes: &'s [u8],
    /// A stop string is complete, the generation is at its end. Nothing comes after this piece.
    pub stopped: bool,
}

/// Turns the bytes of tokens into text, piece by piece.
///
/// A piece is the longest text that can be printed for certain: the beginning of a character and
/// whatever could begin a stop string are held back until the next token, or the end.
///
/// ```
/// use tessera::text::TextStream;
/// let mut stream = TextStream::new(&["\nUser:"]).unwrap();
/// assert_eq!(stream.push(b"caf\xC3").text, "caf");
/// assert_eq!(stream.push(b"\xA9\nUs").text, "é");
/// let last = stream.push(b"er: more");
/// assert!(last.stopped && last.text.is_empty());
/// ```
#[derive(Debug)]
pub struct TextStream {
    filter: StopFilter,
    utf8: Utf8Stream,
    text: String,
    bytes: Vec<u8>,
}

impl TextStream {
    /// Text up to the first of `stops`.
    ///
    /// # Errors
    ///
    /// A stop string that is empty or too long, or too many of them.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        Ok(TextStream {
            filter: StopFilter::new(stops)?,
            utf8: Utf8Stream::new(),
            text: String::new(),
            bytes: Vec::new(),
        })
    }

    /// Takes the bytes of the next token.
    pub fn push(&mut self, bytes: &[u8]) -> Piece<'_> {
        let was_stopped = self.filter.is_stopped();
        self.text.clear();
        self.bytes.clear();
        let stopped = self.filter.push(bytes, &mut self.bytes);
        self.utf8.push(&self.bytes, &mut self.text);
        if stopped && !was_stopped {
            self.utf8.finish(&mut self.text);
        }
        Piece {
            text: &self.text,
            bytes: &self.bytes,
            stopped,
        }
    }

    /// The end without a stop string: all that was held back.
    pub fn finish(&mut self) -> Piece<'_> {
        self.text.clear();
        self.bytes.clear();
        self.filter.finish(&mut self.bytes);
        self.utf8.push(&self.bytes, &mut self.text);
        self.utf8.finish(&mut self.text);
        Piece {
            text: &self.text,
            bytes: &self.bytes,
            stopped: self.filter.is_stopped(),
        }
    }
}
