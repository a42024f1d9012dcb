//! What a run has found so far, in a file beside its output: a killed run continues from it.
//!
//! A header with the arguments, then records, each with a checksum. Records are appended and never
//! changed; a torn one at the end is cut off. All results are computed from the records, so they
//! do not depend on how often a run was interrupted.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::ProfileError;
use crate::pack::crc32c;

const MAGIC: &[u8; 16] = b"tessera profile\n";
/// Kind, index, length, checksum of the payload, checksum of these.
const RECORD_HEAD_BYTES: usize = 24;
/// Appended records reach the disk at least so often.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Histograms of a chunk of the text, see `threshold.rs`.
    Histograms = 1,
    /// Activity in a chunk of the text, see `observe.rs`.
    Activity = 2,
    /// All that follows for one feed-forward section, see `analysis.rs`.
    Section = 3,
}

/// Where a record's payload stands.
#[derive(Debug, Clone, Copy)]
struct Record {
    kind: u32,
    index: u32,
    offset: u64,
    bytes: u64,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    records: Vec<Record>,
    end: u64,
    synced: Instant,
}

impl Journal {
    /// Creates the journal of a run, or opens that of an interrupted run with the same
    /// `arguments` (name and value).
    ///
    /// # Errors
    /// [`ProfileError::Busy`], [`ProfileError::NoJournal`], [`ProfileError::OtherRun`] or
    /// [`ProfileError::Io`].
    pub fn open(path: &Path, arguments: &[(&str, String)]) -> Result<Self, ProfileError> {
        let io = |error: std::io::Error| ProfileError::io(path, &error);
        let path_owned = path.to_owned();
        // A link or a pipe of that name is somebody else's, and stays as it is.
        if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(ProfileError::NoJournal { path: path_owned });
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ProfileError::Busy { path: path_owned }),
            // Not every file system has locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let header = header(arguments);
        let mut journal = Journal {
            file,
            path: path_owned,
            records: Vec::new(),
            end: header.len() as u64,
            synced: Instant::now(),
        };
        journal.check_header(&header, arguments)?;
        journal.scan()?;
        Ok(journal)
    }

    fn io(&self, error: &std::io::Error) -> ProfileError {
        ProfileError::io(&self.path, error)
    }

    /// Writes the header, or compares it with the one that is there.
    fn check_header(
        &self,
        header: &[u8],
        arguments: &[(&str, String)],
    ) -> Result<(), ProfileError> {
        let file_bytes = self.file.metadata().map_err(|e| self.io(&e))?.len();
        let path = || self.path.clone();
        let mut have = vec![0; file_bytes.min(1 << 16) as usize];
        self.file
            .read_exact_at(&mut have, 0)
            .map_err(|e| self.io(&e))?;
        if have.starts_with(header) {
            return Ok(());
        }
        if header.starts_with(&have) {
            // New, or interrupted before anything was found.
            return self.file.write_all_at(header, 0).map_err(|e| self.io(&e));
        }
        let text = have.strip_prefix(MAGIC.as_slice());
        let text = text.ok_or(ProfileError::NoJournal { path: path() })?;
        let end = text.windows(2).position(|pair| pair == b"\n\n");
        let text = String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned();
        let mut lines = text.lines();
        for (what, want) in arguments {
            let line = lines.next().unwrap_or_default();
            let have = line.strip_prefix(&format!("{what}: "));
            if have != Some(want) {
                return Err(ProfileError::OtherRun {
                    path: path(),
                    what: (*what).to_owned(),
                    have: have.unwrap_or("none").to_owned(),
                    want: want.clone(),
                });
            }
        }
        Err(ProfileError::NoJournal { path: path() })
    }

    /// Finds the records that are whole and cuts off what follows them.
    fn scan(&mut self) -> Result<(), ProfileError> {
        let file_bytes = self.file.metadata().map_err(|e| self.io(&e))?.len();
        let mut payload = Vec::new();
        while file_bytes - self.end >= RECORD_HEAD_BYTES as u64 {
            let mut head = [0; RECORD_HEAD_BYTES];
            let read = self.file.read_exact_at(&mut head, self.end);
            read.map_err(|e| self.io(&e))?;
            let word = |at: usize| {
                u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            let bytes = u64::from(word(8)) | u64::from(word(12)) << 32;
            let offset = self.end + RECORD_HEAD_BYTES as u64;
            if crc32c(&head[..20]) != word(20) || bytes > file_bytes - offset {
                break;
            }
            payload.resize(bytes as usize, 0);
            let read = self.file.read_exact_at(&mut payload, offset);
            read.map_err(|e| self.io(&e))?;
            if crc32c(&payload) != word(16) {
                break;
            }
            let (kind, index) = (word(0), word(4));
            self.records.push(Record {
                kind,
                index,
                offset,
                bytes,
            });
            self.end = offset + bytes;
        }
        self.file.set_len(self.end).map_err(|e| self.io(&e))
    }

    /// Number of records of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        let of_kind = |record: &&Record| record.kind == kind as u32;
        self.records.iter().filter(of_kind).count()
    }

    fn find(&self, kind: Kind, index: usize) -> Option<Record> {
        let name = (kind as u32, index as u32);
        let found = self.records.iter().find(|r| (r.kind, r.index) == name);
        found.copied()
    }

    /// True if there is such a record.
    pub fn has(&self, kind: Kind, index: usize) -> bool {
        self.find(kind, index).is_some()
    }

    /// Bytes `start..start + len` of a record's payload; all that there are from `start` on where
    /// `len` is `None`.
    ///
    /// # Errors
    /// [`ProfileError::Io`]; also where the record is shorter, or missing.
    pub fn read(
        &self,
        kind: Kind,
        index: usize,
        start: usize,
        len: Option<usize>,
    ) -> Result<Vec<u8>, ProfileError> {
        let missing = || self.io(&ErrorKind::UnexpectedEof.into());
        let record = self.find(kind, index).ok_or_else(missing)?;
        let rest = (record.bytes as usize).checked_sub(start);
        let rest = rest.ok_or_else(missing)?;
        let len = len.unwrap_or(rest);
        if len > rest {
            return Err(missing());
        }
        let mut bytes = vec![0; len];
        let read = self
            .file
            .read_exact_at(&mut bytes, record.offset + start as u64);
        read.map_err(|e| self.io(&e))?;
        Ok(bytes)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn append(&mut self, kind: Kind, index: usize, payload: &[u8]) -> Result<(), ProfileError> {
        let mut bytes = Vec::with_capacity(RECORD_HEAD_BYTES + payload.len());
        bytes.extend((kind as u32).to_le_bytes());
        bytes.extend((index as u32).to_le_bytes());
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(crc32c(payload).to_le_bytes());
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes.extend(payload);
        let written = self.file.write_all_at(&bytes, self.end);
        written.map_err(|e| self.io(&e))?;
        self.records.push(Record {
            kind: kind as u32,
            index: index as u32,
            offset: self.end + RECORD_HEAD_BYTES as u64,
            bytes: payload.len() as u64,
        });
        self.end += bytes.len() as u64;
        if self.synced.elapsed() >= SYNC_EVERY {
            self.file.sync_data().map_err(|e| self.io(&e))?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Removes the file: the run is over.
    ///
    /// # Errors
    /// [`ProfileError::Io`].
    pub fn remove(self) -> Result<(), ProfileError> {
        std::fs::remove_file(&self.path).map_err(|e| self.io(&e))
    }
}

fn header(arguments: &[(&str, String)]) -> Vec<u8> {
    let mut text = String::new();
    for (what, value) in arguments {
        text.push_str(&format!("{what}: {value}\n"));
    }
    text.push('\n');
    [MAGIC.as_slice(), text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_record_is_cut_off_and_other_arguments_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.profile");
        let arguments = [("text", "abc".to_owned()), ("tokens", "7".to_owned())];
        let mut journal = Journal::open(&path, &arguments).unwrap();
        journal.append(Kind::Activity, 0, b"first").unwrap();
        journal.append(Kind::Activity, 1, b"second").unwrap();
        assert_eq!(
            Journal::open(&path, &arguments).unwrap_err(),
            ProfileError::Busy { path: path.clone() }
        );
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for bytes in [whole.len() - 1, whole.len() - 7] {
            std::fs::write(&path, &whole[..bytes]).unwrap();
            let mut journal = Journal::open(&path, &arguments).unwrap();
            assert_eq!(journal.count(Kind::Activity), 1);
            assert!(!journal.has(Kind::Activity, 1));
            let read = |journal: &Journal, index, start, len| {
                journal.read(Kind::Activity, index, start, len)
            };
            assert_eq!(read(&journal, 0, 2, None).unwrap(), b"rst");
            assert!(read(&journal, 0, 2, Some(4)).is_err());
            journal.append(Kind::Activity, 1, b"again").unwrap();
            assert_eq!(read(&journal, 1, 0, Some(2)).unwrap(), b"ag");
        }
        let other = [("text", "abc".to_owned()), ("tokens", "8".to_owned())];
        let error = Journal::open(&path, &other).unwrap_err().to_string();
        assert!(error.contains("another tokens (7, now 8)"), "{error}");
        std::fs::write(&path, "something").unwrap();
        let error = Journal::open(&path, &arguments).unwrap_err();
        assert!(matches!(error, ProfileError::NoJournal { .. }), "{error}");
        Journal::open(&folder.path().join("b"), &arguments)
            .unwrap()
            .remove()
            .unwrap();
        assert!(!folder.path().join("b").exists());
    }
}
