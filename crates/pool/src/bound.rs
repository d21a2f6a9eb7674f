//! Work on a set of CPUs: it has a CPU, and finds another one if that goes away.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use amdahl_placement::{CpuId, CpuState, Waking, Woken};
use amdahl_spread::CpuMask;
use amdahl_topology::CpuSet;

use crate::cancel::CancelToken;
use crate::registry::Registry;
use crate::spawn::{Handle, Spawned, Task};
use crate::sync::{AtomicUsize, Ordering};
use crate::sys::Unbound;
use crate::waits::{Counted, Waits, lock};
use crate::worker::Worker;

/// What happens to work whose mask has no CPU that is online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenOffline {
    /// It runs on another CPU, as the kernel lets work of an unplugged CPU run anywhere.
    #[default]
    Elsewhere,
    /// It waits until a CPU of its mask is online; when the pool ends it is cancelled.
    Wait,
}

/// Queued for a CPU. Running it twice runs it once.
pub(crate) trait BoundWork: Send + Sync {
    fn may_run_on(&self, cpu: CpuId) -> bool;
    fn mask(&self) -> &CpuMask;
    /// False if the worker's CPU has gone: then nothing has happened.
    fn run(&self, worker: &Worker) -> bool;
    /// Where no thread is left.
    fn run_unbound(&self, registry: &Registry);
    fn cancel(&self) -> bool;
    fn is_done(&self) -> bool;
}

/// Work for one CPU. Closed while the CPU is gone: nothing is left behind in it then.
pub(crate) struct BoundQueue {
    len: AtomicUsize,
    inner: Counted<Inner>,
}

struct Inner {
    is_open: bool,
    works: VecDeque<Arc<dyn BoundWork>>,
}

impl BoundQueue {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            is_open: false,
            works: VecDeque::new(),
        };
        BoundQueue {
            len: AtomicUsize::new(0),
            inner: Counted::new("queue of a CPU", inner),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.inner.waits
    }

    /// False if the CPU is gone.
    fn push(&self, work: &Arc<dyn BoundWork>) -> bool {
        let mut inner = self.inner.lock();
        if inner.is_open {
            inner.works.push_back(work.clone());
            self.len.store(inner.works.len(), Ordering::Release);
        }
        inner.is_open
    }

    pub(crate) fn pop(&self) -> Option<Arc<dyn BoundWork>> {
        self.take(|_| true)
    }

    /// Work that may run on `cpu` too.
    pub(crate) fn give(&self, cpu: CpuId) -> Option<Arc<dyn BoundWork>> {
        self.take(|work| work.may_run_on(cpu))
    }

    fn take(&self, which: impl Fn(&dyn BoundWork) -> bool) -> Option<Arc<dyn BoundWork>> {
        if self.len() == 0 {
            return None;
        }
        let mut inner = self.inner.lock();
        let at = inner.works.iter().position(|work| which(&**work))?;
        let work = inner.works.remove(at);
        self.len.store(inner.works.len(), Ordering::Release);
        work
    }

    pub(crate) fn may_give(&self, cpu: CpuId) -> bool {
        self.len() > 0
            && self
                .inner
                .lock()
                .works
                .iter()
                .any(|work| work.may_run_on(cpu))
    }

    pub(crate) fn open(&self) {
        self.inner.lock().is_open = true;
    }

    /// Nothing comes in from now on; what was there.
    fn close(&self) -> VecDeque<Arc<dyn BoundWork>> {
        let mut inner = self.inner.lock();
        inner.is_open = false;
        self.len.store(0, Ordering::Release);
        std::mem::take(&mut inner.works)
    }
}

/// Works that wait for a CPU of their masks; and how many of all have not ended.
pub(crate) struct Homeless {
    pub(crate) works: Counted<Vec<Arc<dyn BoundWork>>>,
    pub(crate) unfinished: AtomicU64,
    gate: Mutex<()>,
    pub(crate) gate_waits: Waits,
    bell: Condvar,
    /// How often work was given to another CPU because its own had gone.
    pub(crate) taken_over: AtomicU64,
}

impl Homeless {
    pub(crate) fn new() -> Self {
        Homeless {
            works: Counted::new("work without a CPU", Vec::new()),
            unfinished: AtomicU64::new(0),
            gate: Mutex::default(),
            gate_waits: Waits::new("gate of a flush"),
            bell: Condvar::new(),
            taken_over: AtomicU64::new(0),
        }
    }
}

struct Bound<F, T> {
    mask: CpuMask,
    task: Arc<Task<F, T>>,
    handle: Handle<T>,
    registry: std::sync::Weak<Registry>,
    is_counted: crate::sync::AtomicBool,
}

impl<F, T> Bound<F, T> {
    /// Once for each work, when it has ended.
    fn ended(&self, registry: &Registry) {
        if self.is_counted.swap(false, Ordering::AcqRel) {
            let homeless = &registry.homeless;
            if homeless
                .unfinished
                .fetch_sub(1, std::sync::atomic::Ordering::AcqRel)
                == 1
            {
                drop(lock(&homeless.gate, &homeless.gate_waits));
                homeless.bell.notify_all();
            }
        }
    }
}

impl<F, T> BoundWork for Bound<F, T>
where
    F: FnOnce() -> T + Send,
    T: Send,
{
    fn may_run_on(&self, cpu: CpuId) -> bool {
        self.mask.test(cpu)
    }
    fn mask(&self) -> &CpuMask {
        &self.mask
    }
    fn run(&self, worker: &Worker) -> bool {
        let registry = worker.registry();
        let binding = registry.settings.binds.then(|| Binding::new(worker));
        if matches!(binding, Some(Err(Unbound::NoCpu))) {
            return false;
        }
        self.task.run();
        self.ended(registry);
        true
    }
    fn run_unbound(&self, registry: &Registry) {
        self.task.run();
        self.ended(registry);
    }
    fn cancel(&self) -> bool {
        let was = self.handle.cancel();
        if let Some(registry) = self.registry.upgrade()
            && self.handle.is_done()
        {
            // It waits for a CPU no more.
            let mut works = registry.homeless.works.lock();
            works.retain(|work| !std::ptr::addr_eq(Arc::as_ptr(work), self));
            drop(works);
            self.ended(&registry);
        }
        was
    }
    fn is_done(&self) -> bool {
        self.handle.is_done()
    }
}

/// The end of work on CPUs.
pub struct BoundHandle<T> {
    handle: Handle<T>,
    work: Arc<dyn BoundWork>,
}

impl<T> BoundHandle<T> {
    /// As [`Handle::cancel`].
    pub fn cancel(&self) -> bool {
        self.work.cancel()
    }
    /// As [`Handle::is_done`].
    pub fn is_done(&self) -> bool {
        self.handle.is_done()
    }
    /// As [`Handle::join`].
    ///
    /// # Errors
    /// As [`Handle::join`].
    pub fn join(self) -> Result<T, crate::JoinError> {
        self.handle.join()
    }
}

impl<T> std::fmt::Debug for BoundHandle<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.handle.fmt(f)
    }
}

impl Registry {
    /// Queues work for one of `cpus`.
    pub(crate) fn queue_on<F, T>(
        self: &Arc<Self>,
        cpus: &CpuSet,
        token: Option<CancelToken>,
        call: F,
    ) -> BoundHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mask = CpuMask::new(self.cpus()).expect("a machine has a CPU");
        for cpu in self.machine.cpus_of(cpus) {
            let _ = mask.set(cpu);
        }
        let task = Task::new(call, token);
        let spawned: Arc<dyn Spawned<T>> = task.clone();
        let work: Arc<dyn BoundWork> = Arc::new(Bound {
            mask,
            task,
            handle: Handle::new(spawned.clone()),
            registry: Arc::downgrade(self),
            is_counted: crate::sync::AtomicBool::new(true),
        });
        self.homeless
            .unfinished
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        self.settle(&work);
        BoundHandle {
            handle: Handle::new(spawned),
            work,
        }
    }

    /// Puts work into the queue of a CPU that is online: of its mask, as the policy chooses, or else as
    /// [`WhenOffline`] says. At any instant it is in one place.
    pub(crate) fn settle(&self, work: &Arc<dyn BoundWork>) {
        loop {
            let Some(cpu) = self.choose(work) else {
                if self.wait_homeless(work) {
                    return;
                }
                continue;
            };
            if self.slots[cpu as usize].bound.push(work) {
                // Pairs with the fence in `fall_asleep`.
                crate::sync::fence(Ordering::SeqCst);
                self.notify(cpu);
                // It may be busy for long: who else may run it is told as well.
                if self.slots[cpu as usize].is_running.load(Ordering::Relaxed) {
                    let other = self.idle_in(work.mask(), cpu);
                    other.map(|other| self.notify(other));
                }
                return;
            }
            // Gone between the choice and the push: choose again.
        }
    }

    /// Work for the CPU of `worker`: there, or if that has gone on another one of its mask.
    pub(crate) fn run_bound(&self, work: &Arc<dyn BoundWork>, worker: &Worker) {
        if !work.run(worker) {
            self.lose(worker.cpu);
            self.homeless
                .taken_over
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.settle(work);
        }
    }

    /// The kernel does not let the CPU be used, which the source has not said yet: the same as if it had. It comes back when
    /// the next look finds it allowed.
    fn lose(&self, cpu: CpuId) {
        let _control = self.control.lock();
        if self.slots[cpu as usize].is_online.load(Ordering::SeqCst) {
            self.set_online(cpu, false);
            self.orphan(cpu);
        }
    }

    fn choose(&self, work: &Arc<dyn BoundWork>) -> Option<CpuId> {
        let near = self.landings.here();
        let task = Waking {
            waker: near,
            allowed: Some(work.mask()),
            new: true,
            ..Waking::default()
        };
        let online = |cpu: CpuId| self.slots[cpu as usize].is_online.load(Ordering::SeqCst);
        let wanted = match self
            .policy
            .wake(&mut CpuState::new(near.unwrap_or(0)), self, &task)
        {
            Woken::Queue { notify, .. } => notify,
            _ => None,
        };
        let wanted = wanted.filter(|&cpu| work.may_run_on(cpu) && online(cpu));
        let mut shortest = || {
            let cpus = work
                .mask()
                .iter_from(near.unwrap_or(0))
                .filter(|&cpu| online(cpu));
            cpus.min_by_key(|&cpu| self.load_of(cpu))
        };
        let elsewhere = || {
            if self.settings.when_offline == WhenOffline::Wait {
                return None;
            }
            let cpus = self.online_mask().iter_from(near.unwrap_or(0));
            cpus.filter(|&cpu| online(cpu))
                .min_by_key(|&cpu| self.load_of(cpu))
        };
        wanted.or_else(&mut shortest).or_else(elsewhere)
    }

    fn load_of(&self, cpu: CpuId) -> usize {
        let slot = &self.slots[cpu as usize];
        slot.bound.len() * 2 + usize::from(slot.is_running.load(Ordering::Relaxed))
    }

    fn idle_in(&self, mask: &CpuMask, not: CpuId) -> Option<CpuId> {
        mask.iter().find(|&cpu| cpu != not && self.is_asleep(cpu))
    }

    /// Keeps work that has no CPU now. False if one has come meanwhile.
    fn wait_homeless(&self, work: &Arc<dyn BoundWork>) -> bool {
        let mut works = self.homeless.works.lock();
        if self.is_dead.load(Ordering::Acquire) {
            drop(works);
            work.cancel();
            return true;
        }
        // Who cancels looks here, after that.
        if work.is_done() {
            return true;
        }
        // Under the lock under which CPUs that come look for works.
        if self.choose(work).is_some() {
            return false;
        }
        works.push(work.clone());
        true
    }

    /// The CPU is online, and its queue open: who waited for it comes.
    pub(crate) fn adopt(&self, cpu: CpuId) {
        let returning: Vec<_> = {
            let mut works = self.homeless.works.lock();
            let elsewhere = self.settings.when_offline == WhenOffline::Elsewhere;
            let all = std::mem::take(&mut *works);
            let (come, stay) = all
                .into_iter()
                .partition(|work| elsewhere || work.may_run_on(cpu));
            *works = stay;
            come
        };
        returning.iter().for_each(|work| self.settle(work));
    }

    /// The CPU has gone: its queue closes, others take over what is in it, and what it had without being bound to it.
    pub(crate) fn orphan(&self, cpu: CpuId) {
        self.leave_queue(cpu);
        for work in self.slots[cpu as usize].bound.close() {
            self.homeless
                .taken_over
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.settle(&work);
        }
    }

    /// Waits until no work that was queued on CPUs is unfinished, what is queued meanwhile included.
    pub(crate) fn flush(&self) {
        let homeless = &self.homeless;
        let is_unfinished = || {
            homeless
                .unfinished
                .load(std::sync::atomic::Ordering::Acquire)
                > 0
        };
        let gate = lock(&homeless.gate, &homeless.gate_waits);
        if !is_unfinished() {
            return;
        }
        let begun = Instant::now();
        crate::states::flush(&homeless.bell, gate, &is_unfinished);
        self.flushes.record(begun.elapsed(), true);
    }
}

/// Confines a worker to its CPU; then it is where it was before, or may go where it may by then.
struct Binding<'a> {
    worker: &'a Worker,
    before: Option<CpuId>,
}

impl<'a> Binding<'a> {
    fn new(worker: &'a Worker) -> Result<Self, Unbound> {
        let before = worker.bound_to.get();
        if before != Some(worker.cpu) {
            let kernel = worker.registry().machine.kernel_cpu(worker.cpu);
            crate::sys::bind(0, &CpuSet::from_iter([kernel]))?;
        }
        worker.bound_to.set(Some(worker.cpu));
        Ok(Binding { worker, before })
    }
}

impl Drop for Binding<'_> {
    fn drop(&mut self) {
        self.worker.bound_to.set(self.before);
        // What this work waited for inside may be bound too: it ends where it began.
        if self.before.is_none() {
            self.worker.registry().roam(self.worker.index);
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use amdahl_topology::Topology;

    use super::*;
    use crate::{Pool, SimulatedCpus};

    #[test]
    fn work_that_waits_for_a_cpu_and_is_cancelled_is_not_kept() {
        let cpus = SimulatedCpus::new(Topology::synthetic("4 core").unwrap());
        let builder = Pool::builder().cpus(cpus.clone());
        let builder = builder.when_offline(WhenOffline::Wait);
        let pool = builder.threads_max(2).build().unwrap();
        let absent: CpuSet = "3".parse().unwrap();
        let queue = || pool.queue_on(&absent, || ());
        let (first, _kept, last) = (queue(), queue(), queue());
        let waiting = || pool.registry.homeless.works.lock().len();
        assert_eq!(waiting(), 3);
        assert!(first.cancel() && last.cancel());
        assert_eq!(waiting(), 1);
        assert!(!first.cancel());
        assert_eq!(waiting(), 1);
    }
}
