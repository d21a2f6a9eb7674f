//! What is left in the system: processes and control groups.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::tool::{Place, skipped, until};

/// The process exists and has not ended (a zombie nobody has waited for has).
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

/// Waits for the end of a process.
pub fn until_gone(pid: u32) {
    until(&format!("the end of process {pid}"), || {
        (!is_alive(pid)).then_some(())
    });
}

/// The process that has started another.
pub fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in parentheses");
    let parent = rest.split(' ').nth(1).and_then(|pid| pid.parse().ok());
    parent.expect("a process id")
}

/// Waits for a file that holds a whole line with a process id.
pub fn pid_in(place: &Place, name: &str) -> u32 {
    until(name, || place.read(name).strip_suffix('\n')?.parse().ok())
}

/// Ends a process that a test is responsible for.
pub fn kill(pid: u32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Where control groups with CPU sets are mounted.
fn mounts() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_cpuset = match *fields.get(2)? {
            "cgroup" => fields.get(3)?.split(',').any(|option| option == "cpuset"),
            kind => kind == "cgroup2",
        };
        is_cpuset.then(|| PathBuf::from(fields[1]))
    });
    mounts.collect()
}

/// Control groups that the tool with this process id has made, wherever they are.
pub fn groups_of(pid: u32) -> Vec<PathBuf> {
    let prefix = format!("amdahl-run-{pid}-");
    let (mut folders, mut found) = (mounts(), Vec::new());
    // One hierarchy may be mounted twice.
    let mut seen = HashSet::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let metadata = entry.metadata();
            let is_new = metadata
                .is_ok_and(|about| about.is_dir() && seen.insert((about.dev(), about.ino())));
            if is_new && entry.file_name().to_string_lossy().starts_with(&prefix) {
                found.push(entry.path());
            } else if is_new {
                folders.push(entry.path());
            }
        }
    }
    found
}

/// The tool can confine runs by control groups here.
pub fn has_groups(place: &Place) -> bool {
    let checks = place.amdahl(["doctor", "--json"]).ends_with(0).json();
    let checks = checks.as_array().expect("a list").clone();
    let check = checks
        .iter()
        .find(|check| check["name"] == "cpuset control groups");
    check.expect("the check")["ok"] == true
}

/// Waits until a process has a handler for a signal.
pub fn until_catches(pid: u32, signal: rustix::process::Signal) {
    until(&format!("a signal handler of {pid}"), || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:\t"))?;
        let caught = u64::from_str_radix(line.trim(), 16).ok()?;
        (caught & (1 << (signal.as_raw() - 1)) != 0).then_some(())
    });
}

/// A control group of the test's own.
pub struct Group(PathBuf);

impl Group {
    /// A new one below ours; `None` with SKIPPED where none can be made.
    pub fn new(name: &str) -> Option<Group> {
        Group::with("cpu", name)
    }

    /// The same, with this controller.
    pub fn with(controller: &str, name: &str) -> Option<Group> {
        let made = || -> Result<PathBuf, String> {
            let found = amdahl_topology::memberships(controller);
            let found = found.map_err(|error| error.to_string())?;
            let own = found.first().ok_or("there are no control groups")?;
            let name = format!("test-{name}-{}", std::process::id());
            let group = own.folder.join(name);
            let made = fs::create_dir(&group);
            made.map_err(|error| format!("{}: {error}", group.display()))?;
            Ok(group)
        };
        match made() {
            Ok(group) => Some(Group(group)),
            Err(why) => {
                skipped(format!("no control group can be made: {why}"));
                None
            }
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Moves a process into it; false with SKIPPED where that is not allowed.
    pub fn takes_in(&self, pid: u32) -> bool {
        let written = fs::write(self.0.join("cgroup.procs"), pid.to_string());
        if let Err(why) = &written {
            let group = self.0.display();
            skipped(format!(
                "the control group takes no process: {group}: {why}"
            ));
        }
        written.is_ok()
    }

    /// Demands that nobody is in it any more.
    pub fn is_left_empty(&self) {
        let left = fs::remove_dir(&self.0);
        assert!(left.is_ok(), "{left:?}");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Only if nothing is left in it.
        let _ = fs::remove_dir(&self.0);
    }
}
