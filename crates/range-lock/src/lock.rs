use std::fmt;
use std::ops::RangeBounds;
use std::time::{Duration, Instant};

use crate::Kind;
use crate::future::Acquire;
use crate::guard::{ByThread, Guard, Read, ReadGuard, Write, WriteGuard};
use crate::ordered::{Ordered, Outcome, Place};
use crate::segmented::{Progress, Segmented};
use crate::span::Span;
use crate::sync::{Arc, thread};
use crate::wait::{self, Deadline};
use crate::waiter::{Waiter, Wake};

/// A reader-writer lock of the addresses from 0 to 2^64 - 1, any range of which can be locked on its own.
///
/// A thread that panics while it holds a range gives it back as its guard is dropped, and nothing is poisoned: who comes next gets the range
/// like any other, and cannot see that. A guard that is forgotten keeps its range for ever.
///
/// See the [crate's documentation](crate) for order, fairness, and which implementation to choose.
pub struct RangeLock {
    form: Form,
    cpus: usize,
    /// Tells locks apart, those that are no more too: a guard may be forgotten.
    #[cfg(all(debug_assertions, not(loom)))]
    id: u64,
}

// The first leaf is in the lock itself: a box would cost each lock and unlock a cache line.
#[allow(clippy::large_enum_variant)]
enum Form {
    Ordered(Ordered),
    Segmented(Segmented),
}

/// What is held.
#[derive(Clone, Copy)]
pub(crate) struct Hold {
    pub(crate) span: Span,
    pub(crate) place: Place,
}

/// A request that waits.
pub(crate) enum Pending {
    Ordered(Arc<Waiter>),
    Segmented(Progress),
}

pub(crate) enum Turn {
    Granted(Place),
    Waits(Pending),
}

/// Why a range was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotGranted {
    /// Somebody holds a part of the range, or waits for one.
    #[error("a part of the range is held or waited for")]
    WouldBlock,
    /// The time was over before the range was free.
    #[error("the range was not free in time")]
    TimedOut,
}

/// Why there is no such segmented lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentsError {
    /// The granule is not a power of two.
    #[error("a granule of {0} addresses: not a power of two")]
    Granule(u64),
    /// The number of segments is not a power of two, or too large.
    #[error("{0} segments: not a power of two up to {max}", max = RangeLock::SEGMENTS_MAX)]
    Segments(usize),
    /// There is no memory for so many segments.
    #[error("no memory for {0} segments of 128 bytes: ask for fewer")]
    OutOfMemory(usize),
}

impl RangeLock {
    /// Segments that a segmented lock can have.
    pub const SEGMENTS_MAX: usize = 1 << 16;

    /// A lock that suits most: exact for ranges of any size, and adapting itself to how it is used.
    ///
    /// It takes 1.2 KB; more only when threads keep meeting in it: 384 bytes for each part into which it splits, at most four for
    /// each CPU; and after some hundred reads without a write 128 bytes for each of the process's threads that read any such
    /// lock, by blocks that double from 2 KB, of which it makes those whose threads read it.
    ///
    /// The first lock of a process tells the kernel that fences will be needed (`membarrier`), which takes some ten milliseconds
    /// if the process has several threads by then. A sandbox must not forbid the call later: a request to write would panic.
    pub fn new() -> Self {
        RangeLock {
            form: Form::Ordered(Ordered::new()),
            cpus: crate::cpus(),
            #[cfg(all(debug_assertions, not(loom)))]
            id: crate::held::next_lock(),
        }
    }

    /// A lock of so many segments, 128 bytes each: granule number g of the addresses belongs to segment g modulo
    /// `segments`, and a range locks the segments of all its granules.
    ///
    /// For ranges that are hardly larger than a granule: what a request costs depends on its size alone. But **ranges that do not overlap
    /// may exclude each other**, so a thread must not hold one range while it waits for another (debug builds panic
    /// when it would wait for itself). A large range costs as much as it has segments.
    ///
    /// # Errors
    /// `granule` or `segments` is not a power of two, there are more than [`SEGMENTS_MAX`](Self::SEGMENTS_MAX) segments, or no memory for them.
    pub fn segmented(granule: u64, segments: usize) -> Result<Self, SegmentsError> {
        if !granule.is_power_of_two() {
            return Err(SegmentsError::Granule(granule));
        }
        if !segments.is_power_of_two() || segments > Self::SEGMENTS_MAX {
            return Err(SegmentsError::Segments(segments));
        }
        let form = Segmented::new(granule.trailing_zeros(), segments);
        Ok(RangeLock {
            form: Form::Segmented(form.ok_or(SegmentsError::OutOfMemory(segments))?),
            cpus: crate::cpus(),
            #[cfg(all(debug_assertions, not(loom)))]
            id: crate::held::next_lock(),
        })
    }

    /// Waits until nobody writes in the range. `..` is all addresses; an empty range conflicts with nothing and is
    /// granted at once.
    ///
    /// # Panics
    /// In a debug build, if this thread would wait for itself.
    #[inline]
    #[track_caller]
    pub fn read(&self, range: impl RangeBounds<u64>) -> ReadGuard<'_> {
        self.lock(range)
    }

    /// Waits until nobody else reads or writes in the range. See [`read`](Self::read).
    ///
    /// # Panics
    /// In a debug build, if this thread would wait for itself.
    #[inline]
    #[track_caller]
    pub fn write(&self, range: impl RangeBounds<u64>) -> WriteGuard<'_> {
        self.lock(range)
    }

    /// Read access if it can be had at once.
    ///
    /// # Errors
    /// [`NotGranted::WouldBlock`]
    #[inline]
    #[track_caller]
    pub fn try_read(&self, range: impl RangeBounds<u64>) -> Result<ReadGuard<'_>, NotGranted> {
        self.try_lock(range)
    }

    /// Write access if it can be had at once.
    ///
    /// # Errors
    /// [`NotGranted::WouldBlock`]
    #[inline]
    #[track_caller]
    pub fn try_write(&self, range: impl RangeBounds<u64>) -> Result<WriteGuard<'_>, NotGranted> {
        self.try_lock(range)
    }

    /// Waits for read access until then.
    ///
    /// # Errors
    /// [`NotGranted::TimedOut`]
    ///
    /// # Panics
    /// In a debug build, if this thread itself holds what it would wait for.
    #[track_caller]
    pub fn try_read_until(
        &self,
        range: impl RangeBounds<u64>,
        deadline: Instant,
    ) -> Result<ReadGuard<'_>, NotGranted> {
        self.lock_until(range, Some(deadline))
    }

    /// Waits for write access until then.
    ///
    /// # Errors
    /// [`NotGranted::TimedOut`]
    ///
    /// # Panics
    /// As [`try_read_until`](Self::try_read_until).
    #[track_caller]
    pub fn try_write_until(
        &self,
        range: impl RangeBounds<u64>,
        deadline: Instant,
    ) -> Result<WriteGuard<'_>, NotGranted> {
        self.lock_until(range, Some(deadline))
    }

    /// Waits for read access so long.
    ///
    /// # Errors
    /// [`NotGranted::TimedOut`]
    ///
    /// # Panics
    /// As [`try_read_until`](Self::try_read_until).
    #[track_caller]
    pub fn try_read_for(
        &self,
        range: impl RangeBounds<u64>,
        time: Duration,
    ) -> Result<ReadGuard<'_>, NotGranted> {
        self.lock_until(range, Instant::now().checked_add(time))
    }

    /// Waits for write access so long.
    ///
    /// # Errors
    /// [`NotGranted::TimedOut`]
    ///
    /// # Panics
    /// As [`try_read_until`](Self::try_read_until).
    #[track_caller]
    pub fn try_write_for(
        &self,
        range: impl RangeBounds<u64>,
        time: Duration,
    ) -> Result<WriteGuard<'_>, NotGranted> {
        self.lock_until(range, Instant::now().checked_add(time))
    }

    /// A future of read access. A time limit for it is the runtime's: dropped, it leaves no trace.
    pub fn read_async(&self, range: impl RangeBounds<u64>) -> Acquire<'_, Read> {
        Acquire::new(self, Span::of(range))
    }

    /// A future of write access. See [`read_async`](Self::read_async).
    pub fn write_async(&self, range: impl RangeBounds<u64>) -> Acquire<'_, Write> {
        Acquire::new(self, Span::of(range))
    }
}

/// Threads.
impl RangeLock {
    #[inline]
    #[track_caller]
    fn lock<A: crate::Access>(&self, range: impl RangeBounds<u64>) -> Guard<'_, A, ByThread> {
        let Some(span) = Span::of(range) else {
            return Guard::new(self, None);
        };
        let place = match self.try_take(span, A::KIND) {
            Some(place) => place,
            None => self.wait_for_ever(span, A::KIND),
        };
        self.note_thread(span, A::KIND);
        Guard::new(self, Some(Hold { span, place }))
    }

    #[inline]
    #[track_caller]
    fn try_lock<A: crate::Access>(
        &self,
        range: impl RangeBounds<u64>,
    ) -> Result<Guard<'_, A, ByThread>, NotGranted> {
        let Some(span) = Span::of(range) else {
            return Ok(Guard::new(self, None));
        };
        let place = self.try_take(span, A::KIND);
        let place = place.ok_or(NotGranted::WouldBlock)?;
        self.note_thread(span, A::KIND);
        Ok(Guard::new(self, Some(Hold { span, place })))
    }

    /// Without a deadline: until the end of time.
    #[track_caller]
    fn lock_until<A: crate::Access>(
        &self,
        range: impl RangeBounds<u64>,
        deadline: Option<Instant>,
    ) -> Result<Guard<'_, A, ByThread>, NotGranted> {
        let Some(span) = Span::of(range) else {
            return Ok(Guard::new(self, None));
        };
        let place = match self.try_take(span, A::KIND) {
            Some(place) => Some(place),
            None => self.wait_until(span, A::KIND, deadline),
        };
        let place = place.ok_or(NotGranted::TimedOut)?;
        self.note_thread(span, A::KIND);
        Ok(Guard::new(self, Some(Hold { span, place })))
    }

    /// Returns only what the caller does not have, in registers: a whole `Hold` would go through memory, written in
    /// halves and read as one, for which the CPU waits longer than for the lock.
    #[inline]
    fn try_take(&self, span: Span, kind: Kind) -> Option<Place> {
        match &self.form {
            Form::Ordered(ordered) => ordered.try_take(span, kind),
            Form::Segmented(segmented) => segmented.try_take(span, kind).then_some(Place::LEAVES),
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait_for_ever(&self, span: Span, kind: Kind) -> Place {
        self.wait_until(span, kind, None)
            .expect("without a deadline nothing ends the wait")
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait_until(&self, span: Span, kind: Kind, deadline: Option<Instant>) -> Option<Place> {
        match deadline {
            None => self.forbid_self_wait(span, kind),
            // Whom it would queue behind may be gone in time; what it holds itself is not given back meanwhile.
            Some(_) if !Deadline(deadline).is_over() => self.forbid_own(span, kind),
            Some(_) => {}
        }
        self.wait(span, kind, deadline)
    }

    /// Tries for a bounded time, then queues up. `None`: the time is over.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn wait(&self, span: Span, kind: Kind, deadline: Option<Instant>) -> Option<Place> {
        let deadline = Deadline(deadline);
        let served = || match &self.form {
            Form::Ordered(ordered) => Some(ordered.served(span)),
            Form::Segmented(_) => None,
        };
        let soon = wait::try_again(self.cpus, deadline, served, || self.try_take(span, kind));
        if soon.is_some() || deadline.is_over() {
            return soon;
        }
        let this_thread = || Wake::Thread(thread::current());
        let mut turn = self.start(span, kind, this_thread);
        loop {
            match turn {
                Turn::Granted(place) => return Some(place),
                Turn::Waits(pending) => {
                    if deadline.0.is_none() {
                        // While it tried, others may have queued up before it.
                        self.forbid_wait_behind(span, kind, &pending);
                    }
                    if !wait::park(self.cpus, pending.waiter(), deadline) {
                        self.cancel(span, kind, &pending);
                        return None;
                    }
                    turn = self.go_on(span, kind, pending, this_thread);
                }
            }
        }
    }
}

/// Requests and what becomes of them.
impl RangeLock {
    /// Takes the range or a place in the queue.
    pub(crate) fn start(&self, span: Span, kind: Kind, wake: impl Fn() -> Wake) -> Turn {
        match &self.form {
            Form::Ordered(ordered) => {
                let waiter = Waiter::new(wake());
                match ordered.request(span, kind, Some(&waiter)) {
                    Outcome::Granted(place) => Turn::Granted(place),
                    Outcome::Blocked => Turn::Waits(Pending::Ordered(waiter)),
                }
            }
            Form::Segmented(segmented) => {
                let progress = segmented.start(span, kind, || Waiter::new(wake()));
                turn_of(progress)
            }
        }
    }

    /// Looks whether it is this request's turn.
    pub(crate) fn go_on(
        &self,
        span: Span,
        kind: Kind,
        pending: Pending,
        wake: impl Fn() -> Wake,
    ) -> Turn {
        if !pending.waiter().is_granted() {
            return Turn::Waits(pending);
        }
        match (&self.form, pending) {
            (Form::Segmented(segmented), Pending::Segmented(progress)) => {
                let progress = segmented.go_on(span, kind, &progress, || Waiter::new(wake()));
                turn_of(progress)
            }
            (_, _) => Turn::Granted(Place::LEAVES),
        }
    }

    /// Gives a place in the queue back, and what was granted meanwhile.
    pub(crate) fn cancel(&self, span: Span, kind: Kind, pending: &Pending) {
        match (&self.form, pending) {
            (Form::Ordered(ordered), Pending::Ordered(waiter)) => {
                if !ordered.cancel(span, kind, waiter) {
                    ordered.release(span, kind, Place::LEAVES);
                }
            }
            (Form::Segmented(segmented), Pending::Segmented(progress)) => {
                segmented.cancel(span, kind, progress);
            }
            (_, _) => unreachable!("a request of another lock"),
        }
    }

    #[inline]
    pub(crate) fn release(&self, hold: Hold, kind: Kind, by_thread: bool) {
        if by_thread {
            self.forget_thread(hold.span, kind);
        }
        match &self.form {
            Form::Ordered(ordered) => ordered.release(hold.span, kind, hold.place),
            Form::Segmented(segmented) => segmented.release(hold.span, kind),
        }
    }

    pub(crate) fn downgrade(&self, hold: Hold, by_thread: bool) {
        if by_thread {
            self.renote(hold.span, Kind::Write, &[(hold.span, Kind::Read)]);
        }
        match &self.form {
            Form::Ordered(ordered) => ordered.downgrade(hold.span),
            Form::Segmented(segmented) => segmented.downgrade(hold.span),
        }
    }

    pub(crate) fn split(
        &self,
        hold: Hold,
        kind: Kind,
        by_thread: bool,
        left: Span,
        right: Span,
    ) -> Place {
        let place = match &self.form {
            Form::Ordered(ordered) => ordered.split(hold.span, kind, hold.place, left, right),
            Form::Segmented(segmented) => {
                segmented.split(kind, left, right);
                hold.place
            }
        };
        if by_thread {
            self.renote(hold.span, kind, &[(left, kind), (right, kind)]);
        }
        place
    }
}

#[cfg(test)]
impl RangeLock {
    pub(crate) fn ordered(&self) -> &Ordered {
        match &self.form {
            Form::Ordered(ordered) => ordered,
            Form::Segmented(_) => panic!("a segmented lock"),
        }
    }
}

fn turn_of(progress: Option<Progress>) -> Turn {
    match progress {
        Some(progress) => Turn::Waits(Pending::Segmented(progress)),
        None => Turn::Granted(Place::LEAVES),
    }
}

impl Pending {
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        match self {
            Pending::Ordered(waiter) => waiter,
            Pending::Segmented(progress) => progress.waiter(),
        }
    }
}

/// Threads that wait for themselves: found in debug builds.
#[cfg(all(debug_assertions, not(loom)))]
impl RangeLock {
    #[track_caller]
    fn note_thread(&self, span: Span, kind: Kind) {
        crate::held::take(self.id, span, kind, std::panic::Location::caller());
    }

    pub(crate) fn forget_thread(&self, span: Span, kind: Kind) {
        crate::held::give(self.id, span, kind);
    }

    fn renote(&self, span: Span, kind: Kind, parts: &[(Span, Kind)]) {
        if let Some(at) = crate::held::give(self.id, span, kind) {
            for &(span, kind) in parts {
                crate::held::take(self.id, span, kind, at);
            }
        }
    }

    #[track_caller]
    fn forbid_self_wait(&self, span: Span, kind: Kind) {
        self.forbid_own(span, kind);
        let held = crate::held::all_of(self.id);
        if let Some(message) = self.wait_behind(span, kind, None, &held) {
            panic!("{message}");
        }
    }

    /// For what it holds itself.
    #[track_caller]
    fn forbid_own(&self, span: Span, kind: Kind) {
        let held = crate::held::all_of(self.id);
        let writes = |held: &crate::held::Held| kind == Kind::Write || held.kind == Kind::Write;
        let meet = |other: Span| match &self.form {
            Form::Ordered(_) => span.overlaps(other),
            Form::Segmented(segmented) => segmented.meet(span, other),
        };
        if let Some(held) = held.iter().find(|held| writes(held) && meet(held.span)) {
            panic!(
                "a thread waits for itself: it wants to {kind:?} {span:?}, and holds {:?} {:?}, taken at {}",
                held.kind, held.span, held.at
            );
        }
    }

    /// The same for a request that is in the queue, which it leaves before it panics.
    #[track_caller]
    fn forbid_wait_behind(&self, span: Span, kind: Kind, pending: &Pending) {
        let held = crate::held::all_of(self.id);
        if let Some(message) = self.wait_behind(span, kind, Some(pending.waiter()), &held) {
            self.cancel(span, kind, pending);
            panic!("{message}");
        }
    }

    /// Says that a request waits for one that waits for its own thread, at the end.
    fn wait_behind(
        &self,
        span: Span,
        kind: Kind,
        own: Option<&Arc<Waiter>>,
        held: &[crate::held::Held],
    ) -> Option<String> {
        if held.is_empty() {
            return None;
        }
        let held = match &self.form {
            Form::Ordered(ordered) => ordered.waits_for_held(span, kind, own, held),
            Form::Segmented(segmented) => segmented.waits_for_held(span, kind, own, held),
        }?;
        Some(format!(
            "a thread waits for itself: it wants to {kind:?} {span:?} after somebody who waits for the {:?} {:?} that it holds, \
             taken at {}",
            held.kind, held.span, held.at
        ))
    }
}

#[cfg(not(all(debug_assertions, not(loom))))]
impl RangeLock {
    #[inline]
    fn note_thread(&self, _: Span, _: Kind) {}

    #[inline]
    pub(crate) fn forget_thread(&self, _: Span, _: Kind) {}

    fn renote(&self, _: Span, _: Kind, _: &[(Span, Kind)]) {}

    fn forbid_self_wait(&self, _: Span, _: Kind) {}

    fn forbid_own(&self, _: Span, _: Kind) {}

    fn forbid_wait_behind(&self, _: Span, _: Kind, _: &Pending) {}
}

impl Default for RangeLock {
    fn default() -> Self {
        RangeLock::new()
    }
}

/// Shows how the lock has adapted: at which addresses it is split.
impl fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.form {
            Form::Ordered(ordered) => write!(f, "RangeLock(split at {:?})", ordered.borders()),
            Form::Segmented(_) => f.write_str("RangeLock(segmented)"),
        }
    }
}
#[cfg(all(test, debug_assertions, not(loom)))]
mod tests {
    use super::*;

    /// A lock in the place of one that was dropped with a guard forgotten was taken for it.
    #[test]
    fn what_was_forgotten_of_a_lock_is_not_held_of_another() {
        let held = |lock: &RangeLock| crate::held::all_of(lock.id).len();
        let mut place = RangeLock::new();
        std::mem::forget(place.write(0..8));
        assert_eq!(held(&place), 1);
        place = RangeLock::new();
        assert_eq!(held(&place), 0);
    }
}
