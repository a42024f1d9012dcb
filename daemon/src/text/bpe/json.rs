//! The `model` of a `tokenizer.json`, read straight into the tables.

use super::{Bpe, Merge};
use crate::text::vocab::Vocab;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt::Formatter;

impl Bpe {
    /// Reads the object with `vocab` and `merges`.
    ///
    /// # Errors
    ///
    /// Anything amiss, in the words of serde_json: position and reason.
    pub(in crate::text) fn from_json(json: &str) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let bpe = deserializer.deserialize_map(ModelVisitor)?;
        deserializer.end()?;
        Ok(bpe)
    }
}

struct ModelVisitor;

impl<'de> Visitor<'de> for ModelVisitor {
    type Value = Bpe;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a BPE model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Bpe, A::Error> {
        let mut vocab = None;
        let mut merges = None;
        let mut unknown: Option<String> = None;
        let (mut fuse_unknown, mut byte_fallback, mut whole_words) = (false, false, false);
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "vocab" => vocab = Some(map.next_value_seed(VocabSeed)?),
                // They may come before the vocabulary that they are read with.
                "merges" => merges = Some(map.next_value::<&RawValue>()?),
                "unk_token" => unknown = map.next_value()?,
                "fuse_unk" => fuse_unknown = map.next_value::<Option<bool>>()? == Some(true),
                "byte_fallback" => byte_fallback = map.next_value::<Option<bool>>()? == Some(true),
                "ignore_merges" => whole_words = map.next_value::<Option<bool>>()? == Some(true),
                _ => {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
        }
        let vocab: Vocab = vocab.ok_or_else(|| A::Error::missing_field("vocab"))?;
        let merges = merges.ok_or_else(|| A::Error::missing_field("merges"))?;
        let merges = MergesSeed { vocab: &vocab }
            .deserialize(&mut serde_json::Deserializer::from_str(merges.get()))
            .map_err(|error| A::Error::custom(format!("merges: {error}")))?;
        let find_unknown = |text: String| {
            let id = vocab.id(&text);
            id.ok_or_else(|| A::Error::custom(format!("no token {text:?}, the unknown token")))
        };
        let unknown = unknown.map(find_unknown).transpose()?;
        let byte_tokens = if byte_fallback {
            byte_tokens(&vocab)
        } else {
            None
        };
        Ok(Bpe {
            vocab,
            merges,
            unknown,
            fuse_unknown,
            byte_tokens,
            whole_words,
        })
    }
}

/// The ids of `<0x00>` to `<0xFF>`, if the vocabulary has them all.
fn byte_tokens(vocab: &Vocab) -> Option<Box<[u32; 256]>> {
    let mut tokens = Box::new([0; 256]);
    for (byte, token) in tokens.iter_mut().enumerate() {
        *token = vocab.id(&format!("<0x{byte:02X}>"))?;
    }
    Some(tokens)
}

/// A text, without a copy where the JSON has no escapes in it.
struct Text<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a token's text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok(self.0(text))
    }
}

struct VocabSeed;

impl<'de> DeserializeSeed<'de> for VocabSeed {
    type Value = Vocab;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vocab, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for VocabSeed {
    type Value = Vocab;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of token texts and ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
        let mut vocab = Vocab::default();
        let mut text = String::new();
        let fill = |text: &mut String, key: &str| {
            text.clear();
            text.push_str(key);
        };
        while map
            .next_key_seed(Text(|key: &str| fill(&mut text, key)))?
            .is_some()
        {
            let id: u32 = map.next_value()?;
            if !vocab.insert(id, &text) {
                return Err(A::Error::custom(format!(
                    "id {id} of {text:?} is used or too large"
                )));
            }
        }
        vocab.finish();
        Ok(vocab)
    }
}

struct MergesSeed<'v> {
    vocab: &'v Vocab,
}

impl<'de> DeserializeSeed<'de> for MergesSeed<'_> {
    type Value = Vec<Merge>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Merge>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed<'_> {
    type Value = Vec<Merge>;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of merge rules")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Merge>, A::Error> {
        let mut merges = Vec::new();
        let mut joined = String::new();
        loop {
            let rank = merges.len() as u32;
            let seed = MergeSeed {
                vocab: self.vocab,
                joined: &mut joined,
                rank,
            };
            match seq.next_element_seed(seed)? {
                Some(Some(merge)) => merges.push(merge),
                Some(None) => {}
                None => break,
            }
        }
        // Of equal pairs the last rule counts, as in the `tokenizers` crate.
        merges.sort_unstable_by_key(|m| (m.left, m.right, u32::MAX - m.rank));
        merges.dedup_by_key(|m| (m.left, m.right));
        merges.shrink_to_fit();
        Ok(merges)
    }
}

/// One rule: `"a b"` or `["a", "b"]`; `None` for the `#version` line of old files.
struct MergeSeed<'v, 's> {
    vocab: &'v Vocab,
    /// Memory, kept from rule to rule.
    joined: &'s mut String,
    rank: u32,
}

impl MergeSeed<'_, '_> {
    /// `joined` holds both parts, `left_len` bytes of it the left one.
    fn rule<E: Error>(&self, left_len: usize) -> Result<Option<Merge>, E> {
        let (left, right) = self.joined.split_at(left_len);
        let id = |text: &str| {
            let error = || E::custom(format!("merge {}: no token {text:?}", self.rank));
            self.vocab.id(text).ok_or_else(error)
        };
        Ok(Some(Merge {
            left: id(left)?,
            right: id(right)?,
            merged: id(self.joined)?,
            rank: self.rank,
        }))
    }
}

impl<'de> DeserializeSeed<'de> for MergeSeed<'_, '_> {
    type Value = Option<Merge>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeSeed<'_, '_> {
    type Value = Option<Merge>;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a merge rule: two tokens")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
        if line.starts_with("#version") {
            return Ok(None);
        }
        let Some((left, right)) = line.split_once(' ').filter(|parts| !parts.1.contains(' '))
        else {
            return Err(E::custom(format!(
                "merge {}: {line:?} is not two tokens",
                self.rank
            )));
        };
        self.joined.clear();
        self.joined.push_str(left);
        self.joined.push_str(right);
        self.rule(left.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        self.joined.clear();
        let missing = |rank| A::Error::custom(format!("merge {rank}: not two tokens"));
        let joined = &mut *self.joined;
        seq.next_element_seed(Text(|text: &str| joined.push_str(text)))?
            .ok_or_else(|| missing(self.rank))?;
        let left_len = joined.len();
        seq.next_element_seed(Text(|text: &str| joined.push_str(text)))?
            .ok_or_else(|| missing(self.rank))?;
        if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
            return Err(missing(self.rank));
        }
        self.rule(left_len)
    }
}
