//! Futures that run in the pool.

use std::cell::UnsafeCell;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

use amdahl_placement::{CpuId, Flips, Waking};

use crate::cancel::Cancels;
use crate::job::{Job, JobRef, quietly};
use crate::outcome::Outcome;
use crate::registry::Registry;
use crate::spawn::{Handle, JoinError, Priority, Spawn, Spawned, queue};
use crate::sync::{AtomicU32, AtomicUsize, Ordering, fence};
use crate::worker::Worker;

const IDLE: u32 = 0;
/// In a queue.
const SCHEDULED: u32 = 1;
/// Being polled.
const RUNNING: u32 = 2;
/// Being polled, and woken meanwhile: must be polled again.
const WOKEN: u32 = 3;
const DONE: u32 = 4;

/// No CPU.
const NONE: u32 = u32::MAX;

/// What a policy is told of a task that is woken.
pub(crate) struct Past {
    /// The CPU whose worker polled it last.
    last: AtomicU32,
    /// How often it changes whom it wakes. Belongs to who polls the task, or has made it ready and not queued it yet.
    flips: UnsafeCell<Flips>,
}

impl Past {
    fn new() -> Self {
        Past {
            last: AtomicU32::new(NONE),
            flips: UnsafeCell::default(),
        }
    }

    fn last(&self) -> Option<CpuId> {
        Some(self.last.load(Ordering::Relaxed)).filter(|&cpu| cpu != NONE)
    }

    /// The task is made ready, by a worker or by nobody of the pool.
    ///
    /// # Safety
    /// The caller has made it ready and has not queued it yet. What `worker` polls is being polled on this thread.
    unsafe fn woken(&self, worker: Option<&Worker>) -> Waking<'static> {
        let mut task = Waking {
            last: self.last(),
            // SAFETY: the caller has it.
            wakee_flips: unsafe { *self.flips.get() },
            ..Waking::default()
        };
        if let Some(worker) = worker {
            task.waker = Some(worker.cpu);
            // SAFETY: null, or of a task whose poll is beneath this call and keeps it.
            if let Some(waker) = unsafe { worker.polled.get().as_ref() } {
                // SAFETY: polled by this thread, which has no other reference to it.
                let flips = unsafe { &mut *waker.flips.get() };
                let id = (&raw const *self).addr() as u64;
                flips.woke(id, worker.registry().now_ns());
                task.waker_flips = *flips;
            }
        }
        task
    }
}

/// A future, its place in the queues and its outcome: one allocation.
#[repr(C)]
pub(crate) struct AsyncTask<F: Future> {
    job: Job,
    state: AtomicU32,
    /// The [`Runner`]s.
    runners: AtomicUsize,
    past: Past,
    registry: Arc<Registry>,
    how: Spawn,
    /// The token tells of it. Belongs to who polls, as `future` does.
    is_listed: UnsafeCell<bool>,
    outcome: Outcome<F::Output>,
    /// Belongs to who has moved the state to `RUNNING`; `None` when done.
    future: UnsafeCell<Option<F>>,
}

// SAFETY: `future`, `is_listed` and the flips are touched by one thread at a time, as the state says; they need not be `Sync` for that.
unsafe impl<F: Future<Output: Send> + Send> Send for AsyncTask<F> {}
// SAFETY: as above.
unsafe impl<F: Future<Output: Send> + Send> Sync for AsyncTask<F> {}

/// Who may poll a task or wake it: a queue that has it, a waker, who polls it. With the last of them goes the future, and the
/// handle is told; together they are one owner of the memory, the handle is another.
struct Runner<F: Future>(NonNull<AsyncTask<F>>);

impl<F: Future> Runner<F> {
    fn task(&self) -> &AsyncTask<F> {
        // SAFETY: counted.
        unsafe { self.0.as_ref() }
    }

    /// # Safety
    /// `data` is of a runner, which is not used any more.
    unsafe fn of(data: *const ()) -> Self {
        // SAFETY: never null.
        Runner(unsafe { NonNull::new_unchecked(data.cast_mut().cast()) })
    }

    fn into_data(self) -> *const () {
        ManuallyDrop::new(self).0.as_ptr().cast_const().cast()
    }

    fn queued(self) -> JobRef {
        JobRef(self.into_data().cast_mut().cast())
    }
}

impl<F: Future> Clone for Runner<F> {
    fn clone(&self) -> Self {
        // Relaxed: as for any counter of references, there is one already.
        let before = self.task().runners.fetch_add(1, Ordering::Relaxed);
        // More wakers than there are bytes: they are forgotten, again and again.
        if before > isize::MAX as usize {
            std::process::abort();
        }
        Runner(self.0)
    }
}

impl<F: Future> Drop for Runner<F> {
    fn drop(&mut self) {
        let task = self.task();
        if task.runners.fetch_sub(1, Ordering::Release) > 1 {
            return;
        }
        // Pairs with the Release of the others: all that they did is before what follows.
        fence(Ordering::Acquire);
        if task.state.load(Ordering::Relaxed) != DONE {
            // SAFETY: nobody else may poll it any more.
            quietly(|| unsafe { *task.future.get() = None });
            // SAFETY: as above.
            unsafe { task.unlist() };
            task.outcome.abandon();
        }
        // SAFETY: all runners together had one reference, from `start`.
        drop(unsafe { Arc::from_raw(self.0.as_ptr().cast_const()) });
    }
}

impl<F: Future> AsyncTask<F> {
    /// The token need not tell it any more.
    ///
    /// # Safety
    /// By who polls it, or when nobody can any more.
    unsafe fn unlist(&self) {
        // SAFETY: the caller's promise.
        let is_listed = unsafe { &mut *self.is_listed.get() };
        if std::mem::take(is_listed)
            && let Some(token) = &self.how.token
        {
            token.remove((&raw const *self).addr());
        }
    }
}

impl<F> AsyncTask<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    pub(crate) fn start(registry: &Arc<Registry>, future: F, how: &Spawn) -> Handle<F::Output> {
        let task = Arc::new(AsyncTask {
            // SAFETY: `run` takes what `queued` makes.
            job: unsafe { Job::new(Self::run) },
            state: AtomicU32::new(SCHEDULED),
            runners: AtomicUsize::new(1),
            past: Past::new(),
            registry: registry.clone(),
            how: how.clone(),
            is_listed: UnsafeCell::new(false),
            outcome: Outcome::new(),
            future: UnsafeCell::new(Some(future)),
        });
        let handle = Handle::new(task.clone());
        // SAFETY: the one that is counted, with a reference of its own.
        let runner = unsafe { Runner::<F>::of(Arc::into_raw(task).cast()) };
        queue(registry, runner.queued(), how.priority);
        handle
    }

    /// # Safety
    /// By who polls it, who has no reference to the future.
    unsafe fn end(&self, result: Result<F::Output, JoinError>) {
        // First what the future had, which who waits may want.
        // SAFETY: the caller's promise.
        quietly(|| unsafe { *self.future.get() = None });
        // SAFETY: the caller's promise.
        unsafe { self.unlist() };
        self.state.store(DONE, Ordering::Release);
        self.outcome.finish(result);
    }

    /// Whether its token is cancelled.
    fn is_unwanted(&self) -> bool {
        let token = self.how.token.as_ref();
        token.is_some_and(crate::CancelToken::is_cancelled)
    }

    /// It waits: its token shall tell it. False: it is cancelled already.
    ///
    /// # Safety
    /// By who polls it.
    unsafe fn list(this: &Runner<F>) -> bool {
        let task = this.task();
        let Some(token) = &task.how.token else {
            return true;
        };
        // SAFETY: the caller's promise.
        let is_listed = unsafe { &mut *task.is_listed.get() };
        if !*is_listed {
            let at = this.0.as_ptr().cast_const();
            // SAFETY: all runners together have a reference, from `start`, which stays theirs.
            let own = ManuallyDrop::new(unsafe { Arc::from_raw(at) });
            let weak: Weak<dyn Cancels> = Arc::<Self>::downgrade(&own);
            *is_listed = token.add(at.addr(), weak);
        }
        *is_listed
    }

    unsafe fn run(job: *mut Job) {
        // SAFETY: made by `queued`, run once for each time that it was.
        let this = unsafe { Runner::<F>::of(job.cast_const().cast()) };
        let task = this.task();
        // Acquire: pairs with the Release of the thread that polled it last.
        task.state.swap(RUNNING, Ordering::Acquire);
        // SAFETY: the state is RUNNING by us, so nobody else is here; it stays where it is until dropped in place.
        let place = unsafe { &mut *task.future.get() };
        let Some(future) = place.as_mut() else { return };
        let is_unwanted = task.is_unwanted();
        if !task.outcome.is_begun() {
            let claim = match is_unwanted {
                true => Outcome::cancel,
                false => Outcome::begin,
            };
            if !claim(&task.outcome) {
                // Its handle has cancelled it, and tells so.
                quietly(|| *place = None);
                task.state.store(DONE, Ordering::Release);
                return;
            }
        }
        if is_unwanted {
            // SAFETY: the state is RUNNING by us; `future` is not used any more.
            return unsafe { task.end(Err(JoinError::Cancelled)) };
        }
        // SAFETY: inside of an Arc, never moved.
        let future = unsafe { Pin::new_unchecked(future) };
        let raw = RawWaker::new(this.0.as_ptr().cast_const().cast(), Self::WAKER);
        // SAFETY: the table is for runners; this one stays as long as the poll, and is not dropped by its waker.
        let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw) });
        let worker = Worker::current_in(&task.registry);
        let beneath = worker.map(|worker| {
            task.past.last.store(worker.cpu, Ordering::Relaxed);
            (worker, worker.polled.replace(&task.past))
        });
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.poll(&mut Context::from_waker(&waker))
        }));
        if let Some((worker, beneath)) = beneath {
            worker.polled.set(beneath);
        }
        let result = match polled {
            Ok(Poll::Ready(value)) => Ok(value),
            Err(payload) => Err(JoinError::Panicked(payload)),
            // SAFETY: the state is RUNNING by us.
            Ok(Poll::Pending) if !unsafe { Self::list(&this) } => Err(JoinError::Cancelled),
            Ok(Poll::Pending) => {
                if task
                    .state
                    .compare_exchange(RUNNING, IDLE, Ordering::Release, Ordering::Relaxed)
                    .is_err()
                {
                    // Woken while it ran. Behind the others, so that one that wakes itself starves nobody.
                    task.state.store(SCHEDULED, Ordering::Release);
                    let priority = task.how.priority;
                    match worker {
                        Some(worker) if priority == Priority::Normal => {
                            worker.queue_behind(this.queued());
                        }
                        Some(worker) => worker.queue(this.queued(), priority),
                        None => {
                            let registry = task.registry.clone();
                            let unknown = Waking::default();
                            registry.inject(this.queued(), priority, &unknown, None);
                        }
                    }
                }
                return;
            }
        };
        // SAFETY: as above; the future's borrow ended with its poll.
        unsafe { task.end(result) };
    }

    const WAKER: &'static RawWakerVTable = &RawWakerVTable::new(
        |data| {
            // SAFETY: the table is for runners; of a clone's data there is a runner more.
            let this = ManuallyDrop::new(unsafe { Runner::<F>::of(data) });
            RawWaker::new(Runner::clone(&this).into_data(), Self::WAKER)
        },
        // SAFETY: as above; the waker is gone.
        |data| Self::wake(unsafe { Runner::of(data) }),
        |data| {
            // SAFETY: as above; the waker stays.
            let this = ManuallyDrop::new(unsafe { Runner::<F>::of(data) });
            if this.task().state.load(Ordering::Relaxed) != DONE {
                Self::wake(Runner::clone(&this));
            }
        },
        // SAFETY: as above; the waker is gone.
        |data| drop(unsafe { Runner::<F>::of(data) }),
    );

    fn wake(this: Runner<F>) {
        let task = this.task();
        let mut state = task.state.load(Ordering::Relaxed);
        loop {
            let to = match state {
                IDLE => SCHEDULED,
                RUNNING => WOKEN,
                _ => return,
            };
            // Release: what the waker wrote is seen by the poll.
            match task
                .state
                .compare_exchange_weak(state, to, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(IDLE) => break,
                Ok(_) => return,
                Err(found) => state = found,
            }
        }
        let priority = task.how.priority;
        if let Some(worker) = Worker::current_in(&task.registry) {
            if priority != Priority::Normal {
                return worker.queue(this.queued(), priority);
            }
            if !worker.asks() {
                return worker.queue_woken(this.queued());
            }
            // SAFETY: made ready above, and queued below.
            let waking = unsafe { task.past.woken(Some(worker)) };
            return worker.place_woken(this.queued(), &waking);
        }
        let registry = task.registry.clone();
        if registry.is_dead.load(Ordering::Acquire) {
            return; // The pool is gone, and so is who would run it.
        }
        // SAFETY: as above.
        let waking = unsafe { task.past.woken(None) };
        registry.inject(this.queued(), priority, &waking, None);
        // `inject` has a fence behind the push, which pairs with that of `clean_up`: either who cleans up sees the task, or
        // we see that the pool is gone.
        if registry.is_dead.load(Ordering::Relaxed) {
            registry.run_late();
        }
    }
}

impl<F> Cancels for AsyncTask<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn cancelled(self: Arc<Self>) {
        // Relaxed: as for any counter of references, but there may be none left.
        let more = |runners: usize| (runners > 0).then(|| runners + 1);
        let counted = self
            .runners
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if counted.is_ok() {
            // SAFETY: counted just now; of an Arc that the runners have.
            Self::wake(unsafe { Runner::of(Arc::as_ptr(&self).cast()) });
        }
    }
}

impl<F> Spawned<F::Output> for AsyncTask<F>
where
    F: Future<Output: Send> + Send,
{
    fn outcome(&self) -> &Outcome<F::Output> {
        &self.outcome
    }
    /// Who takes it out of its queue drops the future.
    fn discard(&self) {}
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::atomic::AtomicBool as StdBool;
    use std::sync::{Arc, Mutex, OnceLock, mpsc};

    use super::*;
    use crate::{CancelToken, Pool, SimulatedCpus};

    /// Tells when it goes.
    struct Held(Arc<StdBool>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    fn pool() -> Pool {
        let cpus = SimulatedCpus::new(amdahl_topology::Topology::synthetic("2 core").unwrap());
        Pool::builder().cpus(cpus).build().unwrap()
    }

    #[test]
    fn a_future_that_nobody_can_wake_any_more_goes_and_its_handle_tells() {
        let pool = pool();
        let has_gone = Arc::new(StdBool::new(false));
        let held = Held(has_gone.clone());
        let handle = pool.spawn_future(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert!(has_gone.load(Ordering::Acquire));
    }

    /// Who waited found what the work had borrowed still taken.
    #[test]
    fn what_a_future_holds_goes_before_its_handle_tells() {
        /// Looks at the handle when it goes.
        #[derive(Clone, Default)]
        struct Looks(Arc<OnceLock<Handle<()>>>, Arc<AtomicU32>);
        impl Drop for Looks {
            fn drop(&mut self) {
                if Worker::current().is_some() {
                    let is_done = self.0.wait().is_done();
                    self.1.store(1 + u32::from(is_done), Ordering::Release);
                }
            }
        }
        let pool = pool();
        for panics in [false, true] {
            let looks = Looks::default();
            let held = looks.clone();
            // A block would drop it at its end by itself.
            let handle = pool.spawn_future(std::future::poll_fn(move |_| {
                let _held = &held;
                assert!(!panics, "as told");
                Poll::Ready(())
            }));
            let _ = looks.0.set(handle);
            while looks.1.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(looks.1.load(Ordering::Acquire), 1, "panics: {panics}");
        }
    }

    #[test]
    fn wakers_outlive_their_future_their_handle_and_their_pool() {
        let place = Arc::<Mutex<Vec<Waker>>>::default();
        let pool = pool();
        let kept = place.clone();
        let handle = pool.spawn_future(std::future::poll_fn(move |context| {
            let mut kept = kept.lock().unwrap();
            kept.push(context.waker().clone());
            match kept.len() {
                3 => Poll::Ready(7),
                _ => Poll::Pending,
            }
        }));
        let waker = |at: usize| loop {
            match place.lock().unwrap().get(at) {
                Some(waker) => return waker.clone(),
                None => std::thread::yield_now(),
            }
        };
        waker(0).wake();
        waker(1).wake_by_ref();
        assert_eq!(handle.join().unwrap(), 7);
        drop(pool);
        let wakers = std::mem::take(&mut *place.lock().unwrap());
        assert!(wakers[0].will_wake(&wakers[2]));
        wakers.iter().for_each(Waker::wake_by_ref);
        wakers.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn a_future_that_is_cancelled_in_its_queue_goes_when_its_turn_comes() {
        let cpus = SimulatedCpus::new(amdahl_topology::Topology::synthetic("1 core").unwrap());
        let pool = Pool::builder().cpus(cpus).build().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let busy = pool.spawn(move || wait.recv());
        let has_gone = Arc::new(StdBool::new(false));
        let held = Held(has_gone.clone());
        let handle = pool.spawn_future(async move { drop(held) });
        assert!(handle.cancel());
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        go.send(()).unwrap();
        busy.join().unwrap().unwrap();
        drop(pool);
        assert!(has_gone.load(Ordering::Acquire));
    }

    /// A waker had seen that the pool lived, and queued the task when the last queue had been emptied: its handle never told
    /// anything, and task and pool kept each other for ever.
    #[test]
    fn a_task_that_is_woken_while_the_pool_goes_ends() {
        let cpus = SimulatedCpus::new(amdahl_topology::Topology::synthetic("1 core").unwrap());
        let pool = Pool::builder().cpus(cpus).build().unwrap();
        let registry = pool.registry.clone();
        let (place, told) = (Arc::<Mutex<Option<Waker>>>::default(), mpsc::channel());
        let kept = place.clone();
        let handle = pool.spawn_future(std::future::poll_fn(move |context| {
            let mut kept = kept.lock().unwrap();
            if kept.is_some() {
                return Poll::Ready(42);
            }
            *kept = Some(context.waker().clone());
            told.0.send(()).unwrap();
            Poll::Pending
        }));
        told.1.recv().unwrap();
        // Not before the poll is over: then the task would be queued by who polls it.
        while pool.state().sleeping == 0 {
            std::thread::yield_now();
        }
        // Behind this lock is the push.
        let gate = registry.hold_outside();
        let (to, from) = mpsc::channel();
        let waker = std::thread::spawn(move || {
            let waker = place.lock().unwrap().clone().unwrap();
            to.send(crate::sys::thread_id()).unwrap();
            waker.wake();
        });
        let thread = from.recv().unwrap();
        // Beyond the only send, nothing else makes it sleep.
        while !crate::sys::is_asleep(thread) {
            std::thread::yield_now();
        }
        drop(pool);
        drop(gate);
        waker.join().unwrap();
        assert!(handle.is_done());
        assert_eq!(handle.join().unwrap(), 42);
    }

    /// Never ready; tells where its waker is to be found.
    fn waits(place: &Arc<Mutex<Option<Waker>>>, held: Held) -> impl Future<Output = ()> + use<> {
        let place = place.clone();
        std::future::poll_fn(move |context| {
            let _held = &held;
            *place.lock().unwrap() = Some(context.waker().clone());
            Poll::Pending
        })
    }

    #[test]
    fn a_future_that_waits_goes_when_its_token_is_cancelled() {
        let (pool, token) = (pool(), CancelToken::new());
        let how = Spawn::new().token(&token);
        let (place, has_gone) = (Arc::default(), Arc::new(StdBool::new(false)));
        let handle = pool.spawn_future_with(&how, waits(&place, Held(has_gone.clone())));
        while token.waiting() == 0 {
            std::thread::yield_now();
        }
        assert!(!handle.is_done());
        token.cancel();
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert!(has_gone.load(Ordering::Acquire));
        // It may be polled, or woken, no more.
        place.lock().unwrap().take().unwrap().wake();
        assert_eq!(token.waiting(), 0);
    }

    #[test]
    fn a_future_whose_token_is_cancelled_is_not_polled() {
        let cpus = SimulatedCpus::new(amdahl_topology::Topology::synthetic("1 core").unwrap());
        let pool = Pool::builder().cpus(cpus).build().unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let busy = pool.spawn(move || wait.recv());
        let token = CancelToken::new();
        let how = Spawn::new().token(&token);
        let (is_polled, has_gone) = (Arc::new(StdBool::new(false)), Arc::default());
        let (polled, held) = (is_polled.clone(), Held(Arc::clone(&has_gone)));
        let handle = pool.spawn_future_with(&how, async move {
            polled.store(true, Ordering::Release);
            drop(held);
        });
        token.cancel();
        go.send(()).unwrap();
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert!(has_gone.load(Ordering::Acquire) && !is_polled.load(Ordering::Acquire));
        busy.join().unwrap().unwrap();
        // One that cancels itself, and then waits.
        let token = CancelToken::new();
        let (how, own) = (Spawn::new().token(&token), token.clone());
        let handle = pool.spawn_future_with(&how, async move {
            own.cancel();
            std::future::pending::<()>().await;
        });
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    }

    #[test]
    fn a_token_keeps_no_future_and_forgets_those_that_end() {
        let (pool, token) = (pool(), CancelToken::new());
        let how = Spawn::new().token(&token);
        // Nobody can wake it: the token does not keep it.
        let handle = pool.spawn_future_with(&how, std::future::pending::<()>());
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
        assert_eq!(token.waiting(), 0);
        let mut polls = 0;
        let handle = pool.spawn_future_with(
            &how,
            std::future::poll_fn(move |context| {
                polls += 1;
                context.waker().wake_by_ref();
                match polls {
                    3 => Poll::Ready(polls),
                    _ => Poll::Pending,
                }
            }),
        );
        assert_eq!(handle.join().unwrap(), 3);
        assert_eq!(token.waiting(), 0);
        token.cancel();
    }

    #[test]
    fn the_priority_of_a_future_holds_when_it_is_given_and_each_time_it_is_woken() {
        let cpus = SimulatedCpus::new(amdahl_topology::Topology::synthetic("1 core").unwrap());
        let pool = Pool::builder().cpus(cpus).build().unwrap();
        let busy = || {
            let (go, wait) = mpsc::channel::<()>();
            let (told, tells) = mpsc::channel();
            let job = pool.spawn(move || {
                told.send(()).unwrap();
                wait.recv()
            });
            tells.recv().unwrap();
            (go, job)
        };
        let order = Arc::<Mutex<Vec<(u32, Priority)>>>::default();
        let wakers = Arc::<Mutex<Vec<Waker>>>::default();
        let first = busy();
        let give = |priority| {
            let (order, wakers) = (order.clone(), wakers.clone());
            let mut polls = 0;
            let how = Spawn::new().priority(priority);
            pool.spawn_future_with(
                &how,
                std::future::poll_fn(move |context| {
                    polls += 1;
                    order.lock().unwrap().push((polls, priority));
                    if polls == 2 {
                        // Woken while it is polled.
                        context.waker().wake_by_ref();
                    } else if polls == 1 {
                        wakers.lock().unwrap().push(context.waker().clone());
                    }
                    match polls {
                        3 => Poll::Ready(()),
                        _ => Poll::Pending,
                    }
                }),
            )
        };
        let low_first = [Priority::Low, Priority::Normal, Priority::High];
        let handles = low_first.map(give);
        first.0.send(()).unwrap();
        let all_wakers = || loop {
            let mut wakers = wakers.lock().unwrap();
            if wakers.len() == 3 {
                return std::mem::take(&mut *wakers);
            }
            drop(wakers);
            std::thread::yield_now();
        };
        let mut all = all_wakers();
        first.1.join().unwrap().unwrap();
        let second = busy();
        // High came first.
        all.reverse();
        all.into_iter().for_each(Waker::wake);
        second.0.send(()).unwrap();
        handles
            .into_iter()
            .for_each(|handle| handle.join().unwrap());
        second.1.join().unwrap().unwrap();
        let (high, normal, low) = (Priority::High, Priority::Normal, Priority::Low);
        let expected = [
            [(1, high), (1, normal), (1, low)],
            [(2, high), (3, high), (2, normal)],
            [(3, normal), (2, low), (3, low)],
        ];
        assert_eq!(*order.lock().unwrap(), expected.concat());
    }
}
