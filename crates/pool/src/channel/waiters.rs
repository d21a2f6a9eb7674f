//! Who waits at one side of a channel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use amdahl_placement::Partner;

use crate::spawn::this_parker;
use crate::spin::Spinner;
use crate::states;
use crate::waits::{self, WaitCount, Waits, lock};
use crate::worker::Worker;

/// A place in the list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

struct Waiting {
    ticket: u64,
    waker: Waker,
    /// Wants to know how long waking takes.
    is_thread: bool,
}

#[derive(Default)]
struct List {
    next: u64,
    waiting: VecDeque<Waiting>,
}

/// Waiters of one side, threads and futures alike, first come first woken.
pub(super) struct Waiters {
    count: AtomicUsize,
    list: Mutex<List>,
    spinner: Mutex<Spinner>,
    waits: Waits,
    /// The same of all channels, without those that only spun: it would be a line that all write.
    of_all: &'static Waits,
    /// When somebody was last woken, ns since `since()`.
    notified_ns: AtomicU64,
    /// By a thread that was on this CPU.
    notified_from: AtomicU32,
}

fn since() -> Instant {
    static SINCE: OnceLock<Instant> = OnceLock::new();
    *SINCE.get_or_init(Instant::now)
}

impl Waiters {
    pub(super) fn new(of_all: &'static Waits) -> Self {
        Waiters {
            count: AtomicUsize::new(0),
            list: Mutex::default(),
            spinner: Mutex::default(),
            waits: Waits::new(of_all.what),
            of_all,
            notified_ns: AtomicU64::new(0),
            notified_from: AtomicU32::new(u32::MAX),
        }
    }

    pub(super) fn count(&self) -> WaitCount {
        self.waits.count()
    }

    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list, &waits::CHANNELS)
    }

    /// Something came: wakes the first who waits for it.
    #[inline]
    pub(super) fn notify(&self) {
        // Pairs with the fence in `enter`: either we see the waiter or it sees what came.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) > 0 {
            self.notify_first();
        }
    }

    #[cold]
    fn notify_first(&self) {
        let first = {
            let mut list = self.list();
            let first = list.waiting.pop_front();
            self.count.store(list.waiting.len(), Ordering::Relaxed);
            first
        };
        if let Some(first) = first {
            if first.is_thread {
                let now = since().elapsed().as_nanos() as u64;
                self.notified_ns.store(now, Ordering::Relaxed);
                let here = crate::sys::current_cpu();
                self.notified_from.store(here, Ordering::Relaxed);
            }
            first.waker.wake();
        }
    }

    pub(super) fn notify_all(&self) {
        let all = {
            let mut list = self.list();
            self.count.store(0, Ordering::Relaxed);
            std::mem::take(&mut list.waiting)
        };
        all.into_iter().for_each(|waiting| waiting.waker.wake());
    }

    fn enter(&self, waker: Waker, is_thread: bool) -> Ticket {
        let mut list = self.list();
        let ticket = list.next;
        list.next += 1;
        list.waiting.push_back(Waiting {
            ticket,
            waker,
            is_thread,
        });
        self.count.store(list.waiting.len(), Ordering::Relaxed);
        drop(list);
        fence(Ordering::SeqCst);
        Ticket(ticket)
    }

    /// Does not wait any more. Who was woken and does not take what came passes it on.
    pub(super) fn leave(&self, ticket: Option<Ticket>) {
        if ticket.is_some_and(|ticket| !self.remove(&ticket)) {
            self.notify();
        }
    }

    /// Whether it was still waiting.
    fn remove(&self, ticket: &Ticket) -> bool {
        // Whoever entered stored more than 0 before, so that 0 is a later value: it is not there any more.
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut list = self.list();
        let at = list.waiting.iter().position(|w| w.ticket == ticket.0);
        at.and_then(|at| list.waiting.remove(at));
        self.count.store(list.waiting.len(), Ordering::Relaxed);
        at.is_some()
    }

    /// Tries, spins, sleeps until `attempt` has an answer. `is_more` tells whether another's attempt would have one now.
    #[inline]
    pub(super) fn block<R>(
        &self,
        mut attempt: impl FnMut() -> Option<R>,
        is_more: impl Fn() -> bool,
    ) -> R {
        if let Some(result) = attempt() {
            return result;
        }
        self.block_slowly(&mut attempt, &is_more)
    }

    #[cold]
    fn block_slowly<R>(
        &self,
        attempt: &mut dyn FnMut() -> Option<R>,
        is_more: &dyn Fn() -> bool,
    ) -> R {
        let begun = Instant::now();
        let mut result = None;
        // Whoever holds it spins already: two of one side gain nothing.
        if let Ok(mut spinner) = self.spinner.try_lock() {
            spinner.spin(begun, self.partner(), &mut || {
                result = attempt();
                result.is_some()
            });
            if let Some(result) = result {
                spinner.waited(begun.elapsed(), None);
                self.waits.record(begun.elapsed(), false);
                return result;
            }
        }
        let mut sleep = || self.sleep(begun, attempt, is_more);
        let (result, event, latency) = match Worker::current() {
            Some(worker) => worker.away(&mut sleep),
            None => sleep(),
        };
        if let Ok(mut spinner) = self.spinner.try_lock() {
            spinner.waited(event, latency);
        }
        let waited = begun.elapsed();
        self.waits.record(waited, true);
        self.of_all.record(waited, true);
        result
    }

    /// Whether who is waited for may run meanwhile. If it was on this CPU when it last woke somebody it may still be: a kernel
    /// that puts the woken thread onto its waker's CPU leaves both there for as long as they take turns.
    fn partner(&self) -> Partner {
        match self.notified_from.load(Ordering::Relaxed) == crate::sys::current_cpu() {
            true => Partner::Waiting,
            false => Partner::Unknown,
        }
    }

    /// The result, how long the event took, and how long the wake-up after it.
    fn sleep<R>(
        &self,
        begun: Instant,
        attempt: &mut dyn FnMut() -> Option<R>,
        is_more: &dyn Fn() -> bool,
    ) -> (R, Duration, Option<Duration>) {
        let parker = this_parker();
        let mut latency = None;
        loop {
            let ticket = self.enter(parker.clone().into(), true);
            if let Some(result) = attempt() {
                // If we were woken too, somebody else gets it: what came may be more than we took.
                self.leave(Some(ticket));
                let event = begun.elapsed().saturating_sub(latency.unwrap_or_default());
                return (result, event, latency);
            }
            states::channel(&parker.0, None);
            let now = since().elapsed().as_nanos() as u64;
            let after = now.saturating_sub(self.notified_ns.load(Ordering::Relaxed));
            latency = Some(Duration::from_nanos(after.min(10_000_000)));
            self.remove(&ticket);
            if let Some(result) = attempt() {
                // Whom the next one woke may have been here before us, and found that it was not its turn: what came first
                // was not complete yet. Nobody else wakes it.
                if is_more() {
                    self.notify();
                }
                let event = begun.elapsed().saturating_sub(latency.unwrap_or_default());
                return (result, event, latency);
            }
            // Somebody was faster: wait again.
        }
    }

    /// As [`block`](Self::block), for futures.
    pub(super) fn poll<R>(
        &self,
        ticket: &mut Option<Ticket>,
        waker: &Waker,
        mut attempt: impl FnMut() -> Option<R>,
    ) -> Poll<R> {
        if let Some(result) = attempt() {
            self.leave(ticket.take());
            return Poll::Ready(result);
        }
        if let Some(old) = ticket.take() {
            self.remove(&old);
        }
        *ticket = Some(self.enter(waker.clone(), false));
        match attempt() {
            Some(result) => {
                self.leave(ticket.take());
                Poll::Ready(result)
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Two threads that took turns on one CPU each spun for the other one, which could not run.
    #[test]
    fn nobody_spins_for_who_woke_it_on_this_cpu() {
        if cfg!(miri) {
            return eprintln!("SKIPPED: Miri tells no CPU");
        }
        let allowed = amdahl_topology::allowed().unwrap();
        let waiters = Waiters::new(&waits::RECEIVERS);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // So that it stays where it is; ends with its thread.
                let first = allowed.first().unwrap();
                crate::sys::bind(0, &amdahl_topology::CpuSet::from_iter([first])).unwrap();
                assert_eq!(waiters.partner(), Partner::Unknown, "nobody was woken yet");
                let ticket = waiters.enter(this_parker().into(), true);
                waiters.notify();
                waiters.leave(Some(ticket));
                assert_eq!(waiters.partner(), Partner::Waiting);
                waiters.notified_from.store(first + 1, Ordering::Relaxed);
                assert_eq!(waiters.partner(), Partner::Unknown);
            });
        });
    }

    /// As when the second of two values is complete first: who was woken for it found nothing, and waits again.
    #[test]
    fn one_wake_up_is_enough_for_all_that_is_there() {
        for _ in 0..20 {
            let (waiters, there) = (Waiters::new(&waits::RECEIVERS), AtomicUsize::new(0));
            let take = || {
                let one = |left: usize| left.checked_sub(1);
                there
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one)
                    .ok()
            };
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| waiters.block(take, || there.load(Ordering::SeqCst) > 0));
                }
                while waiters.count.load(Ordering::SeqCst) < 3 {
                    std::thread::yield_now();
                }
                there.store(3, Ordering::SeqCst);
                waiters.notify();
            });
            assert_eq!(there.load(Ordering::SeqCst), 0);
        }
    }
}
