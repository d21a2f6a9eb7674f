//! The same table without privileges: from the preload library's records of pthread waits, and
//! from polls of `/proc`.

use amdahl_speedup::event::{Ns, StackId, Tid};
use amdahl_speedup::primitive::{KernelPrimitive, Library, UserLock};
use amdahl_speedup::snapshot::{ProcessWaits, Snapshot, State, UserWait, WaitKind, Waiting};
use amdahl_speedup::wait::SYS_FUTEX_WAIT;
use rustc_hash::FxHashMap;

use crate::event::{Event, Kind, LockId, Place, Wait};
use crate::histogram::Histogram;
use crate::tally::{CellKey, Share};
use crate::tracker::Tracker;

/// The place of a call that the preload library recorded. Its stack is the one frame at `caller`.
pub fn place_of_call(pid: Tid, caller: u64) -> Place {
    let mixed = (caller ^ u64::from(pid) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Place(mixed | 1)
}

/// The place of a stack that a poller copied.
pub fn place_of_copy(stack: StackId) -> Place {
    Place(u64::from(stack.0) << 1 | 1 << 40)
}

impl Tracker {
    /// Takes what the preload library recorded of one process until `until`.
    ///
    /// Where every wait is still in the record, they are fed one by one, with threads and
    /// lengths. Else counts and totals come from the library's own sums, which are complete but know
    /// no threads, and lengths from the waits that are left: the latest ones.
    pub fn process(&mut self, process: &ProcessWaits, until: Ns) {
        if process.overwritten == 0 {
            for wait in &process.waits {
                self.feed(&Event::Wait(whole(process.pid, wait, until)));
            }
            return;
        }
        let mut lengths: FxHashMap<(WaitKind, u64, u64), Histogram> = FxHashMap::default();
        for wait in &process.waits {
            match wait.end {
                Some(end) => lengths
                    .entry((wait.kind, wait.object, wait.caller))
                    .or_default()
                    .add(end.saturating_sub(wait.start)),
                None => self.feed(&Event::Wait(whole(process.pid, wait, until))),
            }
        }
        let mut told: FxHashMap<WaitKind, Share> = FxHashMap::default();
        for total in &process.totals {
            let of = (total.kind, total.object, total.caller);
            let (count, ns) = (total.count, total.ns);
            let known = lengths.remove(&of).unwrap_or_default();
            let key = key(process.pid, total.kind, total.object, total.caller);
            self.add_sum(key, Share { count, ns }, total.max_ns, &known);
            let sum = told.entry(total.kind).or_default();
            sum.count = sum.count.saturating_add(count);
            sum.ns = sum.ns.saturating_add(ns);
        }
        // What had no room in the library's table is known by kind alone.
        for &(kind, count, ns) in &process.by_kind {
            let told = told.get(&kind).copied().unwrap_or_default();
            let (count, ns) = (count.saturating_sub(told.count), ns.saturating_sub(told.ns));
            if process.untabled > 0 && count > 0 {
                let key = CellKey {
                    lock: LockId::default(),
                    place: Place::default(),
                    ..key(process.pid, kind, 0, 0)
                };
                // The longest of them is not known: at least their mean.
                let longest = ns / count;
                self.add_sum(key, Share { count, ns }, longest, &Histogram::default());
            }
        }
    }
}

fn key(pid: Tid, kind: WaitKind, object: u64, caller: u64) -> CellKey {
    CellKey {
        kind: Kind::User(UserLock::from(kind)),
        place: place_of_call(pid, caller),
        lock: LockId {
            pid,
            address: object,
        },
        pid,
        tid: 0,
    }
}

fn whole(pid: Tid, wait: &UserWait, until: Ns) -> Wait {
    let key = key(pid, wait.kind, wait.object, wait.caller);
    Wait {
        tid: wait.tid,
        pid,
        lock: key.lock,
        kind: key.kind,
        begin: wait.start,
        end: wait.end.unwrap_or(until).max(wait.start),
        place: key.place,
        waker: None,
        expected: 0,
        is_open: wait.end.is_none(),
        began_before: false,
        is_polled: false,
    }
}

/// Polls of thread states become waits: one for each stretch in which a thread was seen waiting for
/// the same lock and did not run in between.
///
/// A wait that falls between two polls is not seen. On average that is made up for by the time of
/// those that are, which is rounded to whole polls; so totals are right in the mean, counts are
/// lower bounds, and the longest is known to within one interval.
#[derive(Debug, Default)]
pub struct Polls {
    waiting: FxHashMap<Tid, Seen>,
    last: Option<Ns>,
}

#[derive(Debug)]
struct Seen {
    wait: Wait,
    /// How often the thread had been put on a CPU.
    turns: u64,
    seen_at: Ns,
}

impl Polls {
    /// The next poll; waits that have ended by it go to `tracker`. With `pthread_is_recorded` those
    /// are left out that the preload library times itself: they would count twice.
    pub fn take(&mut self, snapshot: &Snapshot, pthread_is_recorded: bool, tracker: &mut Tracker) {
        let now = snapshot.ts;
        let interval = now.saturating_sub(self.last.unwrap_or(now));
        let mut still: FxHashMap<Tid, Seen> = FxHashMap::default();
        for thread in &snapshot.threads {
            let State::Waiting(waiting) = &thread.state else {
                continue;
            };
            let Some((kind, address)) = lock(waiting) else {
                continue;
            };
            let pid = match kind {
                Kind::Kernel(_) | Kind::KernelSleep | Kind::Nap => 0,
                _ => thread.pid,
            };
            let lock = LockId { pid, address };
            let is_pthread = |place| {
                let known = tracker.known(place);
                known.is_some_and(|known| known.lock.library == Library::Pthread)
            };
            let place = match waiting.blocked.stack {
                Some(stack) => place_of_copy(stack),
                None => Place(waiting.blocked.place),
            };
            if pthread_is_recorded && kind == Kind::Futex && is_pthread(place) {
                continue;
            }
            let goes_on = |seen: &Seen| {
                seen.turns == thread.turns && seen.wait.lock == lock && seen.wait.kind == kind
            };
            let before = match self.waiting.get(&thread.tid) {
                Some(seen) if goes_on(seen) => self.waiting.remove(&thread.tid),
                _ => None,
            };
            let seen = before.unwrap_or_else(|| Seen {
                wait: Wait {
                    tid: thread.tid,
                    pid: thread.pid,
                    lock,
                    kind,
                    begin: now.saturating_sub(interval / 2),
                    end: now,
                    place,
                    waker: None,
                    expected: waiting.blocked.args[2] as u32,
                    is_open: false,
                    began_before: false,
                    is_polled: true,
                },
                turns: thread.turns,
                seen_at: now,
            });
            let seen_at = now;
            still.insert(thread.tid, Seen { seen_at, ..seen });
        }
        // What is left there did not go on.
        let left = std::mem::replace(&mut self.waiting, still);
        for seen in left.into_values() {
            let wait = ended(&seen, seen.seen_at + interval / 2, false);
            tracker.feed(&Event::Wait(wait));
        }
        self.last = Some(now);
    }

    /// The last poll was made: what waits still does so when the recording ends.
    pub fn finish(self, tracker: &mut Tracker) {
        for wait in self.open() {
            tracker.feed(&Event::Wait(wait));
        }
    }

    /// Waits that had not ended at the last poll.
    pub fn open(&self) -> impl Iterator<Item = Wait> {
        let until = self.last.unwrap_or(0);
        let waiting = self.waiting.values();
        waiting.map(move |seen| ended(seen, until, true))
    }
}

fn ended(seen: &Seen, at: Ns, is_open: bool) -> Wait {
    Wait {
        end: at,
        is_open,
        ..seen.wait
    }
}

/// What a polled thread waits for, if that is a lock or a futex.
fn lock(waiting: &Waiting) -> Option<(Kind, u64)> {
    let blocked = &waiting.blocked;
    if let Some(lock) = KernelPrimitive::from_wchan(&waiting.wchan) {
        return Some((Kind::Kernel(lock), 0));
    }
    match blocked.syscall.map(libc::c_long::from)? {
        libc::SYS_futex | SYS_FUTEX_WAIT => Some((Kind::Futex, blocked.args[0])),
        // For which ones is in the memory of the program.
        libc::SYS_futex_waitv => Some((Kind::Futex, 0)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupBy, Table, ThreadName};
    use amdahl_speedup::event::Blocked;
    use amdahl_speedup::snapshot::{Reach, ThreadState, WaitTotal};

    fn table(tracker: &Tracker) -> Table {
        let nobody = |_| ThreadName::default();
        Table::new(tracker, tracker.tally(), GroupBy::Site, &nobody)
    }

    fn user_wait(tid: Tid, start: Ns, end: Option<Ns>) -> UserWait {
        UserWait {
            tid,
            kind: WaitKind::RwlockRead,
            object: 0xa0,
            caller: 0x400,
            start,
            end,
        }
    }

    #[test]
    fn a_complete_record_is_taken_wait_by_wait() {
        let mut tracker = Tracker::default();
        let process = ProcessWaits {
            pid: 9,
            waits: vec![user_wait(1, 0, Some(100)), user_wait(2, 50, None)],
            ..ProcessWaits::default()
        };
        tracker.process(&process, 1_050);
        let row = &table(&tracker).rows[0];
        assert_eq!(row.what.name, "pthread rwlock (read)");
        assert_eq!((row.times, row.open, row.threads), (2, 1, 2));
        assert_eq!((row.total_ns, row.max_ns), (1_100, 1_000));
    }

    #[test]
    fn sums_stand_for_what_was_overwritten() {
        let mut tracker = Tracker::default();
        let total = |caller, count, ns, max_ns| WaitTotal {
            kind: WaitKind::Mutex,
            object: 0xa0,
            caller,
            count,
            ns,
            max_ns,
        };
        let process = ProcessWaits {
            pid: 9,
            totals: vec![total(0x400, 1_000, 50_000, 900)],
            waits: vec![UserWait {
                kind: WaitKind::Mutex,
                ..user_wait(1, 0, Some(64))
            }],
            by_kind: vec![(WaitKind::Mutex, 1_010, 50_700)],
            overwritten: 999,
            untabled: 10,
            ..ProcessWaits::default()
        };
        tracker.process(&process, 0);
        let table = table(&tracker);
        let sums: Vec<_> = table
            .rows
            .iter()
            .map(|row| (row.times, row.total_ns, row.max_ns))
            .collect();
        // Both are of no known place here, hence one row.
        assert_eq!(sums, [(1_010, 50_700, 900)]);
        assert_eq!(table.rows[0].p99_ns, Some(65));
    }

    fn poll(ts: Ns, threads: &[(Tid, u64, u64)]) -> Snapshot {
        let thread = |&(tid, address, turns): &(Tid, u64, u64)| ThreadState {
            tid,
            pid: 1,
            state: State::Waiting(Waiting {
                blocked: Blocked {
                    syscall: u32::try_from(libc::SYS_futex).ok(),
                    args: [address, 0, 2, 0],
                    ..Blocked::default()
                },
                is_readable: true,
                wchan: "futex_wait_queue".into(),
                reach: Reach::Unknown,
            }),
            cpu: 0,
            cpu_ns: 0,
            queued_ns: 0,
            turns,
            user_ns: 0,
            system_ns: 0,
        };
        Snapshot {
            ts,
            threads: threads.iter().map(thread).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn polls_of_one_sleep_are_one_wait() {
        let mut tracker = Tracker::default();
        let mut polls = Polls::default();
        for snapshot in [
            poll(0, &[]),
            poll(100, &[(1, 0xa0, 5)]),
            poll(200, &[(1, 0xa0, 5)]),
            // It ran in between, and waits again.
            poll(300, &[(1, 0xa0, 6), (2, 0xa0, 1)]),
            poll(400, &[]),
            poll(500, &[(3, 0xb0, 1)]),
        ] {
            polls.take(&snapshot, false, &mut tracker);
        }
        polls.finish(&mut tracker);
        let rows = table(&tracker).rows;
        let sum = |of: fn(&crate::Row) -> u64| rows.iter().map(of).sum::<u64>();
        assert_eq!((sum(|row| row.times), sum(|row| row.polled)), (4, 4));
        assert_eq!(sum(|row| row.open), 1);
        // Two polls, one, one, and a half.
        assert_eq!(sum(|row| row.total_ns), 200 + 100 + 100 + 50);
    }

    #[test]
    fn the_kernel_names_its_locks() {
        for (wchan, name) in [
            ("rwsem_down_read_slowpath", Some("rwsem (read)")),
            ("__mutex_lock.isra.0", Some("mutex")),
            ("synchronize_rcu_normal", Some("RCU")),
            ("do_epoll_wait", None),
        ] {
            let found = KernelPrimitive::from_wchan(wchan).map(KernelPrimitive::name);
            assert_eq!(found, name);
        }
    }
}
