//! Bytes that arrive in parts to text.

/// Decodes UTF-8 that arrives in parts of any size.
///
/// All the text that comes out is what `String::from_utf8_lossy` gives for all the bytes at once,
/// and it comes out as early as that can be known: only the beginning of a character is held back.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most three bytes.
    tail: Vec<u8>,
}

impl Utf8Stream {
    /// Nothing held back yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `text` what `bytes` complete.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.tail.extend_from_slice(bytes);
        let mut start = 0;
        while start < self.tail.len() {
            match std::str::from_utf8(&self.tail[start..]) {
                Ok(valid) => {
                    text.push_str(valid);
                    start = self.tail.len();
                }
                Err(error) => {
                    let valid_end = start + error.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.tail[start..valid_end]));
                    start = valid_end;
                    let Some(invalid_len) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += invalid_len;
                }
            }
        }
        self.tail.drain(..start);
    }

    /// The end: the beginning of a character that never came becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.tail.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.tail.clear();
        }
    }

    /// What is held back.
    pub fn held(&self) -> &[u8] {
        &self.tail
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The text of `parts`, and that each part's text came as early as it could.
    fn decode(parts: &[&[u8]]) -> String {
        let mut stream = Utf8Stream::new();
        let mut text = String::new();
        let mut bytes = Vec::new();
        for part in parts {
            stream.push(part, &mut text);
            bytes.extend_from_slice(part);
            // Whatever the next byte is, the text so far stays a prefix.
            let held = stream.held().len();
            assert!(held < 4);
            let settled = String::from_utf8_lossy(&bytes[..bytes.len() - held]);
            assert_eq!(text, settled, "{parts:x?}");
        }
        stream.finish(&mut text);
        stream.finish(&mut text);
        text
    }

    /// Calls `check` with every way to cut `bytes` in parts.
    pub(in crate::text) fn for_all_splits(bytes: &[u8], mut check: impl FnMut(&[&[u8]])) {
        assert!(!bytes.is_empty() && bytes.len() <= 16);
        for cuts in 0u32..1 << (bytes.len() - 1) {
            let mut parts = Vec::new();
            let mut start = 0;
            for end in 1..=bytes.len() {
                if end == bytes.len() || cuts >> (end - 1) & 1 == 1 {
                    parts.push(&bytes[start..end]);
                    start = end;
                }
            }
            check(&parts);
        }
    }

    #[test]
    fn all_splits_of_all_kinds_of_bytes() {
        let cases: [&[u8]; 14] = [
            b"plain",
            "é".as_bytes(),
            "你好".as_bytes(),
            "😊".as_bytes(),
            "a😊é你b".as_bytes(),
            "👩‍👧".as_bytes(),
            b"\xFF",
            b"\xFFa\xC3\xA9",
            b"\xC3a",
            b"\xF0\x9F\x98",
            b"\xF0\x9F\x98\xF0\x9F\x98\x8A",
            b"\xED\xA0\x80\xED\xB0\x80",
            b"\xE2\x28\xA1\xF4\x90\x80\x80",
            b"\xC0\x80\xF8\x88\x80\x80\x80",
        ];
        for case in cases {
            let want = String::from_utf8_lossy(case);
            for_all_splits(case, |parts| assert_eq!(decode(parts), want, "{parts:x?}"));
        }
    }

    #[test]
    fn all_short_sequences_of_telling_bytes() {
        let bytes = [b'a', 0x80, 0x9F, 0xBF, 0xC3, 0xE0, 0xED, 0xF0, 0xF4, 0xFF];
        for code in 0..10usize.pow(5) {
            let case = [1, 10, 100, 1000, 10_000].map(|place| bytes[code / place % 10]);
            let want = String::from_utf8_lossy(&case);
            let parts: Vec<&[u8]> = case.chunks(1).collect();
            assert_eq!(decode(&parts), want);
            assert_eq!(decode(&[&case[..2], &case[2..]]), want);
        }
    }

    #[test]
    fn a_whole_character_is_not_held_back() {
        let mut stream = Utf8Stream::new();
        let mut text = String::new();
        for byte in [0xF0, 0x9F, 0x98] {
            stream.push(&[byte], &mut text);
            assert_eq!(text, "");
        }
        stream.push(&[0x8A], &mut text);
        assert_eq!((text.as_str(), stream.held()), ("😊", &[][..]));
    }
}
