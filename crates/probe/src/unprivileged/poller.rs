//! Polls a process tree.

use std::collections::hash_map::Entry;
use std::time::Duration;

use amdahl_speedup::event::{Ns, Tid};
use amdahl_speedup::snapshot::Snapshot;
use amdahl_topology::Throttle;
use rustc_hash::{FxHashMap, FxHashSet};

use super::files::{Kept, Room, Unread};
use super::parse;
use super::reach::Reaches;
use super::thread::{Copies, Shared, StackCopy, Thread};
use super::tree::{Scope, Tree};
use crate::clock::{monotonic, thread_cpu};

/// Polls are never closer than this.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// Nor farther apart, whatever they cost.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Polling costs this part of a CPU: one hundredth.
const COST_DIVISOR: u64 = 100;
/// CPU time that may be spent beyond that: the first look at everything.
const ADVANCE_NS: Ns = 10_000_000;
/// New threads are looked for at every poll, and more seldom where that is dear.
const DISCOVERY_NS_MIN: Ns = 0;
const SWEEP_NS_MIN: Ns = 500_000_000;
const CPUS_NS_MIN: Ns = 200_000_000;
/// Of the allowed cost, no one of these three takes more than about a quarter.
const SHARE: Ns = 4;
/// Threads named.
const NAMES_MAX: usize = 200_000;

/// What may go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PollError {
    /// The first process is not there.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Which.
        pid: u32,
    },
}

/// Who a thread is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadName {
    /// Its process.
    pub pid: Tid,
    /// Its own name.
    pub name: String,
}

/// What polling could not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blindness {
    /// Polls made.
    pub polls: u64,
    /// Looks at waiting threads whose system call the kernel hides: another user's process, one
    /// that is not dumpable, or `kernel.yama.ptrace_scope` above 1 (above 0 for adopted orphans).
    pub hidden: u64,
    /// Files and folders that could not be read: of such a thread the last state was taken once more.
    pub unread: Unread,
    /// Threads beyond [`Poller::at_most`], at the look that left out most.
    pub left_out: u64,
    /// CPU time that polling has used.
    pub spent_ns: Ns,
}

/// Watches the threads of a workload through `/proc`, without privileges.
///
/// Files stay open where the limit on descriptors allows; a thread that stands still
/// costs one read a poll. [`pause`](Self::pause) keeps the cost at 1 % of one CPU.
#[derive(Debug)]
pub struct Poller {
    tree: Tree,
    threads: FxHashMap<(Tid, Tid), Thread>,
    names: FxHashMap<Tid, ThreadName>,
    threads_max: usize,
    left_out: u64,
    room: Room,
    cpus: Kept,
    cpus_buffer: Vec<u8>,
    /// None where quotas cannot be seen.
    throttle: Option<Throttle>,
    shared: Shared,
    polls: u64,
    began_ns: Ns,
    began_spent: Ns,
    discovery: Chore,
    sweep: Chore,
    cpu_times: Chore,
}

/// Something dear that is done now and then.
#[derive(Clone, Copy, Debug)]
struct Chore {
    pause_min: Ns,
    /// CPU time that it may still take without pausing longer: programs start most of their
    /// threads at once, and what is not known yet looks as if there was nothing.
    advance: Ns,
    due: Ns,
}

impl Chore {
    fn every(pause_min: Ns) -> Chore {
        Chore {
            pause_min,
            advance: ADVANCE_NS / SHARE,
            due: 0,
        }
    }

    fn done(&mut self, now: Ns, cost: Ns) {
        let over = cost.saturating_sub(self.advance);
        self.advance = self.advance.saturating_sub(cost);
        self.due = now
            + self
                .pause_min
                .max(over.saturating_mul(COST_DIVISOR * SHARE));
    }
}

impl Poller {
    /// A poller of `scope`.
    ///
    /// # Errors
    /// [`PollError::NoProcess`] if the first process is not alive.
    pub fn new(scope: Scope) -> Result<Poller, PollError> {
        let root = scope.root;
        let pid = root.unwrap_or(0);
        let tree = Tree::new(scope).ok_or(PollError::NoProcess { pid })?;
        let room = Room::of_process();
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
        Ok(Poller {
            tree,
            threads: FxHashMap::default(),
            names: FxHashMap::default(),
            threads_max: usize::MAX,
            left_out: 0,
            cpus: Kept::new("/proc/stat".to_owned(), &room),
            room,
            cpus_buffer: vec![0; 1 << 16],
            throttle: root.and_then(|pid| Throttle::open_for(pid).ok()),
            shared: Shared {
                buffer: vec![0; 2048],
                tick_ns,
                ts: 0,
                pids: Vec::new(),
                reaches: Reaches::default(),
                functions: FxHashMap::default(),
                copies: Copies::Nothing,
                first_stack: 0,
                places: FxHashMap::default(),
                stacks: Vec::new(),
                hidden: 0,
                unread: Unread::default(),
            },
            polls: 0,
            began_ns: monotonic(),
            began_spent: thread_cpu(),
            discovery: Chore::every(DISCOVERY_NS_MIN),
            sweep: Chore::every(SWEEP_NS_MIN),
            cpu_times: Chore::every(CPUS_NS_MIN),
        })
    }

    /// Polls no more than `threads`, those that were found first.
    pub fn at_most(mut self, threads: usize) -> Poller {
        self.threads_max = threads;
        self
    }

    /// Also copies stack memory where a thread is first seen waiting; ids count from `first`.
    pub fn copy_stacks(mut self, first: u32) -> Poller {
        self.shared.copies = Copies::All;
        self.shared.first_stack = first;
        self
    }

    /// The same where a thread waits for a futex or for a lock of the kernel: in a whole system most wait for other things.
    pub fn copy_stacks_of_locks(mut self, first: u32) -> Poller {
        self.shared.copies = Copies::OfLocks;
        self.shared.first_stack = first;
        self
    }

    /// The stacks copied since the last call, their ids in rising order without gaps.
    pub fn take_stacks(&mut self) -> Vec<StackCopy> {
        std::mem::take(&mut self.shared.stacks)
    }

    /// All threads seen so far, by id.
    pub fn names(&self) -> &FxHashMap<Tid, ThreadName> {
        &self.names
    }

    /// Processes alive at the last look.
    pub fn pids(&self) -> impl Iterator<Item = Tid> {
        self.tree.pids()
    }

    /// What could not be seen.
    pub fn blindness(&self) -> Blindness {
        Blindness {
            polls: self.polls,
            hidden: self.shared.hidden,
            unread: self.tree.unread.and(self.shared.unread),
            left_out: self.left_out,
            spent_ns: self.spent_ns(),
        }
    }

    fn spent_ns(&self) -> Ns {
        thread_cpu().saturating_sub(self.began_spent)
    }

    /// All threads now. Call it from one thread only, whose CPU time is what polling costs.
    pub fn poll(&mut self) -> Snapshot {
        let start = monotonic();
        self.polls += 1;
        let mut clock = thread_cpu();
        let mut lap = |chore: &mut Chore| {
            let now_spent = thread_cpu();
            chore.done(start, now_spent - clock);
            clock = now_spent;
        };
        // Orphans are looked for only when there was time for some to appear.
        if start >= self.sweep.due {
            if self.polls > 1 {
                self.tree.sweep();
            }
            lap(&mut self.sweep);
        }
        if start >= self.discovery.due {
            self.discover();
            lap(&mut self.discovery);
        }
        self.shared.reaches.tick();
        self.shared.ts = start;
        let mut threads = Vec::with_capacity(self.threads.len());
        let (shared, names) = (&mut self.shared, &mut self.names);
        self.threads.retain(|&(pid, tid), thread| {
            let Some(state) = thread.poll(shared) else {
                return false;
            };
            if let Some(known) = names.get_mut(&tid) {
                if known.name != thread.name || known.pid != pid {
                    *known = ThreadName {
                        pid,
                        name: thread.name.clone(),
                    };
                }
            } else if names.len() < NAMES_MAX {
                names.insert(
                    tid,
                    ThreadName {
                        pid,
                        name: thread.name.clone(),
                    },
                );
            }
            threads.push(state);
            true
        });
        let end = monotonic();
        let mut snapshot = Snapshot {
            ts: start + (end - start) / 2,
            threads,
            cpus: Vec::new(),
            throttled_ns: 0,
        };
        if start >= self.cpu_times.due {
            let before = thread_cpu();
            snapshot.cpus = self.read_cpus();
            let throttled = self.throttle.as_ref().and_then(Throttle::read);
            snapshot.throttled_ns = throttled.map_or(0, |stat| stat.throttled_ns);
            self.cpu_times.done(start, thread_cpu() - before);
        }
        snapshot
    }

    /// The CPU times asked for out of turn: for the last snapshot of a run.
    pub fn poll_with_cpus(&mut self) -> Snapshot {
        self.cpu_times.due = 0;
        self.poll()
    }

    fn discover(&mut self) {
        let (found, are_all) = self.tree.threads();
        let found: FxHashSet<(Tid, Tid)> = found.into_iter().collect();
        // Otherwise a thread itself tells that it has ended.
        if are_all {
            self.threads.retain(|id, _| found.contains(id));
        }
        let mut left_out = 0;
        for (pid, tid) in found {
            let has_room = self.threads.len() < self.threads_max;
            match self.threads.entry((pid, tid)) {
                Entry::Occupied(_) => {}
                Entry::Vacant(entry) if has_room => {
                    entry.insert(Thread::new(pid, tid, &self.room));
                }
                Entry::Vacant(_) => left_out += 1,
            }
        }
        self.left_out = self.left_out.max(left_out);
        self.shared.pids.clear();
        self.shared.pids.extend(self.tree.pids());
    }

    fn read_cpus(&mut self) -> Vec<amdahl_speedup::snapshot::CpuTimes> {
        const BYTES_MAX: usize = 4 << 20;
        loop {
            let len = self.cpus_buffer.len();
            match self.cpus.read(&mut self.cpus_buffer) {
                // The lines of the CPUs come first: what is cut off matters only if they are.
                Ok(text)
                    if text.len() == len
                        && !text.windows(6).any(|word| word == b"\nintr ")
                        && len < BYTES_MAX =>
                {
                    self.cpus_buffer.resize(len * 2, 0);
                }
                Ok(text) => return parse::cpu_times(text, self.shared.tick_ns),
                Err(_) => return Vec::new(),
            }
        }
    }

    /// How long to wait before the next poll so that polling stays cheap.
    pub fn pause(&self) -> Duration {
        pause(self.spent_ns(), monotonic().saturating_sub(self.began_ns))
    }
}

/// The pause after which no more than the allowed part of a CPU was `spent` since `elapsed` ago.
fn pause(spent: Ns, elapsed: Ns) -> Duration {
    let owed = spent
        .saturating_sub(ADVANCE_NS)
        .saturating_mul(COST_DIVISOR)
        .saturating_sub(elapsed);
    Duration::from_nanos(owed).clamp(PAUSE_MIN, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_pays_back_what_was_overspent() {
        const MS: Ns = 1_000_000;
        // Within the advance, and after a long time of little work.
        assert_eq!(pause(10 * MS, 0), PAUSE_MIN);
        assert_eq!(pause(20 * MS, 1000 * MS), PAUSE_MIN);
        // A millisecond too much takes a tenth of a second to earn.
        assert_eq!(pause(21 * MS, 1000 * MS), Duration::from_millis(100));
        assert_eq!(pause(Ns::MAX, 0), PAUSE_MAX);
    }

    #[test]
    fn dear_chores_are_done_seldom() {
        let mut chore = Chore::every(10_000_000);
        chore.done(5, chore.advance);
        assert_eq!(chore.due, 10_000_005, "paid from the advance");
        chore.done(5, 1000);
        assert_eq!(chore.due, 10_000_005);
        chore.done(5, 1_000_000);
        assert_eq!(chore.due, 400_000_005);
    }
}
