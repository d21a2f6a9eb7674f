//! What the threads of a pool share.

mod sleepers;

use std::sync::Arc;
#[cfg(all(test, not(any(loom, miri))))]
use std::sync::Mutex;
use std::time::Instant;

use amdahl_placement::{CpuId, CpuState, Machine, Policy, QueueId, Queues, View, Waking, Woken};
use amdahl_spread::{CpuMask, SparseMask};
use amdahl_topology::CpuSet;

use crate::bound::{BoundQueue, Homeless};
use crate::counts::{Counts, SharedCounts};
use crate::cpus::CpuSource;
use crate::deque::Deque;
use crate::job::{Job, JobRef};
use crate::landing::{Landing, Landings};
use crate::load::Load;
use crate::parker::Parker;
use crate::queue::RunQueue;
use crate::range::{Offers, Sites};
use crate::spawn::Priority;
use crate::spin::Crowd;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use crate::waits::{Counted, Waits};
use crate::watch::Watch;

/// Entries of a worker's deque. What does not fit is run by who made it, or goes to a queue.
const DEQUE: usize = 1024;

/// Threads of the program that can work in a pool at a time; more wait for a worker.
const GUESTS: usize = 32;

/// A place for a thread: a worker's, by the number of its CPU in the [`Machine`], or behind those a guest's.
pub(crate) struct Slot {
    pub(crate) deque: Deque<Job>,
    pub(crate) parker: Parker,
    /// A task woken by the one that runs, which comes next. Thieves take it only from who does not get on.
    pub(crate) next: AtomicPtr<Job>,
    /// Counts what the thread has begun.
    pub(crate) begun: AtomicU32,
    /// The CPU may be used. Written under the lock of [`Registry::control`].
    pub(crate) is_online: AtomicBool,
    /// There is a thread. As above.
    pub(crate) is_started: AtomicBool,
    /// The kernel's number of the thread, 0 until it is known.
    pub(crate) thread_id: AtomicU32,
    /// Who woke the worker has counted it among those awake.
    pub(crate) is_counted: AtomicBool,
    /// A thread that ran on.
    pub(crate) is_running: AtomicBool,
    /// Its worker waits for something inside of a job: it begins nothing that may take long.
    pub(crate) is_waiting: AtomicBool,
    /// Its worker blocks outside of the pool.
    pub(crate) is_away: AtomicBool,
    /// Its thread helps with a range, and does nothing else at the moment.
    pub(crate) helps: AtomicBool,
    /// The priority that a helper has taken, and by whom it may be changed.
    pub(crate) helping: Counted<crate::priority::Helping>,
    /// Where the worker begins, and who is on the CPU.
    pub(crate) landing: Landing,
    /// Work for this CPU.
    pub(crate) bound: BoundQueue,
    /// Of parallel ranges that began here.
    pub(crate) sites: Sites,
}

/// What changes when CPUs come and go.
pub(crate) struct Control {
    pub(crate) source: Box<dyn CpuSource>,
    pub(crate) threads: Vec<std::thread::JoinHandle<()>>,
    pub(crate) load: Load,
    /// As the source said last.
    pub(crate) quota: Option<f64>,
    /// Counted by [`Registry::apply_cpus`], to name what was applied last.
    pub(crate) changes: u64,
    /// How many may run by CPUs, quota and load; and how many more beside those who do not get on.
    pub(crate) limit: u32,
    pub(crate) extra: u32,
}

pub(crate) struct Registry {
    pub(crate) machine: Machine,
    /// The kernel's number of each node.
    kernel_nodes: Box<[u32]>,
    pub(crate) landings: Landings,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) layout: Queues,
    pub(crate) slots: Box<[Slot]>,
    pub(crate) queues: Box<[RunQueue]>,
    pub(crate) high: RunQueue,
    pub(crate) low: RunQueue,
    pub(crate) offers: Offers,
    pub(crate) counts: SharedCounts,
    /// Workers that any work may wake. Whoever clears the bit wakes.
    asleep: CpuMask,
    /// For the policy: CPUs that run nothing.
    idle: CpuMask,
    online: CpuMask,
    /// By the kernel's numbers: where threads may be that are not confined.
    roaming: Counted<CpuSet>,
    /// The same by the machine's numbers, and how often it has changed.
    roams: CpuMask,
    roaming_mask: AtomicU32,
    overloaded: SparseMask,
    guests: AtomicU32,
    /// Workers that look for work and would help with a range.
    seekers: AtomicU32,
    /// Of threads that are no workers.
    pub(crate) outside: Counted<CpuState>,
    pub(crate) dispatcher: Counted<CpuState>,
    /// Somebody else wants the CPUs: do not spin.
    pub(crate) crowd: Crowd,
    is_conserving: bool,
    /// What workers make ready stays with them, and the policy is asked only whom to tell.
    may_keep: bool,
    /// What the policy was asked and has answered, once somebody wants to know.
    #[cfg(all(test, not(any(loom, miri))))]
    pub(crate) placed: Mutex<Option<Vec<crate::placed::Placed>>>,
    pub(crate) is_ending: AtomicBool,
    /// No thread is left.
    pub(crate) is_dead: AtomicBool,
    pub(crate) homeless: Homeless,
    pub(crate) control: Counted<Control>,
    pub(crate) watch: Watch,
    begun: Instant,
    /// The average time from a wake-up to running.
    pub(crate) wake_ns: AtomicU64,
    /// A helper was lowered since the watch looked.
    pub(crate) lowered: AtomicBool,
    pub(crate) sleeps: Waits,
    pub(crate) join_waits: Waits,
    pub(crate) range_waits: Waits,
    /// Locks of ranges, which live in their callers' frames, and of scopes.
    pub(crate) range_locks: Waits,
    pub(crate) scope_locks: Waits,
    /// Threads for which there was no place, and those that wait for all work on CPUs.
    pub(crate) guest_waits: Waits,
    pub(crate) flushes: Waits,
    /// Workers whose CPU has gone.
    pub(crate) offline: Waits,
    pub(crate) restarts: AtomicU64,
    pub(crate) settings: Settings,
}

/// Choices of the builder that are looked at while running.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) threads_max: Option<u32>,
    pub(crate) binds: bool,
    pub(crate) follows_load: bool,
    /// Woken workers may be confined until they run. Where load is not followed that is only for tests: nobody would
    /// know who else is on a CPU.
    pub(crate) steers: bool,
    pub(crate) stack_bytes: Option<usize>,
    pub(crate) when_offline: crate::bound::WhenOffline,
}

impl Slot {
    /// Takes what comes next, whoever calls.
    pub(crate) fn take_next(&self) -> Option<JobRef> {
        if self.next.load(Ordering::Relaxed).is_null() {
            return None;
        }
        // Acquire: pairs with the Release of who put it there.
        let job = self.next.swap(std::ptr::null_mut(), Ordering::AcqRel);
        (!job.is_null()).then_some(JobRef(job))
    }
}

/// Of `all`, what is on the node of `cpu`; all of it if nothing is.
fn near(machine: &Machine, all: CpuSet, cpu: CpuId) -> CpuSet {
    if machine.nodes() < 2 {
        return all;
    }
    let node = machine.node(cpu);
    let own = machine
        .cpus_of(&all)
        .filter(|&other| machine.node(other) == node);
    let own: CpuSet = own.map(|other| machine.kernel_cpu(other)).collect();
    match own.is_empty() {
        true => all,
        false => own,
    }
}

impl Registry {
    pub(crate) fn new(
        machine: Machine,
        kernel_nodes: Box<[u32]>,
        policy: Box<dyn Policy>,
        source: Box<dyn CpuSource>,
        settings: Settings,
    ) -> Arc<Self> {
        let cpus = machine.cpus();
        let layout = policy.queues(&machine);
        let mask = || CpuMask::new(cpus).expect("a machine has a CPU");
        let is_conserving = policy.work_conserving(&machine) == amdahl_placement::Conserving::Yes;
        let may_keep = policy.may_keep(&machine);
        let slot = || Slot {
            deque: Deque::new(DEQUE),
            parker: Parker::default(),
            next: AtomicPtr::default(),
            begun: AtomicU32::new(0),
            is_online: AtomicBool::new(false),
            is_started: AtomicBool::new(false),
            thread_id: AtomicU32::new(0),
            is_counted: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            is_waiting: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            helps: AtomicBool::new(false),
            helping: Counted::new("priority of a helper", Default::default()),
            landing: Landing::new(),
            bound: BoundQueue::new(),
            sites: Sites::default(),
        };
        Arc::new(Registry {
            slots: (0..cpus as usize + GUESTS).map(|_| slot()).collect(),
            queues: (0..layout.len())
                .map(|_| RunQueue::new("run queue"))
                .collect(),
            high: RunQueue::new("run queue, high priority"),
            low: RunQueue::new("run queue, low priority"),
            offers: Offers::new(machine.nodes()),
            counts: SharedCounts::new(Counts::new(1)),
            asleep: mask(),
            idle: mask(),
            online: mask(),
            roaming: Counted::new("where workers may be", CpuSet::default()),
            roams: mask(),
            roaming_mask: AtomicU32::new(0),
            overloaded: SparseMask::new(cpus).expect("a machine has a CPU"),
            guests: AtomicU32::new(0),
            seekers: AtomicU32::new(0),
            outside: Counted::new("placement of work from outside", CpuState::new(0)),
            dispatcher: Counted::new("dispatcher", CpuState::new(0)),
            crowd: Crowd::new(),
            is_conserving,
            may_keep,
            #[cfg(all(test, not(any(loom, miri))))]
            placed: Mutex::default(),
            is_ending: AtomicBool::new(false),
            is_dead: AtomicBool::new(false),
            homeless: Homeless::new(),
            control: Counted::new(
                "changes of the CPUs",
                Control {
                    source,
                    threads: Vec::new(),
                    load: Load::default(),
                    quota: None,
                    changes: 0,
                    limit: 1,
                    extra: 0,
                },
            ),
            watch: Watch::default(),
            begun: Instant::now(),
            wake_ns: AtomicU64::new(10_000),
            lowered: AtomicBool::new(false),
            sleeps: Waits::new("idle worker"),
            join_waits: Waits::new("join"),
            range_waits: Waits::new("helpers of a parallel range"),
            range_locks: Waits::new("inside of parallel ranges"),
            scope_locks: Waits::new("first panic of a scope"),
            guest_waits: Waits::new("threads outside: a worker in their place"),
            flushes: Waits::new("flush"),
            offline: Waits::new("worker without a CPU"),
            restarts: AtomicU64::new(0),
            settings,
            landings: Landings::new(&machine),
            machine,
            kernel_nodes,
            policy,
            layout,
        })
    }

    pub(crate) fn cpus(&self) -> u32 {
        self.machine.cpus()
    }

    /// The node of a number of the kernel's, if it has CPUs. O(nodes).
    pub(crate) fn node_of_kernel(&self, kernel: u32) -> Option<u32> {
        let at = self.kernel_nodes.iter().position(|&node| node == kernel)?;
        Some(at as u32)
    }

    /// Whoever asks where workers may be waits meanwhile.
    #[cfg(all(test, not(any(loom, miri))))]
    pub(crate) fn hold_roaming(&self) -> crate::waits::CountedGuard<'_, CpuSet> {
        self.roaming.lock()
    }

    /// Whoever places work from outside waits meanwhile.
    #[cfg(all(test, not(any(loom, miri))))]
    pub(crate) fn hold_outside(&self) -> crate::waits::CountedGuard<'_, CpuState> {
        self.outside.lock()
    }

    /// The locks of which there is one.
    pub(crate) fn lock_waits(&self) -> [&Waits; 6] {
        let homeless = &self.homeless;
        [
            &self.outside.waits,
            &self.dispatcher.waits,
            &self.roaming.waits,
            &self.control.waits,
            &homeless.works.waits,
            &homeless.gate_waits,
        ]
    }

    pub(crate) fn is_conserving(&self) -> bool {
        self.is_conserving
    }

    pub(crate) fn may_keep(&self) -> bool {
        self.may_keep
    }

    pub(crate) fn is_worker(&self, index: u32) -> bool {
        index < self.cpus()
    }

    /// A free place for a thread of the program.
    pub(crate) fn take_guest(&self) -> Option<u32> {
        let mut taken = self.guests.load(Ordering::Relaxed);
        loop {
            let free = (!taken).trailing_zeros();
            if free as usize >= GUESTS {
                return None;
            }
            // Acquire: pairs with the Release of who had the place before.
            match self.guests.compare_exchange_weak(
                taken,
                taken | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(self.cpus() + free),
                Err(found) => taken = found,
            }
        }
    }

    pub(crate) fn free_guest(&self, index: u32) {
        let bit = 1 << (index - self.cpus());
        self.guests.fetch_and(!bit, Ordering::Release);
    }

    /// Whether the place of this guest is taken.
    pub(crate) fn is_taken(&self, index: u32) -> bool {
        self.guests.load(Ordering::Acquire) >> (index - self.cpus()) & 1 == 1
    }

    /// The places of guests that are taken.
    pub(crate) fn guest_slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let mut taken = self.guests.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let first = taken.trailing_zeros();
            taken &= taken.wrapping_sub(1);
            (first < u32::BITS).then(|| {
                let index = self.cpus() + first;
                (index, &self.slots[index as usize])
            })
        })
    }

    /// Somebody has an entry to give away; the policy says who is told. `from` is the worker or guest.
    #[cold]
    pub(crate) fn tell(&self, from: CpuId, state: &mut CpuState) {
        let counts = self.counts.load();
        if !counts.has_room() || self.is_conserving && counts.searching() > 0 {
            return;
        }
        let task = Waking {
            waker: Some(from),
            new: true,
            ..Waking::default()
        };
        if let Woken::Queue {
            notify: Some(cpu), ..
        } = self.policy.wake(state, self, &task)
        {
            self.notify(cpu);
        } else {
            self.wake_any(from);
        }
    }

    /// Queues a job, one of normal priority where the policy wants `task`, and wakes who should run it. `state` is that
    /// of the waker's CPU, if the waker is of the pool.
    pub(crate) fn inject(
        &self,
        job: JobRef,
        priority: Priority,
        task: &Waking,
        state: Option<&mut CpuState>,
    ) {
        let near = task.waker.unwrap_or(0);
        match priority {
            Priority::High => self.high.push(job),
            Priority::Low => self.low.push(job),
            Priority::Normal => {
                let (queue, notify) = match state {
                    Some(state) => self.place(task, state),
                    None => self.place(task, &mut self.outside.lock()),
                };
                return self.enqueue(job, queue, notify, near);
            }
        }
        fence(Ordering::SeqCst);
        self.wake_any(near);
    }

    /// Queues a job that comes from outside, or from a place that is gone.
    pub(crate) fn inject_new(&self, job: JobRef, priority: Priority) {
        let task = Waking {
            new: true,
            ..Waking::default()
        };
        self.inject(job, priority, &task, None);
    }

    /// Puts a job into a queue, and tells `notify`. Who calls goes on on CPU `near`.
    pub(crate) fn enqueue(&self, job: JobRef, queue: QueueId, notify: Option<CpuId>, near: CpuId) {
        self.queues[queue.index()].push(job);
        if let Some(lead) = self.layout.lead(queue) {
            self.mark_overloaded(lead);
        }
        // Pairs with the fences in `fall_asleep` and `leave_queue`: either who sleeps or leaves sees the job, or
        // we see that it does.
        fence(Ordering::SeqCst);
        if let Some(cpu) = notify
            && self.is_needed(cpu, queue)
        {
            self.notify(cpu);
        }
        self.wake_any(near);
    }

    /// Whether waking the worker of `cpu` would be one more than may run.
    pub(crate) fn is_beyond_places(&self, cpu: CpuId) -> bool {
        self.is_asleep(cpu) && !self.counts.load().has_room()
    }

    /// Whether something that was put into `queue` needs the worker of `cpu`. Who has no place would sleep again at once.
    fn is_needed(&self, cpu: CpuId, queue: QueueId) -> bool {
        let counts = self.counts.load();
        if self.is_conserving {
            counts.searching() == 0 && counts.has_room()
        } else {
            counts.has_room() || !self.is_served(queue, cpu)
        }
    }

    /// Where the policy wants a task, and whom it tells.
    pub(crate) fn place(&self, task: &Waking, state: &mut CpuState) -> (QueueId, Option<CpuId>) {
        let answer = self.ask(task, state);
        #[cfg(all(test, not(any(loom, miri))))]
        crate::placed::note(self, task, answer);
        answer
    }

    fn ask(&self, task: &Waking, state: &mut CpuState) -> (QueueId, Option<CpuId>) {
        match self.policy.wake(state, self, task) {
            Woken::Queue { queue, notify, .. } => (queue, notify),
            // Whoever brings the task acts for the dispatcher: the decision is the same, and no CPU is idle for it.
            Woken::Ask { .. } => {
                let mut state = self.dispatcher.lock();
                match self.policy.dispatch(&mut state, self, task).cpu {
                    Some(cpu) => (self.layout.of(cpu), Some(cpu)),
                    None => (self.layout.inbox().unwrap_or(QueueId(0)), None),
                }
            }
            _ => (QueueId(0), None),
        }
    }

    pub(crate) fn mark_overloaded(&self, lead: CpuId) {
        if !self.overloaded.test(lead) {
            let _ = self.overloaded.set(lead);
        }
    }

    /// The policy found nothing there.
    pub(crate) fn unmark_overloaded(&self, queue: QueueId) {
        if let Some(lead) = self.layout.lead(queue)
            && self.overloaded.test(lead)
        {
            let _ = self.overloaded.clear(lead);
            fence(Ordering::SeqCst);
            // Something may have come between the search and the clearing.
            if self.waiting(queue) > 0 {
                self.mark_overloaded(lead);
            }
        }
    }

    /// Whether the CPU may be used, to everybody at once.
    pub(crate) fn set_online(&self, cpu: CpuId, is_online: bool) {
        let slot = &self.slots[cpu as usize];
        slot.is_online.store(is_online, Ordering::SeqCst);
        let _ = if is_online {
            self.online.set(cpu)
        } else {
            self.online.clear(cpu)
        };
    }

    /// Where threads may be, as the source said last.
    pub(crate) fn set_roaming(&self, cpus: &CpuSet) {
        let mut roaming = self.roaming.lock();
        if *roaming != *cpus {
            roaming.clone_from(cpus);
            for cpu in 0..self.cpus() {
                let _ = if cpus.contains(self.machine.kernel_cpu(cpu)) {
                    self.roams.set(cpu)
                } else {
                    self.roams.clear(cpu)
                };
            }
            // Release: pairs with the Acquire in `roaming_mask`; who sees the number finds at least this mask.
            self.roaming_mask.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts the masks of [`roaming`](Self::roaming).
    pub(crate) fn roaming_mask(&self) -> u32 {
        self.roaming_mask.load(Ordering::Acquire)
    }

    /// Whether threads that are not confined may be on the CPU.
    pub(crate) fn may_roam(&self, cpu: CpuId) -> bool {
        self.roams.test(cpu)
    }

    pub(crate) fn roaming(&self) -> CpuSet {
        self.roaming.lock().clone()
    }

    /// Where the thread of slot `index` may be while it is not confined: a worker on its own node, whose work, caps and memory it is given.
    pub(crate) fn roaming_of(&self, index: u32) -> CpuSet {
        let all = self.roaming();
        match self.is_worker(index) {
            true => near(&self.machine, all, index),
            false => all,
        }
    }

    pub(crate) fn online_mask(&self) -> &CpuMask {
        &self.online
    }

    pub(crate) fn is_asleep(&self, cpu: CpuId) -> bool {
        self.asleep.test(cpu)
    }

    /// Whether a worker of the queue is awake, other than that of `but`.
    pub(crate) fn is_served(&self, queue: QueueId, but: CpuId) -> bool {
        let mut cpus = self.layout.cpus(queue).filter(|&cpu| cpu != but);
        cpus.any(|cpu| self.is_there(cpu) && !self.is_asleep(cpu))
    }

    /// Whether the worker of `cpu` takes what is there for it, now or when it is woken: it has its CPU, and does not
    /// block outside of the pool.
    pub(crate) fn is_there(&self, cpu: CpuId) -> bool {
        let slot = &self.slots[cpu as usize];
        slot.is_online.load(Ordering::SeqCst) && !slot.is_away.load(Ordering::SeqCst)
    }

    /// Whether all of the queue's workers are gone or blocked. Then anybody takes from it, whatever the policy.
    pub(crate) fn is_left(&self, queue: QueueId) -> bool {
        !self.layout.cpus(queue).any(|cpu| self.is_there(cpu))
    }

    /// The worker of `cpu` is [there](Self::is_there) no more: what none but the workers of its queue may take was left to it
    /// by the others, and so was what anybody may take from now on.
    pub(crate) fn leave_queue(&self, cpu: CpuId) {
        let queue = self.layout.of(cpu);
        // Pairs with the fences in `inject` and `fall_asleep`: either we see the job and the sleeper, or they see that
        // this worker has left.
        fence(Ordering::SeqCst);
        let waits = self.queues[queue.index()].len() > 0;
        if self.is_conserving || !waits && self.slots[cpu as usize].deque.len() == 0 {
            return;
        }
        let mut others = self.layout.cpus(queue).filter(|&other| other != cpu);
        let is_told =
            waits && (self.is_served(queue, cpu) || others.any(|other| self.notify(other)));
        if !is_told {
            self.wake_any(cpu);
        }
    }

    /// Whether anything waits that the worker `cpu` could run, private parts of deques included. O(slots).
    pub(crate) fn has_work(&self, cpu: CpuId) -> bool {
        self.has_jobs(cpu) || self.may_help(cpu)
    }

    /// The same without ranges.
    fn has_jobs(&self, cpu: CpuId) -> bool {
        self.high.len() > 0
            || self.low.len() > 0
            || self.slots[cpu as usize].bound.len() > 0
            || self
                .reachable(cpu)
                .any(|queue| self.queues[queue.index()].len() > 0)
            || self.guest_slots().any(|(_, slot)| slot.deque.len() > 0)
            || self.open_slots().any(|slot| slot.deque.len() > 0)
            || self.may_take_over(cpu)
    }

    /// The slots of the workers from whose deques anybody may take.
    pub(crate) fn open_slots(&self) -> impl Iterator<Item = &Slot> {
        let all = self.is_conserving || self.layout.len() == 1;
        let cpus = (0..self.cpus()).filter(move |&cpu| all || !self.is_there(cpu));
        cpus.map(|cpu| &self.slots[cpu as usize])
    }

    /// The queues that a worker on `cpu` takes from when nothing else is left.
    pub(crate) fn reachable(&self, cpu: CpuId) -> impl Iterator<Item = QueueId> {
        let all = self.is_conserving;
        let own = self.layout.of(cpu);
        let inbox = self.layout.inbox();
        (0..self.queues.len() as u32)
            .map(QueueId)
            .filter(move |&queue| {
                all || queue == own || Some(queue) == inbox || self.is_left(queue)
            })
    }

    /// Work bound to another CPU that may run on this one too.
    pub(crate) fn may_take_over(&self, cpu: CpuId) -> bool {
        self.slots[..self.cpus() as usize]
            .iter()
            .any(|slot| slot.bound.may_give(cpu))
    }

    /// The CPUs that workers may run on, by the kernel's numbers.
    pub(crate) fn online_cpus(&self) -> CpuSet {
        self.online
            .iter()
            .map(|cpu| self.machine.kernel_cpu(cpu))
            .collect()
    }

    /// After how much work on a range a helper pays: half of what waking one takes.
    pub(crate) fn invite_after_ns(&self) -> u64 {
        self.wake_ns() / 2
    }

    pub(crate) fn wake_ns(&self) -> u64 {
        self.wake_ns.load(Ordering::Relaxed)
    }

    /// A wake-up took so long.
    pub(crate) fn woke(&self, ns: u64) {
        let average = self.wake_ns.load(Ordering::Relaxed);
        let ns = ns.min(1_000_000);
        self.wake_ns
            .store(average - average / 8 + ns / 8, Ordering::Relaxed);
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.ns_at(Instant::now())
    }

    /// As the pool counts time.
    pub(crate) fn ns_at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.begun).as_nanos() as u64
    }
}

impl View for Registry {
    fn machine(&self) -> &Machine {
        &self.machine
    }
    fn queues(&self) -> &Queues {
        &self.layout
    }
    fn waiting(&self, queue: QueueId) -> u32 {
        let listed = self.queues[queue.index()].len() as u32;
        let cpus = self.layout.cpus(queue);
        cpus.fold(listed, |sum, cpu| {
            sum + self.slots[cpu as usize].deque.len()
        })
    }
    fn running(&self, cpu: CpuId) -> bool {
        self.slots[cpu as usize].is_running.load(Ordering::Relaxed)
    }
    fn online(&self) -> &CpuMask {
        &self.online
    }
    fn idle(&self) -> &CpuMask {
        &self.idle
    }
    fn overloaded(&self) -> &SparseMask {
        &self.overloaded
    }
    fn utilisation(&self, llc: u32) -> u32 {
        let cpus = self.machine.llc_cpus(llc);
        let (mut busy, mut all) = (0, 0);
        for cpu in cpus.filter(|&cpu| self.online.test(cpu)) {
            all += 1;
            busy += u32::from(!self.idle.test(cpu));
        }
        busy * 1024 / all.max(1)
    }
    fn now(&self) -> u64 {
        self.now_ns()
    }
    fn may_spin(&self, _cpu: CpuId) -> bool {
        !self.crowd.is_crowded()
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use amdahl_topology::Topology;

    use super::*;

    #[test]
    fn workers_stay_on_their_node_if_they_may_be_there() {
        let machine = Machine::new(&Topology::synthetic("2 node x 4 core").unwrap());
        let set = |text: &str| -> CpuSet { text.parse().unwrap() };
        let place = |all: &str, cpu| near(&machine, set(all), cpu);
        assert_eq!(place("0-7", 1), set("0-3"));
        assert_eq!(place("0-7", 6), set("4-7"));
        assert_eq!(place("2,5,7", 5), set("5,7"));
        assert_eq!(place("0-2", 6), set("0-2"));
        let one = Machine::new(&Topology::synthetic("8 core").unwrap());
        assert_eq!(near(&one, set("0-7"), 3), set("0-7"));
    }
}
