//! Which cores a thread may use: asked, set, and read back, since a system may accept a request
//! and ignore it.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, gettid};

use super::cgroup;

/// What became of a lane's pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// The lane goes where the scheduler puts it.
    Free,
    /// The lane sits on this core, and on no other.
    Core(u16),
    /// The system refused to pin the lane to `core`.
    Refused {
        /// The core asked for.
        core: u16,
        /// The system's error number.
        errno: i32,
    },
    /// The system accepted the pin to `core`, but the lane may run elsewhere.
    Ignored {
        /// The core asked for.
        core: u16,
    },
}

/// The cores that this thread may use, in order; empty if the system does not say.
pub fn allowed_cores() -> Vec<u16> {
    allowed(Pid::from_raw(0)).unwrap_or_default()
}

fn allowed(thread: Pid) -> Result<Vec<u16>, Errno> {
    let set = sched_getaffinity(thread)?;
    let cores = 0..CpuSet::count() as u16;
    Ok(cores
        .filter(|&core| set.is_set(core as usize) == Ok(true))
        .collect())
}

/// The control groups' CPU quota, in thousandths of a core.
pub(crate) fn quota_millicores() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup::cpu_quota_millicores(Path::new("/sys/fs/cgroup"), &groups)
}

/// This thread's number, for [`check`].
pub(crate) fn thread_number() -> i32 {
    gettid().as_raw()
}

/// Moves this thread to `core` and reads back whether it is there.
pub fn pin_here(core: u16) -> Pin {
    let mut set = CpuSet::new();
    let outcome = set
        .set(core as usize)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set));
    match outcome {
        Ok(()) => check(0, core),
        Err(errno) => Pin::Refused {
            core,
            errno: errno as i32,
        },
    }
}

/// Whether a thread that was pinned to `core` is still there; 0 is this thread.
pub(crate) fn check(thread: i32, core: u16) -> Pin {
    match allowed(Pid::from_raw(thread)) {
        Ok(cores) if cores == [core] => Pin::Core(core),
        Ok(_) => Pin::Ignored { core },
        Err(errno) => Pin::Refused {
            core,
            errno: errno as i32,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_read_back() {
        let cores = allowed_cores();
        assert!(!cores.is_empty());
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            assert_eq!(pin_here(last), Pin::Core(last));
            assert_eq!(allowed_cores(), [last]);
            if let Some(&other) = cores.iter().find(|&&core| core != last) {
                assert_eq!(check(0, other), Pin::Ignored { core: other });
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_that_is_not_there_is_refused() {
        let core = 1023;
        assert!(
            !allowed_cores().contains(&core),
            "a machine with so many cores"
        );
        assert_eq!(
            pin_here(core),
            Pin::Refused {
                core,
                errno: libc::EINVAL
            }
        );
        assert_eq!(
            pin_here(4096),
            Pin::Refused {
                core: 4096,
                errno: libc::EINVAL
            }
        );
        let gone = check(i32::MAX, 0);
        assert_eq!(
            gone,
            Pin::Refused {
                core: 0,
                errno: libc::ESRCH
            }
        );
    }
}
