//! A thread at work in a pool: where it looks for work, and how it waits.

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amdahl_placement::{CpuId, CpuState, IdleAction, QueueId, Spinner, Waking};

use crate::bound::BoundWork;
use crate::counts::Counts;
use crate::deque::Steal;
use crate::fair::Turns;
use crate::job::{Job, JobRef, quietly};
use crate::latch::Latch;
use crate::priority;
use crate::range::Ticket;
use crate::registry::{Registry, Slot};
use crate::states;
use crate::sync::{Ordering, spin_loop};
use crate::task::Past;

/// Rounds without success after which a thief moves the split of a deque itself.
const PATIENCE: u32 = 8;

/// A change of the counts.
type Step = fn(Counts) -> Counts;

/// Tasks that wake each other run in a row on one thread so often, until others have their turn.
const IN_A_ROW: u32 = 16;

/// Jobs that are taken out of a queue at once.
const BATCH: usize = 32;

/// Something to run.
pub(crate) enum Work {
    Job(JobRef),
    Bound(Arc<dyn BoundWork>),
    Range(Ticket),
}

/// A worker, or a thread of the program while it works in the pool. Lives on its thread's stack.
pub(crate) struct Worker {
    registry: NonNull<Registry>,
    slot: NonNull<Slot>,
    pub(crate) index: u32,
    /// Its own, or for a guest the one it was on when it came.
    pub(crate) cpu: CpuId,
    pub(crate) state: RefCell<CpuState>,
    pub(crate) turns: Turns,
    sleeps: Cell<u32>,
    /// The policy is asked where to put what is made ready here.
    asks: bool,
    /// Tasks in a row that came out of `Slot::next`.
    in_a_row: Cell<u32>,
    /// The task that is being polled; null without one.
    pub(crate) polled: Cell<*const Past>,
    /// The CPU that the work it is in confines it to.
    pub(crate) bound_to: Cell<Option<CpuId>>,
}

thread_local!(static CURRENT: Cell<*const Worker> = const { Cell::new(ptr::null()) });

/// Makes a worker the current one of its thread, for as long as this lives.
pub(crate) struct AtWork<'a> {
    worker: &'a Worker,
    before: *const Worker,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        debug_assert!(ptr::eq(CURRENT.get(), self.worker));
        CURRENT.set(self.before);
    }
}

impl Worker {
    /// # Safety
    /// The registry outlives the worker, and nobody else has this index.
    pub(crate) unsafe fn new(registry: &Registry, index: u32, cpu: CpuId) -> Self {
        Worker {
            registry: registry.into(),
            slot: (&registry.slots[index as usize]).into(),
            index,
            cpu,
            state: RefCell::new(CpuState::new(cpu)),
            turns: Turns::default(),
            sleeps: Cell::new(0),
            asks: !registry.may_keep(),
            in_a_row: Cell::new(0),
            polled: Cell::new(ptr::null()),
            bound_to: Cell::new(None),
        }
    }

    pub(crate) fn at_work(&self) -> AtWork<'_> {
        AtWork {
            worker: self,
            before: CURRENT.replace(self),
        }
    }

    /// The worker that this thread is.
    #[inline(always)]
    pub(crate) fn current<'a>() -> Option<&'a Worker> {
        // SAFETY: whoever set it keeps the worker until it is set back, which is after everything that is
        // called on this thread meanwhile has returned; references are not handed to other threads.
        unsafe { CURRENT.get().as_ref() }
    }

    /// The current worker, if it belongs to `registry`.
    #[inline]
    pub(crate) fn current_in<'a>(registry: &Registry) -> Option<&'a Worker> {
        Self::current().filter(|worker| ptr::eq(worker.registry.as_ptr(), registry))
    }

    #[inline(always)]
    pub(crate) fn registry(&self) -> &Registry {
        // SAFETY: promised to `new`.
        unsafe { self.registry.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> &Slot {
        // SAFETY: as above; slots are a part of the registry.
        unsafe { self.slot.as_ref() }
    }

    pub(crate) fn is_guest(&self) -> bool {
        !self.registry().is_worker(self.index)
    }

    /// Offers an entry to thieves; false if there is no room, and then nothing has happened.
    #[inline(always)]
    pub(crate) fn push(&self, job: *mut Job) -> bool {
        if !self.slot().deque.push(job) {
            return false;
        }
        if self.registry().counts.is_hungry() {
            self.share();
        }
        true
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> *mut Job {
        self.slot().deque.pop()
    }

    /// Makes older entries of the own deque visible to thieves.
    fn publish(&self) {
        let registry = self.registry();
        if self.slot().deque.publish()
            && !self.is_guest()
            && let Some(lead) = registry.layout.lead(registry.layout.of(self.cpu))
        {
            registry.mark_overloaded(lead);
        }
    }

    /// Somebody is hungry.
    #[cold]
    #[inline(never)]
    fn share(&self) {
        let registry = self.registry();
        self.publish();
        if self.is_guest() {
            // Every worker looks at guests, and the policy does not know that the guest's CPU is taken.
            registry.wake_any(self.cpu);
        } else if registry.counts.load().wants_waking() || !registry.is_conserving() {
            registry.tell(self.cpu, &mut self.state.borrow_mut());
        }
    }

    /// Queues a job that nobody in this frame waits for; the policy is told that it is new.
    pub(crate) fn queue(&self, job: JobRef, priority: crate::Priority) {
        let task = Waking {
            waker: Some(self.cpu),
            new: true,
            ..Waking::default()
        };
        if priority == crate::Priority::Normal {
            if self.asks {
                return self.place(job, &task, false);
            }
            if self.keep(job) {
                if self.registry().counts.is_hungry() {
                    self.share();
                }
                return;
            }
        }
        let mut state = self.state.borrow_mut();
        self.registry()
            .inject(job, priority, &task, Some(&mut state));
    }

    /// Into the own deque; false if that is full.
    fn keep(&self, job: JobRef) -> bool {
        let is_kept = self.slot().deque.push(job.0);
        // Pairs with the fence in `fall_asleep`: nobody else may ever look at this deque again.
        crate::sync::fence(Ordering::SeqCst);
        is_kept
    }

    /// Puts a job where the policy wants it. It stays here if the policy wants that and tells nobody else, or if who is told
    /// may not run; and comes next if it may.
    fn place(&self, job: JobRef, task: &Waking, may_come_next: bool) {
        let registry = self.registry();
        let (queue, notify) = registry.place(task, &mut self.state.borrow_mut());
        let is_own = !self.is_guest() && queue == registry.layout.of(self.cpu);
        let stays = match notify.filter(|&cpu| cpu != self.cpu) {
            None => is_own,
            Some(other) => registry.is_beyond_places(other),
        };
        let job = match stays && may_come_next {
            true => self.slot().next.swap(job.0, Ordering::AcqRel),
            false => job.0,
        };
        if job.is_null() {
            return;
        }
        if stays && self.keep(JobRef(job)) {
            // Whoever looks for work by itself may have it.
            if registry.counts.is_hungry() {
                self.publish();
            }
            return;
        }
        registry.enqueue(JobRef(job), queue, notify, self.cpu);
    }

    /// Queues a task that was woken. By another task: it comes next, on this thread, where its data is; who was to
    /// come next comes after the others. The policy is not asked: it [may be kept](amdahl_placement::Policy::may_keep).
    pub(crate) fn queue_woken(&self, job: JobRef) {
        if !self.may_come_next() {
            return self.queue(job, crate::Priority::Normal);
        }
        let before = self.slot().next.swap(job.0, Ordering::AcqRel);
        if !before.is_null() {
            self.queue(JobRef(before), crate::Priority::Normal);
        }
    }

    /// The same where the policy decides.
    pub(crate) fn place_woken(&self, job: JobRef, task: &Waking) {
        let may_come_next = self.may_come_next();
        self.place(job, task, may_come_next);
    }

    /// Whether the policy is to be asked where to put a task that this worker wakes.
    pub(crate) fn asks(&self) -> bool {
        self.asks
    }

    /// Whether a task that was woken here may be the next one; not so often in a row that others starve.
    fn may_come_next(&self) -> bool {
        let has_had_turn = self.in_a_row.get() >= IN_A_ROW && self.keeps_waiting();
        let may_come_next = !self.polled.get().is_null() && !self.is_guest() && !has_had_turn;
        if !may_come_next {
            self.in_a_row.set(0);
        }
        may_come_next
    }

    /// Queues a task that was woken while it was polled here: behind the others.
    pub(crate) fn queue_behind(&self, job: JobRef) {
        let registry = self.registry();
        let own = registry.layout.of(self.cpu);
        if !self.asks && !self.is_guest() {
            return registry.enqueue(job, own, None, self.cpu);
        }
        let task = Waking {
            waker: Some(self.cpu),
            last: Some(self.cpu),
            preempted: true,
            ..Waking::default()
        };
        let (queue, notify) = registry.place(&task, &mut self.state.borrow_mut());
        match notify.is_some_and(|cpu| registry.is_beyond_places(cpu)) {
            true => registry.enqueue(job, own, None, self.cpu),
            false => registry.enqueue(job, queue, notify, self.cpu),
        }
    }

    /// Whether others want their turn on this thread.
    fn keeps_waiting(&self) -> bool {
        let registry = self.registry();
        let queue = &registry.queues[registry.layout.of(self.cpu).index()];
        self.slot().deque.len() > 0 || queue.len() > 0 || registry.low.len() > 0
    }

    /// Runs what was found. Returns normally: beneath this are frames that wait for others, which must not unwind.
    pub(crate) fn run(&self, work: Work) {
        // Jobs keep their panics; this is one of a destructor or of a foreign waker.
        if quietly(|| self.run_caught(work)) {
            self.polled.set(ptr::null());
            self.registry().restarts.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run_caught(&self, work: Work) {
        self.turns.began();
        let begun = &self.slot().begun;
        begun.store(
            begun.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        match work {
            // SAFETY: taken out of a queue just now.
            Work::Job(job) => unsafe { job.run() },
            Work::Bound(work) => self.registry().run_bound(&work, self),
            Work::Range(ticket) => ticket.help(self),
        }
    }

    /// A job that is there at once: of its own deque, now and then of other places first.
    fn next(&self) -> Option<Work> {
        if self.turns.is_due()
            && let Some(work) = self.take_turn()
        {
            return Some(work);
        }
        if let Some(job) = self.registry().high.pop() {
            return Some(Work::Job(job));
        }
        if let Some(work) = self.slot().bound.pop() {
            return Some(Work::Bound(work));
        }
        if let Some(job) = self.slot().take_next() {
            self.in_a_row.set(self.in_a_row.get() + 1);
            return Some(Work::Job(job));
        }
        self.in_a_row.set(0);
        let own = self.pop();
        (!own.is_null()).then_some(Work::Job(JobRef(own)))
    }

    /// One round through everything, in the policy's order; and how long it says to spin. `waits` is for a job
    /// inside of this one: then nothing is begun that may take long.
    #[inline(never)]
    fn look(&self, waits: bool, round: u32) -> Result<Work, u64> {
        if let Some(work) = self.next() {
            return Ok(work);
        }
        let registry = self.registry();
        let mut attempt = 0;
        let spin_ns = loop {
            let idle = {
                let mut state = self.state.borrow_mut();
                registry
                    .policy
                    .idle(&mut state, registry, self.cpu, attempt)
            };
            attempt += 1;
            let found = match idle.action {
                IdleAction::Take(queue) => self.take(queue, BATCH),
                IdleAction::Steal { from, count, .. } => self.take(from, count as usize),
                IdleAction::Ask { spin_ns, .. } | IdleAction::Sleep { spin_ns } => break spin_ns,
                _ => break 0,
            };
            if let Some(job) = found {
                return Ok(Work::Job(job));
            }
        };
        for (_, slot) in registry.guest_slots() {
            if !ptr::eq(slot, self.slot())
                && let Some(job) = self.steal_from(slot)
            {
                return Ok(Work::Job(job));
            }
        }
        if !waits && let Some(ticket) = registry.offers.enter(registry, self.index, self.cpu) {
            return Ok(Work::Range(ticket));
        }
        if round % PATIENCE == PATIENCE - 1
            && let Some(work) = self.look_harder()
        {
            return Ok(work);
        }
        Err(spin_ns)
    }

    /// What the policy does not see, or would leave to others: all queues within its reach, work bound to other
    /// CPUs, low priority, and the private parts of deques.
    #[inline(never)]
    fn look_harder(&self) -> Option<Work> {
        let registry = self.registry();
        if let Some(job) = registry.low.pop() {
            return Some(Work::Job(job));
        }
        if !self.is_guest() {
            let others = &registry.slots[..registry.cpus() as usize];
            if let Some(work) = others.iter().find_map(|slot| slot.bound.give(self.cpu)) {
                return Some(Work::Bound(work));
            }
        }
        for queue in registry.reachable(self.cpu) {
            if let Some(job) = self.take(queue, 1) {
                return Some(Work::Job(job));
            }
        }
        let guests = registry.guest_slots().map(|(_, slot)| slot);
        for slot in guests.chain(registry.open_slots()) {
            if ptr::eq(slot, self.slot()) {
                continue;
            }
            if let Some(job) = self.steal_from(slot) {
                return Some(Work::Job(job));
            }
            // What comes next to somebody who does not get on.
            if !slot.next.load(Ordering::Relaxed).is_null() {
                let begun = slot.begun.load(Ordering::Relaxed);
                (0..200).for_each(|_| spin_loop());
                if slot.begun.load(Ordering::Relaxed) == begun
                    && let Some(job) = slot.take_next()
                {
                    return Some(Work::Job(job));
                }
            }
            if slot.deque.len() > 0
                && let Steal::Got(job) = slot.deque.force(self.index as u16 + 1)
            {
                return Some(Work::Job(JobRef(job)));
            }
        }
        None
    }

    /// From a queue or from the deques of its CPUs. Up to `count` jobs: what is too much goes to the own deque.
    fn take(&self, queue: QueueId, count: usize) -> Option<JobRef> {
        let registry = self.registry();
        let keep = |job: JobRef| self.slot().deque.push(job.0);
        let most = if self.is_guest() { 0 } else { count - 1 };
        if let Some(job) = registry.queues[queue.index()].pop_some(most, keep) {
            return Some(job);
        }
        for cpu in registry.layout.cpus(queue) {
            let slot = &registry.slots[cpu as usize];
            if !ptr::eq(slot, self.slot())
                && let Some(job) = self.steal_from(slot)
            {
                return Some(job);
            }
        }
        registry.unmark_overloaded(queue);
        None
    }

    fn steal_from(&self, slot: &Slot) -> Option<JobRef> {
        loop {
            match slot.deque.steal() {
                Steal::Got(job) => {
                    crate::sys::probe!(amdahl_pool, steal, self.cpu);
                    return Some(JobRef(job));
                }
                Steal::Retry => spin_loop(),
                Steal::Empty | Steal::Private => return None,
            }
        }
    }

    /// Works on whatever there is until the latch is set.
    pub(crate) fn wait(&self, latch: &Latch) {
        let begun = Instant::now();
        let mut slept = false;
        while !latch.is_set() {
            // Nothing found means that the latch is set, or that a guest was woken for another reason.
            if let Some(work) = self.next().or_else(|| self.idle(Some(latch), &mut slept)) {
                // It may be anybody's, and of high priority.
                let _aside = priority::aside(self.slot());
                self.run(work);
            }
        }
        self.registry().join_waits.record(begun.elapsed(), slept);
    }

    /// Looks for work, then sleeps until there is some: `None` if the latch is set, or without one if the worker
    /// shall do something else.
    #[inline(never)]
    fn idle(&self, latch: Option<&Latch>, slept: &mut bool) -> Option<Work> {
        if self.is_guest() {
            return self.idle_guest(latch?, slept);
        }
        let registry = self.registry();
        let is_over = || match latch {
            Some(latch) => latch.is_set(),
            None => {
                registry.is_ending.load(Ordering::Acquire)
                    || !self.slot().is_online.load(Ordering::Relaxed)
            }
        };
        self.slot().is_running.store(false, Ordering::Relaxed);
        self.slot()
            .is_waiting
            .store(latch.is_some(), Ordering::Relaxed);
        registry.begin_search(self.cpu);
        let mut begun = Instant::now();
        let mut woken_ns = 0;
        // What comes faster to a spinner than to a sleeper is not learnt by sleeping: now and then one spins as
        // long as a wake-up takes, whatever was learnt.
        let is_trial = self.sleeps.get().is_multiple_of(Spinner::TRIAL);
        let mut least_ns = self.spin_least_ns(begun, is_trial);
        let (mut round, mut fruitless) = (0, 0);
        let found = loop {
            if is_over() {
                // What came before the end is run before it.
                break if latch.is_none() {
                    self.look(false, PATIENCE - 1).ok()
                } else {
                    None
                };
            }
            if self.has_place() {
                match self.look(latch.is_some(), round) {
                    Ok(work) => break Some(work),
                    Err(spin_ns) if (begun.elapsed().as_nanos() as u64) < spin_ns.max(least_ns) => {
                        round += 1;
                        // The one thing for which microseconds count is looked at all the time.
                        for n in 0..32 {
                            spin_loop();
                            if n >= 2 && registry.may_help(self.cpu) {
                                break;
                            }
                        }
                        continue;
                    }
                    Err(_) => {}
                }
                if let Some(work) = self.look_harder() {
                    break Some(work);
                }
            }
            if latch.is_some_and(|latch| !latch.will_sleep()) {
                continue;
            }
            registry.fall_asleep(self.cpu);
            // A range that its node is full of may have waited for this place.
            if registry.offers.wants_help_of_some() {
                registry.wake_helper(self.cpu);
            }
            // Those who were awake when this one had no place may have gone: asked after it is seen to sleep.
            let may_run = self.has_own() || registry.counts.load().has_room();
            let has_work = may_run && registry.has_work(self.cpu);
            // What is there and cannot be taken (somebody takes it right now, or it is private on a kernel
            // without asymmetric fences) is looked at again soon.
            let timeout =
                (has_work && fruitless > 3).then(|| Duration::from_micros(50 << fruitless.min(8)));
            if !(is_over() || has_work && timeout.is_none()) {
                crate::sys::probe!(amdahl_pool, sleep, self.cpu);
                let since = Instant::now();
                let notified = match latch {
                    Some(_) => states::join(&self.slot().parker, timeout),
                    None => states::idle_worker(&self.slot().parker, timeout),
                };
                *slept = true;
                self.sleeps.set(self.sleeps.get().wrapping_add(1));
                registry.sleeps.record(since.elapsed(), true);
                crate::sys::probe!(amdahl_pool, wake, self.cpu);
                // Latches and ranges wake without a time.
                let at = self.slot().parker.take_notified_ns();
                woken_ns = 0;
                if notified {
                    fruitless = 0;
                    if let Some(at) = at {
                        woken_ns = registry.now_ns().saturating_sub(at);
                        registry.woke(woken_ns);
                    }
                }
                begun = Instant::now();
                least_ns = self.spin_least_ns(begun, false);
            }
            fruitless += u32::from(has_work);
            registry.rise(self.cpu);
            latch.inspect(|latch| latch.has_woken());
        };
        registry.end_search(self.cpu);
        self.slot()
            .is_running
            .store(found.is_some(), Ordering::Relaxed);
        let mut state = self.state.borrow_mut();
        registry.policy.ran(&mut state, registry.now_ns(), woken_ns);
        found
    }

    /// How long it looks out whatever the policy says: as long as a wake-up takes, as a trial; and while ranges
    /// follow each other longer, for a sleeper costs their caller the call that wakes it, too.
    fn spin_least_ns(&self, now: Instant, is_trial: bool) -> u64 {
        let registry = self.registry();
        if registry.crowd.is_crowded() {
            0
        } else if registry
            .offers
            .is_recent(registry.ns_at(now), Spinner::TRIAL_NS)
        {
            Spinner::TRIAL_NS
        } else if is_trial {
            registry.wake_ns().min(Spinner::TRIAL_NS)
        } else {
            0
        }
    }

    /// A guest waits for one thing; while it sleeps a worker has its place.
    #[inline(never)]
    fn idle_guest(&self, latch: &Latch, slept: &mut bool) -> Option<Work> {
        let registry = self.registry();
        for round in 0..2 * PATIENCE {
            if latch.is_set() {
                return None;
            }
            if let Ok(work) = self.look(true, round) {
                return Some(work);
            }
            if registry.crowd.is_crowded() {
                break;
            }
            (0..32).for_each(|_| spin_loop());
        }
        if let Some(work) = self.look_harder() {
            return Some(work);
        }
        if latch.will_sleep() {
            self.away(|| states::join(&self.slot().parker, None));
            *slept = true;
            latch.has_woken();
        }
        None
    }

    /// Work that others may not be able to take.
    fn has_own(&self) -> bool {
        let (slot, registry) = (self.slot(), self.registry());
        let queue = registry.layout.of(self.cpu);
        slot.deque.len() > 0
            || slot.bound.len() > 0
            || !slot.next.load(Ordering::Relaxed).is_null()
            || !registry.is_conserving()
                && registry.queues[queue.index()].len() > 0
                && !registry.is_served(queue, self.cpu)
    }

    /// Whether it may run something: not more are awake than should be, or nobody else would run it.
    fn has_place(&self) -> bool {
        !self.registry().counts.load().is_surplus() || self.has_own()
    }

    /// What was queued while all places were taken was left to those who had them.
    fn leave_place(&self, out: Step) {
        let registry = self.registry();
        let (_, now) = registry.counts.change(out);
        registry.pass_on(now, self.cpu);
    }

    /// Somebody else may run while this thread blocks in `block`.
    pub(crate) fn away<R>(&self, block: impl FnOnce() -> R) -> R {
        let registry = self.registry();
        let (out, back): (Step, Step) = if self.is_guest() {
            (Counts::leave, Counts::enter)
        } else {
            (Counts::stop, Counts::start)
        };
        if !self.is_guest() {
            self.slot().is_away.store(true, Ordering::SeqCst);
            registry.leave_queue(self.cpu);
        }
        self.leave_place(out);
        let result = block();
        registry.counts.change(back);
        registry.wake_watch();
        self.slot().is_away.store(false, Ordering::SeqCst);
        result
    }

    /// What a worker's thread does from start to end.
    pub(crate) fn main(&self) {
        let registry = self.registry();
        let mut slept = false;
        loop {
            if !self.slot().is_online.load(Ordering::SeqCst) {
                self.hand_over();
                if registry.is_ending.load(Ordering::Acquire) {
                    // Its place is for those who still wait for something.
                    self.leave_place(Counts::stop);
                    return;
                }
                crate::sys::probe!(amdahl_pool, offline, self.cpu);
                self.leave_place(Counts::stop);
                registry.take_off(self.cpu);
                let begun = Instant::now();
                while !self.slot().is_online.load(Ordering::SeqCst)
                    && !registry.is_ending.load(Ordering::Acquire)
                {
                    states::worker_without_a_cpu(&self.slot().parker, None);
                }
                registry.offline.record(begun.elapsed(), true);
                registry.land(self.cpu);
                registry.counts.change(Counts::start);
                registry.wake_watch();
                continue;
            }
            match self.has_place().then(|| self.next()).flatten() {
                Some(work) => self.run(work),
                None => match self.idle(None, &mut slept) {
                    Some(work) => self.run(work),
                    None if registry.is_ending.load(Ordering::Acquire) => {
                        // From here on its CPU's work goes to others, and so does what comes late.
                        registry.set_online(self.cpu, false);
                        registry.orphan(self.cpu);
                    }
                    None => {}
                },
            }
        }
    }

    /// The CPU is gone: what is in the own deque goes to the queues.
    fn hand_over(&self) {
        if let Some(job) = self.slot().take_next() {
            self.registry().inject_new(job, crate::Priority::Normal);
        }
        loop {
            let job = self.pop();
            if job.is_null() {
                return;
            }
            self.registry()
                .inject_new(JobRef(job), crate::Priority::Normal);
        }
    }
}
