//! The exclusive partition of one run's capacity, as events come in.
//!
//! At each instant every watched CPU runs the workload, runs somebody else, or is
//! idle. Idle time is charged to what the workload's threads wait for at that
//! instant. All charges are integrals over piecewise constant rates: an event
//! closes the interval since the last one and costs O(1), whatever the number of
//! waiting threads, because a waiting thread only remembers the value of its
//! class's integral at the moment it joined. Rules and reasons: `DESIGN.md`.

mod compact;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cause::Cause;
use crate::event::{
    Blocked, CallStack, CpuId, Event, Ns, Occupant, Off, Sample, SampledBy, StackId, StackTable,
    Tid, Waker,
};
use crate::wait::{FutexUse, Resolved, Wait, classify};

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
    Gone,
}

/// A wait in progress, or being ended by a wake-up still under way.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    wait: Wait,
    tier: Tier,
    /// Value of the tier's integral when it began.
    mark: f64,
    /// Gathered in another tier before.
    carried: f64,
    since: Ns,
    place: u64,
    object: u64,
    stack: Option<StackId>,
}

/// What to look at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Look {
    /// Has it been queued for long?
    Queue,
    /// Is it a wait that stands back?
    Wait,
}

/// Who gets idle CPU time first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// Waits of threads that have work to do.
    Active = 0,
    /// Long waits for a partner: the thread may have nothing to do until others are done.
    Patient = 1,
    /// Waits of threads that hardly ever run: timers, signal handlers, watchdogs.
    Service = 2,
    /// Joins and waits for children: nothing that these threads could do on a CPU.
    Serial = 3,
}

const TIERS: usize = 4;

#[derive(Debug)]
struct Thread {
    pid: Tid,
    state: State,
    cpu: CpuId,
    born: Ns,
    /// When the present stretch on a CPU began.
    on_since: Ns,
    cpu_ns: Ns,
    wakes: u64,
    placement_mark: f64,
    queued_at: Ns,
    /// It gave way when it last left a CPU: nobody yields who has work.
    yielded: bool,
    /// One of its waits is to be looked at again.
    is_watched: bool,
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

/// What part of a thread's time on a CPU was spent on, by samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// Its own code.
    User,
    /// A user-space spin loop, or yielding in one.
    UserSpin,
    /// A page fault.
    PageFault,
    /// Spinning on a kernel lock.
    KernelLock,
    /// Spinning on the address-space lock.
    MmapLock,
    /// An interrupt that hit the thread.
    Interrupt,
    /// Any other kernel code.
    Kernel,
}

/// Key of a charge: who lost it where, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChargeKey {
    /// To what.
    pub cause: Cause,
    /// Whose wait it was; 0 for nobody's.
    pub tid: Tid,
    /// Stack of the wait, of the running thread (serial, placement), or none.
    pub stack: Option<StackId>,
    /// Lock address, waker's thread id, thread id of the other occupant, or 0.
    pub object: u64,
}

/// Amount of a charge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Charge {
    /// CPU nanoseconds.
    pub ns: f64,
    /// Waits or samples behind it.
    pub count: u64,
}

/// A stretch of one CPU or of one thread's wait, for a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The CPU that ran it; `None` for a wait.
    pub cpu: Option<CpuId>,
    /// Who; 0 is idle.
    pub tid: Tid,
    /// Begin and end.
    pub from: Ns,
    /// End.
    pub to: Ns,
    /// What for, of a wait.
    pub cause: Option<Cause>,
}

/// What became of the capacity of one run.
#[derive(Clone, Debug, Default)]
pub struct RunPartition {
    /// Begin and end of the run.
    pub from: Ns,
    /// End.
    pub to: Ns,
    /// CPUs it owned.
    pub cpus: u32,
    /// CPU time of the workload on the watched CPUs.
    pub on_cpu_ns: f64,
    /// CPU time of others there.
    pub other_ns: f64,
    /// Idle CPU time there.
    pub idle_ns: f64,
    /// Idle and foreign time by cause; adds up to `idle_ns + other_ns`. Foreign time is `stolen`
    /// only while a thread of the workload was runnable.
    pub off: FxHashMap<ChargeKey, Charge>,
    /// On-CPU samples by activity, thread and stack; `ns` adds up to `on_cpu_ns`.
    pub on: FxHashMap<(Activity, Tid, StackId), Charge>,
    /// User instructions sampled by thread and stack.
    pub instructions: FxHashMap<(Tid, StackId), u64>,
    /// Spin-lock waits timed by tracepoints.
    pub spun_ns: f64,
    /// Spin-lock waits by lock address.
    pub spun: FxHashMap<u64, Charge>,
    /// CPU time by thread.
    pub threads: FxHashMap<Tid, f64>,
    /// Process of each thread.
    pub processes: FxHashMap<Tid, Tid>,
    /// Events lost.
    pub lost: u64,
    /// Events seen.
    pub events: u64,
    /// Time on CPU samples seen.
    pub samples: u64,
    /// Stretches for a trace, if asked for.
    pub stretches: Vec<Stretch>,
}

impl RunPartition {
    /// Capacity: CPUs x wall time.
    pub fn capacity_ns(&self) -> f64 {
        f64::from(self.cpus) * (self.to - self.from) as f64
    }
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
    queues: FxHashMap<CpuId, Vec<Tid>>,
    now: Ns,
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
    futexes: FxHashMap<u64, (FutexUse, FxHashSet<Tid>, Ns)>,
    /// When to look at a thread again, and at what since when.
    reconsider: BinaryHeap<Reverse<(Ns, Look, Tid, Ns)>>,
    /// Workers without a task, by process.
    crews: FxHashMap<Tid, Crew>,
    serial_ns: f64,
    serial_weights: FxHashMap<(Tid, StackId), f64>,
    placement_weights: FxHashMap<(Tid, StackId), f64>,
    stranded_ns: f64,
    recent_idle_runnable: f64,
    max_stretches: usize,
    out: RunPartition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PendingKey {
    resolved: Resolved,
    tid: Tid,
    /// What the waker was doing, where that names the wait better than the waiter's own stack.
    from: Option<StackId>,
    place: u64,
    object: u64,
    futex: u64,
}

#[derive(Debug, Default)]
struct Place {
    wait: Option<Wait>,
    /// Time waited by sampled stack.
    stacks: Vec<(StackId, f64)>,
}

/// The workers of one process that wait for a task. They are interchangeable: what gives one of
/// them a task tells what all of them have been waiting for since the last time.
#[derive(Debug, Default)]
struct Crew {
    waiting: u64,
    /// Sum over the waiting of the integral's value when they joined or were last settled.
    marks: f64,
    /// Value of the integral when all were last settled.
    settled: f64,
    /// Gathered by workers that were woken without a reason that is known.
    unsettled: f64,
    /// What was settled, by cause.
    mix: FxHashMap<Cause, f64>,
}

impl Crew {
    fn join(&mut self, now: f64) {
        self.waiting += 1;
        self.marks += now;
    }

    /// A worker that joined at `mark` leaves; what it has gathered since the last settling stays.
    fn leave(&mut self, mark: f64, now: f64) {
        let mark = mark.max(self.settled);
        self.waiting -= 1;
        self.marks -= mark;
        self.unsettled += now - mark;
    }

    /// Everything gathered, which is then settled.
    fn settle(&mut self, now: f64) -> f64 {
        let gathered = self.unsettled + self.waiting as f64 * now - self.marks;
        self.unsettled = 0.0;
        self.marks = self.waiting as f64 * now;
        self.settled = now;
        gathered.max(0.0)
    }
}

/// Too young to be judged by how much it ran.
const SERVICE_AGE_NS: Ns = 20_000_000;
/// An idle CPU takes this long to start a thread; one that is queued for less is better off where
/// it is.
pub(crate) const START_NS: Ns = 50_000;
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
        Wait::Peer | Wait::IdleWorker | Wait::Unknown | Wait::For(Cause::Sleep | Cause::Io)
    )
}

impl Partition {
    /// A run that owns some CPUs from `from` on; `occupants` are those of the CPUs at that time.
    pub fn new(from: Ns, occupants: &[(CpuId, Occupant)]) -> Partition {
        let mut partition = Partition {
            stacks: StackTable::new(),
            watched: FxHashMap::default(),
            threads: FxHashMap::default(),
            queues: FxHashMap::default(),
            now: from,
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
                Occupant::Workload(tid) => partition.start_running(tid, cpu, from),
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

    /// Takes the next event. Cost: O(1), and O(queue length) when a CPU turns busy or idle.
    pub fn feed(&mut self, event: &Event) {
        self.out.events += 1;
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
                lock, spun, count, ..
            } => {
                self.out.spun_ns += spun as f64;
                let charge = self.out.spun.entry(lock.address).or_default();
                charge.ns += spun as f64;
                charge.count += count;
            }
            Event::Sample(sample) => self.sample(&sample),
            Event::Throttled { ns, .. } => self.throttled(ns as f64),
            Event::Lost { count, .. } => self.out.lost += count,
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
        let dt = ts.saturating_sub(self.now) as f64;
        if dt == 0.0 {
            return;
        }
        self.now = ts;
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
        if let Some(state) = self.watched.get(&cpu).copied() {
            let to = ts;
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
                    since: ts,
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
            self.start_running(tid, cpu, ts);
        }
        self.requeue(cpu, next == Occupant::Idle);
    }

    /// Counts a wait in (`by` 1) or out (-1).
    fn count_wait(&mut self, waiting: &Waiting, by: i64) {
        let add = |count: &mut u64| *count = count.wrapping_add_signed(by);
        add(&mut self.tally.waiting[waiting.tier as usize]);
        if waiting.wait == Wait::IdleWorker && waiting.tier == Tier::Active {
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
    fn look_again(&mut self, tid: Tid, since: Ns) {
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
        if now < since + RECONSIDER_NS {
            if waiting.wait == Wait::Peer && waiting.tier == Tier::Active {
                self.demote(tid, waiting, Tier::Patient);
            }
            self.look_later(tid, since + RECONSIDER_NS, since);
        } else if hardly_runs && matches!(waiting.tier, Tier::Active | Tier::Patient) {
            self.demote(tid, waiting, Tier::Service);
        }
    }

    fn demote(&mut self, tid: Tid, before: Waiting, tier: Tier) {
        let gathered = self.integral[before.tier as usize];
        let mut after = Waiting {
            tier,
            mark: self.integral[tier as usize],
            ..before
        };
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if before.wait == Wait::IdleWorker {
            let crew = self.crews.entry(thread.pid).or_default();
            crew.leave(before.mark, gathered);
        } else {
            after.carried += gathered - before.mark;
        }
        thread.state = State::Waiting(after);
        self.count_wait(&before, -1);
        self.count_wait(&after, 1);
    }

    fn stretch(&mut self, cpu: Option<CpuId>, who: Occupant, from: Ns, to: Ns) {
        if self.out.stretches.len() < self.max_stretches && to > from {
            let tid = match who {
                Occupant::Idle => 0,
                Occupant::Workload(tid) | Occupant::Other(tid) => tid,
            };
            self.out.stretches.push(Stretch {
                cpu,
                tid,
                from,
                to,
                cause: None,
            });
        }
    }

    fn thread(&mut self, tid: Tid, cpu: CpuId) -> &mut Thread {
        let now = self.now;
        self.threads.entry(tid).or_insert_with(|| Thread {
            pid: tid,
            state: State::Gone,
            cpu,
            born: now,
            on_since: now,
            cpu_ns: 0,
            wakes: 0,
            placement_mark: 0.0,
            queued_at: now,
            yielded: false,
            is_watched: false,
        })
    }

    fn fork(&mut self, ts: Ns, child: Tid, pid: Tid, cpu: CpuId) {
        self.leave(child);
        let thread = self.thread(child, cpu);
        *thread = Thread {
            pid,
            state: State::Gone,
            cpu,
            born: ts,
            on_since: ts,
            cpu_ns: 0,
            wakes: 0,
            placement_mark: 0.0,
            queued_at: ts,
            yielded: false,
            is_watched: thread.is_watched,
        };
        self.out.processes.insert(child, pid);
        self.enqueue(child, cpu, None, None, None);
    }

    /// Takes the thread out of whatever it is counted in, charging what it has gathered.
    fn leave(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        match thread.state {
            State::Running => {
                let ran = self.now.saturating_sub(thread.on_since);
                self.tally.running -= 1;
                self.out.on_cpu_ns += ran as f64;
                *self.out.threads.entry(tid).or_default() += ran as f64;
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
            State::Gone => {}
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            if matches!(thread.state, State::Running) {
                thread.cpu_ns += self.now.saturating_sub(thread.on_since);
            }
            thread.state = State::Gone;
        }
    }

    fn start_running(&mut self, tid: Tid, cpu: CpuId, ts: Ns) {
        self.leave(tid);
        let thread = self.thread(tid, cpu);
        thread.state = State::Running;
        thread.cpu = cpu;
        thread.on_since = ts;
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

    fn block(&mut self, tid: Tid, ts: Ns, blocked: &Blocked) {
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
        let (object, value) = match blocked.kernel_lock {
            Some(lock) => (lock.address, 0),
            None if is_futex || wait == Wait::Peer => (blocked.args[0], blocked.args[2] as u32),
            None => (0, 0),
        };
        if matches!(wait, Wait::Futex | Wait::PoolFutex) {
            let (used, waiters, _) = self.futexes.entry(object).or_default();
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
        let thread = &self.threads[&tid];
        let hardly_runs = thread.hardly_runs(ts);
        let may_hardly_run = thread.cpu_ns < RECONSIDER_NS / 100;
        let generic = is_generic(wait);
        let tier = if wait.is_serial() {
            Tier::Serial
        } else if wait == Wait::Service || (generic && hardly_runs) {
            Tier::Service
        } else {
            Tier::Active
        };
        let waiting = Waiting {
            wait,
            tier,
            mark: self.integral[tier as usize],
            carried: 0.0,
            since: ts,
            place: blocked.place,
            object,
            stack,
        };
        self.count_wait(&waiting, 1);
        if wait == Wait::IdleWorker && tier == Tier::Active {
            let pid = self.threads[&tid].pid;
            self.crews.entry(pid).or_default().join(waiting.mark);
        }
        if generic && tier == Tier::Active && (may_hardly_run || wait == Wait::Peer) {
            self.look_later(tid, ts + PATIENCE_NS, ts);
        }
        self.thread(tid, 0).state = State::Waiting(waiting);
    }

    fn wake(&mut self, ts: Ns, tid: Tid, waker: Waker, from: Option<StackId>) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        // Woken before it slept (or running already): no wait ends here.
        let State::Waiting(waiting) = thread.state else {
            return;
        };
        thread.wakes += u64::from(matches!(waker, Waker::Workload(_)));
        thread.queued_at = ts;
        let cpu = thread.cpu;
        let futex = self.futexes.get_mut(&waiting.object);
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

    /// Puts a thread that is counted nowhere into the queue of `cpu`.
    fn enqueue(
        &mut self,
        tid: Tid,
        cpu: CpuId,
        ending: Option<Waiting>,
        waker: Option<Waker>,
        from: Option<StackId>,
    ) {
        let cpu_idle = match self.watched.get(&cpu) {
            Some(state) => state.occupant == Occupant::Idle,
            None => false,
        };
        self.queues.entry(cpu).or_default().push(tid);
        let now = self.now;
        let thread = self.thread(tid, cpu);
        let (queued_at, yielded) = (thread.queued_at, thread.yielded);
        let behind = !cpu_idle;
        let ripe = behind && !yielded && now >= queued_at + START_NS;
        self.tally.behind += u64::from(behind);
        match ending {
            Some(waiting) if ripe => self.charge_wait(tid, waiting, waker, from),
            // A wake-up under way is still the cost of the wait.
            Some(waiting) => self.count_wait(&waiting, 1),
            None if !behind => self.tally.stranded += 1,
            None => {}
        }
        self.tally.ripe += u64::from(ripe);
        if behind && !ripe && !yielded {
            let when = queued_at + START_NS;
            self.reconsider
                .push(Reverse((when, Look::Queue, tid, queued_at)));
        }
        let placement = self.placement;
        let thread = self.thread(tid, cpu);
        thread.cpu = cpu;
        thread.placement_mark = placement;
        thread.state = State::Queued {
            ending: ending.filter(|_| !ripe),
            waker,
            from,
            behind,
            ripe,
        };
    }

    /// It waits in the queue for longer than an idle CPU would have taken.
    fn ripen(&mut self, tid: Tid, since: Ns) {
        let Some(thread) = self.threads.get(&tid) else {
            return;
        };
        if let State::Queued {
            ending,
            waker,
            from,
            behind: true,
            ripe: false,
        } = thread.state
            && thread.queued_at == since
        {
            let cpu = thread.cpu;
            self.leave_queue_only(tid);
            self.enqueue(tid, cpu, ending, waker, from);
        }
    }

    fn migrate(&mut self, tid: Tid, cpu: CpuId) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        match thread.state {
            State::Queued {
                ending,
                waker,
                from,
                ..
            } => {
                if thread.cpu == cpu {
                    return;
                }
                // Keep the wait that is being ended: only the queue changes.
                self.leave_queue_only(tid);
                self.enqueue(tid, cpu, ending, waker, from);
            }
            _ => thread.cpu = cpu,
        }
    }

    /// The CPU became busy or idle: its queue waits behind somebody now, or no longer.
    fn requeue(&mut self, cpu: CpuId, idle: bool) {
        let Some(queue) = self.queues.get(&cpu) else {
            return;
        };
        let flips = queue.iter().copied().filter(
            |tid| matches!(self.threads[tid].state, State::Queued { behind, .. } if behind == idle),
        );
        let flips: Vec<Tid> = flips.collect();
        for tid in flips {
            let State::Queued {
                ending,
                waker,
                from,
                ..
            } = self.threads[&tid].state
            else {
                continue;
            };
            self.leave_queue_only(tid);
            self.enqueue(tid, cpu, ending, waker, from);
        }
    }

    fn leave_queue_only(&mut self, tid: Tid) {
        let State::Queued {
            ending,
            behind,
            ripe,
            ..
        } = self.threads[&tid].state
        else {
            return;
        };
        let cpu = self.threads[&tid].cpu;
        if let Some(queue) = self.queues.get_mut(&cpu) {
            queue.retain(|&queued| queued != tid);
        }
        self.tally.behind -= u64::from(behind);
        if ripe {
            self.tally.ripe -= 1;
            self.charge_placement(tid);
        }
        match ending {
            Some(waiting) => self.count_wait(&waiting, -1),
            None if !behind => self.tally.stranded -= 1,
            None => {}
        }
    }

    fn charge_placement(&mut self, tid: Tid) {
        let mark = self.threads[&tid].placement_mark;
        let ns = self.placement - mark;
        if ns > 0.0 {
            let key = ChargeKey {
                cause: Cause::Placement,
                tid,
                stack: None,
                object: 0,
            };
            let charge = self.out.off.entry(key).or_default();
            charge.ns += ns;
            charge.count += 1;
        }
    }

    fn charge_wait(
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
        if self.out.stretches.len() < self.max_stretches {
            let (from, to) = (waiting.since, self.now);
            self.out.stretches.push(Stretch {
                cpu: None,
                tid,
                from,
                to,
                cause,
            });
        }
        let is_worker = waiting.wait == Wait::IdleWorker;
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
            waiting.object
        } else {
            0
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
            SampledBy::Time => {
                self.out.samples += 1;
                let activity = self.stacks.get(sample.stack.0 as usize).map_or(
                    if sample.user_mode {
                        Activity::User
                    } else {
                        Activity::Kernel
                    },
                    |stack| crate::activity::classify(stack, sample.user_mode),
                );
                self.out
                    .on
                    .entry((activity, sample.tid, sample.stack))
                    .or_default()
                    .count += 1;
                let running = self.tally.running.max(1) as f64;
                let key = (sample.tid, sample.stack);
                if self.serial_rate > 0.0 {
                    *self.serial_weights.entry(key).or_default() += self.serial_rate / running;
                }
                if self.placement_rate > 0.0 {
                    *self.placement_weights.entry(key).or_default() +=
                        self.placement_rate / running;
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

    /// Ends the run at `to`.
    pub fn finish(mut self, to: Ns) -> RunPartition {
        self.look_until(to);
        self.advance(to);
        let cpus: Vec<(CpuId, Cpu)> = self.watched.iter().map(|(&id, &cpu)| (id, cpu)).collect();
        for (id, cpu) in cpus {
            self.switch(to, id, Occupant::Idle, Off::Exited, Occupant::Idle);
            let _ = cpu;
        }
        let tids: Vec<Tid> = self.threads.keys().copied().collect();
        for tid in tids {
            self.leave(tid);
        }
        for (&tid, thread) in &self.threads {
            self.out.processes.entry(tid).or_insert(thread.pid);
        }
        self.out.to = to.max(self.now);
        self.settle_waits();
        self.settle_throttling();
        self.settle_samples();
        self.out
    }

    fn settle_waits(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut crews = std::mem::take(&mut self.crews);
        let mut unsettled: Vec<(Tid, PendingKey, Charge)> = Vec::new();
        for (&pid, crew) in &mut crews {
            let ns = crew.settle(self.integral[Tier::Active as usize]);
            let resolved = Resolved::AsOthers;
            let key = PendingKey {
                resolved,
                tid: 0,
                from: None,
                place: 0,
                object: 0,
                futex: 0,
            };
            unsettled.push((pid, key, Charge { ns, count: 0 }));
        }
        for (key, charge) in pending {
            match key.resolved {
                Resolved::Cause(cause) => self.put_wait(&key, cause, charge, 1.0),
                Resolved::Futex => {
                    self.put_wait(&key, self.futex_cause(key.futex), charge, 1.0);
                }
                Resolved::AsOthers => {
                    let pid = self.out.processes.get(&key.tid).copied().unwrap_or(key.tid);
                    unsettled.push((pid, key, charge));
                }
            }
        }
        for (pid, key, charge) in unsettled {
            let mix = crews.get(&pid).map(|crew| &crew.mix);
            let total: f64 = mix.map_or(0.0, |mix| mix.values().sum());
            let Some(mix) = mix.filter(|_| total > 0.0) else {
                self.serial_ns += charge.ns;
                continue;
            };
            for (&cause, ns) in mix {
                if cause == Cause::Serial {
                    self.serial_ns += charge.ns * ns / total;
                } else if charge.ns > 0.0 {
                    self.put_wait(&key, cause, charge, ns / total);
                }
            }
        }
        spread(
            &mut self.out.off,
            Cause::Serial,
            self.serial_ns,
            &self.serial_weights,
        );
    }

    /// Charges a wait to the stacks that were sampled at its place, or to its waker's.
    fn put_wait(&mut self, key: &PendingKey, cause: Cause, charge: Charge, share: f64) {
        let at_place = self
            .places
            .get(&key.place)
            .map_or(&[][..], |place| &place.stacks);
        let stacks = match &key.from {
            Some(from) => &[(*from, 1.0)][..],
            None => at_place,
        };
        let total: f64 = stacks.iter().map(|(_, time)| time).sum();
        let mut put = |stack: Option<StackId>, share: f64| {
            let key = ChargeKey {
                cause,
                tid: key.tid,
                stack,
                object: key.object,
            };
            let entry = self.out.off.entry(key).or_default();
            entry.ns += charge.ns * share;
            entry.count += charge.count;
        };
        if total > 0.0 {
            for &(stack, time) in stacks {
                put(Some(stack), share * time / total);
            }
        } else {
            put(None, share);
        }
    }

    fn settle_throttling(&mut self) {
        // Stranded: runnable on an idle CPU without a wake-up under way. What a quota explains has
        // been moved to `stolen` already; the rest is a placement that did not happen.
        let quota = ChargeKey {
            cause: Cause::Stolen,
            tid: 0,
            stack: None,
            object: QUOTA,
        };
        let throttled = self.out.off.get(&quota).map_or(0.0, |charge| charge.ns);
        let from_stranded = throttled.min(self.stranded_ns);
        let left = self.stranded_ns - from_stranded;
        if left > 0.0 {
            let key = ChargeKey {
                cause: Cause::Placement,
                tid: 0,
                stack: None,
                object: 0,
            };
            self.out.off.entry(key).or_default().ns += left;
        }
        let over = throttled - from_stranded;
        let placed: f64 = self.total(Cause::Placement);
        if over > 0.0 && placed > 0.0 {
            let keep = 1.0 - (over / placed).min(1.0);
            for (key, charge) in &mut self.out.off {
                if key.cause == Cause::Placement {
                    charge.ns *= keep;
                }
            }
        }
        // Name placement by what ran meanwhile on the crowded CPUs.
        let placed = self.total(Cause::Placement);
        if placed > 0.0 && !self.placement_weights.is_empty() {
            self.out.off.retain(|key, _| key.cause != Cause::Placement);
            spread(
                &mut self.out.off,
                Cause::Placement,
                placed,
                &self.placement_weights,
            );
        }
    }

    fn total(&self, cause: Cause) -> f64 {
        let of_cause = self.out.off.iter().filter(|(key, _)| key.cause == cause);
        of_cause.map(|(_, charge)| charge.ns).sum()
    }

    fn settle_samples(&mut self) {
        if self.out.samples == 0 {
            return;
        }
        let each = self.out.on_cpu_ns / self.out.samples as f64;
        for charge in self.out.on.values_mut() {
            charge.ns = charge.count as f64 * each;
        }
        // A quota takes CPUs from the code that would have gone on running.
        let quota = ChargeKey {
            cause: Cause::Stolen,
            tid: 0,
            stack: None,
            object: QUOTA,
        };
        if let Some(taken) = self.out.off.remove(&quota) {
            for (&(_, tid, stack), charge) in &self.out.on {
                let key = ChargeKey {
                    tid,
                    stack: Some(stack),
                    ..quota
                };
                let share = self.out.off.entry(key).or_default();
                share.ns += taken.ns * charge.count as f64 / self.out.samples as f64;
                share.count += taken.count;
            }
        }
    }
}

/// Object of a `stolen` charge that a quota took.
pub const QUOTA: u64 = u64::MAX;
/// Object of a `stolen` charge that the hypervisor took.
pub const HYPERVISOR: u64 = u64::MAX - 1;
/// Object of a `stolen` charge that interrupts took.
pub const INTERRUPTS: u64 = u64::MAX - 2;

fn spread(
    into: &mut FxHashMap<ChargeKey, Charge>,
    cause: Cause,
    ns: f64,
    weights: &FxHashMap<(Tid, StackId), f64>,
) {
    if ns <= 0.0 {
        return;
    }
    let total: f64 = weights.values().sum();
    if total <= 0.0 {
        let key = ChargeKey {
            cause,
            tid: 0,
            stack: None,
            object: 0,
        };
        into.entry(key).or_default().ns += ns;
        return;
    }
    for (&(tid, stack), weight) in weights {
        let key = ChargeKey {
            cause,
            tid,
            stack: Some(stack),
            object: 0,
        };
        let charge = into.entry(key).or_default();
        charge.ns += ns * weight / total;
        charge.count += 1;
    }
}
