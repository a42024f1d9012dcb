//! An image file, open once directly and once through the page cache.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::direct::{self, BufferedWhy, DioSupport};
use super::open::{Choice, OpenError};
use super::progress::{Progress, Step, Way};
use super::region::Region;
use super::sys;
use crate::flash::{IoError, Read};
use crate::page::{PAGE_BYTES, PageCount};

/// Having one proves that the image can be read, and how.
#[derive(Debug)]
pub(crate) struct Source {
    direct: Option<File>,
    buffered: File,
    size_bytes: u64,
    align_bytes: usize,
    /// Pages of buffered reads stay in the page cache.
    keep_cached: bool,
}

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Source {
    /// Opens and probes `path`; also says why reads are buffered if they are.
    pub(crate) fn open(
        path: &Path,
        choice: Choice,
    ) -> Result<(Source, Option<BufferedWhy>), OpenError> {
        let refused = |error: std::io::Error| OpenError::Open {
            errno: errno_of(&error),
        };
        let mut buffered = File::open(path).map_err(refused)?;
        let metadata = buffered.metadata().map_err(refused)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::NotAFile);
        }
        // The end of a block device is found by seeking; its metadata says 0.
        let size_bytes = buffered.seek(SeekFrom::End(0)).map_err(refused)?;
        if PageCount::covering(size_bytes).is_none() {
            return Err(OpenError::TooLarge { size_bytes });
        }
        // No read-ahead: what to read early is the caller's decision, and cached pages that
        // nobody asked for would be memory outside the budget.
        let _ = posix_fadvise(&buffered, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        let mut source = Source {
            direct: None,
            buffered,
            size_bytes,
            align_bytes: 1,
            keep_cached: false,
        };
        let why = match source.find_direct(path, &metadata, choice)? {
            Ok((file, align_bytes)) => {
                source.direct = Some(file);
                source.align_bytes = align_bytes;
                return Ok((source, None));
            }
            Err(why) => why,
        };
        if choice == Choice::Require {
            return Err(OpenError::Direct(why));
        }
        Ok((source, Some(why)))
    }

    /// The same, whose buffered reads leave their pages in the page cache or not.
    pub(crate) fn keep_cached(self, keep_cached: bool) -> Self {
        Source {
            keep_cached,
            ..self
        }
    }

    /// A second descriptor for direct reads, with the alignment that it needs in memory.
    fn find_direct(
        &self,
        path: &Path,
        metadata: &fs::Metadata,
        choice: Choice,
    ) -> Result<Result<(File, usize), BufferedWhy>, OpenError> {
        if choice == Choice::Never {
            return Ok(Err(BufferedWhy::Asked));
        }
        if self.size_bytes < PAGE_BYTES {
            return Ok(Err(BufferedWhy::TooSmall));
        }
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path);
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                return Ok(Err(BufferedWhy::OpenRefused {
                    errno: errno_of(&error),
                }));
            }
        };
        let again = file.metadata().map_err(|error| OpenError::Open {
            errno: errno_of(&error),
        })?;
        if (again.dev(), again.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(OpenError::Changed);
        }
        let said: DioSupport = sys::dio_support(&file);
        let verdict = direct::judge(said, || trial_read(&file));
        Ok(verdict.map(|align_bytes| (file, align_bytes)))
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn align_bytes(&self) -> usize {
        self.align_bytes
    }

    /// How a read begins.
    pub(crate) fn way(&self) -> Way {
        if self.direct.is_some() {
            Way::Direct
        } else {
            Way::Buffered
        }
    }

    pub(crate) fn file(&self, way: Way) -> &File {
        match (way, &self.direct) {
            (Way::Direct, Some(file)) => file,
            _ => &self.buffered,
        }
    }

    /// The rules of [`Read`], and the end of the image.
    pub(crate) fn check(&self, read: &Read<'_>) -> Result<(), IoError> {
        read.check(self.size_bytes, self.align_bytes)
    }

    /// Reads all of `read`, blocking; also says how it went.
    pub(crate) fn read_whole(&self, read: &mut Read<'_>) -> (Result<(), IoError>, Progress) {
        let offset_bytes = read.start.offset_bytes();
        let mut progress = Progress::new(read.bytes, self.way());
        loop {
            let rest = &mut read.buf[progress.done_bytes..read.bytes];
            let at_bytes = offset_bytes + progress.done_bytes as u64;
            let outcome = self.file(progress.way).read_at(rest, at_bytes);
            match progress.step(outcome.map_err(|error| errno_of(&error))) {
                Step::Again => {}
                Step::Done(result) => {
                    self.drop_cache(offset_bytes, &progress);
                    return (result, progress);
                }
            }
        }
    }

    /// After a buffered read: lets go of its pages, so that the page cache does not grow.
    pub(crate) fn drop_cache(&self, offset_bytes: u64, progress: &Progress) {
        if progress.way == Way::Buffered && !self.keep_cached {
            let (offset, len) = (
                offset_bytes as libc::off_t,
                progress.len_bytes as libc::off_t,
            );
            let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            let _ = posix_fadvise(&self.buffered, offset, len, advice);
        }
    }
}

/// Reads the first page into a page-aligned buffer.
fn trial_read(file: &File) -> Result<(), i32> {
    let mut page = Region::new(PAGE_BYTES as usize).map_err(|_| libc::ENOMEM)?;
    match file.read_at(&mut page, 0) {
        Ok(count) if count as u64 == PAGE_BYTES => Ok(()),
        Ok(_) => Err(libc::EIO),
        Err(error) => Err(errno_of(&error)),
    }
}

#[cfg(test)]
impl Source {
    /// A stream in place of a file, to hold reads up.
    pub(crate) fn of_stream(buffered: File, size_bytes: u64) -> Self {
        Source {
            direct: None,
            buffered,
            size_bytes,
            align_bytes: 1,
            keep_cached: false,
        }
    }
}

#[test]
fn a_file_that_was_replaced_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, [0; PAGE_BYTES as usize]).unwrap();
    let (source, _) = Source::open(&path, Choice::Never).unwrap();
    let metadata = source.buffered.metadata().unwrap();
    fs::rename(&path, folder.path().join("old")).unwrap();
    fs::write(&path, [1; PAGE_BYTES as usize]).unwrap();
    match source.find_direct(&path, &metadata, Choice::Auto) {
        Err(error) => assert_eq!(error, OpenError::Changed),
        Ok(Err(BufferedWhy::OpenRefused { .. })) => {} // Nothing to replace.
        Ok(other) => panic!("{other:?}"),
    }
}
