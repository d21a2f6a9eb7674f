//! A control group for one run, so that grandchildren and daemons are confined too, and nothing
//! of a run survives it. It is made where the limits on us hold for it as well (`place`).

mod place;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use amdahl_claim::{Claim, abandoned};
use amdahl_topology::{CgroupVersion, CpuSet};
use rustix::fs::{FlockOperation, flock};

use place::{Kind, Place};

/// A control group. Dropping it ends what is left in it and removes it.
pub struct Group {
    claim: Claim,
    /// Version of the hierarchy whose CPU set confines it, `v1` or `v2`; or why none does.
    pub cpus: Result<&'static str, String>,
}

const PREFIX: &str = "amdahl-run-";

/// Where a group says which controllers those below have.
const HANDED_ON: &str = "cgroup.subtree_control";

impl Group {
    /// Makes a group for `cpus`; `None` where that is not allowed or not mounted.
    pub fn new(cpus: &CpuSet) -> Option<Group> {
        let memberships = amdahl_topology::memberships("cpuset").ok()?;
        let mut why = None;
        for place in place::places(&memberships, std::process::id()) {
            match Group::at(&place, cpus) {
                Ok(mut group) => {
                    if let (Err(reason), Some(why)) = (&mut group.cpus, why) {
                        *reason = why;
                    }
                    return Some(group);
                }
                // What one place refuses, another may allow.
                Err(error) if place.kind == Kind::Threaded => {
                    let own = place.parent.display();
                    why = Some(format!("{own} can have no threaded groups ({error})"));
                }
                Err(_) => {}
            }
        }
        None
    }

    fn at(place: &Place, cpus: &CpuSet) -> io::Result<Group> {
        let parent = place.parent.as_path();
        let claim = Claim::new(parent, PREFIX, |path| fs::create_dir(path))?;
        let group = Group {
            claim,
            cpus: match (&place.kind, place.version) {
                (Kind::WithoutCpus(why), _) => Err(why.clone()),
                (_, CgroupVersion::V1) => Ok("v1"),
                (_, CgroupVersion::V2) => Ok("v2"),
            },
        };
        if place.kind == Kind::Threaded {
            group.write("cgroup.type", "threaded")?;
            // Another one of us may be switching it off.
            let _lock = locked(parent)?;
            if !handed_on(parent).iter().any(|name| name == "cpuset") {
                fs::write(parent.join(HANDED_ON), "+cpuset")?;
            }
        }
        if group.cpus.is_ok() {
            group.write("cpuset.cpus", &cpus.to_string())?;
        }
        // In version 2 an empty one is that of the group above.
        if place.version == CgroupVersion::V1 {
            let mems = fs::read_to_string(parent.join("cpuset.mems"))?;
            group.write("cpuset.mems", mems.trim())?;
        }
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.claim.path().join(file), text)
    }

    /// Where a process writes `0` to enter.
    pub fn procs(&self) -> PathBuf {
        self.claim.path().join("cgroup.procs")
    }

    /// Processes left in it.
    pub fn left(&self) -> BTreeSet<u32> {
        members(self.claim.path())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next start.
        let _ = remove(self.claim.path());
    }
}

/// Held while it is changed what `group` hands on.
fn locked(group: &Path) -> io::Result<File> {
    let file = File::open(group.join(HANDED_ON))?;
    flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// The controllers that a group hands on.
fn handed_on(group: &Path) -> Vec<String> {
    let list = fs::read_to_string(group.join(HANDED_ON)).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

/// After the last of its threaded groups a group hands on no CPU sets any more, as before the first.
fn switch_off(group: &Path) {
    if let Ok(_lock) = locked(group)
        && below(group).next().is_none()
        && handed_on(group) == ["cpuset"]
    {
        let _ = fs::write(group.join(HANDED_ON), "-cpuset");
    }
}

/// Groups directly below one.
fn below(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

/// Processes in a group. Those that are hidden from us have the number 0, which means somebody else.
fn members(folder: &Path) -> BTreeSet<u32> {
    let numbers = |list: &str| -> Option<BTreeSet<u32>> {
        let text = fs::read_to_string(folder.join(list)).ok()?;
        let numbers = text.lines().filter_map(|line| line.parse().ok());
        Some(numbers.filter(|&pid| pid != 0).collect())
    };
    let of_threads = || {
        let threads = numbers("cgroup.threads")?;
        Some(threads.into_iter().filter_map(process_of).collect())
    };
    // Threaded groups list threads only.
    numbers("cgroup.procs")
        .or_else(of_threads)
        .unwrap_or_default()
}

/// The process of a thread.
fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// A group and those below it, the innermost first.
fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = below(folder).flat_map(|group| tree(&group)).collect();
    found.push(folder.to_owned());
    found
}

/// Ends what is in a group of ours and removes it, with the groups that its processes have made.
fn remove(folder: &Path) -> io::Result<()> {
    let kind = fs::read_to_string(folder.join("cgroup.type")).unwrap_or_default();
    empty_and_remove(folder)?;
    if let (true, Some(parent)) = (kind.trim() == "threaded", folder.parent()) {
        switch_off(parent);
    }
    Ok(())
}

fn empty_and_remove(folder: &Path) -> io::Result<()> {
    // Processes may fork while they are killed: again until none is left, but not for ever.
    for _ in 0..200 {
        let mut removed = Ok(());
        for group in tree(folder) {
            for pid in members(&group) {
                // SAFETY: only members of a group that we (or a killed predecessor) made.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
            removed = fs::remove_dir(&group);
        }
        match removed {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::yield_now(),
            other => return other,
        }
        std::thread::park_timeout(std::time::Duration::from_millis(2));
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// Groups looked at for those that were left: some machines have very many.
const GROUPS_MAX: usize = 20_000;

/// Ends and removes what a killed predecessor left, wherever it was called. Returns how many groups that were.
pub fn clean_up_after_the_killed() -> usize {
    let memberships = amdahl_topology::memberships("cpuset").unwrap_or_default();
    memberships
        .iter()
        .map(|membership| remove_abandoned(&membership.mount))
        .sum()
}

fn remove_abandoned(mount: &Path) -> usize {
    let (mut removed, mut at) = (0, 0);
    let mut groups = vec![mount.to_owned()];
    while at < groups.len() {
        let parent = groups[at].clone();
        at += 1;
        for group in below(&parent) {
            // Below groups of ours there may be those of one that was measured itself.
            let Some(_lock) = abandoned(&group, PREFIX) else {
                if groups.len() < GROUPS_MAX {
                    groups.push(group);
                }
                continue;
            };
            if remove(&group).is_ok() {
                removed += 1;
            }
        }
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_with_its_owner() {
        let cpus = amdahl_topology::allowed().expect("a mask");
        let Some(group) = Group::new(&cpus) else {
            eprintln!("SKIPPED control groups: none can be made here");
            return;
        };
        let path = group.claim.path().to_owned();
        assert!(group.left().is_empty());
        clean_up_after_the_killed();
        assert!(path.exists(), "its owner lives");
        drop(group);
        assert!(!path.exists());
    }

    #[test]
    fn groups_of_the_killed_are_found_wherever_they_are() {
        let place = tempfile::tempdir().expect("a folder");
        let deep = place.path().join("user.slice/session-1.scope");
        let other = deep.join("amdahl-like");
        fs::create_dir_all(&other).expect("made");
        let make = |path: &Path| fs::create_dir(path);
        let alive = Claim::new(&deep, PREFIX, make).expect("made");
        // What was measured there was one of us, and was killed.
        let dead = Claim::new(alive.path(), PREFIX, make).expect("made");
        fs::create_dir(dead.path().join("made-by-the-workload")).expect("made");
        let gone = dead.path().to_owned();
        drop(dead);
        assert_eq!(remove_abandoned(place.path()), 1);
        assert!(!gone.exists());
        assert!(alive.path().exists() && other.exists());
    }

    #[test]
    fn members_are_processes() {
        let place = tempfile::tempdir().expect("a folder");
        let list = |name: &str, text: String| {
            fs::write(place.path().join(name), text).expect("written");
        };
        let me = std::process::id();
        list("cgroup.threads", format!("{me}\n"));
        assert_eq!(members(place.path()), BTreeSet::from([me]));
        // 0 is a process that cannot be seen from here; to `kill` it is ourselves.
        list("cgroup.procs", format!("0\n{me}\n"));
        assert_eq!(members(place.path()), BTreeSet::from([me]));
    }
}
