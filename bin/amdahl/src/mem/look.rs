//! Looks at the memory of the watched processes now and then: what they have mapped is known only
//! while they live.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amdahl_mem::pagemap::Sizes;
use amdahl_mem::read::{self, Process, ReadError};

use crate::cli::Selection;
use crate::interrupt::Interrupt;
use crate::watch::present;

/// Processes that are kept: those with the most memory.
pub const PROCESSES_MAX: usize = 64;
/// Share of the time that looking may take: reading `smaps` holds the address-space lock.
pub const BUDGET: u32 = 50;
/// Pages of a process whose sizes are looked up at the end, 1 GiB in small ones, and meanwhile: each is a call.
const PAGES_MAX: u64 = 1 << 18;
const PAGES_MEANWHILE: u64 = 1 << 14;
/// How long the last look at all of them may take.
const LAST_LOOK_MAX: Duration = Duration::from_secs(5);
/// Between two looks at which processes there are, first and later.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

/// A process when it had most memory.
pub struct Seen {
    /// Its memory.
    pub process: Process,
    /// Sizes of the pages of each mapping, where known; empty if nothing is.
    pub sizes: Vec<Option<Sizes>>,
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
    /// Processes for which there was no time at the end.
    pub left_out: usize,
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

    /// Looks until it is stopped, and once more then at those that still live and have their memory still, unless
    /// `interrupt` says twice that it is enough.
    pub fn look(&self, interrupt: &Interrupt) -> Looked {
        let mut looked = Looked::default();
        let mut pause = PAUSES[0];
        while !self.over.load(Ordering::Relaxed) {
            for (resident, pid) in looked.longest_ago_first(self.largest()) {
                looked.now_and_then(pid, resident);
            }
            std::thread::park_timeout(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
        let begun = Instant::now();
        let goes_on = || begun.elapsed() < LAST_LOOK_MAX && !interrupt.insisted();
        looked.once_more(self.largest(), goes_on);
        looked
    }

    /// Those of [`pids`](Self::pids) with the most memory, [`PROCESSES_MAX`] at most, with their resident bytes. The largest
    /// come first.
    pub fn largest(&self) -> Vec<(u64, u32)> {
        // Without an address space: a thread of the kernel, or ended.
        let resident = |pid| {
            let resident = read::resident(Path::new("/proc"), pid)?;
            (resident > 0).then_some((resident, pid))
        };
        let mut largest: Vec<_> = self.pids().into_iter().filter_map(resident).collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        largest.truncate(PROCESSES_MAX);
        largest
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
    /// Whoever was never looked at comes first, then those who were longest ago; among equals the order stays.
    pub fn longest_ago_first(&self, mut these: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
        these.sort_by_key(|(_, pid)| self.seen.get(pid).map(|seen| seen.at));
        these
    }

    /// Looks at a process, if that is due and looking has not taken too much time.
    fn now_and_then(&mut self, pid: u32, resident: u64) {
        let now = Instant::now();
        let is_due = match self.seen.get(&pid) {
            Some(seen) => {
                let is_old = now.duration_since(seen.at) > Duration::from_secs(2);
                resident > seen.resident + seen.resident / 10 || is_old && resident >= seen.resident
            }
            None => self.has_room_for(resident),
        };
        if is_due && self.next.is_none_or(|next| now >= next) {
            self.keep(pid, resident, Some(PAGES_MEANWHILE));
            self.next = Some(now + now.elapsed() * BUDGET);
        }
    }

    /// The last look at `these`, as long as `goes_on`, for those that have what is told of them. Of no more pages are sizes
    /// looked up than now.
    fn once_more(&mut self, these: Vec<(u64, u32)>, goes_on: impl Fn() -> bool) {
        for (resident, pid) in these {
            let is_told = match self.seen.get(&pid) {
                Some(seen) => resident >= seen.resident - seen.resident / 10,
                None => self.has_room_for(resident),
            };
            if !is_told {
                continue;
            }
            if goes_on() {
                self.keep(pid, resident, Some(PAGES_MAX));
            } else {
                self.left_out += 1;
            }
        }
    }

    /// Whether a process would be among those that are kept: who has ended stays with what it had.
    fn has_room_for(&self, resident: u64) -> bool {
        self.seen.len() < PROCESSES_MAX || self.seen.values().any(|seen| seen.resident < resident)
    }

    /// Looks at a process, and at the sizes of so many of its pages, and keeps what is seen.
    pub fn keep(&mut self, pid: u32, resident: u64, sizes_of: Option<u64>) {
        let (proc, at) = (Path::new("/proc"), Instant::now());
        let process = match read::process(proc, pid) {
            Ok(process) => process,
            Err(error) => {
                if is_refused(&error) {
                    self.refused.get_or_insert_with(|| error.to_string());
                }
                return;
            }
        };
        let mut sizes = Vec::new();
        if let Some(pages) = sizes_of {
            let is_seen = |known: &[Option<Sizes>]| known.iter().flatten().any(|of| of.seen > 0);
            match read::page_sizes(proc, pid, &process.mappings, pages) {
                Ok(known) if is_seen(&known) => sizes = known,
                Err(error) if is_refused(&error) => {
                    self.no_sizes.get_or_insert_with(|| error.to_string());
                }
                // It is about to end.
                _ => {}
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
        if self.seen.len() > PROCESSES_MAX {
            let least = self.seen.iter().min_by_key(|(_, seen)| seen.resident);
            if let Some(pid) = least.map(|(&pid, _)| pid) {
                self.seen.remove(&pid);
            }
        }
    }
}

fn is_refused(error: &ReadError) -> bool {
    error.source.kind() == std::io::ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(resident: u64, at: Instant) -> Seen {
        Seen {
            process: Process::default(),
            sizes: Vec::new(),
            resident,
            at,
        }
    }

    /// The last look once replaced what was seen: a process that had given its memory back by then was
    /// told without it.
    #[test]
    fn the_last_look_keeps_what_a_process_had() {
        let me = std::process::id();
        let mut looked = Looked::default();
        looked.now_and_then(me, 1 << 20);
        let first = looked.seen[&me].at;
        looked.seen.get_mut(&me).expect("seen").resident = 1 << 60;
        looked.once_more(vec![(1 << 20, me)], || true);
        assert_eq!(looked.seen[&me].at, first);
        looked.seen.get_mut(&me).expect("seen").resident = 1;
        looked.once_more(vec![(1 << 20, me)], || true);
        assert_ne!(looked.seen[&me].at, first);
    }

    /// They were looked up at the end alone, when most commands have given their memory back.
    #[test]
    fn sizes_are_looked_up_while_a_process_lives() {
        let me = std::process::id();
        let mut looked = Looked::default();
        looked.now_and_then(me, 1 << 20);
        if let Some(why) = &looked.no_sizes {
            println!("SKIPPED: {why}");
            return;
        }
        let seen = &looked.seen[&me];
        assert_eq!(seen.sizes.len(), seen.process.mappings.len());
        assert!(seen.sizes.iter().flatten().any(|sizes| sizes.seen > 0));
    }

    /// They were tried in the order of `/proc`, and a look forbids the next for a while: where there were many, the first
    /// ones were due again before the others had their turn.
    #[test]
    fn each_has_its_turn() {
        let (mut looked, now) = (Looked::default(), Instant::now());
        for (pid, ago_s) in [(1, 3), (2, 9), (4, 5)] {
            let at = now - Duration::from_secs(ago_s);
            looked.seen.insert(pid, seen(10, at));
        }
        let these = vec![(40, 1), (30, 2), (20, 3), (10, 4)];
        let order = looked.longest_ago_first(these).into_iter();
        assert_eq!(order.map(|(_, pid)| pid).collect::<Vec<_>>(), [3, 2, 4, 1]);
    }

    #[test]
    fn whom_there_is_no_room_for_is_not_looked_at() {
        let (me, now) = (std::process::id(), Instant::now());
        let mut looked = Looked::default();
        // Ids that no process has: they have ended.
        for pid in 0..PROCESSES_MAX as u32 {
            looked.seen.insert((1 << 30) + pid, seen(1 << 40, now));
        }
        looked.now_and_then(me, 1 << 20);
        looked.once_more(vec![(1 << 20, me)], || true);
        assert!(!looked.seen.contains_key(&me));
        assert_eq!((looked.left_out, looked.next), (0, None));
        looked.once_more(vec![(1 << 50, me)], || true);
        assert!(looked.seen.contains_key(&me));
        assert_eq!(looked.seen.len(), PROCESSES_MAX);
    }

    /// Nobody could end the last look, at every process that there was.
    #[test]
    fn the_last_look_ends_when_it_is_enough() {
        let me = std::process::id();
        let mut looked = Looked::default();
        let left = std::cell::Cell::new(1);
        // The second one would have its turn after it.
        looked.once_more(vec![(1 << 20, me), (1 << 19, 1 << 30)], || {
            left.replace(0) > 0
        });
        assert!(looked.seen.contains_key(&me));
        assert_eq!(looked.left_out, 1);
    }

    #[test]
    fn those_with_the_most_memory_are_looked_at() {
        let looker = Looker::new(&Selection {
            pid: None,
            cgroup: None,
            system: true,
            duration: None,
            memory: 16,
            probe: crate::cli::ProbeKind::Proc,
            quiet: true,
            command: Vec::new(),
        });
        let largest = looker.largest();
        assert!(largest.len() <= PROCESSES_MAX);
        assert!(largest.is_sorted_by(|a, b| a >= b));
        assert!(largest.iter().all(|&(resident, _)| resident > 0));
    }
}
