//! How much memory the process uses, and how much it may use.

use std::fs;
use std::path::Path;

use super::cgroup;

/// Resident set of this process now, in bytes; `None` where `/proc` cannot be read.
pub fn resident_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Largest resident set of this process so far, or since [`reset_peak`], in bytes.
pub fn peak_resident_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Starts [`peak_resident_bytes`] anew; false where the kernel has no such switch.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// The smallest memory limit of any control group that holds this process, in bytes; `None`
/// without one.
pub fn memory_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    cgroup::memory_limit_bytes(Path::new("/sys/fs/cgroup"), &groups)
}

/// A line of `/proc/self/status` such as `VmRSS:    1234 kB`, in bytes.
fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 17 kB\nVmBad:\t x kB\n";
        assert_eq!(status_bytes(status, "VmHWM:"), Some(2 << 20));
        assert_eq!(status_bytes(status, "VmRSS:"), Some(17 << 10));
        assert_eq!(status_bytes(status, "VmBad:"), None);
        assert_eq!(status_bytes(status, "VmNone:"), None);
    }

    #[test]
    fn the_peak_is_not_below_the_present() {
        let now_bytes = resident_bytes().unwrap();
        let peak_bytes = peak_resident_bytes().unwrap();
        assert!(now_bytes > 64 << 10, "{now_bytes}");
        assert!(peak_bytes > 64 << 10, "{peak_bytes}");
        reset_peak();
        memory_limit_bytes();
    }
}
