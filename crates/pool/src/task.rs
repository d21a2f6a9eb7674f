//! Futures that run in the pool.

use std::cell::UnsafeCell;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::job::{Job, JobRef, quietly};
use crate::registry::Registry;
use crate::spawn::{Priority, queue};
use crate::sync::{AtomicU32, Ordering};
use crate::worker::Worker;

const IDLE: u32 = 0;
/// In a queue.
const SCHEDULED: u32 = 1;
/// Being polled.
const RUNNING: u32 = 2;
/// Being polled, and woken meanwhile: must be polled again.
const WOKEN: u32 = 3;
const DONE: u32 = 4;

/// A future and its place in the queues: one allocation.
#[repr(C)]
pub(crate) struct AsyncTask<F> {
    job: Job,
    state: AtomicU32,
    registry: Arc<Registry>,
    /// Belongs to who has moved the state to `RUNNING`; `None` when done.
    future: UnsafeCell<Option<F>>,
}

// SAFETY: `future` is touched by one thread at a time, as the state says; it need not be `Sync` for that.
unsafe impl<F: Send> Send for AsyncTask<F> {}
// SAFETY: as above.
unsafe impl<F: Send> Sync for AsyncTask<F> {}

impl<F: Future<Output = ()> + Send + 'static> AsyncTask<F> {
    /// `future` must not panic out of `poll`: what it computes goes elsewhere, panics too.
    pub(crate) fn start(registry: &Arc<Registry>, future: F, priority: Priority) {
        let task = Arc::new(AsyncTask {
            // SAFETY: `run` takes what `queued` makes.
            job: unsafe { Job::new(Self::run) },
            state: AtomicU32::new(SCHEDULED),
            registry: registry.clone(),
            future: UnsafeCell::new(Some(future)),
        });
        queue(registry, Self::queued(task), priority);
    }

    fn queued(self: Arc<Self>) -> JobRef {
        JobRef(Arc::into_raw(self).cast_mut().cast())
    }

    unsafe fn run(job: *mut Job) {
        // SAFETY: made by `queued`, run once for each time that it was.
        let this = unsafe { Arc::from_raw(job.cast_const().cast::<Self>()) };
        // Acquire: pairs with the Release of the thread that polled it last.
        this.state.swap(RUNNING, Ordering::Acquire);
        // SAFETY: counts as one reference, which is never dropped: `this` is there as long as the poll is.
        let waker = ManuallyDrop::new(Waker::from(unsafe { Arc::from_raw(Arc::as_ptr(&this)) }));
        // SAFETY: the state is RUNNING by us, so nobody else is here; it stays where it is until dropped in place.
        let place = unsafe { &mut *this.future.get() };
        let Some(future) = place.as_mut() else { return };
        // SAFETY: inside of an Arc, never moved.
        let future = unsafe { Pin::new_unchecked(future) };
        let worker = Worker::current_in(&this.registry);
        let was_polling = worker.map(|worker| worker.is_polling.replace(true));
        let polled = future.poll(&mut Context::from_waker(&waker));
        if let Some(worker) = worker {
            worker.is_polling.set(was_polling == Some(true));
        }
        if polled == Poll::Ready(()) {
            quietly(|| *place = None);
            this.state.store(DONE, Ordering::Release);
        } else if this
            .state
            .compare_exchange(RUNNING, IDLE, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            // Woken while it ran. Behind the others, so that one that wakes itself starves nobody.
            this.state.store(SCHEDULED, Ordering::Release);
            let registry = this.registry.clone();
            registry.inject(Self::queued(this), Priority::Normal, None);
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for AsyncTask<F> {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let to = match state {
                IDLE => SCHEDULED,
                RUNNING => WOKEN,
                _ => return,
            };
            // Release: what the waker wrote is seen by the poll.
            match self
                .state
                .compare_exchange_weak(state, to, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(IDLE) => break,
                Ok(_) => return,
                Err(found) => state = found,
            }
        }
        if let Some(worker) = Worker::current_in(&self.registry) {
            return worker.queue_woken(Self::queued(self));
        }
        let registry = self.registry.clone();
        if registry.is_dead.load(Ordering::Acquire) {
            return; // The pool is gone, and so is who would run it.
        }
        registry.inject(Self::queued(self), Priority::Normal, None);
        // `inject` has a fence behind the push, which pairs with that of `clean_up`: either who cleans up sees the task, or
        // we see that the pool is gone.
        if registry.is_dead.load(Ordering::Relaxed) {
            registry.run_late();
        }
    }
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;
    use crate::{Pool, SimulatedCpus};

    fn is_asleep(thread: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let (_, behind_the_name) = stat.rsplit_once(") ").unwrap();
        behind_the_name.starts_with('S')
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
        while !is_asleep(thread) {
            std::thread::yield_now();
        }
        drop(pool);
        drop(gate);
        waker.join().unwrap();
        assert!(handle.is_done());
        assert_eq!(handle.join().unwrap(), 42);
    }
}
