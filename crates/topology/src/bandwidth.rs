//! The quotas on a process or a control group, each with what is left of it.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Group};
use crate::quota::{Limit, read_limit};
use crate::throttle::{parse, value, with_text};
use crate::{CgroupVersion, Result};

/// A control group with a quota. Holds its files open, so that they may be read often.
#[derive(Debug)]
pub struct Bandwidth {
    /// The group.
    pub folder: PathBuf,
    /// CPU-seconds per second that its processes get together; above 0.
    pub cpus: f64,
    /// After how many microseconds they get that again.
    pub period_us: u64,
    stat: Option<File>,
    usage: Option<File>,
}

/// What the processes of a group did with its quota so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandwidthUse {
    /// CPU time that they used; `None` where the hierarchy does not count it.
    pub usage_ns: Option<u64>,
    /// Time that CPUs with something to run were held back, summed over the CPUs.
    pub throttled_ns: Option<u64>,
}

/// The quotas on the process `pid`: of its own control group and of those around it, as far as they are visible from
/// here. Groups without a quota are left out.
///
/// # Errors
/// When there is no such process, its `/proc` files cannot be read, or a quota file holds nonsense.
pub fn bandwidth_of(pid: u32) -> Result<Vec<Bandwidth>> {
    bandwidth_from(Path::new("/"), pid)
}

/// As [`bandwidth_of`], with `root` for `/` as in [`quota_from`](crate::quota_from).
///
/// # Errors
/// As [`bandwidth_of`].
pub fn bandwidth_from(root: &Path, pid: u32) -> Result<Vec<Bandwidth>> {
    limited(&cgroup::groups(root, &pid.to_string())?)
}

/// The quotas on the processes of the control group `folder`, of it and of those around it.
///
/// # Errors
/// When the mounts cannot be read or a quota file holds nonsense.
pub fn bandwidth_around(folder: &Path) -> Result<Vec<Bandwidth>> {
    limited(&cgroup::groups_around(Path::new("/"), folder)?)
}

fn limited(groups: &[Group]) -> Result<Vec<Bandwidth>> {
    let mut found = Vec::new();
    for group in groups {
        if let Some((_, Some(Limit { cpus, period_us }))) = read_limit(group)? {
            let open = |name| File::open(group.folder.join(name)).ok();
            found.push(Bandwidth {
                folder: group.folder.clone(),
                cpus,
                period_us,
                stat: open("cpu.stat"),
                usage: match group.version {
                    // There if both controllers are mounted together, as is usual.
                    CgroupVersion::V1 => open("cpuacct.usage"),
                    CgroupVersion::V2 => None,
                },
            });
        }
    }
    Ok(found)
}

impl Bandwidth {
    /// What its processes used so far. Two short files at most are read.
    pub fn read(&self) -> BandwidthUse {
        let (throttled_ns, usec) = self
            .stat
            .as_ref()
            .and_then(|file| {
                with_text(file, |text| {
                    let throttled = parse(text).map(|stat| stat.throttled_ns);
                    Some((throttled, value(text, "usage_usec")))
                })
            })
            .unwrap_or_default();
        let usage = self
            .usage
            .as_ref()
            .and_then(|file| with_text(file, |text| text.trim().parse().ok()));
        BandwidthUse {
            usage_ns: usage.or(usec.map(|us| us.saturating_mul(1000))),
            throttled_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn all_quotas_on_the_way_to_the_root_are_found_with_their_use() {
        let root = tree(&[
            ("proc/7/cgroup", "0::/a/b\n"),
            (
                "proc/self/mountinfo",
                "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n",
            ),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            (
                "sys/fs/cgroup/a/cpu.stat",
                "usage_usec 9\nnr_periods 1\nnr_throttled 1\nthrottled_usec 4\n",
            ),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
        ]);
        let found = bandwidth_from(root.path(), 7).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].cpus, found[0].period_us), (1.5, 100_000));
        let used = BandwidthUse {
            usage_ns: Some(9_000),
            throttled_ns: Some(4_000),
        };
        assert_eq!(found[0].read(), used);
    }

    #[test]
    fn version_1_has_files_of_its_own() {
        let root = tree(&[
            ("proc/7/cgroup", "3:cpu,cpuacct:/a\n"),
            (
                "proc/self/mountinfo",
                "30 1 0:26 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu,cpuacct\n",
            ),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "200000\n"),
            ("sys/fs/cgroup/cpu/a/cpuacct.usage", "77\n"),
        ]);
        let found = bandwidth_from(root.path(), 7).unwrap();
        assert_eq!((found[0].cpus, found[0].period_us), (0.25, 200_000));
        let used = BandwidthUse {
            usage_ns: Some(77),
            throttled_ns: None,
        };
        assert_eq!(found[0].read(), used);
    }

    #[test]
    fn what_is_no_group_has_no_quota() {
        assert!(
            bandwidth_around(Path::new("/proc/self"))
                .unwrap()
                .is_empty()
        );
    }
}
