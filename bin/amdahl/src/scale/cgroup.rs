//! A control group for one run, so that grandchildren and daemons are confined too, and nothing
//! of a run survives it.

use std::io;
use std::path::{Path, PathBuf};

use amdahl_topology::CpuSet;

/// A cpuset control group. Dropping it ends what is left in it and removes it.
pub struct Group {
    folder: PathBuf,
    /// `v1` or `v2`.
    pub version: &'static str,
}

const PREFIX: &str = "amdahl-";

fn mounts() -> Vec<(PathBuf, &'static str)> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = table
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter_map(|fields| match fields[..] {
            [_, at, "cgroup", options, ..] if options.split(',').any(|o| o == "cpuset") => {
                Some((PathBuf::from(at), "v1"))
            }
            [_, at, "cgroup2", ..] => {
                let on =
                    std::fs::read_to_string(Path::new(at).join("cgroup.subtree_control")).ok()?;
                on.split_whitespace()
                    .any(|c| c == "cpuset")
                    .then(|| (PathBuf::from(at), "v2"))
            }
            _ => None,
        })
        .collect()
}

fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')')
        .next()?
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

impl Group {
    /// Makes a group for `cpus`; `None` where that is not allowed or not mounted.
    pub fn new(cpus: &CpuSet, serial: u32) -> Option<Group> {
        let me = std::process::id();
        let name = format!("{PREFIX}{me}-{}-{serial}", start_time(me)?);
        mounts().into_iter().find_map(|(mount, version)| {
            let folder = mount.join(&name);
            std::fs::create_dir(&folder).ok()?;
            let group = Group { folder, version };
            let mems = std::fs::read_to_string(mount.join(if version == "v1" {
                "cpuset.mems"
            } else {
                "cpuset.mems.effective"
            }));
            let write = |file: &str, text: &str| std::fs::write(group.folder.join(file), text);
            write("cpuset.cpus", &cpus.to_string()).ok()?;
            write("cpuset.mems", mems.ok()?.trim()).ok()?;
            Some(group)
        })
    }

    /// Where a process writes `0` to enter.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Processes left in it.
    pub fn left(&self) -> Vec<u32> {
        members(&self.folder)
    }
}

fn members(folder: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

fn remove(folder: &Path) -> io::Result<()> {
    // Processes may fork while they are killed: again until none is left, but not for ever.
    for _ in 0..200 {
        for pid in members(folder) {
            // SAFETY: only members of a group that we (or a killed predecessor) made.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
        match std::fs::remove_dir(folder) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::yield_now(),
            other => return other,
        }
        std::thread::park_timeout(std::time::Duration::from_millis(2));
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = remove(&self.folder);
    }
}

/// Ends and removes what a killed predecessor left. Returns how many groups that were.
pub fn clean_up_after_the_killed() -> usize {
    let mut removed = 0;
    for (mount, _) in mounts() {
        let entries = std::fs::read_dir(&mount).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
                continue;
            };
            let mut parts = rest.split('-').map(str::parse::<u64>);
            let (Some(Ok(pid)), Some(Ok(started))) = (parts.next(), parts.next()) else {
                continue;
            };
            let alive = start_time(pid as u32) == Some(started);
            if !alive && remove(&entry.path()).is_ok() {
                removed += 1;
            }
        }
    }
    removed
}
