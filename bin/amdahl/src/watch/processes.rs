//! Which processes and threads there are, from `/proc`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn numbers(folder: impl AsRef<Path>) -> Vec<u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Threads of a process; none if it is gone.
pub fn threads(pid: u32) -> Vec<u32> {
    numbers(format!("/proc/{pid}/task"))
}

/// All processes.
pub fn pids() -> Vec<u32> {
    numbers("/proc")
}

/// All processes, each with its threads.
pub fn all() -> Vec<(u32, Vec<u32>)> {
    let pids = pids().into_iter();
    pids.map(|pid| (pid, threads(pid))).collect()
}

/// A process and its descendants, each with its threads.
pub fn tree(root: u32) -> Vec<(u32, Vec<u32>)> {
    let mut found = vec![(root, threads(root))];
    let mut at = 0;
    while at < found.len() {
        let (pid, tids) = found[at].clone();
        for tid in tids {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children"));
            for child in children
                .unwrap_or_default()
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
            {
                found.push((child, threads(child)));
            }
        }
        at += 1;
    }
    found
}

/// A thread's name; empty if it is gone.
pub fn comm(pid: u32, tid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    text.unwrap_or_default().trim_end().to_owned()
}

/// Whether a thread has ended, be it that its parent has not heard of it yet.
pub fn has_ended(tid: u32) -> bool {
    let text = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
    // The name before the state is in parentheses and may hold any.
    let after_name = text.iter().rposition(|&byte| byte == b')');
    let state = after_name.and_then(|at| text.get(at + 2));
    matches!(state, None | Some(b'Z' | b'X'))
}

/// A control group by its path, absolute or below where control groups are mounted.
pub fn cgroup(name: &str) -> Option<PathBuf> {
    let name = Path::new(name);
    let below = name.strip_prefix("/").unwrap_or(name);
    let roots = [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/cpu",
    ];
    let candidates = roots.iter().map(|root| Path::new(root).join(below));
    std::iter::once(name.to_owned())
        .chain(candidates)
        .find(|path| is_group(path))
}

/// Whether a folder is a control group, of either version, and no other one with a file of that name.
fn is_group(path: &Path) -> bool {
    const VERSION_1: u32 = 0x0027_e0eb;
    const VERSION_2: u32 = 0x6367_7270;
    let kind = rustix::fs::statfs(path).map(|about| about.f_type as u32);
    kind.is_ok_and(|kind| [VERSION_1, VERSION_2].contains(&kind))
        && path.join("cgroup.procs").is_file()
}

/// Processes in a control group and in those below it, each with its threads.
pub fn in_cgroup(group: &Path) -> Vec<(u32, Vec<u32>)> {
    let (mut found, mut left) = (BTreeSet::new(), vec![group.to_owned()]);
    while let Some(group) = left.pop() {
        let list = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        found.extend(list.lines().filter_map(|pid| pid.parse::<u32>().ok()));
        let entries = std::fs::read_dir(&group).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        left.extend(folders.map(|entry| entry.path()));
    }
    let pids = found.into_iter();
    pids.map(|pid| (pid, threads(pid))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn we_are_among_all_and_in_our_own_tree() {
        let me = std::process::id();
        let is_me = |(pid, tids): &(u32, Vec<u32>)| *pid == me && tids.contains(&me);
        assert!(super::all().iter().any(is_me));
        assert!(super::tree(me).iter().any(is_me));
    }

    #[test]
    fn who_has_ended_is_known_before_and_after_the_parent_hears_of_it() {
        assert!(!super::has_ended(std::process::id()));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat starts");
        let pid = child.id();
        assert!(!super::has_ended(pid));
        drop(child.stdin.take());
        let id = rustix::process::Pid::from_child(&child);
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(id), ended).expect("it ends");
        assert!(super::has_ended(pid));
        child.wait().expect("it has ended");
        assert!(super::has_ended(pid));
    }

    #[test]
    fn what_is_no_control_group_is_none() {
        assert_eq!(super::cgroup("/proc"), None);
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("cgroup.procs"), "1\n").expect("a file");
        let name = folder.path().to_str().expect("a plain name");
        assert_eq!(super::cgroup(name), None);
    }

    #[test]
    fn a_control_group_of_either_version_is_found() {
        let Ok(mounts) = std::fs::read_to_string("/proc/mounts") else {
            return;
        };
        for mount in mounts.lines() {
            let words: Vec<&str> = mount.split(' ').collect();
            if let [_, place, "cgroup" | "cgroup2", ..] = words[..] {
                assert_eq!(super::cgroup(place), Some(place.into()));
            }
        }
    }
}
