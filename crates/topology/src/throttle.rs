//! How much CPU time a quota took away.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::cgroup;

/// What quotas did to a process so far, from the `cpu.stat` of its control group
/// and of those around it, any of which may have the quota.
///
/// Holds the files open, so that it may be read often and still works after the
/// process ended.
#[derive(Debug)]
pub struct Throttle {
    files: Vec<(PathBuf, File)>,
}

/// Counters since the control groups were made. They belong to the groups: other
/// processes in them count too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleStat {
    /// Quota periods that passed with somebody running.
    pub periods: u64,
    /// Periods in which the quota ran out.
    pub throttled_periods: u64,
    /// Nanoseconds that CPUs with something to run were held back, summed over
    /// the CPUs. Under two nested quotas both may count the same nanosecond.
    pub throttled_ns: u64,
}

impl Throttle {
    /// Of the process `pid`.
    ///
    /// # Errors
    /// When there is no such process or its `/proc` files cannot be read. A
    /// process without a CPU controller is no error: see [`Throttle::read`].
    pub fn open_for(pid: u32) -> Result<Self> {
        Self::open_from(Path::new("/"), pid)
    }

    /// As [`Throttle::open_for`], with `root` for `/` as in [`quota_from`](crate::quota_from).
    ///
    /// # Errors
    /// As [`Throttle::open_for`].
    pub fn open_from(root: &Path, pid: u32) -> Result<Self> {
        let files = cgroup::groups(root, &pid.to_string())?
            .into_iter()
            .map(|group| group.folder.join("cpu.stat"))
            .filter_map(|path| Some((path.clone(), File::open(path).ok()?)))
            // A group without the controller has a `cpu.stat` too, of usage only.
            .filter(|(_, file)| read(file).is_some())
            .collect();
        Ok(Throttle { files })
    }

    /// The sum over the control groups; `None` if none of them counts throttling.
    pub fn read(&self) -> Option<ThrottleStat> {
        self.files
            .iter()
            .filter_map(|(_, file)| read(file))
            .reduce(|a, b| ThrottleStat {
                periods: a.periods.saturating_add(b.periods),
                throttled_periods: a.throttled_periods.saturating_add(b.throttled_periods),
                throttled_ns: a.throttled_ns.saturating_add(b.throttled_ns),
            })
    }

    /// The `cpu.stat` files, innermost control group first.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }
}

fn read(file: &File) -> Option<ThrottleStat> {
    with_text(file, parse)
}

/// What `parse` makes of a short file of the kernel.
pub(crate) fn with_text<T>(file: &File, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    // A dozen short lines; the kernel gives them in one piece.
    let mut buffer = [0; 4096];
    let len = file.read_at(&mut buffer, 0).ok()?;
    parse(std::str::from_utf8(&buffer[..len]).ok()?)
}

/// `None` unless throttling is counted. Version 1 has `throttled_time` in
/// nanoseconds, version 2 `throttled_usec`.
pub(crate) fn parse(text: &str) -> Option<ThrottleStat> {
    let value = |key: &str| value(text, key);
    Some(ThrottleStat {
        periods: value("nr_periods")?,
        throttled_periods: value("nr_throttled")?,
        throttled_ns: value("throttled_time")
            .or_else(|| Some(value("throttled_usec")?.saturating_mul(1000)))?,
    })
}

/// The number after `key`.
pub(crate) fn value(text: &str, key: &str) -> Option<u64> {
    let mut words = text.lines().map(str::split_ascii_whitespace);
    words
        .find_map(|mut words| (words.next() == Some(key)).then(|| words.next())?)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_versions() {
        let expected = ThrottleStat {
            periods: 10,
            throttled_periods: 3,
            throttled_ns: 4_000_000,
        };
        let v1 = "nr_periods 10\nnr_throttled 3\nthrottled_time 4000000\nnr_bursts 0\n";
        let v2 = "usage_usec 9\nuser_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 4000\n";
        assert_eq!(parse(v1), Some(expected));
        assert_eq!(parse(v2), Some(expected));
    }

    #[test]
    fn no_counters_are_no_zeros() {
        for text in [
            "",
            "usage_usec 9\n",
            "nr_periods\nnr_throttled x\n",
            "nr_periods 1\nnr_throttled 1",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
