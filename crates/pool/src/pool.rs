//! The face: a pool, how it is built, and what it is asked for.

use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use amdahl_placement::{Machine, PolicyError};
use amdahl_topology::CpuSet;

use crate::bound::{BoundHandle, WhenOffline};
use crate::counts::{self, Counts};
use crate::cpus::{CpuSource, ThisMachine};
use crate::job::{JobRef, StackJob};
use crate::latch::ThreadLatch;
use crate::range::Ranges;
use crate::registry::{Registry, Settings};
use crate::scope::{Scope, scope_on};
use crate::spawn::{Handle, Priority, Spawn, Task, queue, this_parker};
use crate::sync::{Ordering, fence};
use crate::task::AsyncTask;
use crate::waits::CountedGuard;
use crate::worker::Worker;

/// Why there is no pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The policy's name is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A machine larger than the pool can count.
    #[error("{cpus} CPUs: a pool has at most {most}; restrict it to a part of them by `CpuSource`")]
    TooManyCpus {
        /// As the source says.
        cpus: u32,
        /// The bound.
        most: u32,
    },
    /// Not even one thread.
    #[error("no thread could be started: the limit of processes or of memory is reached")]
    NoThread,
}

/// How a pool is built. Everything has a default.
pub struct Builder {
    policy: String,
    source: Option<Box<dyn CpuSource>>,
    pub(crate) settings: Settings,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("policy", &self.policy)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Which policy places work: a name of [`amdahl_placement::POLICIES`], others added behind `+`, or parts, as `wake=bounded+newidle`. By default
    /// `steal=machine+spin`: a queue for each CPU, idle ones steal, nearest first.
    pub fn policy(mut self, name: &str) -> Self {
        self.policy = name.to_owned();
        self
    }
    /// Where it learns which CPUs it may use; this machine by default.
    pub fn cpus(mut self, source: impl CpuSource + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }
    /// At most so many workers. By default one for each allowed CPU. The other CPUs count as offline: work that is [queued](Pool::queue_on) for them alone goes where
    /// [`when_offline`](Self::when_offline) says, which with [`WhenOffline::Wait`] is nowhere.
    pub fn threads_max(mut self, threads: u32) -> Self {
        self.settings.threads_max = Some(threads.max(1));
        self
    }
    /// What threads are called, with `-` and the CPU's number behind; `pool` by default. The kernel cuts names
    /// after 15 bytes.
    pub fn name(mut self, name: &str) -> Self {
        self.settings.name = name.to_owned();
        self
    }
    /// Stack of the workers; the standard library's default if not given.
    pub fn stack_bytes(mut self, bytes: usize) -> Self {
        self.settings.stack_bytes = Some(bytes);
        self
    }
    /// Whether fewer workers run while others take the CPUs away (the default).
    pub fn follows_load(mut self, follows: bool) -> Self {
        self.settings.follows_load = follows;
        self
    }
    /// What happens to work on CPUs of which none is online.
    pub fn when_offline(mut self, when: WhenOffline) -> Self {
        self.settings.when_offline = when;
        self
    }

    /// Starts the workers.
    ///
    /// # Errors
    /// [`Error`].
    pub fn build(self) -> Result<Pool, Error> {
        let mut source = self.source.unwrap_or_else(|| Box::new(ThisMachine::new()));
        let topology = source.topology();
        let machine = Machine::new(&topology);
        let most = counts::MOST - 64;
        if machine.cpus() > most {
            let cpus = machine.cpus();
            return Err(Error::TooManyCpus { cpus, most });
        }
        let policy = amdahl_placement::policy(&self.policy)?;
        let mut settings = self.settings;
        settings.binds = source.is_real();
        settings.steers |= settings.follows_load;
        let kernel_node = |node| topology.kernel_node(node).unwrap_or(node);
        let kernel_nodes = (0..machine.nodes()).map(kernel_node).collect();
        let registry = Registry::new(machine, kernel_nodes, policy, source, settings);
        registry.set_up();
        let pool = Pool { registry };
        if pool.registry.online_mask().is_empty() {
            return Err(Error::NoThread);
        }
        let watched = pool.registry.clone();
        let name = format!("{}-watch", watched.settings.name);
        let watch = std::thread::Builder::new()
            .name(name)
            .spawn(move || watched.watch());
        let watch = watch.map_err(|_| Error::NoThread)?;
        pool.control().threads.push(watch);
        Ok(pool)
    }
}

/// A pool of threads on CPUs.
///
/// Dropping it waits until all work that was given to it has run, and work that it has queued on CPUs which are offline
/// under [`WhenOffline::Wait`] is cancelled. A worker that drops its own pool does not wait: another thread does all this.
pub struct Pool {
    pub(crate) registry: Arc<Registry>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("policy", &self.registry.policy.name())
            .field("threads", &self.threads())
            .finish_non_exhaustive()
    }
}

/// A guest's place, given back.
struct Visit<'a> {
    registry: &'a Registry,
    worker: &'a Worker,
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let registry = self.registry;
        // What was started here and not waited for.
        loop {
            let job = self.worker.pop();
            if job.is_null() {
                break;
            }
            registry.inject_new(JobRef(job), Priority::Normal);
        }
        self.worker.slot().thread_id.store(0, Ordering::Relaxed);
        registry.take_off(self.worker.index);
        registry.free_guest(self.worker.index);
        let (_, now) = registry.counts.change(Counts::leave);
        registry.pass_on(now, self.worker.cpu);
    }
}

impl Pool {
    /// A pool with everything as it is by default.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new() -> Result<Pool, Error> {
        Self::builder().build()
    }

    /// For choices.
    pub fn builder() -> Builder {
        Builder {
            policy: "steal=machine+spin".to_owned(),
            source: None,
            settings: Settings {
                name: "pool".to_owned(),
                threads_max: None,
                binds: true,
                follows_load: true,
                steers: false,
                stack_bytes: None,
                when_offline: WhenOffline::default(),
            },
        }
    }

    /// The pool of the free functions, started when it is first needed.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn global() -> &'static Pool {
        static GLOBAL: OnceLock<Pool> = OnceLock::new();
        GLOBAL.get_or_init(|| Pool::new().unwrap_or_else(|e| panic!("no pool: {e}")))
    }

    fn control(&self) -> CountedGuard<'_, crate::registry::Control> {
        self.registry.control.lock()
    }

    /// How many threads of the pool may run now: CPUs, less what quota and competitors take, where a burst has twice the quota; and some more while none of
    /// those gets on though jobs wait.
    pub fn threads(&self) -> u32 {
        self.registry.counts.load().limit()
    }

    /// The CPUs that are used, by the kernel's numbers.
    pub fn cpus(&self) -> CpuSet {
        self.registry.online_cpus()
    }

    /// The machine that work is placed on.
    pub fn machine(&self) -> &Machine {
        &self.registry.machine
    }

    /// Looks at once which CPUs may be used; the pool does so itself every 10 ms while it works.
    pub fn refresh(&self) {
        self.registry.refresh();
    }

    /// Runs `work` on this thread as a part of the pool: `join`, `scope` and the like in it use this pool, and this
    /// thread works with it. In a worker's place: while it is here one worker less runs.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.run_here(|_| work())
    }

    pub(crate) fn run_here<R>(&self, work: impl FnOnce(&Worker) -> R) -> R {
        let registry = &*self.registry;
        if let Some(worker) = Worker::current_in(registry) {
            return work(worker);
        }
        let Some(index) = registry.take_guest() else {
            return self.run_elsewhere(work);
        };
        let cpu = registry.landings.here().unwrap_or(0);
        // SAFETY: the registry outlives this call, and the index was taken.
        let worker = unsafe { Worker::new(registry, index, cpu) };
        registry.counts.change(Counts::enter);
        registry.land(index);
        worker
            .slot()
            .thread_id
            .store(crate::spawn::thread_id(), Ordering::Relaxed);
        let _visit = Visit {
            registry,
            worker: &worker,
        };
        registry.wake_watch();
        let _at_work = worker.at_work();
        work(&worker)
    }

    /// All places of guests are taken: a worker does it, and this thread waits.
    fn run_elsewhere<R>(&self, work: impl FnOnce(&Worker) -> R) -> R {
        struct Moved<T>(T);
        // SAFETY: this thread does nothing until the job has ended; what it borrows is used by one thread at a time.
        // `R` and the closure come from callers that demand `Send`, but for ranges, whose closures are `Sync`.
        unsafe impl<T> Send for Moved<T> {}
        let work = Moved(work);
        let call = move || {
            let work = work;
            Moved((work.0)(Worker::current().expect("a worker runs this")))
        };
        let job = StackJob::new(call, ThreadLatch::new(this_parker()));
        let job_ref = JobRef(job.job());
        self.registry.inject_new(job_ref, Priority::Normal);
        let begun = std::time::Instant::now();
        job.latch.wait();
        self.registry.guest_waits.record(begun.elapsed(), true);
        // SAFETY: the latch is set.
        match unsafe { job.result() } {
            Ok(result) => result.0,
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    /// As [`join`](crate::join), in this pool.
    #[inline]
    pub fn join<A, B, RA, RB>(&self, a: A, b: B) -> (RA, RB)
    where
        A: FnOnce() -> RA + Send,
        B: FnOnce() -> RB + Send,
        RA: Send,
        RB: Send,
    {
        match Worker::current_in(&self.registry) {
            Some(worker) => crate::join::join_on(worker, a, b),
            None => self.run_here(|worker| crate::join::join_on(worker, a, b)),
        }
    }

    /// As [`scope`](crate::scope), in this pool.
    pub fn scope<'scope, R: Send>(&self, work: impl FnOnce(&Scope<'scope>) -> R + Send) -> R {
        self.run_here(|worker| scope_on(worker, work))
    }

    /// Gives work away. One allocation.
    pub fn spawn<T, F>(&self, work: F) -> Handle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_with(&Spawn::new(), work)
    }

    /// As [`spawn`](Self::spawn), with a priority or a token.
    pub fn spawn_with<T, F>(&self, how: &Spawn, work: F) -> Handle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let task = Task::new(work, how.token.clone());
        queue(&self.registry, task.queued(), how.priority);
        Handle::new(task)
    }

    /// Runs a future in the pool: it is polled by workers, whenever its waker was called. One allocation.
    pub fn spawn_future<T, F>(&self, future: F) -> Handle<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_future_with(&Spawn::new(), future)
    }

    /// As [`spawn_future`](Self::spawn_future), with a priority or a token.
    ///
    /// The priority holds each time that the future is woken. Once the token is cancelled the future is not polled any more, but dropped by
    /// a worker, wherever it waits; a poll that is under way is not interrupted. The handle then tells
    /// [`JoinError::Cancelled`](crate::JoinError::Cancelled).
    ///
    /// ```
    /// use amdahl_pool::{CancelToken, JoinError, Pool, Priority, Spawn};
    ///
    /// let token = CancelToken::new();
    /// let how = Spawn::new().priority(Priority::High).token(&token);
    /// let (_sender, mut receiver) = amdahl_pool::channel::<u32>(1);
    /// // Nothing ever comes.
    /// let handle = Pool::global().spawn_future_with(&how, async move { receiver.recv_async().await });
    /// token.cancel();
    /// assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    /// ```
    pub fn spawn_future_with<T, F>(&self, how: &Spawn, future: F) -> Handle<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        AsyncTask::start(&self.registry, future, how)
    }

    /// Works through a range in parallel: `work` gets parts of it, none smaller than `chunk_min` but the last ones,
    /// on this thread and on helpers, which run at the lowest priority if they stay. [`ranges`](Self::ranges) has more choices.
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicUsize, Ordering};
    /// # let pool = amdahl_pool::Pool::new()?;
    /// let sum = AtomicUsize::new(0);
    /// pool.par_range(0..1_000_000, 1000, |part| {
    ///     sum.fetch_add(part.sum(), Ordering::Relaxed);
    /// });
    /// assert_eq!(sum.into_inner(), 499_999_500_000);
    /// # Ok::<(), amdahl_pool::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `work` does, with the first panic.
    #[track_caller]
    pub fn par_range(
        &self,
        range: Range<usize>,
        chunk_min: usize,
        work: impl Fn(Range<usize>) + Sync,
    ) {
        let outcome = self.ranges(range).chunk_min(chunk_min).run(|part| {
            work(part);
            Ok::<(), std::convert::Infallible>(())
        });
        debug_assert!(outcome.is_ok());
    }

    /// The same over a slice: `work` gets parts of it, each with the index of its first element. Threads begin with what is in the
    /// memory of their node, as by [`Ranges::memory`].
    ///
    /// # Panics
    /// If `work` does, with the first panic.
    #[track_caller]
    pub fn par_slice<T: Send>(
        &self,
        slice: &mut [T],
        chunk_min: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        struct Base<T>(*mut T);
        // SAFETY: used for parts that do not overlap, of elements that may be sent.
        unsafe impl<T: Send> Sync for Base<T> {}
        let ranges = self.ranges(0..slice.len()).chunk_min(chunk_min);
        let ranges = ranges.memory(slice);
        let base = Base(slice.as_mut_ptr());
        let outcome = ranges.run(|part| {
            let base = &base;
            // SAFETY: within the slice, which is borrowed for this call; parts do not overlap.
            let part_of_it =
                unsafe { std::slice::from_raw_parts_mut(base.0.add(part.start), part.len()) };
            work(part.start, part_of_it);
            Ok::<(), std::convert::Infallible>(())
        });
        debug_assert!(outcome.is_ok());
    }

    /// A range to work through, with choices: errors, undoing, progress, caps.
    pub fn ranges(&self, range: Range<usize>) -> Ranges<'_> {
        Ranges {
            pool: self,
            range,
            chunk_min: 1,
            threads_max: u32::MAX,
            threads_per_node_max: u32::MAX,
            undo: None,
            progress: None,
            token: None,
            lowers: true,
            pieces: None,
        }
    }

    /// Runs `work` on one of `cpus`, by the kernel's numbers: on an idle one if there is, bound to it while it
    /// runs. The caller takes no lock against CPUs that come and go: if the CPU goes offline or leaves the CPU
    /// set before the work has begun, another one of `cpus` takes it over, once. If none of them is online,
    /// [`WhenOffline`] says what happens. Where the system refuses to bind threads at all (a filter of system calls), it
    /// runs on the CPUs that the kernel chooses.
    pub fn queue_on<T, F>(&self, cpus: &CpuSet, work: F) -> BoundHandle<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.registry.queue_on(cpus, None, work)
    }

    /// Runs `work` once for each group, in parallel, on one of its CPUs; it gets the group's index. After
    /// `queue_work_on` on groups finer than a node (B. Feng, Linux Plumbers 2018).
    pub fn queue_on_each<T, F>(&self, groups: &[CpuSet], work: F) -> Vec<BoundHandle<T>>
    where
        F: Fn(usize) -> T + Send + Sync + 'static,
        T: Send + 'static,
    {
        let work = Arc::new(work);
        let queued = groups.iter().enumerate().map(|(group, cpus)| {
            let work = work.clone();
            self.registry.queue_on(cpus, None, move || work(group))
        });
        queued.collect()
    }

    /// Waits until no work that was queued on CPUs is unfinished, what others queue meanwhile included. Not to be called
    /// from work in this pool: it would wait for itself, or keep the worker that the rest needs.
    pub fn flush(&self) {
        self.registry.flush();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let registry = &self.registry;
        registry.is_ending.store(true, Ordering::SeqCst);
        registry.watch.ring();
        let threads = std::mem::take(&mut self.control().threads);
        for cpu in 0..registry.cpus() {
            if !registry.notify(cpu) {
                registry.slots[cpu as usize].parker.unpark();
            }
        }
        let me = std::thread::current().id();
        let end = |registry: Arc<Registry>, threads: Vec<std::thread::JoinHandle<()>>| {
            for thread in threads {
                // Threads do not panic.
                let _ = thread.join();
            }
            registry.clean_up();
        };
        if !threads.iter().any(|thread| thread.thread().id() == me) {
            return end(registry.clone(), threads);
        }
        // Its own thread cannot wait for itself: somebody else does, unless no thread can be started any more.
        let (name, registry) = (format!("{}-end", registry.settings.name), registry.clone());
        let _ = std::thread::Builder::new()
            .name(name)
            .spawn(move || end(registry, threads));
    }
}

impl Registry {
    /// Runs on this thread what was queued after the last worker.
    pub(crate) fn run_late(&self) {
        let queues = || self.queues.iter().chain([&self.high, &self.low]);
        // What runs may queue more, in a queue that was empty.
        while let Some(job) = queues().find_map(|queue| queue.pop()) {
            // SAFETY: taken out of a queue.
            crate::job::quietly(|| unsafe { job.run() });
        }
    }

    /// After the last thread: what was queued too late for them.
    fn clean_up(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        // Pairs with the fence in `inject`: either we see what a waker has queued, or it sees that nobody else will run it.
        fence(Ordering::SeqCst);
        self.run_late();
        let late = std::mem::take(&mut *self.homeless.works.lock());
        for work in late {
            match self.settings.when_offline {
                WhenOffline::Elsewhere => work.run_unbound(self),
                WhenOffline::Wait => drop(work.cancel()),
            }
        }
    }
}
