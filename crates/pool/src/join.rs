//! Two closures, maybe at the same time.

use std::mem;
use std::panic::resume_unwind;

use crate::job::{JobRef, StackJob};
use crate::latch::Latch;
use crate::worker::{Work, Worker};

/// Waits for `b` if `a` unwinds: the frame that it is in must stay until then.
struct OnUnwind<'a, F: FnOnce() -> R, R> {
    worker: &'a Worker,
    job: &'a StackJob<Latch, F, R>,
}

impl<F: FnOnce() -> R, R> Drop for OnUnwind<'_, F, R> {
    fn drop(&mut self) {
        if take_back(self.worker, self.job, self.worker.pop()) {
            // SAFETY: taken back.
            unsafe { self.job.discard() };
        } else {
            // SAFETY: the latch is set; `a`'s panic is the one that goes on, this result is dropped.
            drop(unsafe { self.job.result() });
        }
    }
}

/// Drops `b` if `a` unwinds where nobody else has seen it.
struct Unseen<'a, F: FnOnce() -> R, R>(&'a StackJob<Latch, F, R>);

impl<F: FnOnce() -> R, R> Drop for Unseen<'_, F, R> {
    fn drop(&mut self) {
        // SAFETY: it was not pushed, and whoever runs it forgets this guard first.
        unsafe { self.0.discard() };
    }
}

#[inline(always)]
pub(crate) fn join_on<A, B, RA, RB>(worker: &Worker, a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    let job = StackJob::new(b, Latch::new(&worker.slot().parker));
    if !worker.push(job.job()) {
        // So many are waiting above that one more is of no use to anybody.
        let guard = Unseen(&job);
        let ra = a();
        mem::forget(guard);
        // SAFETY: nobody else has seen it.
        return (ra, unsafe { job.run_here() });
    }
    let guard = OnUnwind { worker, job: &job };
    let ra = a();
    mem::forget(guard);
    let popped = worker.pop();
    if popped == job.job() || take_back(worker, &job, popped) {
        // SAFETY: taken back, so it is ours alone.
        return (ra, unsafe { job.run_here() });
    }
    // SAFETY: the latch is set.
    match unsafe { job.result() } {
        Ok(rb) => (ra, rb),
        Err(payload) => resume_unwind(payload),
    }
}

/// Runs what `a` has left in the deque above `job`. True if `job` was there and is ours; false once somebody
/// else has run it.
#[cold]
#[inline(never)]
fn take_back<F: FnOnce() -> R, R>(
    worker: &Worker,
    job: &StackJob<Latch, F, R>,
    mut popped: *mut crate::job::Job,
) -> bool {
    while !popped.is_null() {
        if popped == job.job() {
            return true;
        }
        worker.run(Work::Job(JobRef(popped)));
        popped = worker.pop();
    }
    worker.wait(&job.latch);
    false
}
