//! What an opened image is read with, in words and as a stable key.

use super::direct::BufferedWhy;
use super::source::Source;

/// How an image is read, and why not better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoReport {
    /// Through io_uring; otherwise by reader threads.
    pub uring: bool,
    /// Why io_uring, though wanted, is not used: the system's error number.
    pub uring_errno: Option<i32>,
    /// Why reads go through the page cache; `None` if they are direct.
    pub buffered: Option<BufferedWhy>,
    /// Whether memory is registered with io_uring.
    pub registered_buffers: bool,
    /// Reads in flight at once.
    pub depth: usize,
    /// Reader threads; 0 with io_uring.
    pub readers: usize,
    /// Alignment that buffers need in memory.
    pub align_bytes: usize,
    /// Size of the image.
    pub size_bytes: u64,
}

impl IoReport {
    pub(crate) fn new(depth: usize, source: &Source, buffered: Option<BufferedWhy>) -> Self {
        IoReport {
            uring: false,
            uring_errno: None,
            buffered,
            registered_buffers: false,
            depth,
            readers: 0,
            align_bytes: source.align_bytes(),
            size_bytes: source.size_bytes(),
        }
    }

    /// A short key for machines to read.
    pub fn io_path(&self) -> &'static str {
        match (self.uring, self.buffered) {
            (true, None) => "uring-direct",
            (true, Some(_)) => "uring-buffered",
            (false, None) => "pread-direct",
            (false, Some(_)) => "pread-buffered",
        }
    }
}

impl core::fmt::Display for IoReport {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.uring {
            write!(f, "io_uring")?;
        } else {
            write!(f, "pread x{}", self.readers)?;
        }
        if let Some(errno) = self.uring_errno {
            let why = nix::errno::Errno::from_raw(errno).desc();
            write!(f, " (io_uring refused: {why})")?;
        }
        match self.buffered {
            None => write!(f, ", direct")?,
            Some(why) => write!(f, ", buffered ({why})")?,
        }
        if self.registered_buffers {
            write!(f, ", registered buffers")?;
        }
        if self.uring {
            write!(f, ", depth {}", self.depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_read_well() {
        let best = IoReport {
            uring: true,
            uring_errno: None,
            buffered: None,
            registered_buffers: true,
            depth: 32,
            readers: 0,
            align_bytes: 512,
            size_bytes: 1 << 20,
        };
        assert_eq!(
            best.to_string(),
            "io_uring, direct, registered buffers, depth 32"
        );
        assert_eq!(best.io_path(), "uring-direct");
        let threads = IoReport {
            uring: false,
            readers: 4,
            registered_buffers: false,
            ..best
        };
        assert_eq!(threads.to_string(), "pread x4, direct");
        assert_eq!(threads.io_path(), "pread-direct");
        let refused = BufferedWhy::OpenRefused {
            errno: libc::EINVAL,
        };
        let worst = IoReport {
            buffered: Some(refused),
            ..threads
        };
        assert_eq!(
            worst.to_string(),
            "pread x4, buffered (O_DIRECT refused: Invalid argument)"
        );
        assert_eq!(worst.io_path(), "pread-buffered");
        let sandbox = IoReport {
            uring_errno: Some(libc::EPERM),
            ..threads
        };
        assert_eq!(
            sandbox.to_string(),
            "pread x4 (io_uring refused: Operation not permitted), direct"
        );
        let cached = IoReport {
            buffered: Some(BufferedWhy::Asked),
            ..best
        };
        assert_eq!(cached.io_path(), "uring-buffered");
    }
}
