//! The file that flash reads are measured on.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use layout_tool::size;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::statvfs::statvfs;

/// Size where nothing else is asked for and there is room.
const SIZE_BYTES: u64 = 1 << 30;
/// A smaller file would say little.
pub const SIZE_MIN_BYTES: u64 = 16 << 20;
/// Of the free space, the file takes at most one part in so many.
const FREE_PARTS: u64 = 4;
/// Written at once.
const PIECE_BYTES: usize = 1 << 20;

/// A file of bytes that no device can compress. It has no name: it is gone when it is closed, and
/// so also when the process is interrupted or killed.
pub struct TestFile {
    file: File,
    /// Its size.
    pub size_bytes: u64,
}

/// The size of the file in `folder`: as asked, or what the free space allows.
pub fn choose_size(folder: &Path, asked: Option<u64>) -> Result<u64> {
    let name = folder.display();
    let space = statvfs(folder)
        .map_err(std::io::Error::from)
        .with_context(|| format!("cannot examine {name}"))?;
    let free_bytes = space
        .blocks_available()
        .saturating_mul(space.fragment_size());
    let (size_bytes, need_bytes) = match asked {
        Some(bytes) if bytes < SIZE_MIN_BYTES => bail!(
            "a test file of {bytes} bytes says little, {SIZE_MIN_BYTES} is the least (--size)"
        ),
        Some(bytes) => (bytes, bytes),
        None => (
            SIZE_BYTES.min(free_bytes / FREE_PARTS),
            SIZE_MIN_BYTES * FREE_PARTS,
        ),
    };
    if free_bytes < need_bytes {
        bail!(
            "{name} has {} free, a test file there needs {} (--dir chooses another folder)",
            size::text(free_bytes),
            size::text(need_bytes)
        );
    }
    Ok(size_bytes / PIECE_BYTES as u64 * PIECE_BYTES as u64)
}

impl TestFile {
    /// Writes up to `size_bytes`, fewer if that takes longer than `seconds`; `progress` is told how
    /// much of it is done, from 0 to 1.
    pub fn write(
        folder: &Path,
        size_bytes: u64,
        seconds: f64,
        progress: &dyn Fn(f64),
    ) -> Result<Self> {
        let cannot = || format!("cannot write a test file in {}", folder.display());
        let mut file = tempfile::tempfile_in(folder).with_context(cannot)?;
        let (mut state, start) = (0x9E37_79B9_7F4A_7C15u64, Instant::now());
        let mut piece = vec![0u8; PIECE_BYTES];
        let mut written_bytes = 0;
        while written_bytes < size_bytes {
            for word in piece.as_chunks_mut().0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state.to_le_bytes();
            }
            file.write_all(&piece).with_context(cannot)?;
            written_bytes += PIECE_BYTES as u64;
            // What waits in memory to be written would hide how long it takes.
            if written_bytes.is_multiple_of(64 << 20) {
                file.sync_data().with_context(cannot)?;
            }
            progress(written_bytes as f64 / size_bytes as f64);
            let late = start.elapsed().as_secs_f64() > seconds;
            if late && written_bytes >= SIZE_MIN_BYTES {
                break;
            }
        }
        file.sync_all().with_context(cannot)?;
        // Should reads go through the page cache, they shall at least not find the file there.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
        Ok(TestFile {
            file,
            size_bytes: written_bytes,
        })
    }

    /// A path by which this process can open the file while it is open here.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let size_bytes = choose_size(folder.path(), Some(SIZE_MIN_BYTES + 5)).unwrap();
        assert_eq!(size_bytes, SIZE_MIN_BYTES);
        let file = TestFile::write(folder.path(), size_bytes, 1e9, &|_| ()).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!(bytes.len() as u64, size_bytes);
        let mut counts = [0u32; 256];
        bytes.iter().for_each(|&byte| counts[byte as usize] += 1);
        let even = size_bytes as u32 / 256;
        assert!(counts.iter().all(|&count| count.abs_diff(even) < even / 20));
        // Without a name there is nothing to remove.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_slow_device_gets_a_smaller_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = TestFile::write(folder.path(), 1 << 30, 0.0, &|_| ()).unwrap();
        assert_eq!(file.size_bytes, SIZE_MIN_BYTES);
    }

    #[test]
    fn too_little_space_is_refused_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let error = choose_size(folder.path(), Some(1 << 60)).unwrap_err();
        assert!(error.to_string().contains("1048576 TiB"), "{error}");
        let error = choose_size(folder.path(), Some(5)).unwrap_err();
        assert!(
            error.to_string().contains("16777216 is the least"),
            "{error}"
        );
        let error = choose_size(Path::new("/nowhere/at/all"), None).unwrap_err();
        assert!(format!("{error:#}").contains("No such file"), "{error:#}");
    }
}
