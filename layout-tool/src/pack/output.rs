//! The image while it is being written: a temporary file that gets the image's name at the end.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

use super::error::PackError;

/// Bytes that are handed to the disk at once.
const FLUSH_BYTES: u64 = 64 << 20;

/// A file beside the target. Unless it is finished it is removed when dropped.
#[derive(Debug)]
pub struct Output {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    need_bytes: u64,
    finished: bool,
}

/// Tells the thread that flushes an output when there is something to do.
#[derive(Debug)]
pub struct Flusher {
    unflushed_bytes: AtomicU64,
    sender: SyncSender<()>,
}

impl Flusher {
    /// `bytes` more were written.
    pub fn written(&self, bytes: u64) {
        let before = self.unflushed_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes >= FLUSH_BYTES && before < FLUSH_BYTES {
            self.unflushed_bytes.store(0, Ordering::Relaxed);
            // Where the thread is behind it takes these bytes along; where it failed, the error
            // is seen at the end.
            let _ = self.sender.try_send(());
        }
    }
}

/// Refuses targets that must not be written; `source` is the model, where there is one.
///
/// # Errors
/// [`PackError::Exists`], [`PackError::NotAFile`] or [`PackError::OverSource`].
pub fn check_target(source: Option<&Path>, target: &Path, force: bool) -> Result<(), PackError> {
    let path = target.to_owned();
    match fs::metadata(target) {
        Ok(metadata) if !metadata.is_file() => Err(PackError::NotAFile { path }),
        Ok(metadata) => {
            let same = |other: fs::Metadata| {
                (other.dev(), other.ino()) == (metadata.dev(), metadata.ino())
            };
            if source.is_some_and(|source| fs::metadata(source).is_ok_and(same)) {
                return Err(PackError::OverSource { path });
            }
            if force {
                Ok(())
            } else {
                Err(PackError::Exists { path })
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(PackError::io(target, &error)),
    }
}

impl Output {
    /// Creates the temporary file for an image of `need_bytes` at `target`.
    ///
    /// # Errors
    /// [`PackError::Busy`], [`PackError::DiskFull`] or [`PackError::Io`].
    pub fn create(target: &Path, need_bytes: u64) -> Result<Self, PackError> {
        let Some(name) = target.file_name() else {
            return Err(PackError::NotAFile {
                path: target.to_owned(),
            });
        };
        let mut partial = name.to_owned();
        partial.push(".partial");
        let temporary = target.with_file_name(partial);
        // A link or a pipe of that name is somebody else's, and stays as it is.
        if let Ok(metadata) = std::fs::symlink_metadata(&temporary)
            && !metadata.is_file()
        {
            return Err(PackError::NotAFile { path: temporary });
        }
        let open = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&temporary);
        let file = open.map_err(|error| PackError::io(&temporary, &error))?;
        // A file that a killed run left behind is taken over; one in use is locked. If it was
        // renamed between open and lock it is an image now, and no longer ours to write.
        match file.try_lock() {
            Ok(()) if is_at(&file, &temporary) => {}
            Ok(()) | Err(TryLockError::WouldBlock) => {
                return Err(PackError::Busy { path: temporary });
            }
            // Not every file system has locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(PackError::io(&temporary, &error)),
        }
        let target = target.to_owned();
        let output = Output {
            file,
            temporary,
            target,
            need_bytes,
            finished: false,
        };
        output.check(output.file.set_len(0))?;
        output.check(output.file.set_len(need_bytes))?;
        Ok(output)
    }

    /// Writes `bytes` at `offset`. What is never written reads as zeros.
    ///
    /// # Errors
    /// [`PackError::DiskFull`] or [`PackError::Io`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), PackError> {
        self.check(self.file.write_all_at(bytes, offset))
    }

    /// Calls `work` while a thread hands to the disk what `work` says it has written.
    ///
    /// Without it the system would keep an image of a gigabyte in memory and write it at the end.
    ///
    /// # Errors
    /// Those of `work`; [`PackError::DiskFull`] or [`PackError::Io`].
    pub fn flush_behind<T>(
        &self,
        work: impl FnOnce(&Flusher) -> Result<T, PackError>,
    ) -> Result<T, PackError> {
        std::thread::scope(|scope| {
            let (sender, due) = sync_channel(1);
            let flushed = scope.spawn(move || {
                due.into_iter()
                    .try_for_each(|()| self.check(self.file.sync_data()))
            });
            let flusher = Flusher {
                unflushed_bytes: AtomicU64::new(0),
                sender,
            };
            let result = work(&flusher);
            drop(flusher);
            let flushed = flushed.join().unwrap_or_else(|panic| resume_unwind(panic));
            result.and_then(|value| flushed.map(|()| value))
        })
    }

    /// Makes the file durable and gives it its name.
    ///
    /// # Errors
    /// [`PackError::DiskFull`] or [`PackError::Io`].
    pub fn finish(mut self) -> Result<(), PackError> {
        self.check(self.file.sync_all())?;
        let renamed = fs::rename(&self.temporary, &self.target);
        renamed.map_err(|error| PackError::io(&self.target, &error))?;
        self.finished = true;
        // The name is durable once its folder is. Where a folder cannot be synced, it is not.
        let folder = self
            .target
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    fn check(&self, result: io::Result<()>) -> Result<(), PackError> {
        result.map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                let path = self.temporary.clone();
                PackError::DiskFull {
                    path,
                    need_bytes: self.need_bytes,
                }
            }
            _ => PackError::io(&self.temporary, &error),
        })
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// True if `path` names the open file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(file), Ok(named)) => id(file) == id(named),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_appears_with_the_last_byte() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("a.image");
        let temporary = folder.path().join("a.image.partial");
        fs::write(&temporary, [7; 9000]).expect("left by a killed run");
        let output = Output::create(&target, 8192).expect("created");
        assert_eq!(
            Output::create(&target, 1).unwrap_err(),
            PackError::Busy { path: temporary }
        );
        output.write_at(4096, &[1; 4096]).expect("written");
        assert!(!target.exists());
        output.finish().expect("finished");
        let bytes = fs::read(&target).expect("the image");
        assert_eq!(
            (&bytes[..4096], &bytes[4096..]),
            (&[0; 4096][..], &[1; 4096][..])
        );
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn what_is_not_finished_leaves_no_trace() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("a.image");
        drop(Output::create(&target, 4096).expect("created"));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        let missing = folder.path().join("no/such.image");
        let error = Output::create(&missing, 4096).unwrap_err();
        assert!(
            matches!(&error, PackError::Io { path, .. } if path.ends_with("such.image.partial"))
        );
        assert!(error.to_string().contains("No such file"), "{error}");
    }

    #[test]
    fn targets_are_checked_before_anything_is_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, target) = (folder.path().join("m.gguf"), folder.path().join("m.image"));
        fs::write(&source, "model").expect("written");
        assert_eq!(check_target(Some(&source), &target, false), Ok(()));
        fs::write(&target, "image").expect("written");
        let error = check_target(Some(&source), &target, false).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("m.image exists, give another name or --force")
        );
        assert_eq!(check_target(Some(&source), &target, true), Ok(()));
        let error = check_target(Some(&source), &source, true).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is the model itself, give the image another name")
        );
        let error = check_target(Some(&source), folder.path(), true).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is not a regular file, give another name")
        );
    }
}
