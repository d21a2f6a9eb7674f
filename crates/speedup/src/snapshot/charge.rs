//! Snapshots to charges.

mod finish;
#[cfg(test)]
mod sampled_tests;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cause::Cause;
use crate::event::{CpuId, Ns, Sample, StackTable, Tid};
use crate::partition::{Charge, START_NS};

use super::futex::{PolledFutex, address};
use super::interval::{Interval, Queued, Ran, Share, Tier, Window};
use super::polled::{Why, why};
use super::resolve::Key;
use super::sampled::Sampled;
use super::trace::Trace;
use super::{CpuTimes, Snapshot, State, ThreadState};

/// CPU time of the whole workload, as the kernel accounts it at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// In user mode.
    pub user_ns: Ns,
    /// In the kernel.
    pub system_ns: Ns,
    /// Of that in page faults, by their number, where samples do not tell.
    pub faults_ns: Option<Ns>,
}

/// Distinct waits that are kept apart; beyond them threads and stacks of a cause are one.
const KEYS_MAX: usize = 200_000;
/// Futexes whose use is followed.
const FUTEXES_MAX: usize = 100_000;
/// Intervals settled together when nobody says how the CPUs fared.
const WINDOW_INTERVALS_MAX: usize = 256;
const WINDOW_SHARES_MAX: usize = 1 << 16;
/// Threads told apart; the time of later ones is nobody's.
const THREADS_MAX: usize = 200_000;
/// A thread younger than this may be anything.
const SERVICE_AGE_NS: Ns = 20_000_000;

#[derive(Clone, Copy, Debug)]
struct Known {
    pid: Tid,
    state: Seen,
    born: Ns,
    /// Figures at the last poll, and those with which it was first seen.
    last: Counters,
    first: Counters,
    /// The last wait that was seen: what it also waited for while it was seen running.
    recent: Option<(u32, Tier)>,
    poll: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Runnable,
    Waiting { key: u32, tier: Tier },
    Stopped,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    cpu_ns: Ns,
    queued_ns: Ns,
    turns: u64,
    user_ns: Ns,
    system_ns: Ns,
}

impl Counters {
    fn of(thread: &ThreadState) -> Counters {
        Counters {
            cpu_ns: thread.cpu_ns,
            queued_ns: thread.queued_ns,
            turns: thread.turns,
            user_ns: thread.user_ns,
            system_ns: thread.system_ns,
        }
    }
}

/// What passed of one thread between two polls; the times are nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Passed {
    before: Seen,
    now: Seen,
    recent: Option<(u32, Tier)>,
    /// What it was woken from when it was queued.
    woken_from: Option<(u32, Tier)>,
    /// It was put on a CPU.
    turned: bool,
    ran: f64,
    queued: f64,
    /// Time in queues that the kernel told: it does when it ends, also of earlier intervals.
    told: f64,
    rest: f64,
}

/// One poll, as far as its threads have been gone through.
#[derive(Debug, Default)]
struct Poll {
    interval: Interval,
    /// Runnable threads by CPU.
    runnable: FxHashMap<CpuId, u32>,
    /// CPU time by CPU.
    running: FxHashMap<CpuId, f64>,
    /// Time of threads that ran or were queued, nobody knows which.
    undecided: Vec<(Tid, CpuId, f64)>,
    /// The longest time that one thread was runnable.
    most: f64,
}

impl Poll {
    /// A thread's CPU time is as old as the last tick. If nobody else ran on its CPU, it did.
    fn decide(&mut self) {
        let interval = &mut self.interval;
        for (tid, cpu, rest) in self.undecided.drain(..) {
            let taken = self.running.entry(cpu).or_default();
            let ran = rest.min((interval.dt - *taken).max(0.0));
            *taken += ran;
            interval.ran += ran;
            interval.assumed += ran;
            interval.queued += rest - ran;
            interval.told += rest - ran;
            if ran > 0.0 {
                interval.running.push((tid, ran));
            }
            if rest > ran {
                interval.queues.push(Queued {
                    tid,
                    ns: rest - ran,
                    from: None,
                });
            }
            self.most = interval.dt;
        }
    }
}

/// Turns snapshots, in order of time, into a [`RunPartition`](crate::partition::RunPartition).
///
/// Memory is bounded by the number of distinct waits and of threads alive, whatever the
/// length of the run.
#[derive(Debug)]
pub struct Charger {
    cpus: FxHashSet<CpuId>,
    from: Ns,
    last: Ns,
    polls: u64,
    threads: FxHashMap<Tid, Known>,
    keys: FxHashMap<Key, u32>,
    by_index: Vec<Key>,
    futexes: FxHashMap<(Tid, u64), PolledFutex>,
    window: Window,
    /// Charges of waits by key index.
    charged: Vec<Charge>,
    serial: FxHashMap<Ran, f64>,
    placement: FxHashMap<Ran, f64>,
    sampled: Sampled,
    /// CPU time of threads that were there at the last poll.
    ran: FxHashMap<Tid, [f64; 2]>,
    processes: FxHashMap<Tid, Tid>,
    /// Held back by quotas.
    throttled: f64,
    occupied: f64,
    behind: f64,
    nobody: f64,
    cpu_times: Option<CpuClock>,
    trace: Trace,
}

#[derive(Debug)]
struct CpuClock {
    first: (Ns, CpuTimes),
    last: (Ns, CpuTimes),
    throttled: Ns,
}

impl Charger {
    /// A run that owns `cpus` from `from` on.
    pub fn new(cpus: &[CpuId], from: Ns) -> Charger {
        Charger {
            cpus: cpus.iter().copied().collect(),
            from,
            last: from,
            polls: 0,
            threads: FxHashMap::default(),
            keys: FxHashMap::default(),
            by_index: Vec::new(),
            futexes: FxHashMap::default(),
            window: Window::default(),
            charged: Vec::new(),
            serial: FxHashMap::default(),
            placement: FxHashMap::default(),
            sampled: Sampled::default(),
            ran: FxHashMap::default(),
            processes: FxHashMap::default(),
            throttled: 0.0,
            occupied: 0.0,
            behind: 0.0,
            nobody: 1.0,
            cpu_times: None,
            trace: Trace::default(),
        }
    }

    /// Also keeps up to `max` stretches for a trace: what each thread did for most of the time between two polls.
    pub fn keep_stretches(mut self, max: usize) -> Charger {
        self.trace = Trace::keeping(max);
        self
    }

    /// Adds a sample that was taken before the next snapshot. `stacks` holds its stack.
    pub fn sample(&mut self, sample: &Sample, stacks: &StackTable) {
        self.sampled.add(sample, stacks);
    }

    /// Closes the interval since the last snapshot. `stacks` holds the stacks that its waits name.
    pub fn feed(&mut self, snapshot: &Snapshot, stacks: &StackTable) {
        let dt = snapshot.ts.saturating_sub(self.last);
        let is_first = self.polls == 0;
        if dt == 0 && !is_first {
            return;
        }
        self.polls += 1;
        let span = [self.last, snapshot.ts];
        self.last = self.last.max(snapshot.ts);
        let alive: FxHashSet<Tid> = snapshot.threads.iter().map(|thread| thread.tid).collect();
        let mut poll = Poll::default();
        poll.interval.dt = dt as f64;
        for thread in &snapshot.threads {
            let now = self.see(thread, stacks, &alive);
            if now == Seen::Runnable && self.cpus.contains(&thread.cpu) {
                *poll.runnable.entry(thread.cpu).or_default() += 1;
            }
            let passed = self.pass(thread, now, snapshot.ts, dt, is_first);
            if dt > 0 {
                self.account(thread, passed, &mut poll);
            }
        }
        poll.decide();
        // Before the first poll nobody knows what passed.
        if !is_first {
            self.trace(span, snapshot, &poll.interval);
        }
        self.threads.retain(|_, known| known.poll == self.polls);
        self.close(poll);
        self.clock(snapshot);
    }

    /// Takes note of a thread's figures; what passed since the last poll is their difference.
    fn pass(&mut self, thread: &ThreadState, now: Seen, ts: Ns, dt: Ns, is_first: bool) -> Passed {
        let counters = Counters::of(thread);
        let is_new = self
            .threads
            .get(&thread.tid)
            .is_none_or(|known| known.pid != thread.pid || known.last.cpu_ns > thread.cpu_ns);
        let mut fresh = Known {
            pid: thread.pid,
            state: now,
            born: ts,
            last: counters,
            first: counters,
            recent: None,
            poll: self.polls,
        };
        if is_new {
            if self.processes.len() < THREADS_MAX {
                self.processes.insert(thread.tid, thread.pid);
            }
            // Born since the last poll, unless this is the first: then it was there before us.
            if !is_first {
                (fresh.first, fresh.last) = Default::default();
                fresh.born = ts - dt / 2;
            }
            self.threads.insert(thread.tid, fresh);
        }
        let known = self.threads.entry(thread.tid).or_insert(fresh);
        let before = known.state;
        let last = std::mem::replace(&mut known.last, counters);
        let ran = counters.cpu_ns.saturating_sub(last.cpu_ns) as f64;
        let queued = counters.queued_ns.saturating_sub(last.queued_ns);
        let turns = counters.turns.saturating_sub(last.turns);
        // Short stays in a queue are the ends of the waits before them.
        let is_short = queued < turns.saturating_mul(START_NS);
        let queued = if is_short { 0.0 } else { queued as f64 };
        let dt = dt as f64;
        let life = if is_new {
            (ran + queued).max(dt / 2.0)
        } else {
            dt
        }
        .min(dt);
        let woken_from = match now {
            Seen::Waiting { key, tier } => known.recent.or(Some((key, tier))),
            Seen::Runnable | Seen::Stopped => known.recent,
        };
        known.state = now;
        known.poll = self.polls;
        if let Seen::Waiting { key, tier } = now {
            known.recent = Some((key, tier));
        }
        // The kernel tells user and system time by ticks only: as a ratio, over all of its life.
        let user = counters.user_ns.saturating_sub(known.first.user_ns) as f64;
        let system = counters.system_ns.saturating_sub(known.first.system_ns) as f64;
        let in_user = if user + system > 0.0 {
            user / (user + system)
        } else {
            1.0
        };
        let named = self.processes.contains_key(&thread.tid);
        let sums = self
            .ran
            .entry(if named { thread.tid } else { 0 })
            .or_default();
        sums[0] += ran * in_user;
        sums[1] += ran * (1.0 - in_user);
        let told = queued;
        let ran = ran.min(life);
        let queued = queued.min(life - ran);
        Passed {
            before,
            now,
            recent: known.recent,
            woken_from,
            turned: counters.turns != last.turns,
            ran,
            queued,
            told,
            rest: life - ran - queued,
        }
    }

    /// Adds what passed of a thread to the interval.
    fn account(&mut self, thread: &ThreadState, passed: Passed, poll: &mut Poll) {
        let Passed {
            ran, queued, rest, ..
        } = passed;
        let (tid, interval) = (thread.tid, &mut poll.interval);
        interval.ran += ran;
        interval.queued += queued;
        interval.told += passed.told;
        if ran > 0.0 {
            interval.running.push((tid, ran));
            *poll.running.entry(thread.cpu).or_default() += ran;
        }
        if queued > 0.0 {
            interval.queues.push(Queued {
                tid,
                ns: queued,
                from: passed.woken_from,
            });
        }
        poll.most = poll.most.max(ran + queued);
        let mut add = |key: u32, tier: Tier, part: f64| {
            if rest > 0.0 {
                interval.waits.push(Share {
                    key,
                    tier,
                    ns: rest * part,
                    part,
                });
            }
        };
        match (passed.before, passed.now) {
            (Seen::Runnable, Seen::Runnable) if !passed.turned => {
                // It never left the CPU or the queue since the last poll: the rest is no wait.
                poll.undecided.push((tid, thread.cpu, rest));
            }
            (Seen::Waiting { key: a, tier: at }, Seen::Waiting { key: b, tier: bt }) => {
                add(a, at, 0.5);
                add(b, bt, 0.5);
            }
            (Seen::Waiting { key, tier }, _) | (_, Seen::Waiting { key, tier }) => {
                add(key, tier, 1.0);
            }
            (Seen::Runnable, Seen::Runnable) => match passed.recent {
                Some((key, tier)) => add(key, tier, 1.0),
                None => {
                    let unseen = Key {
                        why: Why::Unseen,
                        tid,
                        stack: None,
                        object: 0,
                    };
                    add(self.key(unseen), Tier::Active, 1.0);
                }
            },
            (Seen::Stopped, _) | (_, Seen::Stopped) => {}
        }
    }

    fn trace(&mut self, span: [Ns; 2], snapshot: &Snapshot, interval: &Interval) {
        if !self.trace.is_asked_for() {
            return;
        }
        let threads = snapshot.threads.iter();
        let at: FxHashMap<Tid, CpuId> = threads
            .filter(|thread| self.cpus.contains(&thread.cpu))
            .map(|thread| (thread.tid, thread.cpu))
            .collect();
        let cpu_of = |tid| at.get(&tid).copied();
        let waiter = |key| self.by_index[key as usize].tid;
        self.trace.take(span, interval, cpu_of, waiter);
    }

    /// Completes the interval by what the two polls at its ends saw, and passes it on.
    fn close(&mut self, poll: Poll) {
        let Poll {
            mut interval,
            runnable,
            most,
            ..
        } = poll;
        let occupied = runnable.len() as f64;
        let runnable = f64::from(runnable.values().sum::<u32>());
        let idle = self.cpus.len() as f64 - occupied;
        let behind = (runnable - occupied).min(idle).max(0.0);
        let nobody = if runnable == 0.0 { 1.0 } else { 0.0 };
        interval.sampled = self.sampled.take_recent();
        interval.occupied = (self.occupied + occupied) / 2.0;
        interval.behind = (self.behind + behind) / 2.0;
        let sampled = (self.nobody + nobody) / 2.0;
        (self.occupied, self.behind, self.nobody) = (occupied, behind, nobody);
        if interval.dt <= 0.0 {
            return;
        }
        // The polls are two moments; the CPU times bound what can have been between them.
        let least = (1.0 - (interval.ran + interval.queued) / interval.dt).max(0.0);
        let largest = (1.0 - most / interval.dt).max(least);
        interval.nobody = sampled.clamp(least, largest);
        interval.capacity = interval.dt * self.cpus.len() as f64;
        self.window.push(interval);
        let is_full = self.window.intervals() >= WINDOW_INTERVALS_MAX;
        if is_full || self.window.shares() >= WINDOW_SHARES_MAX {
            self.settle(None, 0.0);
        }
    }

    fn settle(&mut self, idle_ns: Option<f64>, throttled_ns: f64) {
        let out = self.window.settle(idle_ns, throttled_ns);
        self.throttled += out.throttled;
        for (key, ns) in out.waits {
            if let Some(charge) = self.charged.get_mut(key as usize) {
                charge.ns += ns;
                charge.count += 1;
            }
        }
        let named = |tid: Tid| {
            if self.processes.contains_key(&tid) {
                tid
            } else {
                0
            }
        };
        for ((tid, stack), ns) in out.serial {
            *self.serial.entry((named(tid), stack)).or_default() += ns;
        }
        for ((tid, stack), ns) in out.placement {
            *self.placement.entry((named(tid), stack)).or_default() += ns;
        }
    }

    /// What the CPUs did since they were last asked closes a window.
    fn clock(&mut self, snapshot: &Snapshot) {
        let mut sum = CpuTimes::default();
        let mut counted = 0;
        for times in snapshot
            .cpus
            .iter()
            .filter(|times| self.cpus.contains(&times.cpu))
        {
            counted += 1;
            sum.user_ns += times.user_ns;
            sum.system_ns += times.system_ns;
            sum.idle_ns += times.idle_ns;
            sum.iowait_ns += times.iowait_ns;
            sum.irq_ns += times.irq_ns;
            sum.steal_ns += times.steal_ns;
        }
        if counted == 0 || counted < self.cpus.len() {
            return;
        }
        let now = (snapshot.ts, sum);
        match &mut self.cpu_times {
            None => {
                self.cpu_times = Some(CpuClock {
                    first: now,
                    last: now,
                    throttled: snapshot.throttled_ns,
                });
                // What came before is settled with what comes after.
            }
            Some(clock) => {
                let idle = idle_of(&sum).saturating_sub(idle_of(&clock.last.1)) as f64;
                let span = snapshot.ts.saturating_sub(clock.last.0) as f64;
                clock.last = now;
                let throttled = std::mem::replace(&mut clock.throttled, snapshot.throttled_ns);
                let throttled = snapshot.throttled_ns.saturating_sub(throttled) as f64;
                let covered = self.window.span();
                // A window may also hold what came before the first look at the CPUs.
                let idle = if span > 0.0 {
                    idle * (covered / span).max(1.0)
                } else {
                    idle
                };
                self.settle(Some(idle), throttled);
            }
        }
    }

    /// What the thread does now; a wait is given its key.
    fn see(&mut self, thread: &ThreadState, stacks: &StackTable, alive: &FxHashSet<Tid>) -> Seen {
        let waiting = match &thread.state {
            State::Runnable => return Seen::Runnable,
            State::Stopped => return Seen::Stopped,
            State::Waiting(waiting) => waiting,
        };
        let why = why(thread.pid, waiting, stacks, |tid| alive.contains(&tid));
        if let Why::Futex { pid, address } = why {
            let is_room = self.futexes.len() < FUTEXES_MAX;
            let args = &waiting.blocked.args;
            let stack = waiting
                .blocked
                .stack
                .and_then(|id| stacks.get(id.0 as usize));
            let stack = stack.map(|stack| &**stack);
            match self.futexes.entry((pid, address)) {
                Entry::Occupied(mut used) => used.get_mut().see(thread.tid, args, stack),
                Entry::Vacant(place) if is_room => {
                    place
                        .insert(PolledFutex::default())
                        .see(thread.tid, args, stack);
                }
                Entry::Vacant(_) => {}
            }
        }
        let key = Key {
            why,
            tid: thread.tid,
            stack: waiting.blocked.stack,
            object: address(&waiting.blocked).unwrap_or(0),
        };
        let key = self.key(key);
        Seen::Waiting {
            key,
            tier: self.tier(why, thread),
        }
    }

    fn tier(&self, why: Why, thread: &ThreadState) -> Tier {
        let is_generic = match why {
            Why::Cause(Cause::Serial) => return Tier::Serial,
            Why::Service => return Tier::Service,
            Why::Cause(cause) => matches!(cause, Cause::Sleep | Cause::Io | Cause::Partner),
            Why::Peer | Why::Unknown | Why::Unseen => true,
            Why::Futex { .. } => false,
        };
        let Some(known) = self.threads.get(&thread.tid).filter(|_| is_generic) else {
            return Tier::Active;
        };
        let age = self.last.saturating_sub(known.born);
        let cpu_ns = thread.cpu_ns.saturating_sub(known.first.cpu_ns);
        let turns = thread.turns.saturating_sub(known.first.turns);
        let hardly_runs = age > SERVICE_AGE_NS
            && cpu_ns.saturating_mul(100) < age
            && turns.saturating_mul(50_000_000) < age;
        if hardly_runs {
            Tier::Service
        } else {
            Tier::Active
        }
    }

    fn key(&mut self, mut key: Key) -> u32 {
        if self.by_index.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
            key.tid = 0;
            key.stack = None;
            key.object = 0;
            if let Why::Futex { .. } = key.why {
                key.why = Why::Cause(Cause::Partner);
            }
        }
        let next = self.by_index.len() as u32;
        match self.keys.entry(key) {
            Entry::Occupied(index) => *index.get(),
            Entry::Vacant(place) => {
                place.insert(next);
                self.by_index.push(key);
                self.charged.push(Charge::default());
                next
            }
        }
    }
}

fn idle_of(times: &CpuTimes) -> Ns {
    times.idle_ns + times.iowait_ns
}
