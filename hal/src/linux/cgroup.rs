//! Limits that a control group sets: memory, and shares of the CPU. Versions 1 and 2.
//!
//! Only the files of the process's own groups and their ancestors are read; folders are not
//! scanned. Whatever is missing or unreadable is no limit.

use std::fs;
use std::path::{Path, PathBuf};

/// Version 1 writes "no limit" as the largest multiple of the page size.
const UNLIMITED_BYTES: u64 = 1 << 60;

/// The smallest memory limit on the way from this process's group to the root.
///
/// `root` is where control groups are mounted, `groups` the contents of `/proc/self/cgroup`.
pub(crate) fn memory_limit_bytes(root: &Path, groups: &str) -> Option<u64> {
    let new = folders(root, groups, "").filter_map(|folder| number(&folder.join("memory.max")));
    let old_root = root.join("memory");
    let old = folders(&old_root, groups, "memory")
        .filter_map(|folder| number(&folder.join("memory.limit_in_bytes")));
    new.chain(old)
        .filter(|&bytes| bytes < UNLIMITED_BYTES)
        .min()
}

/// The smallest CPU quota on the way to the root, in thousandths of a core.
pub(crate) fn cpu_quota_millicores(root: &Path, groups: &str) -> Option<u64> {
    let new = folders(root, groups, "").filter_map(|folder| {
        let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        millicores(quota.parse().ok()?, period.parse().ok()?)
    });
    let old_root = root.join("cpu");
    let old = folders(&old_root, groups, "cpu").filter_map(|folder| {
        let quota = number(&folder.join("cpu.cfs_quota_us"))?; // -1 does not parse: no quota
        millicores(quota, number(&folder.join("cpu.cfs_period_us"))?)
    });
    new.chain(old).min()
}

fn millicores(quota_us: u64, period_us: u64) -> Option<u64> {
    quota_us.checked_mul(1000)?.checked_div(period_us)
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The folder of this process's group under `root`, then its ancestors up to `root` itself.
///
/// `controller` is empty for version 2. Inside a container the path in `groups` may be the
/// host's and not exist under `root`; then the ancestors still lead to what is there.
pub(crate) fn folders(
    root: &Path,
    groups: &str,
    controller: &str,
) -> impl Iterator<Item = PathBuf> {
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    });
    let path = Path::new(path.unwrap_or("/").trim_start_matches('/'));
    let ancestors: Vec<PathBuf> = path
        .ancestors()
        .filter(|path| !path.components().any(|part| part.as_os_str() == ".."))
        .map(|path| root.join(path))
        .collect();
    ancestors.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let file = root.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn version_2_takes_the_smallest_on_the_way_up() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/memory.max", "4194304\n");
        write(root.path(), "a/b/memory.max", "max\n");
        write(root.path(), "a/cpu.max", "150000 100000\n");
        write(root.path(), "a/b/cpu.max", "max 100000\n");
        write(root.path(), "c/memory.max", "1\n");
        let groups = "0::/a/b\n";
        assert_eq!(memory_limit_bytes(root.path(), groups), Some(4 << 20));
        assert_eq!(cpu_quota_millicores(root.path(), groups), Some(1500));
        assert_eq!(memory_limit_bytes(root.path(), "0::/\n"), None);
        assert_eq!(cpu_quota_millicores(root.path(), ""), None);
    }

    #[test]
    fn version_1_has_a_folder_for_each_controller() {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            "memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        write(root.path(), "memory/job/memory.limit_in_bytes", "1048576\n");
        write(root.path(), "cpu/job/cpu.cfs_quota_us", "50000\n");
        write(root.path(), "cpu/job/cpu.cfs_period_us", "100000\n");
        write(root.path(), "cpu/cpu.cfs_quota_us", "-1\n");
        write(root.path(), "cpu/cpu.cfs_period_us", "100000\n");
        let groups = "9:name=systemd:/\n4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n";
        assert_eq!(memory_limit_bytes(root.path(), groups), Some(1 << 20));
        assert_eq!(cpu_quota_millicores(root.path(), groups), Some(500));
        assert_eq!(
            memory_limit_bytes(root.path(), "4:memory:/elsewhere\n"),
            None
        );
    }

    #[test]
    fn nonsense_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "memory.max", "many\n");
        write(root.path(), "cpu.max", "1 0\n");
        for groups in ["", ":::", "0::", "0::/../..", "x", "0::/a\n0::/b\n"] {
            assert_eq!(memory_limit_bytes(root.path(), groups), None, "{groups:?}");
            assert_eq!(
                cpu_quota_millicores(root.path(), groups),
                None,
                "{groups:?}"
            );
        }
    }
}
