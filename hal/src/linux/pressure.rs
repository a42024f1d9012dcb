//! Whether memory is short, as the kernel's pressure stall information has it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::{cgroup, sys};

/// Some task stalled for a twentieth of a window on memory. Windows of two seconds need no
/// privilege.
const TRIGGER: &[u8] = b"some 100000 2000000\0";

/// A trigger of the kernel, see `Documentation/accounting/psi.rst`.
#[derive(Debug)]
pub struct MemoryPressure {
    file: File,
    path: PathBuf,
}

impl MemoryPressure {
    /// Watches the control group of this process, or the nearest one around it that can be
    /// watched, or else the whole system.
    ///
    /// # Errors
    /// That of the last one tried: the kernel has no such information, or does not let us ask.
    pub fn open() -> io::Result<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let folders = cgroup::folders(Path::new("/sys/fs/cgroup"), &groups, "");
        let own = folders.map(|folder| folder.join("memory.pressure"));
        for path in own {
            if let Ok(pressure) = Self::open_file(&path) {
                return Ok(pressure);
            }
        }
        Self::open_file(Path::new("/proc/pressure/memory"))
    }

    fn open_file(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        file.write_all(TRIGGER)?;
        Ok(MemoryPressure {
            file,
            path: path.to_owned(),
        })
    }

    /// What is watched.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether memory was short since this was asked last; never waits.
    pub fn happened(&self) -> bool {
        sys::poll_priority(self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_watched_can_be_asked() {
        match MemoryPressure::open() {
            Ok(pressure) => {
                assert!(pressure.path().is_absolute());
                pressure.happened();
            }
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
        let missing = MemoryPressure::open_file(Path::new("/proc/pressure/none"));
        assert!(missing.is_err());
    }
}
