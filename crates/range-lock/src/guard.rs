use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::RangeInclusive;

use crate::lock::{Hold, RangeLock};
use crate::{Kind, sealed};

/// The range is shared with other readers.
#[derive(Clone, Copy, Debug)]
pub enum Read {}

/// The range is the holder's own.
#[derive(Clone, Copy, Debug)]
pub enum Write {}

/// The guard stays with the thread that waited for it, as guards of the standard library do. A debug build then
/// finds a thread that waits for itself.
#[derive(Clone, Copy, Debug)]
pub struct ByThread(PhantomData<*const ()>);

/// The guard can go to other threads, as a future that holds it can.
#[derive(Clone, Copy, Debug)]
pub struct ByTask(());

/// [`Read`] or [`Write`].
pub trait Access: sealed::Access {}
impl Access for Read {}
impl Access for Write {}

/// [`ByThread`] or [`ByTask`].
pub trait Owner: sealed::Owner {}
impl Owner for ByThread {}
impl Owner for ByTask {}

/// Read access to a range.
pub type ReadGuard<'a, O = ByThread> = Guard<'a, Read, O>;
/// Write access to a range.
pub type WriteGuard<'a, O = ByThread> = Guard<'a, Write, O>;

/// Access to a range, until it is dropped.
///
/// A panic that drops it gives the range back like any other drop: there is no poisoning, for the lock
/// contains no data that could be half-changed. Forgetting it keeps the range for ever.
#[must_use = "the range is given back at once if the guard is not kept"]
pub struct Guard<'a, A: Access, O: Owner> {
    lock: &'a RangeLock,
    /// `None`: the range is empty.
    hold: Option<Hold>,
    form: PhantomData<(A, O)>,
}

impl<'a, A: Access, O: Owner> Guard<'a, A, O> {
    /// The lock has granted `hold` to this owner.
    pub(crate) fn new(lock: &'a RangeLock, hold: Option<Hold>) -> Self {
        Guard {
            lock,
            hold,
            form: PhantomData,
        }
    }

    /// The range, or `None` if it is empty.
    pub fn range(&self) -> Option<RangeInclusive<u64>> {
        self.hold.map(|hold| hold.span.range())
    }

    /// Makes two guards of one: of the addresses before `at`, and of those from `at` on. Each gives its part back. A
    /// part may be empty. Between the parts nobody gets in: there is no moment in which the range is free.
    ///
    /// Costs as much as giving a range back. In a segmented lock the segment that both parts share is free when
    /// both are dropped.
    ///
    /// # Panics
    /// In a segmented lock, if more than 2^15 parts of one guard for writing share a segment, or 2^30 for reading. The range is given back then.
    pub fn split_at(self, at: u64) -> (Self, Self) {
        // Not dissolved before it is split: that may panic.
        let parts = self.hold.map(|hold| match hold.span.split(at) {
            (Some(left), Some(right)) => {
                let place = self.lock.split(hold, A::KIND, O::IS_THREAD, left, right);
                let part = |span| Some(Hold { span, place });
                (part(left), part(right))
            }
            (Some(_), None) => (Some(hold), None),
            (None, _) => (None, Some(hold)),
        });
        let (lock, _) = self.dissolve();
        let (left, right) = parts.unwrap_or((None, None));
        (Guard::new(lock, left), Guard::new(lock, right))
    }

    /// The lock and what is held there, for another guard.
    fn dissolve(self) -> (&'a RangeLock, Option<Hold>) {
        let guard = ManuallyDrop::new(self);
        (guard.lock, guard.hold)
    }
}

impl<'a, O: Owner> Guard<'a, Write, O> {
    /// Lets other readers in, without a moment in which somebody else could write. Those readers go on that came
    /// before the next writer.
    pub fn downgrade(self) -> Guard<'a, Read, O> {
        let (lock, hold) = self.dissolve();
        // Made before those who wait are woken: that may panic.
        let read = Guard::new(lock, hold);
        if let Some(hold) = hold {
            lock.downgrade(hold, O::IS_THREAD);
        }
        read
    }
}

impl<'a, A: Access> Guard<'a, A, ByThread> {
    /// Lets the guard go to another thread. Debug builds do not see any more whether its holder waits for itself.
    pub fn into_task(self) -> Guard<'a, A, ByTask> {
        let (lock, hold) = self.dissolve();
        if let Some(hold) = hold {
            lock.forget_thread(hold.span, A::KIND);
        }
        Guard::new(lock, hold)
    }
}

impl<A: Access, O: Owner> Drop for Guard<'_, A, O> {
    #[inline]
    fn drop(&mut self) {
        if let Some(hold) = self.hold {
            self.lock.release(hold, A::KIND, O::IS_THREAD);
        }
    }
}

impl<A: Access, O: Owner> fmt::Debug for Guard<'_, A, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match A::KIND {
            Kind::Read => "ReadGuard",
            Kind::Write => "WriteGuard",
        };
        match self.hold {
            Some(hold) => write!(f, "{kind}({:?})", hold.span),
            None => write!(f, "{kind}(empty)"),
        }
    }
}
