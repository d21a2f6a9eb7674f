//! The exclusive partition of one run's capacity, as events come in.
//!
//! At each instant every watched CPU runs the workload, runs somebody else, or is
//! idle. Idle time is charged to what the workload's threads wait for at that
//! instant. All charges are integrals over piecewise constant rates: an event
//! closes the interval since the last one and costs O(1), whatever the number of
//! waiting threads, because a waiting thread only remembers the value of its
//! class's integral at the moment it joined. Rules and reasons: `DESIGN.md`.

mod compact;
mod crew;
mod gap;
mod outcome;
mod queue;
mod settle;
mod waits;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cause::Cause;
use crate::event::{
    CallStack, CpuId, Event, Ns, Occupant, Off, Sample, SampledBy, StackId, StackTable, Tid, Waker,
};
use crate::wait::FutexUse;

use crew::Crew;
pub use outcome::{
    Activity, Charge, ChargeKey, HYPERVISOR, INTERRUPTS, QUOTA, RunPartition, Stretch,
};
use queue::Queue;
pub(crate) use queue::START_NS;
use waits::{Futex, PendingKey, Place, TIERS, Tier, Waiting};

/// Why a thread that is not running is not running.
#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// In the run queue of its `cpu`; `ending` is the wait that the wake-up ended, if any.
    Queued {
        ending: Option<Waiting>,
        waker: Option<Waker>,
        from: Option<StackId>,
        behind: bool,
        /// For so long that an idle CPU could have been started meanwhile.
        ripe: bool,
    },
    Waiting(Waiting),
    /// It lives, but since a gap nothing is known of it.
    Unseen,
    Gone,
}

/// What to look at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    /// Has it been queued for long?
    Queue,
    /// Is it a wait that stands back?
    Wait,
}

#[derive(Debug)]
struct Thread {
    pid: Tid,
    state: State,
    cpu: CpuId,
    born: Ns,
    /// Value of the partition's clock when the present stretch on a CPU began.
    on_mark: f64,
    cpu_ns: Ns,
    wakes: u64,
    placement_mark: f64,
    queued_at: Ns,
    /// Its slot of the queue in which it is.
    slot: usize,
    /// It gave way when it last left a CPU: nobody yields who has work.
    yielded: bool,
    /// One of its waits is to be looked at again.
    is_watched: bool,
    /// It has passed its exit: its last switch comes next.
    is_ending: bool,
    /// The last wait that was seen to end, and who ended it: what is supposed of one that was not seen.
    last: Option<(Waiting, Waker)>,
}

impl Thread {
    /// Below 1 % of its life on a CPU, and the workload hardly ever wakes it.
    fn hardly_runs(&self, now: Ns) -> bool {
        let age = now.saturating_sub(self.born);
        age > SERVICE_AGE_NS
            && self.cpu_ns.saturating_mul(100) < age
            && self.wakes.saturating_mul(50_000_000) < age
    }
}

#[derive(Clone, Copy, Debug)]
struct Cpu {
    occupant: Occupant,
    since: Ns,
    /// Value of the integral of stolen time when the occupant came.
    stolen_mark: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    waiting: [u64; TIERS],
    /// Runnable threads behind a busy CPU.
    behind: u64,
    /// Those of them that are there for longer than an idle CPU takes to start.
    ripe: u64,
    /// Runnable threads on an idle CPU that were not woken but preempted: throttled or moving.
    stranded: u64,
    running: u64,
    /// Workers without a task among the active waiters.
    idle_workers: u64,
}

/// Turns events, in order of time, into a [`RunPartition`].
pub struct Partition {
    stacks: StackTable,
    watched: FxHashMap<CpuId, Cpu>,
    threads: FxHashMap<Tid, Thread>,
    queues: FxHashMap<CpuId, Queue>,
    now: Ns,
    /// Nanoseconds of the run that are accounted for: time in windows, and in the gaps that they stand for.
    clock: f64,
    scale: gap::Scale,
    /// The last gap ended here.
    resumed: Ns,
    idle: u64,
    others: u64,
    tally: Tally,
    /// Charged per waiting thread, by tier.
    integral: [f64; TIERS],
    placement: f64,
    /// Per CPU that others occupy.
    stolen: f64,
    serial_rate: f64,
    placement_rate: f64,
    places: FxHashMap<u64, Place>,
    pending: FxHashMap<PendingKey, Charge>,
    futexes: FxHashMap<Futex, (FutexUse, FxHashSet<Tid>, Ns)>,
    /// When to look at a thread again, and at what since when.
    reconsider: BinaryHeap<Reverse<(Ns, Look, Tid, Ns)>>,
    /// Workers without a task, by process.
    crews: FxHashMap<Tid, Crew>,
    serial_ns: f64,
    serial_weights: FxHashMap<(Tid, StackId), f64>,
    placement_weights: FxHashMap<(Tid, StackId), f64>,
    stranded_ns: f64,
    /// What the samples of time stand for.
    sampled_ns: f64,
    recent_idle_runnable: f64,
    max_stretches: usize,
    out: RunPartition,
}

/// Too young to be judged by how much it ran.
const SERVICE_AGE_NS: Ns = 20_000_000;

impl Partition {
    /// A run that owns some CPUs from `from` on; `occupants` are those of the CPUs at that time.
    pub fn new(from: Ns, occupants: &[(CpuId, Occupant)]) -> Partition {
        let mut partition = Partition {
            stacks: StackTable::new(),
            watched: FxHashMap::default(),
            threads: FxHashMap::default(),
            queues: FxHashMap::default(),
            now: from,
            clock: 0.0,
            scale: gap::Scale::default(),
            resumed: 0,
            idle: 0,
            others: 0,
            tally: Tally::default(),
            integral: [0.0; TIERS],
            placement: 0.0,
            stolen: 0.0,
            serial_rate: 0.0,
            placement_rate: 0.0,
            places: FxHashMap::default(),
            pending: FxHashMap::default(),
            futexes: FxHashMap::default(),
            reconsider: BinaryHeap::new(),
            crews: FxHashMap::default(),
            serial_ns: 0.0,
            serial_weights: FxHashMap::default(),
            placement_weights: FxHashMap::default(),
            stranded_ns: 0.0,
            sampled_ns: 0.0,
            recent_idle_runnable: 0.0,
            max_stretches: 0,
            out: RunPartition {
                from,
                cpus: occupants.len() as u32,
                ..RunPartition::default()
            },
        };
        for &(cpu, occupant) in occupants {
            partition.watched.insert(
                cpu,
                Cpu {
                    occupant,
                    since: from,
                    stolen_mark: 0.0,
                },
            );
            match occupant {
                Occupant::Idle => partition.idle += 1,
                Occupant::Other(_) => partition.others += 1,
                Occupant::Workload(tid) => partition.start_running(tid, cpu),
            }
        }
        partition
    }

    /// Also keeps up to `max` stretches for a trace.
    pub fn keep_stretches(mut self, max: usize) -> Partition {
        self.max_stretches = max;
        self
    }

    /// Takes stacks that later events speak of: their ids go on from those known.
    pub fn learn(&mut self, stacks: &[Arc<CallStack>]) {
        self.stacks.extend_from_slice(stacks);
    }

    /// Takes the next event. Cost: O(1), amortised, and O(queue length) when a CPU turns busy or idle; O(log threads) for a
    /// thread that is looked at again; O(threads) for a gap.
    pub fn feed(&mut self, event: &Event) {
        let is_found = matches!(
            event,
            Event::Gap { .. }
                | Event::Occupied { .. }
                | Event::Runnable { .. }
                | Event::Asleep { .. }
        );
        self.out.events += u64::from(!is_found);
        self.look_until(event.ts());
        self.advance(event.ts());
        match *event {
            Event::Switch {
                ts,
                cpu,
                prev,
                off,
                next,
            } => self.switch(ts, cpu, prev, off, next),
            Event::Wake {
                ts,
                tid,
                waker,
                from,
            } => self.wake(ts, tid, waker, from),
            Event::Migrate { tid, cpu, .. } => self.migrate(tid, cpu),
            Event::Fork {
                ts,
                child,
                pid,
                cpu,
                ..
            } => self.fork(ts, child, pid, cpu),
            Event::KernelSpin {
                tid,
                lock,
                spun,
                count,
                stack,
                ..
            } => {
                let ns = spun as f64 * self.scale.factor();
                self.out.spun_ns += ns;
                let charge = self.out.spun.entry(lock.address).or_default();
                charge.ns += ns;
                charge.count += count;
                if let Some(stack) = stack {
                    *self
                        .out
                        .spun_at
                        .entry((lock.address, tid, stack))
                        .or_default() += 1;
                }
            }
            Event::Sample(sample) => self.sample(&sample),
            Event::Throttled { window, ns, .. } => {
                // Of that only what is accounted for, as of everything else.
                let accounted = self.clock / window.max(1) as f64;
                self.throttled(ns as f64 * accounted.min(1.0));
            }
            Event::Lost { count, .. } => self.out.lost += count,
            Event::Gap { until, window, .. } => self.gap(until, window),
            Event::Occupied { cpu, by, .. } => self.found_on(cpu, by),
            Event::Runnable { tid, cpu, .. } => self.found_runnable(tid, cpu),
            Event::Asleep { tid, .. } => self.found_asleep(tid),
            Event::Exit { tid, .. } => self.exit(tid),
        }
    }

    /// Looks again at what is due by `ts`.
    fn look_until(&mut self, ts: Ns) {
        while let Some(&Reverse((when, look, tid, since))) = self.reconsider.peek() {
            if when > ts {
                break;
            }
            self.reconsider.pop();
            self.advance(when);
            match look {
                Look::Queue => self.ripen(tid, since),
                Look::Wait => self.look_again(tid, since),
            }
        }
    }

    /// Closes the interval since the last event.
    fn advance(&mut self, ts: Ns) {
        // Rings of different CPUs are merged by time; a straggler is counted at `now`.
        let dt = self.scale.stands_for(self.now, ts);
        if dt == 0.0 {
            return;
        }
        self.now = ts;
        self.clock += dt;
        self.serial_rate = 0.0;
        self.placement_rate = 0.0;
        let (idle, others) = (self.idle as f64, self.others as f64);
        self.out.other_ns += dt * others;
        self.out.idle_ns += dt * idle;
        if idle + others == 0.0 {
            return;
        }
        let behind = self.tally.behind as f64;
        let ripe = self.tally.ripe as f64;
        let placement = ripe.min(idle);
        if placement > 0.0 {
            self.placement += dt * placement / ripe;
        }
        // A CPU is taken away only from somebody who wants it: while no thread is runnable, a CPU
        // that others use is as little missed as an idle one.
        let stolen = (behind - placement).min(others);
        if stolen > 0.0 {
            self.stolen += dt * stolen / others;
        }
        let mut rest = idle - placement + others - stolen;
        let stranded = (self.tally.stranded as f64).min(rest);
        self.stranded_ns += dt * stranded;
        rest -= stranded;
        self.recent_idle_runnable += dt * (placement + stranded);

        let nobody_runs = self.tally.running + self.tally.behind + self.tally.stranded == 0;
        let mut for_idle_workers = 0.0;
        for tier in [Tier::Active, Tier::Patient, Tier::Service] {
            let waiting = self.tally.waiting[tier as usize] as f64;
            if waiting == 0.0 || tier == Tier::Service && !nobody_runs {
                continue;
            }
            // While nobody runs, ending the waits would end the whole interval: they get all of it.
            // While somebody runs, a waiting thread can use one CPU at most.
            let claimed = if nobody_runs { rest } else { waiting.min(rest) };
            self.integral[tier as usize] += dt * claimed / waiting;
            if tier == Tier::Active {
                for_idle_workers = claimed * self.tally.idle_workers as f64 / waiting;
            }
            rest -= claimed;
        }
        self.serial_ns += dt * rest;
        self.serial_rate = rest + for_idle_workers;
        self.placement_rate = placement;
    }

    fn switch(&mut self, ts: Ns, cpu: CpuId, prev: Occupant, off: Off, next: Occupant) {
        let was_idle = self.is_idle(cpu);
        if let Some(state) = self.watched.get(&cpu).copied() {
            // As waits are: a straggler must not overlap them.
            let to = self.now;
            match state.occupant {
                Occupant::Idle => self.idle -= 1,
                Occupant::Other(tid) => {
                    self.others -= 1;
                    let key = ChargeKey {
                        cause: Cause::Stolen,
                        tid: 0,
                        stack: None,
                        object: u64::from(tid),
                    };
                    let charge = self.out.off.entry(key).or_default();
                    charge.ns += self.stolen - state.stolen_mark;
                    charge.count += 1;
                }
                Occupant::Workload(_) => {}
            }
            self.stretch(Some(cpu), state.occupant, state.since, to);
            match next {
                Occupant::Idle => self.idle += 1,
                Occupant::Other(_) => self.others += 1,
                Occupant::Workload(_) => {}
            }
            self.watched.insert(
                cpu,
                Cpu {
                    occupant: next,
                    since: to,
                    stolen_mark: self.stolen,
                },
            );
        }
        if let Occupant::Other(tid) = prev {
            // It belonged to the workload when it came on.
            if self.threads.contains_key(&tid) {
                self.leave(tid);
            }
        }
        if let Occupant::Workload(tid) = prev {
            self.stop_running(tid, cpu, ts, off);
        }
        if let Occupant::Workload(tid) = next {
            self.start_running(tid, cpu);
        }
        // Else all who are queued wait behind somebody as before, or for the CPU itself.
        let is_idle = next == Occupant::Idle;
        if was_idle != is_idle {
            self.requeue(cpu, is_idle);
        }
    }

    /// A CPU outside the run is always somebody's.
    fn is_idle(&self, cpu: CpuId) -> bool {
        let state = self.watched.get(&cpu);
        state.is_some_and(|state| state.occupant == Occupant::Idle)
    }

    fn stretch(&mut self, cpu: Option<CpuId>, who: Occupant, from: Ns, to: Ns) {
        if to <= from {
            return;
        }
        let tid = match who {
            Occupant::Idle => 0,
            Occupant::Workload(tid) | Occupant::Other(tid) => tid,
        };
        let stretch = Stretch {
            cpu,
            tid,
            from,
            to,
            cause: None,
        };
        self.out.keep(stretch, self.max_stretches);
    }

    fn thread(&mut self, tid: Tid, cpu: CpuId) -> &mut Thread {
        let (now, clock) = (self.now, self.clock);
        self.threads.entry(tid).or_insert_with(|| Thread {
            pid: tid,
            state: State::Gone,
            cpu,
            born: now,
            on_mark: clock,
            cpu_ns: 0,
            wakes: 0,
            placement_mark: 0.0,
            queued_at: now,
            slot: 0,
            yielded: false,
            is_watched: false,
            is_ending: false,
            last: None,
        })
    }

    fn fork(&mut self, ts: Ns, child: Tid, pid: Tid, cpu: CpuId) {
        self.leave(child);
        let clock = self.clock;
        let thread = self.thread(child, cpu);
        *thread = Thread {
            pid,
            state: State::Gone,
            cpu,
            born: ts,
            on_mark: clock,
            cpu_ns: 0,
            wakes: 0,
            placement_mark: 0.0,
            queued_at: ts,
            slot: 0,
            yielded: false,
            is_watched: thread.is_watched,
            is_ending: false,
            last: None,
        };
        self.out.processes.insert(child, pid);
        if ts < self.resumed {
            // What became of it in the gap is told at its end.
            self.thread(child, cpu).state = State::Unseen;
        } else {
            self.enqueue(child, cpu, None, None, None);
        }
    }

    /// Takes the thread out of whatever it is counted in, charging what it has gathered.
    fn leave(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        match thread.state {
            State::Running => {
                let ran = self.clock - thread.on_mark;
                self.tally.running -= 1;
                self.out.on_cpu_ns += ran;
                *self.out.threads.entry(tid).or_default() += ran;
            }
            State::Queued {
                ending,
                waker,
                from,
                ..
            } => {
                self.leave_queue_only(tid);
                if let Some(waiting) = ending {
                    self.charge_wait(tid, waiting, waker, from);
                }
            }
            State::Waiting(waiting) => {
                self.count_wait(&waiting, -1);
                self.charge_wait(tid, waiting, None, None);
            }
            State::Unseen | State::Gone => {}
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            if matches!(thread.state, State::Running) {
                thread.cpu_ns += (self.clock - thread.on_mark) as Ns;
            }
            thread.state = State::Gone;
        }
    }

    fn start_running(&mut self, tid: Tid, cpu: CpuId) {
        self.leave(tid);
        let clock = self.clock;
        let thread = self.thread(tid, cpu);
        thread.state = State::Running;
        thread.cpu = cpu;
        thread.on_mark = clock;
        self.tally.running += 1;
    }

    fn stop_running(&mut self, tid: Tid, cpu: CpuId, ts: Ns, off: Off) {
        // Also when the switch in was lost: then nothing is counted before now.
        self.leave(tid);
        self.thread(tid, cpu).cpu = cpu;
        match off {
            Off::Preempted | Off::Yielded => {
                let thread = self.thread(tid, cpu);
                thread.queued_at = ts;
                thread.yielded = off == Off::Yielded;
                self.enqueue(tid, cpu, None, None, None);
            }
            Off::Blocked(blocked) => {
                self.thread(tid, cpu).yielded = false;
                self.block(tid, ts, &blocked);
            }
            Off::Exited => {}
        }
    }

    fn sample(&mut self, sample: &Sample) {
        match sample.by {
            SampledBy::Instructions(count) => {
                *self
                    .out
                    .instructions
                    .entry((sample.tid, sample.stack))
                    .or_default() += count;
            }
            // Samples of time tell how long they took.
            SampledBy::PageFaults(_) => {}
            SampledBy::Time(ns) => {
                self.out.samples += 1;
                self.sampled_ns += ns as f64;
                let activity = self.stacks.get(sample.stack.0 as usize).map_or(
                    if sample.user_mode {
                        Activity::User
                    } else {
                        Activity::Kernel
                    },
                    |stack| crate::activity::classify(stack, sample.user_mode),
                );
                let on = &mut self.out.on;
                let charge = on.entry((activity, sample.tid, sample.stack)).or_default();
                charge.ns += ns as f64;
                charge.count += 1;
                let share = ns as f64 * self.scale.factor() / self.tally.running.max(1) as f64;
                let key = (sample.tid, sample.stack);
                if self.serial_rate > 0.0 {
                    *self.serial_weights.entry(key).or_default() += self.serial_rate * share;
                }
                if self.placement_rate > 0.0 {
                    *self.placement_weights.entry(key).or_default() += self.placement_rate * share;
                }
            }
        }
    }

    /// A quota held CPUs back: what looked like idle CPUs beside runnable threads was that.
    fn throttled(&mut self, ns: f64) {
        let moved = ns.min(self.recent_idle_runnable);
        self.recent_idle_runnable = 0.0;
        let key = ChargeKey {
            cause: Cause::Stolen,
            tid: 0,
            stack: None,
            object: QUOTA,
        };
        let charge = self.out.off.entry(key).or_default();
        charge.ns += moved;
        charge.count += 1;
    }
}
