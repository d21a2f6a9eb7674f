//! Looks at the memory of the watched processes now and then: what they have mapped is known only
//! while they live.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_mem::read::{self, Process};

use crate::cli::Selection;
use crate::watch::present;

/// Processes that are kept: those with the most memory.
pub const PROCESSES_MAX: usize = 64;
/// Share of the time that looking may take: reading `smaps` holds the address-space lock.
pub const BUDGET: u32 = 50;
/// Pages whose sizes are looked up at the end: 1 GiB in small ones.
const PAGES_MAX: u64 = 1 << 18;
/// Between two looks at which processes there are, first and later.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// A process when it had most memory.
pub struct Seen {
    /// Its memory.
    pub process: Process,
    /// Bytes by size of page for each mapping, where known.
    pub sizes: Vec<Option<BTreeMap<u64, u64>>>,
    resident: u64,
    /// When it was looked at.
    pub at: Instant,
}

/// Whom to look at.
pub struct Looker {
    selection: Selection,
    root: Mutex<Option<u32>>,
    over: AtomicBool,
}

/// What was seen.
#[derive(Default)]
pub struct Looked {
    /// By process.
    pub seen: BTreeMap<u32, Seen>,
    /// Why the sizes of pages are not known.
    pub no_sizes: Option<String>,
    /// Why processes could not be looked at.
    pub refused: Option<String>,
    /// When the next look is allowed.
    next: Option<Instant>,
}

impl Looker {
    /// At what `selection` says.
    pub fn new(selection: &Selection) -> Looker {
        Looker {
            selection: selection.clone(),
            root: Mutex::new(selection.pid),
            over: AtomicBool::new(false),
        }
    }

    /// The first process of a command.
    pub fn begin_at(&self, pid: u32) {
        let mut root = self.root.lock().expect("nobody panics with it");
        root.get_or_insert(pid);
    }

    /// All processes are watched.
    pub fn is_system(&self) -> bool {
        self.selection.system
    }

    /// Ends [`look`](Self::look).
    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Looks until it is stopped, and once more then at those that still live and have their memory still.
    pub fn look(&self) -> Looked {
        let mut looked = Looked::default();
        let mut pause = PAUSES[0];
        while !self.over.load(Ordering::Relaxed) {
            for pid in self.pids() {
                looked.at(pid, false);
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
        for pid in self.pids() {
            looked.at(pid, true);
        }
        looked
    }

    /// Those who are there now.
    pub fn pids(&self) -> Vec<u32> {
        let root = *self.root.lock().expect("nobody panics with it");
        let Selection {
            system, command, ..
        } = &self.selection;
        if root.is_none() && !system && !command.is_empty() {
            return Vec::new(); // it has not begun
        }
        let found = present(&self.selection, root);
        // We look at others only.
        let me = std::process::id();
        let pids = found.into_iter().map(|(pid, _)| pid);
        pids.filter(|&pid| pid != me).collect()
    }
}

impl Looked {
    fn at(&mut self, pid: u32, is_last: bool) {
        let proc = Path::new("/proc");
        // Without an address space: a thread of the kernel, or ended.
        let Some(resident) = read::resident(proc, pid).filter(|&bytes| bytes > 0) else {
            return;
        };
        let now = Instant::now();
        let is_due = self.seen.get(&pid).is_none_or(|seen| {
            let is_old = now.duration_since(seen.at) > Duration::from_secs(2);
            resident > seen.resident + seen.resident / 10 || is_old && resident >= seen.resident
        });
        let is_allowed = self.next.is_none_or(|next| now >= next);
        // Sizes of pages are dear, a call for each page: looked up once, and for what is told of the process.
        let is_told = |seen: &Seen| resident >= seen.resident - seen.resident / 10;
        let is_wanted = if is_last {
            self.seen.get(&pid).is_none_or(is_told)
        } else {
            is_due && is_allowed
        };
        if !is_wanted {
            return;
        }
        self.keep(pid, resident, is_last);
        self.next = Some(now + now.elapsed() * BUDGET);
        if self.seen.len() > PROCESSES_MAX {
            let least = self.seen.iter().min_by_key(|(_, seen)| seen.resident);
            if let Some(pid) = least.map(|(&pid, _)| pid) {
                self.seen.remove(&pid);
            }
        }
    }

    /// Looks at a process, and at the sizes of its pages, and keeps what is seen.
    pub fn keep(&mut self, pid: u32, resident: u64, with_sizes: bool) {
        let (proc, at) = (Path::new("/proc"), Instant::now());
        let process = match read::process(proc, pid) {
            Ok(process) => process,
            Err(error) => {
                if error.source.kind() == std::io::ErrorKind::PermissionDenied {
                    self.refused.get_or_insert_with(|| error.to_string());
                }
                return;
            }
        };
        let mut sizes = Vec::new();
        if with_sizes {
            match read::page_sizes(proc, pid, &process.mappings, PAGES_MAX) {
                Ok(known) => sizes = known,
                Err(error) => {
                    self.no_sizes.get_or_insert_with(|| error.to_string());
                }
            }
        }
        // A process that is about to end has given its memory back already.
        if process
            .mappings
            .iter()
            .any(|mapping| mapping.in_memory() > 0)
        {
            let seen = Seen {
                process,
                sizes,
                resident,
                at,
            };
            self.seen.insert(pid, seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last look once replaced what was seen: a process that had given its memory back by then was
    /// told without it.
    #[test]
    fn the_last_look_keeps_what_a_process_had() {
        let me = std::process::id();
        let mut looked = Looked::default();
        looked.at(me, false);
        let first = looked.seen[&me].at;
        let had = |looked: &mut Looked, resident| {
            looked.seen.get_mut(&me).expect("seen").resident = resident;
        };
        had(&mut looked, 1 << 60);
        looked.at(me, true);
        assert_eq!(looked.seen[&me].at, first);
        had(&mut looked, 1);
        looked.at(me, true);
        assert_ne!(looked.seen[&me].at, first);
    }
}
