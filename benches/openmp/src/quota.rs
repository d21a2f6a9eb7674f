//! A control group with a quota of CPU time, which nothing survives.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::owner;

/// Removed when dropped; the processes in it are ended by whoever started them.
pub struct Group(PathBuf);

const PERIOD_US: u64 = 100_000;

/// Where groups are made, and whether that is the first version of control groups.
fn root() -> (PathBuf, bool) {
    let v1 = PathBuf::from("/sys/fs/cgroup/cpu");
    match v1.join("cpu.cfs_period_us").exists() || v1.join("tasks").exists() {
        true => (v1, true),
        false => (PathBuf::from("/sys/fs/cgroup"), false),
    }
}

impl Group {
    /// Makes a group that may use so many percent of so many CPUs.
    ///
    /// # Errors
    /// Why there is none, as a user understands it.
    pub fn new(percent: u64, cpus: usize) -> Result<Group, String> {
        let (root, is_v1) = root();
        let folder = root.join(owner::name()?);
        fs::create_dir(&folder)
            .map_err(|error| format!("no control group can be made (that takes root): {error}"))?;
        let group = Group(folder);
        let quota = PERIOD_US * percent * cpus as u64 / 100;
        let write = |file: &str, text: String| fs::write(group.0.join(file), text);
        match is_v1 {
            true => write("cpu.cfs_period_us", PERIOD_US.to_string())
                .and_then(|()| write("cpu.cfs_quota_us", quota.to_string())),
            false => write("cpu.max", format!("{quota} {PERIOD_US}")),
        }
        .map_err(|error| format!("no quota can be set: {error}"))?;
        Ok(group)
    }

    /// Has the process enter before it becomes the program.
    pub fn take_in(&self, command: &mut Command) {
        let procs = self.0.join("cgroup.procs");
        // SAFETY: between fork and exec of a process with one thread: opens and writes a file.
        unsafe { command.pre_exec(move || fs::write(&procs, "0")) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.0) {
            eprintln!("{}: cannot be removed: {error}", self.0.display());
        }
    }
}

/// A process that has ended leaves its group a moment later.
fn remove(folder: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < 500 => tries += 1,
            other => return other,
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Removes what a bench left that was killed. Its processes were killed with it.
pub fn clean_up_after_the_killed() {
    for group in owner::left_in(&root().0) {
        let _ = remove(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_quota_and_goes_with_its_owner() {
        let group = match Group::new(25, 2) {
            Ok(group) => group,
            Err(why) => {
                println!("SKIPPED a_group_has_a_quota_and_goes_with_its_owner: {why}");
                return;
            }
        };
        let folder = group.0.clone();
        let read = |file: &str| fs::read_to_string(folder.join(file));
        let quota = read("cpu.max")
            .or_else(|_| read("cpu.cfs_quota_us"))
            .unwrap();
        assert_eq!(quota.split_whitespace().next(), Some("50000"));
        clean_up_after_the_killed();
        assert!(folder.exists());
        drop(group);
        assert!(!folder.exists());
    }
}
