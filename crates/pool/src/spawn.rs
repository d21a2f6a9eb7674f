//! Work that is given away: a handle tells how it ended.

use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Instant;

use crate::cancel::CancelToken;
use crate::job::{Job, JobRef, Payload, quietly};
use crate::latch::Latch;
use crate::outcome::{Outcome, Waiter};
use crate::parker::Parker;
use crate::registry::Registry;
use crate::states;
use crate::waits;
use crate::worker::Worker;

/// Which work comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// When nothing else is left.
    Low,
    /// In the order that the policy gives.
    #[default]
    Normal,
    /// Before everything else that waits; what runs is not interrupted.
    High,
}

/// Why there is no result.
pub enum JoinError {
    /// The work was cancelled before it began, or was a future that was cancelled before it ended.
    Cancelled,
    /// It panicked; with this payload.
    Panicked(Payload),
}

impl JoinError {
    /// Goes on panicking if the work did.
    pub fn resume(self) -> Cancelled {
        match self {
            JoinError::Cancelled => Cancelled,
            JoinError::Panicked(payload) => resume_unwind(payload),
        }
    }
}

/// The work was cancelled before it began, or was a future that was cancelled before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work was cancelled")]
pub struct Cancelled;

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::Cancelled => Cancelled.fmt(f),
            JoinError::Panicked(payload) => {
                let text = payload.downcast_ref::<&str>().copied();
                let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
                write!(f, "the work panicked: {}", text.unwrap_or("(no text)"))
            }
        }
    }
}

impl std::error::Error for JoinError {}

/// What a handle sees of the work, whatever closure it is.
pub(crate) trait Spawned<T>: Send + Sync {
    fn outcome(&self) -> &Outcome<T>;
    /// Drops the closure of claimed work.
    fn discard(&self);
}

/// A closure on its way, with its outcome: one allocation.
#[repr(C)]
pub(crate) struct Task<F, T> {
    job: Job,
    outcome: Outcome<T>,
    token: Option<CancelToken>,
    /// Belongs to who has claimed the outcome.
    call: UnsafeCell<Option<F>>,
}

// SAFETY: `call` is touched by one thread, the one that has claimed the outcome.
unsafe impl<F: Send, T: Send> Send for Task<F, T> {}
// SAFETY: as above.
unsafe impl<F: Send, T: Send> Sync for Task<F, T> {}

impl<F: FnOnce() -> T + Send, T: Send> Task<F, T> {
    pub(crate) fn new(call: F, token: Option<CancelToken>) -> Arc<Self> {
        Arc::new(Task {
            // SAFETY: `run_queued` takes what `queued` makes.
            job: unsafe { Job::new(Self::run_queued) },
            outcome: Outcome::new(),
            token,
            call: UnsafeCell::new(Some(call)),
        })
    }

    pub(crate) fn queued(self: &Arc<Self>) -> JobRef {
        JobRef(Arc::into_raw(self.clone()).cast_mut().cast())
    }

    unsafe fn run_queued(job: *mut Job) {
        // SAFETY: made by `queued`, run once.
        let this = unsafe { Arc::from_raw(job.cast_const().cast::<Self>()) };
        this.run();
    }

    /// Runs it unless somebody else has, or it is cancelled. Whether it was run here.
    pub(crate) fn run(&self) -> bool {
        if self.token.as_ref().is_some_and(CancelToken::is_cancelled) {
            if self.outcome.cancel() {
                self.discard();
                self.outcome.finish(Err(JoinError::Cancelled));
            }
            return false;
        }
        if !self.outcome.begin() {
            return false;
        }
        // SAFETY: claimed.
        let call = unsafe { (*self.call.get()).take() }.expect("claimed once");
        let result = catch_unwind(AssertUnwindSafe(call));
        self.outcome.finish(result.map_err(JoinError::Panicked));
        true
    }
}

impl<F: Send, T: Send> Spawned<T> for Task<F, T> {
    fn outcome(&self) -> &Outcome<T> {
        &self.outcome
    }
    fn discard(&self) {
        // SAFETY: called by who has claimed the outcome. A panic in a destructor is not this thread's affair.
        let call = unsafe { (*self.call.get()).take() };
        quietly(|| drop(call));
    }
}

/// The result of work that was given away. Dropping it lets the work go on.
///
/// It is a future too, so that async code can wait for it.
pub struct Handle<T> {
    work: Arc<dyn Spawned<T>>,
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("is_done", &self.is_done())
            .finish()
    }
}

impl<T> Handle<T> {
    pub(crate) fn new(work: Arc<dyn Spawned<T>>) -> Self {
        Handle { work }
    }

    /// Whether it has ended, one way or the other.
    pub fn is_done(&self) -> bool {
        self.work.outcome().is_over()
    }

    /// True: the work had not begun and never will. False: it runs or has ended. O(1); what is queued
    /// of it is passed over later.
    pub fn cancel(&self) -> bool {
        let outcome = self.work.outcome();
        let is_claimed = outcome.cancel();
        if is_claimed {
            self.work.discard();
            outcome.finish(Err(JoinError::Cancelled));
        }
        is_claimed
    }

    /// Waits for the result. A worker does other work meanwhile, on top of what it was doing; another thread sleeps.
    /// So work of one pool must not wait for work that may itself wait for what lies beneath: wait for children
    /// ([`scope`](crate::scope), [`join`](crate::join)), or make them futures.
    ///
    /// # Errors
    /// [`JoinError`]: cancelled, or panicked.
    pub fn join(self) -> Result<T, JoinError> {
        let outcome = self.work.outcome();
        while !outcome.is_over() {
            match Worker::current() {
                Some(worker) => {
                    let latch = Latch::new(&worker.slot().parker);
                    if outcome.register(Waiter::Latch(&latch)) {
                        worker.wait(&latch);
                        outcome.wait_for_finisher();
                    }
                }
                None => {
                    let parker = this_parker();
                    if outcome.register(Waiter::Waker(parker.clone().into())) {
                        let begun = Instant::now();
                        states::join(&parker.0, None);
                        waits::HANDLE_JOINS.record(begun.elapsed(), true);
                    }
                }
            }
        }
        // SAFETY: over, and this was the only handle.
        unsafe { outcome.take() }
    }
}

impl<T> Future for Handle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: there is one handle, and it is borrowed mutably.
        match unsafe { self.work.outcome().take_or_register(context.waker()) } {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

/// The parker of a thread that is no worker, as a waker.
pub(crate) struct ThreadParker(pub(crate) Parker);

impl Wake for ThreadParker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub(crate) fn this_parker() -> Arc<ThreadParker> {
    thread_local!(static HERE: Arc<ThreadParker> = Arc::new(ThreadParker(Parker::default())));
    HERE.with(Arc::clone)
}

/// How work is given away: see [`Pool::spawn_with`](crate::Pool::spawn_with) and
/// [`Pool::spawn_future_with`](crate::Pool::spawn_future_with).
#[derive(Clone, Debug, Default)]
pub struct Spawn {
    pub(crate) priority: Priority,
    pub(crate) token: Option<CancelToken>,
}

impl Spawn {
    /// Normal priority, no token.
    pub fn new() -> Self {
        Self::default()
    }
    /// Which work comes first. Of a future each time that it is woken.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
    /// The work does not begin once the token is cancelled. A future is not polled any more, but dropped, also one that waits.
    pub fn token(mut self, token: &CancelToken) -> Self {
        self.token = Some(token.clone());
        self
    }
}

/// Queues a job from whatever thread this is.
pub(crate) fn queue(registry: &Registry, job: JobRef, priority: Priority) {
    match Worker::current_in(registry) {
        Some(worker) => worker.queue(job, priority),
        None => registry.inject_new(job, priority),
    }
}

/// The kernel's number of this thread, asked for once.
pub(crate) fn thread_id() -> u32 {
    thread_local!(static HERE: u32 = crate::sys::thread_id());
    HERE.with(|id| *id)
}
