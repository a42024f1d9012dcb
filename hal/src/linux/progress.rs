//! One read's way through short reads, interruptions and refusals: a pure state machine, the
//! same for every back end.

use crate::flash::IoError;
use crate::page::PAGE_BYTES;

/// Attempts in a row that may end without a byte and without a verdict.
pub(crate) const IDLE_ATTEMPTS_MAX: u32 = 64;

/// Past the page cache or through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// With `O_DIRECT`.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// What to do after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Read what is left, the current [`Progress::way`].
    Again,
    /// The read is over.
    Done(Result<(), IoError>),
}

/// How far a read has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes that have arrived.
    pub done_bytes: usize,
    /// Bytes asked for.
    pub len_bytes: usize,
    /// How the next attempt reads.
    pub way: Way,
    /// Attempts so far.
    pub attempts: u32,
    idle_attempts: u32,
}

impl Progress {
    pub(crate) fn new(len_bytes: usize, way: Way) -> Self {
        Progress {
            done_bytes: 0,
            len_bytes,
            way,
            attempts: 0,
            idle_attempts: 0,
        }
    }

    /// Takes the outcome of an attempt: a count of bytes, or an error number.
    ///
    /// A direct read that comes back short at an odd place, or that the device calls invalid
    /// (some do so for the tail of a file only), goes on through the page cache.
    pub(crate) fn step(&mut self, outcome: Result<usize, i32>) -> Step {
        self.attempts = self.attempts.saturating_add(1);
        match outcome {
            Ok(0) => Step::Done(Err(IoError::EndOfImage)),
            Ok(count) => {
                let left_bytes = self.len_bytes - self.done_bytes;
                assert!(
                    count <= left_bytes,
                    "{count} bytes came, {left_bytes} were asked for"
                );
                self.done_bytes += count;
                self.idle_attempts = 0;
                if self.done_bytes == self.len_bytes {
                    return Step::Done(Ok(()));
                }
                if !self.done_bytes.is_multiple_of(PAGE_BYTES as usize) {
                    self.way = Way::Buffered;
                }
                Step::Again
            }
            Err(libc::EINVAL | libc::EOPNOTSUPP) if self.way == Way::Direct => {
                self.way = Way::Buffered;
                Step::Again
            }
            Err(libc::EINTR | libc::EAGAIN) if self.idle_attempts < IDLE_ATTEMPTS_MAX => {
                self.idle_attempts += 1;
                Step::Again
            }
            Err(errno) => Step::Done(Err(IoError::Device { errno })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a read against `source`, which gets offset, length and way of each attempt.
    fn run(
        len_bytes: usize,
        mut source: impl FnMut(usize, usize, Way) -> Result<usize, i32>,
    ) -> (Result<(), IoError>, Progress) {
        let mut progress = Progress::new(len_bytes, Way::Direct);
        for _attempt in 0..2 * len_bytes + 200 {
            let left_bytes = len_bytes - progress.done_bytes;
            match progress.step(source(progress.done_bytes, left_bytes, progress.way)) {
                Step::Again => {}
                Step::Done(result) => return (result, progress),
            }
        }
        panic!("no end: {progress:?}");
    }

    #[test]
    fn short_reads_are_resumed_where_they_stopped() {
        for piece_bytes in [1, 7, 511, 512, 4095, 4096, 4097, 8192, 20_000] {
            let mut next = 0;
            let (result, progress) = run(16384, |offset, left_bytes, way| {
                assert_eq!(offset, next);
                assert!(
                    way == Way::Buffered || offset.is_multiple_of(4096),
                    "{offset}"
                );
                let count = piece_bytes.min(left_bytes);
                next += count;
                Ok(count)
            });
            assert_eq!(result, Ok(()), "{piece_bytes}");
            assert_eq!(progress.attempts as usize, 16384usize.div_ceil(piece_bytes));
        }
    }

    #[test]
    fn interruptions_have_a_limit_without_progress_only() {
        let mut calls = 0;
        let (result, _) = run(4096, |_, _, _| {
            calls += 1;
            if calls % 5 == 0 {
                Ok(64)
            } else {
                Err(libc::EINTR)
            }
        });
        assert_eq!(result, Ok(()));
        for errno in [libc::EINTR, libc::EAGAIN] {
            let (result, progress) = run(4096, |_, _, _| Err(errno));
            assert_eq!(result, Err(IoError::Device { errno }));
            assert_eq!(progress.attempts, IDLE_ATTEMPTS_MAX + 1);
        }
    }

    #[test]
    fn what_direct_reads_refuse_is_read_through_the_cache() {
        let (result, progress) = run(8192, |offset, left_bytes, way| match way {
            Way::Direct if offset == 0 => Ok(4096),
            Way::Direct => Err(libc::EINVAL),
            Way::Buffered => Ok(left_bytes),
        });
        assert_eq!((result, progress.way), (Ok(()), Way::Buffered));
        let (result, _) = run(8192, |_, _, _| Err(libc::EINVAL));
        assert_eq!(
            result,
            Err(IoError::Device {
                errno: libc::EINVAL
            })
        );
    }

    #[test]
    fn errors_and_the_end_are_told_apart() {
        let (result, _) = run(8192, |offset, _, _| match offset {
            0 => Ok(4096),
            _ => Err(libc::EIO),
        });
        assert_eq!(result, Err(IoError::Device { errno: libc::EIO }));
        let (result, _) = run(8192, |offset, _, _| Ok(if offset == 0 { 100 } else { 0 }));
        assert_eq!(result, Err(IoError::EndOfImage));
    }
}
