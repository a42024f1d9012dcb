//! The calibration text as token ids.

use std::path::{Path, PathBuf};

use tessera_runtime::format::SectionKind;
use tokenizers::Tokenizer;

use super::error::ProfileError;
use crate::image_file::ImageFile;
use crate::regular::read_text;

/// Longest file that is read.
const TEXT_BYTES_MAX: u64 = 1 << 30;
/// Bytes that one token stands for, with much to spare.
const BYTES_PER_TOKEN: usize = 16;

/// Where the tokens come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// A text, for the image's own tokenizer.
    Plain(PathBuf),
    /// Token ids, with anything but digits between them.
    Ids(PathBuf),
}

impl Text {
    fn path(&self) -> &Path {
        match self {
            Self::Plain(path) | Self::Ids(path) => path,
        }
    }

    /// The first `max` tokens, cut into chunks of `chunk`, each of which begins with the start
    /// token where the vocabulary wants one.
    ///
    /// # Errors
    /// [`ProfileError`]: a file that cannot be read or used.
    pub fn tokens(
        &self,
        image: &ImageFile,
        max: usize,
        chunk: usize,
    ) -> Result<Vec<u32>, ProfileError> {
        let text = read_text(self.path(), TEXT_BYTES_MAX);
        let text = text.map_err(|error| ProfileError::io(self.path(), &error))?;
        let mut ids = match self {
            Self::Plain(_) => self.encode(image, &text, max)?,
            Self::Ids(_) => self.numbers(&text)?,
        };
        ids.truncate(max);
        let superblock = *image.image().superblock();
        if let Some(bos) = superblock.bos_token.filter(|_| superblock.add_bos) {
            ids.iter_mut().step_by(chunk).for_each(|id| *id = bos);
        }
        let vocab_size = superblock.shape.vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(self.refuse(format!("token {id}, but the vocabulary has {vocab_size}")));
        }
        if ids.is_empty() {
            return Err(self.refuse("it holds no token".into()));
        }
        Ok(ids)
    }

    fn refuse(&self, reason: String) -> ProfileError {
        ProfileError::Text {
            path: self.path().to_owned(),
            reason,
        }
    }

    fn numbers(&self, text: &str) -> Result<Vec<u32>, ProfileError> {
        let words = text.split(|c: char| !c.is_ascii_digit());
        let words = words.filter(|word| !word.is_empty());
        let number = |word: &str| {
            let refuse = |_| self.refuse(format!("{word} is too large for a token id"));
            word.parse::<u32>().map_err(refuse)
        };
        words.map(number).collect()
    }

    fn encode(&self, image: &ImageFile, text: &str, max: usize) -> Result<Vec<u32>, ProfileError> {
        let Some(json) = image.blob(SectionKind::Tokenizer)? else {
            let path = image.path().to_owned();
            return Err(ProfileError::NoTokenizer { path });
        };
        let tokenizer = Tokenizer::from_bytes(json).map_err(|error| {
            let name = image.path().display();
            ProfileError::Run(format!("the tokenizer of {name} can't be read: {error}"))
        })?;
        // A word's ids do not depend on what comes a line later, so the front of the text is
        // enough.
        let cut = text
            .as_bytes()
            .get(max.saturating_mul(BYTES_PER_TOKEN)..)
            .and_then(|rest| rest.iter().position(|&byte| byte == b'\n'))
            .map_or(text.len(), |at| max * BYTES_PER_TOKEN + at + 1);
        let encode = |text: &str| {
            let encoding = tokenizer.encode(text, false);
            let refuse = |error| self.refuse(format!("it can't be tokenized: {error}"));
            encoding.map(|e| e.get_ids().to_vec()).map_err(refuse)
        };
        let front = encode(&text[..cut])?;
        match front.len() < max && cut < text.len() {
            true => encode(text),
            false => Ok(front),
        }
    }
}
