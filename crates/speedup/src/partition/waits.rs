//! Waits: in which tier they are, when they stand back, and to what they are charged at their end.

use std::cmp::Reverse;

use super::{Look, Partition, State, Stretch};
use crate::cause::Cause;
use crate::event::{Blocked, Ns, StackId, Tid, Waker};
use crate::wait::{Resolved, SYS_FUTEX_WAIT, Wait, classify};

/// A wait in progress, or being ended by a wake-up still under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) wait: Wait,
    pub(super) tier: Tier,
    /// Value of the tier's integral when it began.
    pub(super) mark: f64,
    /// Gathered in another tier before.
    pub(super) carried: f64,
    pub(super) since: Ns,
    pub(super) place: u64,
    pub(super) object: u64,
    /// Whose address the object is, if it is no other process's as well.
    pub(super) owner: Option<Tid>,
    pub(super) stack: Option<StackId>,
}

impl Waiting {
    /// The futex that is waited at, if it is one.
    pub(super) fn futex(&self) -> Futex {
        (self.owner, self.object)
    }
}

/// The process that has a futex for itself, and its address.
pub(super) type Futex = (Option<Tid>, u64);

/// Who gets idle CPU time first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// Waits of threads that have work to do.
    Active = 0,
    /// Long waits for a partner: the thread may have nothing to do until others are done.
    Patient = 1,
    /// Waits of threads that hardly ever run: timers, signal handlers, watchdogs.
    Service = 2,
    /// Joins and waits for children: nothing that these threads could do on a CPU.
    Serial = 3,
}

pub(super) const TIERS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PendingKey {
    pub(super) resolved: Resolved,
    pub(super) tid: Tid,
    /// What the waker was doing, where that names the wait better than the waiter's own stack.
    pub(super) from: Option<StackId>,
    pub(super) place: u64,
    pub(super) object: u64,
    pub(super) futex: Futex,
}

#[derive(Debug, Default)]
pub(super) struct Place {
    pub(super) wait: Option<Wait>,
    /// Time waited by sampled stack.
    pub(super) stacks: Vec<(StackId, f64)>,
}

/// Wake-ups on one futex this close are one broadcast.
const TOGETHER_NS: Ns = 20_000;
/// A wait for a partner this long stands back behind shorter ones.
const PATIENCE_NS: Ns = 20_000_000;
/// A wait this long is judged again.
const RECONSIDER_NS: Ns = 100_000_000;

/// What it is for is not known before it ends.
fn is_generic(wait: Wait) -> bool {
    matches!(
        wait,
        Wait::Peer
            | Wait::IdleWorker
            | Wait::Nap
            | Wait::Unknown
            | Wait::For(Cause::Sleep | Cause::Io)
    )
}

impl Partition {
    /// Counts a wait in (`by` 1) or out (-1).
    pub(super) fn count_wait(&mut self, waiting: &Waiting, by: i64) {
        let add = |count: &mut u64| *count = count.wrapping_add_signed(by);
        add(&mut self.tally.waiting[waiting.tier as usize]);
        if waiting.wait.is_worker() && waiting.tier == Tier::Active {
            add(&mut self.tally.idle_workers);
        }
    }

    /// Looks at the wait of `tid` again at `when`, unless it is to be looked at anyway.
    fn look_later(&mut self, tid: Tid, when: Ns, since: Ns) {
        if let Some(thread) = self.threads.get_mut(&tid)
            && !thread.is_watched
        {
            thread.is_watched = true;
            self.reconsider
                .push(Reverse((when, Look::Wait, tid, since)));
        }
    }

    /// Who waits for long stands back behind those who wait for a short time: a thread that hardly
    /// ever runs would not have used the CPU, and one that waits for a partner may have nothing to
    /// do until that has done all of its work (a join by other means).
    pub(super) fn look_again(&mut self, tid: Tid, since: Ns) {
        let now = self.now;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.is_watched = false;
        let hardly_runs = thread.hardly_runs(now);
        let State::Waiting(waiting) = thread.state else {
            return;
        };
        if !is_generic(waiting.wait) {
            return;
        }
        if waiting.since != since {
            self.look_later(tid, waiting.since + PATIENCE_NS, waiting.since);
            return;
        }
        // The first look may come that late: after a gap.
        let is_last = now >= since + RECONSIDER_NS;
        if is_last && hardly_runs && matches!(waiting.tier, Tier::Active | Tier::Patient) {
            self.change_tier(tid, waiting, Tier::Service);
        } else if waiting.wait == Wait::Peer && waiting.tier == Tier::Active {
            self.change_tier(tid, waiting, Tier::Patient);
        }
        if !is_last {
            self.look_later(tid, since + RECONSIDER_NS, since);
        }
    }

    /// Out of `Active` or `Patient`; only a wait for a peer may come back to `Active`, a worker's would have to join its crew.
    pub(super) fn change_tier(&mut self, tid: Tid, before: Waiting, tier: Tier) {
        let gathered = self.integral[before.tier as usize];
        let mut after = Waiting {
            tier,
            mark: self.integral[tier as usize],
            ..before
        };
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if before.wait.is_worker() {
            let crew = self.crews.entry(thread.pid).or_default();
            crew.leave(before.mark, gathered);
        } else {
            after.carried += gathered - before.mark;
        }
        thread.state = State::Waiting(after);
        self.count_wait(&before, -1);
        self.count_wait(&after, 1);
    }

    pub(super) fn block(&mut self, tid: Tid, ts: Ns, blocked: &Blocked) {
        let stack = blocked.stack;
        let place = self.places.entry(blocked.place).or_default();
        let known = stack.map(|id| classify(blocked, self.stacks.get(id.0 as usize).map(|s| &**s)));
        // Locks and I/O are facts of this very sleep; names belong to the place.
        let own = classify(blocked, None);
        let certain = blocked.kernel_lock.is_some() || blocked.in_iowait;
        let mut wait = match known {
            _ if certain => own,
            Some(wait) => {
                place.wait = Some(wait);
                wait
            }
            None => place.wait.unwrap_or(own),
        };
        // A condition that a thread meets as its last deed is a join.
        if wait == Wait::Peer && blocked.until_end {
            wait = Wait::For(Cause::Serial);
        }
        let is_futex = matches!(
            wait,
            Wait::Futex | Wait::PoolFutex | Wait::For(Cause::LockWait | Cause::Barrier)
        );
        let object = match blocked.kernel_lock {
            Some(lock) => lock.address,
            None if is_futex || wait == Wait::Peer => blocked.args[0],
            None => 0,
        };
        let mut owner = None;
        if matches!(wait, Wait::Futex | Wait::PoolFutex) {
            let call = blocked.syscall.map(libc::c_long::from);
            // Who uses the newer calls need not say there that a futex is its own.
            let is_shared = call == Some(libc::SYS_futex)
                && blocked.args[1] & libc::FUTEX_PRIVATE_FLAG as u64 == 0;
            owner = self.threads.get(&tid).map(|thread| thread.pid);
            owner = owner.filter(|_| !is_shared);
            let value = blocked.args[if call == Some(SYS_FUTEX_WAIT) { 1 } else { 2 }] as u32;
            let (used, waiters, _) = self.futexes.entry((owner, object)).or_default();
            if wait == Wait::PoolFutex {
                wait = if used.is_for_a_task() {
                    Wait::IdleWorker
                } else {
                    Wait::Futex
                };
            }
            if used.waits == 0 {
                used.first_value = value;
            } else if used.first_value != value {
                used.values_differ = true;
            }
            used.waits += 1;
            waiters.insert(tid);
        }
        let tier = self.tier(tid, wait, ts);
        let waiting = Waiting {
            wait,
            tier,
            mark: self.integral[tier as usize],
            carried: 0.0,
            since: self.now,
            place: blocked.place,
            object,
            owner,
            stack,
        };
        self.begin_wait(tid, waiting);
    }

    /// In which tier a wait begins.
    pub(super) fn tier(&self, tid: Tid, wait: Wait, ts: Ns) -> Tier {
        if wait.is_serial() {
            Tier::Serial
        } else if wait == Wait::Service || (is_generic(wait) && self.threads[&tid].hardly_runs(ts))
        {
            Tier::Service
        } else {
            Tier::Active
        }
    }

    /// Lets a thread that is counted nowhere wait.
    pub(super) fn begin_wait(&mut self, tid: Tid, waiting: Waiting) {
        let Waiting {
            wait, tier, since, ..
        } = waiting;
        let may_hardly_run = self.threads[&tid].cpu_ns < RECONSIDER_NS / 100;
        self.count_wait(&waiting, 1);
        if wait.is_worker() && tier == Tier::Active {
            let pid = self.threads[&tid].pid;
            self.crews.entry(pid).or_default().join(waiting.mark);
        }
        if is_generic(wait) && tier == Tier::Active && (may_hardly_run || wait == Wait::Peer) {
            self.look_later(tid, since + PATIENCE_NS, since);
        }
        self.thread(tid, 0).state = State::Waiting(waiting);
    }

    pub(super) fn wake(&mut self, ts: Ns, tid: Tid, waker: Waker, from: Option<StackId>) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        // Woken before it slept (or running already): no wait ends here.
        let State::Waiting(waiting) = thread.state else {
            return;
        };
        // In a window that stands for a gap, those of the gap as well.
        let wakes = self.scale.factor().round() as u64;
        thread.wakes += u64::from(matches!(waker, Waker::Workload(_))) * wakes;
        thread.last = Some((waiting, waker));
        thread.queued_at = ts;
        let cpu = thread.cpu;
        let futex = self.futexes.get_mut(&waiting.futex());
        if let (Wait::Futex | Wait::IdleWorker, Some((used, waiters, last))) = (waiting.wait, futex)
        {
            if let Waker::Workload(waker) = waker {
                used.woken_by_waiters += u64::from(waiters.contains(&waker));
            }
            used.woken_together += u64::from(ts.saturating_sub(*last) < TOGETHER_NS);
            *last = ts;
        }
        // It stays in its tier while the wake-up is under way: see `enqueue`.
        self.count_wait(&waiting, -1);
        self.enqueue(tid, cpu, Some(waiting), Some(waker), from);
    }

    pub(super) fn charge_wait(
        &mut self,
        tid: Tid,
        waiting: Waiting,
        waker: Option<Waker>,
        from: Option<StackId>,
    ) {
        let ns = waiting.carried + self.integral[waiting.tier as usize] - waiting.mark;
        let waited = self.now.saturating_sub(waiting.since) as f64;
        if let Some(stack) = waiting.stack {
            let place = self.places.entry(waiting.place).or_default();
            let room = place.stacks.len() < 64;
            match place.stacks.iter_mut().find(|(id, _)| *id == stack) {
                Some((_, time)) => *time += waited.max(1.0),
                None if room => place.stacks.push((stack, waited.max(1.0))),
                None => {}
            }
        }
        let doing = from
            .and_then(|id| self.stacks.get(id.0 as usize))
            .map(|stack| &**stack);
        let resolved = waiting.wait.resolve(waker, doing);
        let cause = match resolved {
            Resolved::Cause(cause) => Some(cause),
            Resolved::Futex | Resolved::AsOthers => None,
        };
        if self.now > waiting.since {
            let stretch = Stretch {
                cpu: None,
                tid,
                from: waiting.since,
                to: self.now,
                cause,
            };
            self.out.keep(stretch, self.max_stretches);
        }
        let is_worker = waiting.wait.is_worker();
        let mut ns = ns;
        if is_worker && waiting.tier == Tier::Active {
            let pid = self.threads.get(&tid).map_or(tid, |thread| thread.pid);
            let active = self.integral[Tier::Active as usize];
            let crew = self.crews.entry(pid).or_default();
            crew.leave(waiting.mark, active);
            // Woken just to look for work: what it waits for shows when one of them finds some.
            let Some(cause) = cause else { return };
            ns = crew.settle(active);
            *crew.mix.entry(cause).or_default() += ns;
        }
        if ns <= 0.0 {
            return;
        }
        if is_worker && cause == Some(Cause::Serial) {
            // Not the worker's code is of interest, but what ran meanwhile.
            self.serial_ns += ns;
            return;
        }
        let object = match (cause, waker) {
            (
                Some(Cause::Partner | Cause::Io),
                Some(Waker::Workload(waker) | Waker::Other(waker)),
            ) => u64::from(waker),
            (Some(Cause::Partner | Cause::Io | Cause::Sleep | Cause::Serial), _) => 0,
            _ if is_worker => 0,
            _ => waiting.object,
        };
        let futex = if resolved == Resolved::Futex {
            waiting.futex()
        } else {
            Futex::default()
        };
        let from = from.filter(|_| is_worker && cause != Some(Cause::Sleep));
        let key = PendingKey {
            resolved,
            tid,
            from,
            place: waiting.place,
            object,
            futex,
        };
        let charge = self.pending.entry(key).or_default();
        charge.ns += ns;
        charge.count += 1;
    }
}
