//! Snapshots to charges.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cause::Cause;
use crate::event::{CpuId, Ns, StackId, StackTable, Tid};
use crate::partition::{Activity, Charge, ChargeKey, HYPERVISOR, INTERRUPTS, RunPartition};

use super::futex::{PolledFutex, address};
use super::interval::{Interval, Queued, Share, Tier, Window};
use super::polled::{Why, why};
use super::resolve::{Key, Resolver};
use super::user_wait::Objects;
use super::{CpuTimes, ProcessWaits, Snapshot, State, ThreadState, WaitKind};

/// CPU time of the whole workload, as the kernel accounts it at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// In user mode.
    pub user_ns: Ns,
    /// In the kernel.
    pub system_ns: Ns,
}

/// Distinct waits that are kept apart; beyond them threads and stacks of a cause are one.
const KEYS_MAX: usize = 200_000;
/// Futexes whose use is followed.
const FUTEXES_MAX: usize = 100_000;
/// Intervals settled together when nobody says how the CPUs fared.
const WINDOW_INTERVALS_MAX: usize = 256;
const WINDOW_SHARES_MAX: usize = 1 << 16;
/// A thread younger than this may be anything.
const SERVICE_AGE_NS: Ns = 20_000_000;

#[derive(Debug)]
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

/// Turns snapshots, in order of time, into a [`RunPartition`].
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
    serial: FxHashMap<Tid, f64>,
    placement: FxHashMap<Tid, f64>,
    /// CPU time of threads that were there at the last poll.
    ran: FxHashMap<Tid, [f64; 2]>,
    processes: FxHashMap<Tid, Tid>,
    behind: f64,
    nobody: f64,
    cpu_times: Option<CpuClock>,
}

#[derive(Debug)]
struct CpuClock {
    first: (Ns, CpuTimes),
    last: (Ns, CpuTimes),
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
            ran: FxHashMap::default(),
            processes: FxHashMap::default(),
            behind: 0.0,
            nobody: 1.0,
            cpu_times: None,
        }
    }

    /// Closes the interval since the last snapshot. `stacks` holds the stacks that its waits name.
    pub fn feed(&mut self, snapshot: &Snapshot, stacks: &StackTable) {
        let dt = snapshot.ts.saturating_sub(self.last);
        let is_first = self.polls == 0;
        if dt == 0 && !is_first {
            return;
        }
        self.polls += 1;
        self.last = self.last.max(snapshot.ts);
        let alive: FxHashSet<Tid> = snapshot.threads.iter().map(|thread| thread.tid).collect();
        let mut interval = Interval {
            dt: dt as f64,
            ..Interval::default()
        };
        let mut on_cpu: FxHashMap<CpuId, u32> = FxHashMap::default();
        let mut undecided: Vec<(Tid, CpuId, f64)> = Vec::new();
        let mut running: FxHashMap<CpuId, f64> = FxHashMap::default();
        let mut most = 0.0_f64;
        for thread in &snapshot.threads {
            let now = self.see(thread, stacks, &alive);
            if now == Seen::Runnable && self.cpus.contains(&thread.cpu) {
                *on_cpu.entry(thread.cpu).or_default() += 1;
            }
            let counters = Counters::of(thread);
            let fresh = self
                .threads
                .get(&thread.tid)
                .is_none_or(|known| known.pid != thread.pid || known.last.cpu_ns > thread.cpu_ns);
            if fresh {
                self.processes.insert(thread.tid, thread.pid);
                // Born since the last poll, unless this is the first: then it was there before us.
                let first = if is_first {
                    counters
                } else {
                    Counters::default()
                };
                let born = if is_first {
                    snapshot.ts
                } else {
                    snapshot.ts - dt / 2
                };
                let known = Known {
                    pid: thread.pid,
                    state: now,
                    born,
                    last: first,
                    first,
                    recent: None,
                    poll: self.polls,
                };
                self.threads.insert(thread.tid, known);
            }
            let Some(known) = self.threads.get_mut(&thread.tid) else {
                continue;
            };
            let before = if fresh { now } else { known.state };
            let ran = counters.cpu_ns.saturating_sub(known.last.cpu_ns) as f64;
            let queued = counters.queued_ns.saturating_sub(known.last.queued_ns) as f64;
            let turned = counters.turns.wrapping_sub(known.last.turns);
            let life = if fresh {
                (ran + queued).max(interval.dt / 2.0)
            } else {
                interval.dt
            };
            let life = life.min(interval.dt);
            let ran = ran.min(life);
            let queued = queued.min(life - ran);
            let rest = life - ran - queued;
            let woken_from = match now {
                Seen::Waiting { key, tier } => known.recent.or(Some((key, tier))),
                Seen::Runnable | Seen::Stopped => known.recent,
            };
            known.state = now;
            known.last = counters;
            known.poll = self.polls;
            if let Seen::Waiting { key, tier } = now {
                known.recent = Some((key, tier));
            }
            let user = counters.user_ns.saturating_sub(known.first.user_ns) as f64;
            let system = counters.system_ns.saturating_sub(known.first.system_ns) as f64;
            let total = counters.cpu_ns.saturating_sub(known.first.cpu_ns) as f64;
            let in_user = if user + system > 0.0 {
                user / (user + system)
            } else {
                1.0
            };
            self.ran
                .insert(thread.tid, [total * in_user, total * (1.0 - in_user)]);
            if dt == 0 {
                continue;
            }
            interval.ran += ran;
            interval.queued += queued;
            if ran > 0.0 {
                interval.running.push((thread.tid, ran));
                *running.entry(thread.cpu).or_default() += ran;
            }
            if queued > 0.0 {
                interval.queues.push(Queued {
                    tid: thread.tid,
                    ns: queued,
                    from: woken_from,
                });
            }
            most = most.max(ran + queued);
            if now == Seen::Runnable && before == Seen::Runnable && turned == 0 {
                // It never left the CPU or the queue since the last poll: the rest is no wait.
                undecided.push((thread.tid, thread.cpu, rest));
                continue;
            }
            let recent = known.recent;
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
            match (before, now, recent) {
                (Seen::Waiting { key: a, tier: at }, Seen::Waiting { key: b, tier: bt }, _) => {
                    add(a, at, 0.5);
                    add(b, bt, 0.5);
                }
                (Seen::Waiting { key, tier }, _, _) | (_, Seen::Waiting { key, tier }, _) => {
                    add(key, tier, 1.0);
                }
                (Seen::Runnable, Seen::Runnable, Some((key, tier))) => add(key, tier, 1.0),
                (Seen::Runnable, Seen::Runnable, None) => {
                    let key = self.key(Key {
                        why: Why::Unseen,
                        tid: thread.tid,
                        stack: None,
                        object: 0,
                    });
                    add(key, Tier::Active, 1.0);
                }
                (Seen::Stopped, _, _) | (_, Seen::Stopped, _) => {}
            }
        }
        // A thread's CPU time is as old as the last tick. If nobody else ran on its CPU, it did.
        for (tid, cpu, rest) in undecided {
            let taken = running.get(&cpu).copied().unwrap_or(0.0);
            let ran = rest.min((interval.dt - taken).max(0.0));
            *running.entry(cpu).or_default() += ran;
            interval.ran += ran;
            interval.queued += rest - ran;
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
            most = most.max(interval.dt);
        }
        self.threads.retain(|_, known| known.poll == self.polls);
        self.close(interval, &on_cpu, most);
        self.clock(snapshot);
    }

    /// Completes the interval by what the two polls at its ends saw, and passes it on.
    fn close(&mut self, mut interval: Interval, on_cpu: &FxHashMap<CpuId, u32>, most: f64) {
        let occupied = on_cpu.len() as f64;
        let runnable: u32 = on_cpu.values().sum();
        let idle = self.cpus.len() as f64 - occupied;
        let behind = (f64::from(runnable) - occupied).min(idle).max(0.0);
        let nobody = if runnable == 0 { 1.0 } else { 0.0 };
        interval.behind = (self.behind + behind) / 2.0;
        let sampled = (self.nobody + nobody) / 2.0;
        (self.behind, self.nobody) = (behind, nobody);
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
            self.settle(None);
        }
    }

    fn settle(&mut self, idle_ns: Option<f64>) {
        let out = self.window.settle(idle_ns);
        for (key, ns) in out.waits {
            if let Some(charge) = self.charged.get_mut(key as usize) {
                charge.ns += ns;
                charge.count += 1;
            }
        }
        for (tid, ns) in out.serial {
            *self.serial.entry(tid).or_default() += ns;
        }
        for (tid, ns) in out.placement {
            *self.placement.entry(tid).or_default() += ns;
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
                });
                // What came before is settled with what comes after.
            }
            Some(clock) => {
                let idle = idle_of(&sum).saturating_sub(idle_of(&clock.last.1)) as f64;
                let span = snapshot.ts.saturating_sub(clock.last.0) as f64;
                clock.last = now;
                let covered = self.window.span();
                // A window may also hold what came before the first look at the CPUs.
                let idle = if span > 0.0 {
                    idle * (covered / span).max(1.0)
                } else {
                    idle
                };
                self.settle(Some(idle));
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
            match self.futexes.entry((pid, address)) {
                Entry::Occupied(mut used) => used.get_mut().see(thread.tid, &waiting.blocked.args),
                Entry::Vacant(place) if is_room => {
                    place
                        .insert(PolledFutex::default())
                        .see(thread.tid, &waiting.blocked.args);
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

    /// Ends the run at `to`.
    ///
    /// * `usage`: CPU time of the whole workload; without it, that of the threads that were polled.
    /// * `waits`: what the processes recorded themselves; empty without the preload library.
    /// * `site`: the stack that stands for a return address in a process.
    /// * `blank`: the stack of what nobody sampled: all CPU time, here.
    pub fn finish(
        mut self,
        to: Ns,
        usage: Option<CpuUsage>,
        waits: &[ProcessWaits],
        mut site: impl FnMut(Tid, u64) -> Option<StackId>,
        blank: StackId,
    ) -> RunPartition {
        self.settle(None);
        let mut out = RunPartition {
            from: self.from,
            to: to.max(self.from),
            cpus: self.cpus.len() as u32,
            events: self.polls,
            processes: std::mem::take(&mut self.processes),
            ..RunPartition::default()
        };
        let capacity = out.capacity_ns();
        let ran: f64 = self.ran.values().flatten().sum();
        let [user, system] = match usage {
            Some(usage) => [usage.user_ns as f64, usage.system_ns as f64],
            None => [0, 1].map(|mode| self.ran.values().map(|ran| ran[mode]).sum()),
        };
        out.on_cpu_ns = (user + system).min(capacity);
        let fit = if user + system > 0.0 {
            out.on_cpu_ns / (user + system)
        } else {
            0.0
        };
        self.run(&mut out, [user * fit, system * fit], ran, waits, blank);
        self.stolen(&mut out);
        out.idle_ns = (capacity - out.on_cpu_ns - out.other_ns).max(0.0);
        self.idle(&mut out, waits, &mut site);
        out
    }

    /// CPU time by thread, in the proportions of the polls.
    fn run(
        &self,
        out: &mut RunPartition,
        [user, system]: [f64; 2],
        ran: f64,
        waits: &[ProcessWaits],
        blank: StackId,
    ) {
        let spun: f64 = waits
            .iter()
            .flat_map(|process| &process.by_kind)
            .filter(|(kind, ..)| *kind == WaitKind::Spin)
            .map(|&(_, _, ns)| ns as f64)
            .sum();
        let spun = spun.min(user);
        // Threads that came and went between two polls were never seen: their time is nobody's.
        let seen = if ran > 0.0 {
            (user + system).min(ran) / ran
        } else {
            0.0
        };
        let mut left = user + system;
        let mut put = |tid: Tid, ns: f64, of: f64| {
            if ns <= 0.0 {
                return;
            }
            let in_user = user / of;
            let spins = spun / of;
            for (activity, share) in [
                (Activity::User, in_user - spins),
                (Activity::UserSpin, spins),
                (Activity::Kernel, system / of),
            ] {
                if share > 0.0 {
                    let charge = out.on.entry((activity, tid, blank)).or_default();
                    charge.ns += ns * share;
                    charge.count += 1;
                }
            }
            *out.threads.entry(tid).or_default() += ns;
        };
        let of = user + system;
        for (&tid, ran) in &self.ran {
            let ns = (ran[0] + ran[1]) * seen;
            left -= ns;
            put(tid, ns, of);
        }
        if left > of * 1e-9 {
            put(0, left, of);
        }
    }

    /// Time that others took from the CPUs: what two ways of counting agree on.
    fn stolen(&self, out: &mut RunPartition) {
        let Some(clock) = &self.cpu_times else { return };
        let span = clock.last.0.saturating_sub(clock.first.0) as f64;
        let run = (out.to - out.from) as f64;
        if span <= 0.0 || span < 0.5 * run {
            return;
        }
        let whole = run / span;
        let delta = |of: fn(&CpuTimes) -> Ns| {
            of(&clock.last.1).saturating_sub(of(&clock.first.1)) as f64 * whole
        };
        let steal = delta(|times| times.steal_ns);
        let irq = delta(|times| times.irq_ns);
        let busy = delta(|times| times.user_ns + times.system_ns) + steal + irq;
        let not_idle = out.capacity_ns() - delta(idle_of);
        // Busy time is counted by ticks and idle time by the clock: where they disagree, the
        // smaller one is certain.
        let stolen = (busy.min(not_idle) - out.on_cpu_ns)
            .clamp(0.0, (out.capacity_ns() - out.on_cpu_ns).max(0.0));
        let hypervisor = steal.min(stolen);
        let interrupts = irq.min(stolen - hypervisor);
        let others = stolen - hypervisor - interrupts;
        for (object, ns) in [
            (HYPERVISOR, hypervisor),
            (INTERRUPTS, interrupts),
            (0, others),
        ] {
            if ns > 0.0 {
                let key = ChargeKey {
                    cause: Cause::Stolen,
                    tid: 0,
                    stack: None,
                    object,
                };
                out.off.insert(key, Charge { ns, count: 1 });
            }
        }
        out.other_ns = stolen;
    }

    /// Idle time in the proportions in which the intervals were charged.
    fn idle(
        &self,
        out: &mut RunPartition,
        records: &[ProcessWaits],
        site: &mut impl FnMut(Tid, u64) -> Option<StackId>,
    ) {
        if out.idle_ns <= 0.0 {
            return;
        }
        let waits = self.by_index.iter().zip(&self.charged);
        let seen = waits.clone().filter(|(key, _)| key.why != Why::Unseen);
        let charged = seen.clone().map(|(_, charge)| charge.ns).sum::<f64>()
            + self.serial.values().sum::<f64>()
            + self.placement.values().sum::<f64>();
        if charged <= 0.0 {
            // Too short to be polled twice, or never idle at a poll.
            let key = ChargeKey {
                cause: Cause::Unexplained,
                tid: 0,
                stack: None,
                object: 0,
            };
            out.off.insert(
                key,
                Charge {
                    ns: out.idle_ns,
                    count: 1,
                },
            );
            return;
        }
        let scale = out.idle_ns / charged;
        let mut put = |key: ChargeKey, charge: Charge| {
            let sum = out.off.entry(key).or_default();
            sum.ns += charge.ns * scale;
            sum.count += charge.count;
        };
        for (cause, charges) in [
            (Cause::Serial, &self.serial),
            (Cause::Placement, &self.placement),
        ] {
            for (&tid, &ns) in charges {
                put(
                    ChargeKey {
                        cause,
                        tid,
                        stack: None,
                        object: 0,
                    },
                    Charge { ns, count: 1 },
                );
            }
        }
        let waiters: FxHashSet<Tid> = self.by_index.iter().map(|key| key.tid).collect();
        let known = Resolver {
            objects: Objects::new(records),
            futexes: &self.futexes,
            is_alone: waiters.len() < 2,
        };
        for (key, charge) in seen {
            if charge.ns > 0.0 {
                known.resolve(key, *charge, site, &mut put);
            }
        }
    }
}

fn idle_of(times: &CpuTimes) -> Ns {
    times.idle_ns + times.iowait_ns
}

#[cfg(test)]
mod tests;
