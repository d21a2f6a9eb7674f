//! Work that may borrow, because the scope waits for it.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::job::{HeapJob, Payload, keep_first, quietly};
use crate::latch::Latch;
use crate::registry::Registry;
use crate::spawn::{Priority, queue};
use crate::sync::{AtomicBool, AtomicUsize, Ordering};
use crate::worker::Worker;

/// Work is stored that may live exactly as long as the scope: neither longer nor shorter lifetimes will do.
type Invariant<'scope> = PhantomData<fn(&'scope ()) -> &'scope ()>;

/// Where work with borrows is started: see [`scope`](crate::scope).
pub struct Scope<'scope> {
    registry: *const Registry,
    /// The scope itself and each piece of work.
    pending: AtomicUsize,
    latch: Latch,
    panic: Mutex<Option<Payload>>,
    is_cancelled: AtomicBool,
    lifetime: Invariant<'scope>,
}

// SAFETY: the registry is shared and outlives the scope; the rest is.
unsafe impl Sync for Scope<'_> {}
// SAFETY: as above.
unsafe impl Send for Scope<'_> {}

/// A pointer to a scope that has not ended: it counts the work that holds it.
struct Open<'scope>(*const Scope<'scope>);

// SAFETY: scopes are `Sync`.
unsafe impl Send for Open<'_> {}

impl<'scope> Scope<'scope> {
    /// Starts `work`; it has ended before the scope does. One allocation.
    pub fn spawn<F>(&self, work: F)
    where
        F: FnOnce(&Scope<'scope>) + Send + 'scope,
    {
        self.spawn_with(Priority::Normal, work);
    }

    /// As [`spawn`](Self::spawn), with a priority.
    pub fn spawn_with<F>(&self, priority: Priority, work: F)
    where
        F: FnOnce(&Scope<'scope>) + Send + 'scope,
    {
        self.pending.fetch_add(1, Ordering::Relaxed);
        let open = Open(self);
        let job = HeapJob::queued(move || {
            let open = open;
            // SAFETY: the scope waits for its pending work.
            let scope = unsafe { &*open.0 };
            if !scope.is_cancelled() {
                scope.catch(|| work(scope));
            } else {
                scope.catch(|| drop(work));
            }
            scope.leave();
        });
        // SAFETY: the registry outlives the scope, which is entered through its pool.
        queue(unsafe { &*self.registry }, job, priority);
    }

    /// Work of this scope that has not begun never begins; what runs may ask
    /// [`is_cancelled`](Self::is_cancelled).
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    /// Whether the scope was cancelled: by [`cancel`](Self::cancel), or by a panic in its work.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    fn catch<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(result) => Some(result),
            Err(payload) => {
                // SAFETY: the registry outlives the scope.
                let waits = unsafe { &(*self.registry).scope_locks };
                let late = keep_first(&self.panic, payload, waits);
                self.is_cancelled.store(true, Ordering::Release);
                quietly(|| drop(late));
                None
            }
        }
    }

    /// A piece of work has ended. The scope may be gone after this.
    fn leave(&self) {
        // AcqRel: the last one has seen what all others did.
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the scope waits for the latch; its parker is a slot's.
            unsafe { Latch::set(&raw const self.latch) };
        }
    }
}

pub(crate) fn scope_on<'scope, R>(worker: &Worker, work: impl FnOnce(&Scope<'scope>) -> R) -> R {
    let scope = Scope {
        registry: worker.registry(),
        pending: AtomicUsize::new(1),
        latch: Latch::new(&worker.slot().parker),
        panic: Mutex::new(None),
        is_cancelled: AtomicBool::new(false),
        lifetime: PhantomData,
    };
    let result = scope.catch(|| work(&scope));
    // What it set free before the last one left is set free for us too.
    if scope.pending.fetch_sub(1, Ordering::AcqRel) != 1 {
        worker.wait(&scope.latch);
    }
    let panic = scope
        .panic
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    match (result, panic) {
        (Some(result), None) => result,
        (_, Some(payload)) => resume_unwind(payload),
        (None, None) => unreachable!("a panic was kept"),
    }
}
