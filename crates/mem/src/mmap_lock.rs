//! Waits for the address-space lock (`mmap_lock`) and how long it is held, by operation.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::tally::{Tallies, Tally};

/// What a thread does with an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Operation {
    /// A page fault.
    Fault,
    /// Mapping.
    Mmap,
    /// Unmapping.
    Munmap,
    /// Moving or resizing a mapping.
    Mremap,
    /// Growing or shrinking the heap.
    Brk,
    /// Changing permissions.
    Mprotect,
    /// Advice, which may free or collapse pages.
    Madvise,
    /// Locking pages in memory.
    Mlock,
    /// NUMA policy and moving of pages.
    Placement,
    /// fork, vfork, clone: copying the address space.
    Fork,
    /// Replacing the program.
    Exec,
    /// The end of a thread or process.
    Exit,
    /// Reading a file of `/proc` about an address space (`maps`, `smaps`, `cmdline`).
    ProcReader,
    /// Reading another file into memory that is held in its place meanwhile (`O_DIRECT`).
    Read,
    /// Access to memory of another process: ptrace, process_vm_readv.
    Remote,
    /// Threads of the kernel: khugepaged, KSM, the reaper.
    Kernel,
    /// Any other system call.
    Other,
}

/// Which system calls are which operation, by the numbers of this machine.
const CALLS: &[(libc::c_long, Operation)] = &[
    (libc::SYS_mmap, Operation::Mmap),
    (libc::SYS_remap_file_pages, Operation::Mmap),
    (libc::SYS_shmat, Operation::Mmap),
    (libc::SYS_munmap, Operation::Munmap),
    (libc::SYS_shmdt, Operation::Munmap),
    (libc::SYS_mremap, Operation::Mremap),
    (libc::SYS_brk, Operation::Brk),
    (libc::SYS_mprotect, Operation::Mprotect),
    (libc::SYS_pkey_mprotect, Operation::Mprotect),
    (libc::SYS_madvise, Operation::Madvise),
    (libc::SYS_process_madvise, Operation::Madvise),
    (libc::SYS_mlock, Operation::Mlock),
    (libc::SYS_mlock2, Operation::Mlock),
    (libc::SYS_munlock, Operation::Mlock),
    (libc::SYS_mlockall, Operation::Mlock),
    (libc::SYS_munlockall, Operation::Mlock),
    (libc::SYS_mbind, Operation::Placement),
    (libc::SYS_move_pages, Operation::Placement),
    (libc::SYS_migrate_pages, Operation::Placement),
    (libc::SYS_set_mempolicy, Operation::Placement),
    (libc::SYS_clone, Operation::Fork),
    (libc::SYS_clone3, Operation::Fork),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_fork, Operation::Fork),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_vfork, Operation::Fork),
    (libc::SYS_execve, Operation::Exec),
    (libc::SYS_execveat, Operation::Exec),
    (libc::SYS_exit, Operation::Exit),
    (libc::SYS_exit_group, Operation::Exit),
    (libc::SYS_read, Operation::Read),
    (libc::SYS_pread64, Operation::Read),
    (libc::SYS_readv, Operation::Read),
    (libc::SYS_preadv, Operation::Read),
    (libc::SYS_preadv2, Operation::Read),
    (libc::SYS_getdents64, Operation::Read),
    // The way to a file leads past the lock in `/proc/PID/map_files` alone.
    (libc::SYS_openat, Operation::ProcReader),
    (libc::SYS_ptrace, Operation::Remote),
    (libc::SYS_process_vm_readv, Operation::Remote),
    (libc::SYS_process_vm_writev, Operation::Remote),
];

/// What a thread is in the middle of when it wants the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Doing {
    /// A page fault, also one inside a system call.
    pub is_fault: bool,
    /// The system call, if in one.
    pub syscall: Option<u32>,
    /// That reads from a file of `/proc`.
    pub reads_proc: bool,
    /// The kernel's own business: it is one of its threads.
    pub is_kernel: bool,
}

impl Operation {
    /// All there are.
    pub const ALL: [Operation; 17] = [
        Operation::Fault,
        Operation::Mmap,
        Operation::Munmap,
        Operation::Mremap,
        Operation::Brk,
        Operation::Mprotect,
        Operation::Madvise,
        Operation::Mlock,
        Operation::Placement,
        Operation::Fork,
        Operation::Exec,
        Operation::Exit,
        Operation::ProcReader,
        Operation::Read,
        Operation::Remote,
        Operation::Kernel,
        Operation::Other,
    ];

    /// Of a thread that is doing this.
    pub fn of(doing: Doing) -> Operation {
        if doing.is_kernel {
            return Operation::Kernel;
        }
        if doing.is_fault {
            return Operation::Fault;
        }
        if doing.reads_proc {
            return Operation::ProcReader;
        }
        let Some(number) = doing.syscall else {
            // Outside of calls and faults: a signal that ends the process, or task work.
            return Operation::Exit;
        };
        let known = CALLS
            .iter()
            .find(|(call, _)| *call == libc::c_long::from(number));
        known.map_or(Operation::Other, |&(_, operation)| operation)
    }

    /// Stable name.
    pub fn id(self) -> &'static str {
        match self {
            Operation::Fault => "fault",
            Operation::Mmap => "mmap",
            Operation::Munmap => "munmap",
            Operation::Mremap => "mremap",
            Operation::Brk => "brk",
            Operation::Mprotect => "mprotect",
            Operation::Madvise => "madvise",
            Operation::Mlock => "mlock",
            Operation::Placement => "placement",
            Operation::Fork => "fork",
            Operation::Exec => "exec",
            Operation::Exit => "exit",
            Operation::ProcReader => "proc-reader",
            Operation::Read => "read",
            Operation::Remote => "remote",
            Operation::Kernel => "kernel",
            Operation::Other => "other",
        }
    }
}

/// As what the lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// By one alone.
    Write,
    /// Together with other readers.
    Read,
}

/// Where waits are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Operation.
    pub operation: Operation,
    /// Mode.
    pub mode: Mode,
    /// Process of the waiter.
    pub pid: u32,
    /// Hash of the code.
    pub place: u32,
}

/// Who held the lock of a process that is watched, or waited for it, and is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stranger {
    /// Operation.
    pub operation: Operation,
    /// Mode.
    pub mode: Mode,
    /// Process of the holder or waiter.
    pub pid: u32,
    /// Process whose lock it is.
    pub of: u32,
}

/// Waits or holds of one operation.
#[derive(Clone, Debug)]
pub struct Row {
    /// Count, sum, maximum.
    pub tally: Tally,
    /// Distribution, of which percentiles are exact to a hundredth.
    spread: Option<Histogram<u64>>,
}

impl Row {
    /// The time that 99 of 100 stay below, in nanoseconds.
    pub fn p99_ns(&self) -> Option<u64> {
        let spread = self.spread.as_ref().filter(|spread| !spread.is_empty())?;
        Some(spread.value_at_quantile(0.99).min(self.tally.max_ns))
    }
}

/// Places, and strangers, that are told apart.
const SITES_MAX: usize = 1 << 12;
/// Longer waits count as this long in percentiles: a day.
const SPREAD_MAX_NS: u64 = 86_400_000_000_000;

/// Waits and holds of a recording, added up.
#[derive(Clone, Debug)]
pub struct MmapLock {
    waits: BTreeMap<(Operation, Mode), Row>,
    holds: BTreeMap<(Operation, Mode), Row>,
    sites: Tallies<Site>,
    strangers_holds: Tallies<Stranger>,
    strangers_waits: Tallies<Stranger>,
}

/// The rest of those who are told apart no longer.
fn anybody(stranger: Stranger) -> Stranger {
    Stranger {
        pid: 0,
        of: 0,
        ..stranger
    }
}

impl Default for MmapLock {
    fn default() -> MmapLock {
        MmapLock {
            waits: BTreeMap::new(),
            holds: BTreeMap::new(),
            sites: Tallies::new(SITES_MAX),
            strangers_holds: Tallies::new(SITES_MAX),
            strangers_waits: Tallies::new(SITES_MAX),
        }
    }
}

impl MmapLock {
    /// Adds a wait of `ns` nanoseconds. Constant time.
    pub fn wait(&mut self, site: Site, ns: u64) {
        add(&mut self.waits, (site.operation, site.mode), ns);
        self.sites.add(site, ns, |site| Site {
            pid: 0,
            place: 0,
            ..site
        });
    }

    /// Adds holds that were counted together.
    pub fn holds(&mut self, operation: Operation, mode: Mode, tally: Tally) {
        let row = self.holds.entry((operation, mode)).or_insert_with(empty);
        row.tally.merge(tally);
    }

    /// Adds one hold of `ns` nanoseconds. Constant time.
    pub fn hold(&mut self, operation: Operation, mode: Mode, ns: u64) {
        add(&mut self.holds, (operation, mode), ns);
    }

    /// Adds one hold of `ns` nanoseconds by somebody who is not watched. Amortised constant time.
    pub fn hold_by_stranger(&mut self, stranger: Stranger, ns: u64) {
        self.hold(stranger.operation, stranger.mode, ns);
        self.strangers_holds.add(stranger, ns, anybody);
    }

    /// Adds a wait of `ns` nanoseconds of somebody who is not watched: it delays nobody who is. Amortised constant time.
    pub fn wait_of_stranger(&mut self, stranger: Stranger, ns: u64) {
        self.strangers_waits.add(stranger, ns, anybody);
    }

    /// Waits by operation, most time first.
    pub fn waits_by_operation(&self) -> Vec<(Operation, Mode, &Row)> {
        sorted(&self.waits)
    }

    /// Holds by operation, most time first.
    pub fn holds_by_operation(&self) -> Vec<(Operation, Mode, &Row)> {
        sorted(&self.holds)
    }

    /// Waits by place, most time first.
    pub fn sites(&self) -> Vec<(Site, Tally)> {
        self.sites.sorted()
    }

    /// Holds by those who are not watched, which are among those by operation; most time first.
    pub fn strangers_holds(&self) -> Vec<(Stranger, Tally)> {
        self.strangers_holds.sorted()
    }

    /// Waits of those who are not watched, which are not among those by operation; most time first.
    pub fn strangers_waits(&self) -> Vec<(Stranger, Tally)> {
        self.strangers_waits.sorted()
    }
}

type Rows = BTreeMap<(Operation, Mode), Row>;

fn empty() -> Row {
    Row {
        tally: Tally::default(),
        spread: None,
    }
}

fn add(rows: &mut Rows, key: (Operation, Mode), ns: u64) {
    let row = rows.entry(key).or_insert_with(empty);
    row.tally.add(ns);
    let spread = row.spread.get_or_insert_with(|| {
        Histogram::new_with_bounds(1, SPREAD_MAX_NS, 2).expect("valid bounds")
    });
    spread.saturating_record(ns);
}

fn sorted(rows: &Rows) -> Vec<(Operation, Mode, &Row)> {
    let mut all: Vec<_> = rows
        .iter()
        .map(|(&(op, mode), row)| (op, mode, row))
        .collect();
    all.sort_by_key(|(_, _, row)| std::cmp::Reverse((row.tally.ns, row.tally.count)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_by_system_call() {
        let of = |number: libc::c_long| Operation::of(calls(number));
        assert_eq!(of(libc::SYS_mmap), Operation::Mmap);
        assert_eq!(of(libc::SYS_clone3), Operation::Fork);
        assert_eq!(of(libc::SYS_futex), Operation::Other);
        let is_kernel = Doing {
            is_kernel: true,
            ..Doing::default()
        };
        assert_eq!(Operation::of(is_kernel), Operation::Kernel);
        assert_eq!(Operation::of(Doing::default()), Operation::Exit);
        let names: std::collections::BTreeSet<_> = Operation::ALL.iter().map(|o| o.id()).collect();
        assert_eq!(names.len(), Operation::ALL.len());
    }

    fn calls(number: libc::c_long) -> Doing {
        Doing {
            syscall: Some(number as u32),
            ..Doing::default()
        }
    }

    /// Every call that reads was taken for a reader of `/proc`, also one that reads a file into memory that it pins.
    #[test]
    fn readers_of_proc_are_told_by_the_file() {
        for number in [
            libc::SYS_read,
            libc::SYS_pread64,
            libc::SYS_readv,
            libc::SYS_preadv,
            libc::SYS_preadv2,
            libc::SYS_getdents64,
        ] {
            let direct = calls(number);
            assert_eq!(Operation::of(direct), Operation::Read);
            let of_proc = Doing {
                reads_proc: true,
                ..direct
            };
            assert_eq!(Operation::of(of_proc), Operation::ProcReader);
            // A read into fresh memory faults, of whatever file.
            for doing in [direct, of_proc] {
                let faults = Doing {
                    is_fault: true,
                    ..doing
                };
                assert_eq!(Operation::of(faults), Operation::Fault);
            }
        }
    }

    #[test]
    fn waits_are_added_up_by_operation() {
        let mut lock = MmapLock::default();
        let site = |operation, place| Site {
            operation,
            mode: Mode::Write,
            pid: 1,
            place,
        };
        for ns in 1..=1000 {
            lock.wait(site(Operation::Mmap, ns as u32 % 2), ns * 1000);
        }
        lock.wait(site(Operation::Brk, 7), u64::MAX);
        let waits = lock.waits_by_operation();
        assert_eq!((waits[0].0, waits[1].0), (Operation::Brk, Operation::Mmap));
        let row = waits[1].2;
        assert_eq!((row.tally.count, row.tally.max_ns), (1000, 1_000_000));
        let p99 = row.p99_ns().expect("a percentile");
        assert!((980_000..=1_000_000).contains(&p99), "{p99}");
        assert_eq!(lock.sites().len(), 3);
    }

    #[test]
    fn holds_come_one_by_one_or_counted() {
        let mut lock = MmapLock::default();
        lock.hold(Operation::Fault, Mode::Read, 5);
        let more = Tally {
            count: 3,
            ns: 30,
            max_ns: 20,
        };
        lock.holds(Operation::Fault, Mode::Read, more);
        let holds = lock.holds_by_operation();
        assert_eq!(
            holds[0].2.tally,
            Tally {
                count: 4,
                ns: 35,
                max_ns: 20
            }
        );
        assert!(holds[0].2.p99_ns().is_some());
    }

    #[test]
    fn holds_and_waits_of_strangers_are_told_apart_and_none_is_lost() {
        let mut lock = MmapLock::default();
        lock.hold(Operation::Fault, Mode::Read, 5);
        let count = 2 * SITES_MAX as u32;
        for pid in 1..=count {
            let stranger = Stranger {
                operation: Operation::ProcReader,
                mode: Mode::Read,
                pid,
                of: 1,
            };
            lock.hold_by_stranger(stranger, 7);
            lock.wait_of_stranger(stranger, 9);
        }
        let holds = lock.holds_by_operation();
        assert_eq!(holds[0].0, Operation::ProcReader);
        assert_eq!(holds[0].2.tally.count, u64::from(count));
        assert!(lock.waits_by_operation().is_empty());
        for (strangers, ns) in [(lock.strangers_holds(), 7), (lock.strangers_waits(), 9)] {
            assert!(strangers.len() <= SITES_MAX + 1);
            let told = strangers.iter().fold((0, 0), |told, (_, tally)| {
                (told.0 + tally.count, told.1 + tally.ns)
            });
            assert_eq!(told, (u64::from(count), ns * u64::from(count)));
        }
    }
}
