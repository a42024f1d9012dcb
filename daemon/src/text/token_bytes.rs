//! The bytes of every token, in three allocations.

/// What each token prints as: about 2 MB for 150,000 tokens, independent of the tokenizer.
#[derive(Debug, Clone)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `id` is `bytes[ends[id - 1]..ends[id]]`, from 0 for the first.
    ends: Vec<u32>,
    /// One bit for each token: whether it is a control token.
    control: Vec<u64>,
}

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As they are.
    Plain,
    /// Each byte is a printable character, after GPT-2.
    ByteLevel,
    /// U+2581 is a space, `<0x0A>` a byte.
    SentencePiece,
}

/// One entry of the vocabulary.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'t> {
    /// Empty where there is no such token.
    pub(super) text: &'t str,
    /// Added tokens of a byte-level vocabulary are spelled as they are.
    pub(super) added: bool,
    pub(super) control: bool,
}

impl TokenBytes {
    /// The table of `entries`, the first of which is token 0.
    pub(super) fn new<'t>(spelling: Spelling, entries: impl Iterator<Item = Entry<'t>>) -> Self {
        let mut table = TokenBytes {
            bytes: Vec::new(),
            ends: Vec::new(),
            control: Vec::new(),
        };
        for (index, entry) in entries.enumerate() {
            let as_is = entry.control || (entry.added && spelling == Spelling::ByteLevel);
            let spelling = if as_is { Spelling::Plain } else { spelling };
            spelling.push_bytes(entry.text, &mut table.bytes);
            table.ends.push(table.bytes.len() as u32);
            if index.is_multiple_of(64) {
                table.control.push(0);
            }
            table.control[index / 64] |= u64::from(entry.control) << (index % 64);
        }
        table.bytes.shrink_to_fit();
        table.ends.shrink_to_fit();
        table.control.shrink_to_fit();
        table
    }

    /// The raw bytes of a token, maybe a part of a character only. Empty where the vocabulary has
    /// no such token: models have more logits than tokens at times.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }

    /// Whether the token steers the model (`<|im_end|>`) and is not to be printed.
    pub fn is_control(&self, id: u32) -> bool {
        let word = self.control.get(id as usize / 64);
        word.is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Ids are below this.
    pub fn id_end(&self) -> u32 {
        self.ends.len() as u32
    }

    /// Bytes on the heap.
    pub fn size_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * 4 + self.control.capacity() * 8
    }
}

impl Spelling {
    fn push_bytes(self, text: &str, bytes: &mut Vec<u8>) {
        match self {
            Spelling::Plain => bytes.extend_from_slice(text.as_bytes()),
            Spelling::ByteLevel => push_byte_level(text, bytes),
            Spelling::SentencePiece => match byte_token(text) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
            },
        }
    }
}

/// A text with a character that stands for no byte is taken as it is.
fn push_byte_level(text: &str, bytes: &mut Vec<u8>) {
    let start_len = bytes.len();
    for character in text.chars() {
        match byte_of(character) {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start_len);
                bytes.extend_from_slice(text.as_bytes());
                return;
            }
        }
    }
}

/// The byte that a character of a byte-level vocabulary stands for.
///
/// Printable bytes stand for themselves; the others are, in order, U+0100, U+0101 and on
/// (`bytes_to_unicode` of GPT-2's `encoder.py`).
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8), // 0x00..=0x20
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The byte of `<0x0A>` and its like.
fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let upper_hex = |byte: &u8| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte);
    if digits.len() != 2 || !digits.as_bytes().iter().all(upper_hex) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_one_character() {
        let mut seen = [0; 256];
        for character in '\0'..='\u{FFFF}' {
            if let Some(byte) = byte_of(character) {
                seen[byte as usize] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
        let text = |text| {
            let mut bytes = Vec::new();
            push_byte_level(text, &mut bytes);
            bytes
        };
        assert_eq!(text("ĠaĊâĤ¬"), " a\n€".as_bytes());
        // Not byte-level at all.
        assert_eq!(text("ab<｜end｜>"), "ab<｜end｜>".as_bytes());
    }

    fn plain(text: &str) -> Entry<'_> {
        Entry {
            text,
            added: false,
            control: false,
        }
    }

    #[test]
    fn sentence_pieces_are_spelled_out() {
        let texts = [
            "▁▁a", "<0x0A>", "<0xFF>", "<0xff>", "<0x+A>", "<0x0A", "", "▁",
        ];
        let entries = texts.iter().map(|text| plain(text));
        let table = TokenBytes::new(Spelling::SentencePiece, entries);
        let want: [&[u8]; 8] = [
            b"  a", b"\n", b"\xFF", b"<0xff>", b"<0x+A>", b"<0x0A", b"", b" ",
        ];
        for (id, want) in want.iter().enumerate() {
            assert_eq!(table.bytes(id as u32), *want);
        }
        assert_eq!(table.bytes(8), b"");
        assert_eq!(table.bytes(u32::MAX), b"");
    }

    #[test]
    fn control_tokens_are_marked() {
        let entries = (0..200).map(|id| Entry {
            text: "é",
            added: id % 2 == 0,
            control: [0, 63, 64, 199].contains(&id),
        });
        let table = TokenBytes::new(Spelling::ByteLevel, entries);
        assert_eq!(table.id_end(), 200);
        for id in 0..300 {
            assert_eq!(table.is_control(id), [0, 63, 64, 199].contains(&id), "{id}");
        }
        let (added, byte) = ("é".as_bytes(), &b"\xE9"[..]);
        assert_eq!(
            [0, 1, 2, 63].map(|id| table.bytes(id)),
            [added, byte, added, added]
        );
        assert_eq!(table.size_bytes(), (102 * 2 + 98) + 200 * 4 + 4 * 8);
    }
}
