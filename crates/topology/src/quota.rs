//! How much CPU time a control group grants.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Group};
use crate::{Error, Result};

/// Which interface of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CgroupVersion {
    /// One hierarchy per controller: `cpu.cfs_quota_us`.
    V1,
    /// The unified hierarchy: `cpu.max`.
    V2,
}

/// A limit on CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// CPU-seconds per second; above 0.
    pub cpus: f64,
    /// The file that sets it.
    pub source: PathBuf,
    /// The kind of that file.
    pub version: CgroupVersion,
}

/// The tightest quota on this process: of its own control group or of one around
/// it, as far as they are visible from here. `None` if there is no limit.
///
/// # Errors
/// When `/proc` cannot be read or a quota file holds nonsense.
pub fn quota() -> Result<Option<Quota>> {
    quota_from(Path::new("/"))
}

/// As [`quota`], of the process `pid`.
///
/// # Errors
/// As [`quota`], and when there is no such process.
pub fn quota_of(pid: u32) -> Result<Option<Quota>> {
    tightest(&cgroup::groups(Path::new("/"), &pid.to_string())?)
}

/// As [`quota`], with `root` for `/`: `root/proc/self/cgroup` tells the group,
/// `root/proc/self/mountinfo` the mount points, which are looked up below `root`.
///
/// # Errors
/// As [`quota`].
pub fn quota_from(root: &Path) -> Result<Option<Quota>> {
    tightest(&cgroup::groups(root, "self")?)
}

fn tightest(groups: &[Group]) -> Result<Option<Quota>> {
    let mut tightest: Option<Quota> = None;
    for group in groups {
        if let Some(quota) = read_quota(group)?
            && tightest.as_ref().is_none_or(|t| quota.cpus < t.cpus)
        {
            tightest = Some(quota);
        }
    }
    Ok(tightest)
}

fn read_quota(group: &Group) -> Result<Option<Quota>> {
    let Some((source, limit)) = read_limit(group)? else {
        return Ok(None);
    };
    Ok(limit.map(|limit| Quota {
        cpus: limit.cpus,
        source,
        version: group.version,
    }))
}

/// The file that sets the limit of `group`, and the limit if it sets one; `None` without such a file.
pub(crate) fn read_limit(group: &Group) -> Result<Option<(PathBuf, Option<Limit>)>> {
    let (source, text) = match group.version {
        CgroupVersion::V1 => {
            let source = group.folder.join("cpu.cfs_quota_us");
            let period = group.folder.join("cpu.cfs_period_us");
            let (Some(quota), Some(period)) = (read(&source)?, read(&period)?) else {
                return Ok(None);
            };
            (source, format!("{quota} {period}"))
        }
        CgroupVersion::V2 => {
            let source = group.folder.join("cpu.max");
            match read(&source)? {
                Some(limit) => (source, limit),
                None => return Ok(None),
            }
        }
    };
    match parse_limit(&text) {
        Some(limit) => Ok(Some((source, limit))),
        None => Err(Error::malformed(
            &source,
            &text,
            "a quota and a period in microseconds",
        )),
    }
}

/// CPU time that a group gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limit {
    /// CPU-seconds per second.
    pub cpus: f64,
    /// After which time it gets that again.
    pub period_us: u64,
}

/// Reads `QUOTA PERIOD`; no limit is `max` in version 2 and -1 in version 1. `None` is nonsense.
fn parse_limit(text: &str) -> Option<Option<Limit>> {
    let (quota, period) = text.split_once(' ')?;
    let period_us: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    if quota == "max" {
        return Some(None);
    }
    match quota.parse::<i64>().ok()? {
        ..0 => Some(None),
        0 => None,
        quota => Some(Some(Limit {
            cpus: quota as f64 / period_us as f64,
            period_us,
        })),
    }
}

/// `None` if the group does not have the file: it is the root of a hierarchy, or
/// without the CPU controller, or gone, or hidden from us.
fn read(path: &Path) -> Result<Option<String>> {
    use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => {
            Ok(None)
        }
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(Error::read(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_limits() {
        let limit =
            |text| parse_limit(text).map(|limit| limit.map(|limit| (limit.cpus, limit.period_us)));
        assert_eq!(limit("max 100000"), Some(None));
        assert_eq!(limit("-1 100000"), Some(None));
        assert_eq!(limit("50000 100000"), Some(Some((0.5, 100_000))));
        assert_eq!(limit("800000 100000"), Some(Some((8.0, 100_000))));
        for text in [
            "", "max", "0 100000", "1 0", "1 -1", "1 2 3", "a 1", "1e3 1",
        ] {
            assert_eq!(parse_limit(text), None, "{text:?}");
        }
    }
}
