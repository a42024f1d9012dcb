//! Keeps markup that someone wrote in a message from becoming a control token.
//!
//! A template's own `<|im_end|>` must become the control token; one in a message must stay text,
//! or whoever wrote the message could end it and speak in another role. Both are in one string
//! once the template is rendered. So before it is rendered a mark is put inside the markup of
//! messages, and the tokenizer takes the marks out again after it has looked for control tokens.

use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

/// A noncharacter: Unicode keeps it free for use inside a program.
pub(super) const GUARD: char = '\u{FDD0}';

/// `text` with a mark after the first character of whatever looks like one of `controls`. Marks
/// that were there become U+FFFD. A control token of one character can't be guarded.
pub(super) fn guard<'c>(text: &str, controls: impl Iterator<Item = &'c str>) -> String {
    let text = text.replace(GUARD, "\u{FFFD}");
    let mut marks: Vec<usize> = Vec::new();
    for control in controls {
        let Some(first) = control.chars().next() else {
            continue;
        };
        let mut from = 0;
        while let Some(found) = text[from..].find(control) {
            from += found + first.len_utf8();
            marks.push(from);
        }
    }
    marks.sort_unstable();
    marks.dedup();
    let mut guarded = String::with_capacity(text.len() + marks.len() * GUARD.len_utf8());
    let mut start = 0;
    for mark in marks {
        guarded.push_str(&text[start..mark]);
        guarded.push(GUARD);
        start = mark;
    }
    guarded.push_str(&text[start..]);
    guarded
}

/// The tokenizer's own normalizer, after the marks are taken out where there may be some.
pub(super) struct Unguard<'n> {
    pub(super) inner: Option<&'n NormalizerWrapper>,
    pub(super) guarded: bool,
}

impl Normalizer for Unguard<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        if self.guarded && text.get().contains(GUARD) {
            text.filter(|character| character != GUARD);
        }
        self.inner.map_or(Ok(()), |inner| inner.normalize(text))
    }
}

#[test]
fn every_control_token_is_broken_once() {
    let controls = || ["<|a|>", "<|ab|>", "a|>", ""].into_iter();
    let mark = |text: &str| guard(text, controls()).replace(GUARD, "!");
    assert_eq!(mark("plain <|b|>"), "plain <|b|>");
    assert_eq!(mark("<|a|><|a|>"), "<!|a!|><!|a!|>");
    assert_eq!(mark("é<|ab|>"), "é<!|ab|>");
    assert_eq!(mark(&format!("<{GUARD}|a")), "<\u{FFFD}|a");
    let overlapping = guard("aaaa", ["aa"].into_iter());
    assert_eq!(overlapping.replace(GUARD, "!"), "a!a!a!a");
}
