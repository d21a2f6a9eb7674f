//! Which processes belong to the workload.

use std::fs;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};
use rustix::io::Errno;

use super::files::{Unread, is_unread};
use super::parse;

/// Processes followed at most.
const PROCESSES_MAX: usize = 32_768;

/// Whose processes are looked for. With a first process its descendants belong to the workload as well.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// The first process. Without one the workload is what is in `cgroup` and in the groups below it; without that too it
    /// is everybody but the process that polls. Threads of the kernel belong to neither.
    pub root: Option<u32>,
    /// A process (usually the one that polls, as subreaper) to which orphans of the workload go:
    /// all its children belong to it.
    pub adopter: Option<u32>,
    /// A cgroup folder that holds the workload and nothing else.
    pub cgroup: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    started: u64,
    group: u32,
    session: u32,
    is_kernel: bool,
}

/// The processes of a workload as last seen.
#[derive(Debug)]
pub(super) struct Tree {
    scope: Scope,
    processes: FxHashMap<u32, Process>,
    /// Those of the kernel, without a first process: until the next sweep they are not looked at again.
    of_kernel: FxHashSet<u32>,
    /// Kernels without `CONFIG_PROC_CHILDREN` tell parents only.
    has_children_files: bool,
    /// Files and folders of processes that could not be read.
    pub(super) unread: Unread,
}

impl Tree {
    pub(super) fn new(scope: Scope) -> Option<Tree> {
        let own = format!("/proc/self/task/{0}/children", std::process::id());
        let mut tree = Tree {
            has_children_files: Path::new(&own).exists(),
            processes: FxHashMap::default(),
            of_kernel: FxHashSet::default(),
            unread: Unread::default(),
            scope,
        };
        match tree.scope.root {
            Some(root) => tree.add(root).then_some(tree),
            None => Some(tree),
        }
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.processes.keys().copied()
    }

    /// Adds `pid` if it is alive and not known; tells whether it was added.
    fn add(&mut self, pid: u32) -> bool {
        if self.processes.len() >= PROCESSES_MAX || self.processes.contains_key(&pid) {
            return false;
        }
        let Some((process, _)) = self.look(pid) else {
            return false;
        };
        self.processes.insert(pid, process);
        true
    }

    /// Threads of all processes, after adding the children that are new and removing what is gone.
    /// And whether these are all: not where something could not be read.
    pub(super) fn threads(&mut self) -> (Vec<(u32, u32)>, bool) {
        let unread = self.unread.times;
        let mut threads = Vec::new();
        let has_root = self.scope.root.is_some();
        if !has_root {
            self.look_around();
        }
        let mut queue: Vec<u32> = self.processes.keys().copied().collect();
        if let (true, Some(cgroup)) = (has_root, &self.scope.cgroup) {
            let text = self.unread.seen(fs::read(cgroup.join("cgroup.procs")));
            let text = text.unwrap_or_default();
            let members: Vec<u32> = parse::pids(&text).collect();
            queue.extend(members.into_iter().filter(|&pid| self.add(pid)));
        }
        if self.has_children_files
            && let Some(adopter) = self.scope.adopter
        {
            queue.extend(
                self.children(adopter)
                    .into_iter()
                    .filter(|&pid| self.add(pid)),
            );
        }
        while let Some(pid) = queue.pop() {
            let tids = match self.tasks(pid) {
                Ok(tids) => tids,
                Err(why) if is_unread(why) => continue,
                Err(_) => {
                    self.processes.remove(&pid);
                    continue;
                }
            };
            threads.extend(tids.iter().map(|&tid| (pid, tid)));
            if !has_root || !self.has_children_files {
                continue;
            }
            for tid in tids {
                let children = self.children_of(pid, tid);
                queue.extend(children.into_iter().filter(|&child| self.add(child)));
            }
        }
        (threads, self.unread.times == unread)
    }

    /// Adds who is there now, where there is no first process.
    fn look_around(&mut self) {
        let own = std::process::id();
        let found = match self.scope.cgroup.clone() {
            Some(group) => self.members(group),
            None => self.numbers("/proc"),
        };
        let is_everyone = self.scope.cgroup.is_none();
        for pid in found {
            let is_known = self.processes.contains_key(&pid) || self.of_kernel.contains(&pid);
            if is_known || is_everyone && pid == own || self.processes.len() >= PROCESSES_MAX {
                continue;
            }
            match self.look(pid) {
                Some((process, _)) if process.is_kernel => {
                    self.of_kernel.insert(pid);
                }
                Some((process, _)) => {
                    self.processes.insert(pid, process);
                }
                None => {}
            }
        }
    }

    /// Processes in a group and in those below it.
    fn members(&mut self, group: PathBuf) -> Vec<u32> {
        let (mut found, mut left) = (Vec::new(), vec![group]);
        while let Some(group) = left.pop() {
            let text = self.unread.seen(fs::read(group.join("cgroup.procs")));
            found.extend(parse::pids(&text.unwrap_or_default()));
            let entries = self.unread.seen(fs::read_dir(&group));
            let folders = entries.into_iter().flatten().flatten();
            let folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(folders.map(|entry| entry.path()));
        }
        found
    }

    fn numbers(&mut self, folder: &str) -> Vec<u32> {
        let entries = self.unread.seen(fs::read_dir(folder));
        let entries = entries.into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.collect()
    }

    fn children(&mut self, pid: u32) -> Vec<u32> {
        let tids = self.tasks(pid).unwrap_or_default();
        tids.into_iter()
            .flat_map(|tid| self.children_of(pid, tid))
            .collect()
    }

    fn children_of(&mut self, pid: u32, tid: u32) -> Vec<u32> {
        let text = fs::read(format!("/proc/{pid}/task/{tid}/children"));
        let text = self.unread.seen(text).unwrap_or_default();
        parse::pids(&text).collect()
    }

    fn tasks(&mut self, pid: u32) -> Result<Vec<u32>, Errno> {
        let entries = self
            .unread
            .seen(fs::read_dir(format!("/proc/{pid}/task")))?;
        let tids = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(tids.collect())
    }

    /// A live process, with its parent.
    fn look(&mut self, pid: u32) -> Option<(Process, u32)> {
        let text = self
            .unread
            .seen(fs::read(format!("/proc/{pid}/stat")))
            .ok()?;
        let stat = parse::stat(&text)?;
        let process = Process {
            started: stat.started,
            group: stat.group,
            session: stat.session,
            is_kernel: stat.is_kernel,
        };
        (stat.state != b'X').then_some((process, stat.parent))
    }

    /// Looks through all processes of the machine: for children where the kernel does not list
    /// them, and for orphans, which keep the session and group that a process of the workload
    /// leads or led. Those whose id was given to another process since are forgotten. Without a first process nobody is
    /// looked for here.
    pub(super) fn sweep(&mut self) {
        if self.scope.root.is_none() {
            // Their ids may be others' by now.
            self.of_kernel.clear();
            return;
        }
        let Ok(entries) = self.unread.seen(fs::read_dir("/proc")) else {
            return;
        };
        let mut others: Vec<(u32, Process, u32)> = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Some((process, parent)) = self.look(pid) else {
                continue;
            };
            match self.processes.get(&pid) {
                Some(known) if known.started == process.started => {
                    // Its group and session may have changed since.
                    self.processes.insert(pid, process);
                }
                Some(_) => {
                    self.processes.remove(&pid);
                    others.push((pid, process, parent));
                }
                None => others.push((pid, process, parent)),
            }
        }
        let led: FxHashSet<u32> = self
            .processes
            .iter()
            .flat_map(|(&pid, process)| {
                [process.group, process.session]
                    .into_iter()
                    .filter(move |&id| id == pid)
            })
            .collect();
        let own = std::process::id();
        // Until nothing is added: a child may come before its parent.
        loop {
            let before = self.processes.len();
            others.retain(|&(pid, process, parent)| {
                let belongs = self.processes.contains_key(&parent)
                    || self.scope.adopter == Some(parent)
                    || led.contains(&process.group)
                    || led.contains(&process.session);
                let is_added = belongs && pid != own && self.processes.len() < PROCESSES_MAX;
                if is_added {
                    self.processes.insert(pid, process);
                }
                !is_added
            });
            if self.processes.len() == before {
                return;
            }
        }
    }
}
