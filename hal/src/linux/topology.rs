//! Which cores there are, how fast each is, and which of them lanes should sit on.
//!
//! Everything but the allowed set is optional: a core of unknown speed counts as slower than any
//! known one, and with no speeds at all the order is that of the indices.

use std::cmp::Reverse;
use std::fs;
use std::path::Path;

/// Cores that the affinity calls can name.
pub const CORE_INDEX_MAX: u16 = 1023;

/// One core that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Core {
    /// Its number.
    pub index: u16,
    /// Relative speed as the scheduler sees it; the fastest core has 1024.
    pub capacity: Option<u32>,
    /// Highest clock frequency.
    pub freq_max_khz: Option<u32>,
    /// Position among the hardware threads of its physical core: 0 for the first.
    pub thread_index: u16,
}

/// The cores that this process may use and that are online.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// In order of their numbers.
    pub cores: Vec<Core>,
}

impl Topology {
    /// Reads what `root` (`/sys/devices/system/cpu`, or an imitation) says of the `allowed` cores.
    pub fn read(root: &Path, allowed: &[u16]) -> Self {
        let mut allowed: Vec<u16> = allowed.to_vec();
        allowed.sort_unstable();
        allowed.dedup();
        let online = fs::read_to_string(root.join("online"))
            .ok()
            .map(|text| parse_list(&text));
        let cores = allowed
            .into_iter()
            .filter(|index| online.as_ref().is_none_or(|online| online.contains(index)))
            .filter_map(|index| {
                let folder = root.join(format!("cpu{index}"));
                let number = |file: &str| -> Option<u32> {
                    fs::read_to_string(folder.join(file))
                        .ok()?
                        .trim()
                        .parse()
                        .ok()
                };
                if number("online") == Some(0) {
                    return None;
                }
                let siblings = fs::read_to_string(folder.join("topology/thread_siblings_list"));
                let siblings = parse_list(&siblings.unwrap_or_default());
                let thread_index = siblings
                    .iter()
                    .position(|&other| other == index)
                    .unwrap_or(0);
                Some(Core {
                    index,
                    capacity: number("cpu_capacity"),
                    freq_max_khz: number("cpufreq/cpuinfo_max_freq"),
                    thread_index: thread_index as u16,
                })
            })
            .collect();
        Topology { cores }
    }

    /// The cores for `lanes` lanes, the fastest first; fewer if there are not so many.
    ///
    /// First hardware threads come before second ones, then higher capacity, then higher
    /// frequency, then lower index.
    pub fn choose(&self, lanes: usize) -> Vec<u16> {
        let mut cores = self.cores.clone();
        cores.sort_by_key(|core| {
            (
                core.thread_index,
                Reverse((core.capacity, core.freq_max_khz)),
                core.index,
            )
        });
        cores.iter().take(lanes).map(|core| core.index).collect()
    }
}

/// A list such as `0-3,6`; parts that make no sense are left out.
fn parse_list(text: &str) -> Vec<u16> {
    let mut list = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<u16>()) else {
            continue;
        };
        list.extend(first..=last.min(CORE_INDEX_MAX));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A tree with these files, `(path, text)`.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn with_capacities(capacities: &[u32]) -> TempDir {
        let root = tree(&[]);
        for (index, capacity) in capacities.iter().enumerate() {
            let folder = root.path().join(format!("cpu{index}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cpu_capacity"), format!("{capacity}\n")).unwrap();
        }
        root
    }

    fn choose(root: &TempDir, allowed: &[u16], lanes: usize) -> Vec<u16> {
        Topology::read(root.path(), allowed).choose(lanes)
    }

    #[test]
    fn two_four_two_starts_with_the_big_ones() {
        let root = with_capacities(&[300, 300, 700, 700, 700, 700, 1024, 1024]);
        let all: Vec<u16> = (0..8).collect();
        assert_eq!(choose(&root, &all, 1), [6]);
        assert_eq!(choose(&root, &all, 4), [6, 7, 2, 3]);
        assert_eq!(choose(&root, &all, 8), [6, 7, 2, 3, 4, 5, 0, 1]);
        assert_eq!(choose(&root, &all, 99).len(), 8);
    }

    #[test]
    fn one_three_four_with_frequencies_only() {
        let khz = [
            ("cpu0/cpufreq/cpuinfo_max_freq", "1800000"),
            ("cpu1/cpufreq/cpuinfo_max_freq", "1800000"),
            ("cpu2/cpufreq/cpuinfo_max_freq", "1800000"),
            ("cpu3/cpufreq/cpuinfo_max_freq", "1800000"),
            ("cpu4/cpufreq/cpuinfo_max_freq", "2420000"),
            ("cpu5/cpufreq/cpuinfo_max_freq", "2420000"),
            ("cpu6/cpufreq/cpuinfo_max_freq", "2420000"),
            ("cpu7/cpufreq/cpuinfo_max_freq", "3200000"),
        ];
        let all: Vec<u16> = (0..8).collect();
        assert_eq!(choose(&tree(&khz), &all, 5), [7, 4, 5, 6, 0]);
        // A core whose frequency is not told is taken last.
        assert_eq!(choose(&tree(&khz[..7]), &all, 8), [4, 5, 6, 0, 1, 2, 3, 7]);
    }

    #[test]
    fn capacity_beats_frequency() {
        let root = tree(&[
            ("cpu0/cpu_capacity", "1024"),
            ("cpu0/cpufreq/cpuinfo_max_freq", "2000000"),
            ("cpu1/cpu_capacity", "800"),
            ("cpu1/cpufreq/cpuinfo_max_freq", "2600000"),
        ]);
        assert_eq!(choose(&root, &[0, 1], 2), [0, 1]);
    }

    #[test]
    fn a_cpuset_of_two_cores_is_obeyed() {
        let root = with_capacities(&[300, 300, 700, 700, 700, 700, 1024, 1024]);
        assert_eq!(choose(&root, &[1, 4], 4), [4, 1]);
        assert_eq!(choose(&root, &[4, 1, 4], 4), [4, 1]);
        assert_eq!(choose(&root, &[], 4), [] as [u16; 0]);
    }

    #[test]
    fn offline_cores_are_left_out() {
        let root = with_capacities(&[300, 300, 1024, 1024]);
        fs::write(root.path().join("cpu3/online"), "0\n").unwrap();
        fs::write(root.path().join("cpu2/online"), "1\n").unwrap();
        assert_eq!(choose(&root, &[0, 1, 2, 3], 4), [2, 0, 1]);
        fs::write(root.path().join("online"), "0-1,3\n").unwrap();
        assert_eq!(choose(&root, &[0, 1, 2, 3], 4), [0, 1]);
    }

    #[test]
    fn second_threads_of_a_core_come_last() {
        let root = tree(&[
            ("cpu0/topology/thread_siblings_list", "0,2"),
            ("cpu1/topology/thread_siblings_list", "1,3"),
            ("cpu2/topology/thread_siblings_list", "0,2"),
            ("cpu3/topology/thread_siblings_list", "1,3"),
        ]);
        assert_eq!(choose(&root, &[0, 1, 2, 3], 4), [0, 1, 2, 3]);
        let root = tree(&[
            ("cpu0/topology/thread_siblings_list", "0-1"),
            ("cpu1/topology/thread_siblings_list", "0-1"),
            ("cpu2/topology/thread_siblings_list", "2-3"),
            ("cpu3/topology/thread_siblings_list", "2-3"),
        ]);
        assert_eq!(choose(&root, &[0, 1, 2, 3], 4), [0, 2, 1, 3]);
    }

    #[test]
    fn nothing_readable_means_the_order_of_indices() {
        let all = [3, 1, 2];
        assert_eq!(
            Topology::read(Path::new("/nowhere"), &all).choose(3),
            [1, 2, 3]
        );
        let root = tree(&[
            ("cpu1/cpu_capacity", "fast"),
            ("online", "-,x,1-2,9-4,70000"),
        ]);
        assert_eq!(choose(&root, &all, 3), [1, 2]);
    }
}
