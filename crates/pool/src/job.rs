//! What the queues hold: a pointer to a header whose function knows the rest.

use std::any::Any;
use std::cell::UnsafeCell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::latch::{Latch, ThreadLatch};
use crate::waits::{Waits, lock};

/// The first field of everything that is queued. Whoever takes the pointer out of a queue runs it, once.
#[repr(C)]
pub(crate) struct Job {
    run: unsafe fn(*mut Job),
}

/// A job on its way, which must be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JobRef(pub(crate) *mut Job);

// SAFETY: only made of jobs that may be run by another thread.
unsafe impl Send for JobRef {}

impl Job {
    /// # Safety
    /// `run` gets the pointer that was queued: a `Job` at the beginning of the thing that it expects.
    pub(crate) unsafe fn new(run: unsafe fn(*mut Job)) -> Self {
        Job { run }
    }
}

impl JobRef {
    /// # Safety
    /// It was taken out of a queue and has not been run; what it points to has not gone.
    pub(crate) unsafe fn run(self) {
        // SAFETY: the promise of whoever made the job.
        unsafe { ((*self.0).run)(self.0) }
    }
}

/// Keeps the first of several ends; a later one comes back.
pub(crate) fn keep_first<T>(place: &Mutex<Option<T>>, ended: T, waits: &Waits) -> Option<T> {
    let mut first = lock(place, waits);
    match *first {
        None => {
            *first = Some(ended);
            None
        }
        Some(_) => Some(ended),
    }
}

/// Runs foreign code whose panic is nobody's affair here, and must not unwind the frames beneath. Whether it panicked.
pub(crate) fn quietly(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(()) => false,
        Err(payload) => {
            // The payload's own destructor may panic as well.
            std::mem::forget(payload);
            true
        }
    }
}

/// What a panic carries.
pub(crate) type Payload = Box<dyn Any + Send>;

/// Tells the waiter.
pub(crate) trait Done {
    /// # Safety
    /// `this` lives at the call; it may be gone afterwards.
    unsafe fn done(this: *const Self);
}

impl Done for Latch {
    unsafe fn done(this: *const Self) {
        // SAFETY: the caller's promise; the waiter's parker belongs to a slot.
        unsafe { Latch::set(this) }
    }
}

impl Done for ThreadLatch {
    unsafe fn done(this: *const Self) {
        // SAFETY: the caller's promise.
        unsafe { ThreadLatch::set(this) }
    }
}

/// A closure in the frame of a function that waits for it: nothing is allocated.
#[repr(C)]
pub(crate) struct StackJob<L, F, R> {
    job: Job,
    pub(crate) latch: L,
    /// There until it is run.
    call: UnsafeCell<ManuallyDrop<F>>,
    /// There once the latch is set.
    result: UnsafeCell<MaybeUninit<Result<R, Payload>>>,
}

impl<L: Done, F: FnOnce() -> R, R> StackJob<L, F, R> {
    #[inline(always)]
    pub(crate) fn new(call: F, latch: L) -> Self {
        StackJob {
            job: Job {
                run: Self::run_by_another,
            },
            latch,
            call: UnsafeCell::new(ManuallyDrop::new(call)),
            result: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    #[inline(always)]
    pub(crate) fn job(&self) -> *mut Job {
        (&raw const *self).cast_mut().cast()
    }

    unsafe fn run_by_another(job: *mut Job) {
        let this: *const Self = job.cast_const().cast();
        // SAFETY: the frame waits for the latch; taken out of a queue once, so this is the only call.
        unsafe {
            let call = ManuallyDrop::take(&mut *(*this).call.get());
            let result = catch_unwind(AssertUnwindSafe(call));
            (*(*this).result.get()).write(result);
            L::done(&raw const (*this).latch);
        }
    }

    /// Runs it here.
    ///
    /// # Safety
    /// It was taken back: nobody else will run it.
    #[inline(always)]
    pub(crate) unsafe fn run_here(&self) -> R {
        // SAFETY: the only taker.
        unsafe { ManuallyDrop::take(&mut *self.call.get())() }
    }

    /// Drops what will not be run.
    ///
    /// # Safety
    /// As for [`run_here`](Self::run_here).
    pub(crate) unsafe fn discard(&self) {
        // SAFETY: the only taker.
        unsafe { ManuallyDrop::drop(&mut *self.call.get()) }
    }

    /// # Safety
    /// The latch is set, and this is called once.
    pub(crate) unsafe fn result(&self) -> Result<R, Payload> {
        // SAFETY: written before the latch was set, taken once.
        unsafe { (*self.result.get()).assume_init_read() }
    }
}

/// A closure on the heap that nobody waits for through this job.
#[repr(C)]
pub(crate) struct HeapJob<F> {
    job: Job,
    call: F,
}

impl<F: FnOnce() + Send> HeapJob<F> {
    /// `call` must not unwind. The borrows in it must outlive the run, which the caller sees to.
    pub(crate) fn queued(call: F) -> JobRef {
        let job = Box::new(HeapJob {
            job: Job { run: Self::run },
            call,
        });
        JobRef(Box::into_raw(job).cast())
    }

    unsafe fn run(job: *mut Job) {
        // SAFETY: made of a box in `queued`, run once.
        let this = unsafe { Box::from_raw(job.cast::<Self>()) };
        (this.call)();
    }
}
