//! What a process itself says it waited for: records of a library inside it.

use rustc_hash::FxHashMap;

use crate::cause::Cause;
use crate::event::{Ns, Tid};

/// A primitive that threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum WaitKind {
    /// `pthread_mutex_t`.
    Mutex,
    /// `pthread_rwlock_t`, wanted for reading.
    RwlockRead,
    /// `pthread_rwlock_t`, wanted for writing.
    RwlockWrite,
    /// `pthread_cond_t`.
    Condition,
    /// `sem_t`.
    Semaphore,
    /// `pthread_barrier_t`.
    Barrier,
    /// The end of a thread; the object is its `pthread_t`.
    Join,
    /// `pthread_spinlock_t`: the wait burns CPU time.
    Spin,
}

impl WaitKind {
    /// All kinds.
    pub const ALL: [WaitKind; 8] = [
        WaitKind::Mutex,
        WaitKind::RwlockRead,
        WaitKind::RwlockWrite,
        WaitKind::Condition,
        WaitKind::Semaphore,
        WaitKind::Barrier,
        WaitKind::Join,
        WaitKind::Spin,
    ];

    /// Where such a wait goes.
    pub fn cause(self) -> Cause {
        match self {
            WaitKind::Mutex
            | WaitKind::RwlockRead
            | WaitKind::RwlockWrite
            | WaitKind::Semaphore => Cause::LockWait,
            WaitKind::Condition => Cause::Partner,
            WaitKind::Barrier => Cause::Barrier,
            WaitKind::Join => Cause::Serial,
            WaitKind::Spin => Cause::UserSpin,
        }
    }

    /// Bytes from the object's address in which the futex of such a wait lies.
    fn span(self) -> u64 {
        match self {
            // The thread's id lies in libc's thread descriptor, to which `pthread_t` points.
            WaitKind::Join => 2048,
            WaitKind::Spin => 0,
            _ => 56,
        }
    }
}

/// One wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserWait {
    /// Who.
    pub tid: Tid,
    /// For what kind of thing.
    pub kind: WaitKind,
    /// For which one: its address in the process.
    pub object: u64,
    /// Return address of the call, in the process.
    pub caller: u64,
    /// Begin.
    pub start: Ns,
    /// End; `None` while it lasts.
    pub end: Option<Ns>,
}

/// All waits of one kind for one object from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTotal {
    /// Kind.
    pub kind: WaitKind,
    /// Address of the object.
    pub object: u64,
    /// Return address of the call.
    pub caller: u64,
    /// Waits.
    pub count: u64,
    /// Their time together.
    pub ns: Ns,
    /// The longest.
    pub max_ns: Ns,
}

/// The waits of one process image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessWaits {
    /// Which process; images that followed each other by exec have the same.
    pub pid: Tid,
    /// When it began to record.
    pub started: Ns,
    /// Complete but for `untabled`.
    pub totals: Vec<WaitTotal>,
    /// The last episodes in the order they ended, and those in progress.
    pub waits: Vec<UserWait>,
    /// Count and nanoseconds by kind; complete.
    pub by_kind: Vec<(WaitKind, u64, Ns)>,
    /// Episodes that are not among `waits` any more.
    pub overwritten: u64,
    /// Episodes that are not in `totals`.
    pub untabled: u64,
}

/// Names futexes by the objects they lie in.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// By process: sorted by address.
    by_pid: FxHashMap<Tid, Vec<WaitTotal>>,
}

impl Objects {
    pub(super) fn new(processes: &[ProcessWaits]) -> Objects {
        let mut by_pid: FxHashMap<Tid, Vec<WaitTotal>> = FxHashMap::default();
        for process in processes {
            let totals = by_pid.entry(process.pid).or_default();
            totals.extend(
                process
                    .totals
                    .iter()
                    .filter(|total| total.kind != WaitKind::Spin),
            );
            // A wait that the end of the program cut off is in no total.
            let cut = process.waits.iter().filter(|wait| wait.end.is_none());
            totals.extend(cut.map(|wait| WaitTotal {
                kind: wait.kind,
                object: wait.object,
                caller: wait.caller,
                count: 1,
                ns: 1,
                max_ns: 1,
            }));
        }
        for totals in by_pid.values_mut() {
            totals.sort_by_key(|total| (total.object, total.kind, total.caller));
        }
        Objects { by_pid }
    }

    /// The waits for the object that holds the futex at `address`: of the nearest object at or
    /// below it, the callers of the kind that waited longest.
    pub(super) fn holding(&self, pid: Tid, address: u64) -> Option<(WaitKind, Vec<WaitTotal>)> {
        let totals = self.by_pid.get(&pid)?;
        let end = totals.partition_point(|total| total.object <= address);
        let mut object = None;
        let mut found: Vec<WaitTotal> = Vec::new();
        for total in totals[..end].iter().rev() {
            let offset = address - total.object;
            if offset > 2048 || object.is_some_and(|object| object != total.object) {
                break;
            }
            if offset < total.kind.span() {
                object = Some(total.object);
                found.push(*total);
            }
        }
        let longest = found.iter().max_by_key(|total| total.ns)?.kind;
        let cause = longest.cause();
        found.retain(|total| total.kind.cause() == cause);
        Some((longest, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(kind: WaitKind, object: u64, caller: u64, ns: u64) -> WaitTotal {
        WaitTotal {
            kind,
            object,
            caller,
            count: 1,
            ns,
            max_ns: ns,
        }
    }

    #[test]
    fn a_futex_belongs_to_the_nearest_object_that_reaches_it() {
        let objects = Objects::new(&[ProcessWaits {
            pid: 7,
            totals: vec![
                total(WaitKind::Join, 0x1000, 1, 5),
                total(WaitKind::Mutex, 0x1100, 2, 9),
                total(WaitKind::Mutex, 0x1100, 3, 8),
                total(WaitKind::Barrier, 0x1130, 4, 7),
            ],
            ..ProcessWaits::default()
        }]);
        let at = |address| {
            let found = objects.holding(7, address);
            found.map(|(kind, totals)| (kind, totals.iter().map(|total| total.caller).collect()))
        };
        assert_eq!(at(0x1100), Some((WaitKind::Mutex, vec![3, 2])));
        assert_eq!(at(0x1134), Some((WaitKind::Barrier, vec![4])));
        assert_eq!(at(0x12d0), Some((WaitKind::Join, vec![1])));
        assert_eq!(at(0x0fff), None);
        assert_eq!(at(0x1800), None);
        assert_eq!(objects.holding(8, 0x1100), None);
    }
}
