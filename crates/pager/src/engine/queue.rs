//! Faults that were told and that nobody serves yet.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A fault that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub page: usize,
    pub thread: u64,
    pub since_ns: u64,
}

/// Faults in the order in which they were told. Bounded by the threads that fault, as each waits for its own.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    change: Condvar,
    /// As many as are in it, for a look without the lock.
    len: AtomicUsize,
    idle: AtomicUsize,
}

#[derive(Default)]
struct State {
    faults: VecDeque<Fault>,
    /// Grows when those who wait should look around.
    turn: u64,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, faults: impl IntoIterator<Item = Fault>) {
        let mut state = self.state();
        let before = state.faults.len();
        state.faults.extend(faults);
        let (now, idle) = (state.faults.len(), self.idle.load(Ordering::Relaxed));
        self.len.store(now, Ordering::SeqCst);
        drop(state);
        for _ in before..now.min(before + idle) {
            self.change.notify_one();
        }
    }

    pub fn pop(&self) -> Option<Fault> {
        if self.is_empty() {
            return None;
        }
        let mut state = self.state();
        let fault = state.faults.pop_front();
        self.len.store(state.faults.len(), Ordering::SeqCst);
        fault
    }

    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::SeqCst) == 0
    }

    /// Since when the first has waited.
    pub fn oldest_ns(&self) -> Option<u64> {
        match self.is_empty() {
            true => None,
            false => self.state().faults.iter().map(|fault| fault.since_ns).min(),
        }
    }

    /// Takes those out that were told before.
    pub fn take_late(&self, before_ns: u64) -> Vec<Fault> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut state = self.state();
        let all = std::mem::take(&mut state.faults);
        let is_late = |fault: &Fault| fault.since_ns < before_ns;
        let (late, left): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(is_late);
        state.faults = left;
        self.len.store(state.faults.len(), Ordering::SeqCst);
        late.into()
    }

    /// How many wait for something to do.
    pub fn idle(&self) -> usize {
        self.idle.load(Ordering::Relaxed)
    }

    /// Has all who wait look around.
    pub fn call(&self) {
        self.state().turn += 1;
        self.change.notify_all();
    }

    /// Changes with each [`call`](Self::call).
    pub fn turn(&self) -> u64 {
        self.state().turn
    }

    /// A fault, waiting for one at most so long, and no longer than until the `turn` is another.
    pub fn wait(&self, turn: u64, at_most: Duration) -> Option<Fault> {
        let nothing = |state: &mut State| state.turn == turn && state.faults.is_empty();
        let state = self.state();
        self.idle.fetch_add(1, Ordering::Relaxed);
        let mut state = match at_most {
            Duration::MAX => self.change.wait_while(state, nothing),
            _ => self
                .change
                .wait_timeout_while(state, at_most, nothing)
                .map(|(state, _)| state)
                .map_err(|error| PoisonError::new(error.into_inner().0)),
        }
        .unwrap_or_else(PoisonError::into_inner);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        let fault = state.faults.pop_front();
        self.len.store(state.faults.len(), Ordering::SeqCst);
        fault
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn fault(since_ns: u64) -> Fault {
        Fault {
            page: since_ns as usize,
            thread: 1,
            since_ns,
        }
    }

    #[test]
    fn late_faults_are_taken_out_and_the_others_stay_in_order() {
        let queue = Queue::default();
        queue.push([3, 9, 1, 8].map(fault));
        assert_eq!(queue.oldest_ns(), Some(1));
        assert_eq!(queue.take_late(5), [fault(3), fault(1)]);
        assert_eq!((queue.pop(), queue.pop()), (Some(fault(9)), Some(fault(8))));
        assert!(queue.pop().is_none() && queue.is_empty() && queue.oldest_ns().is_none());
    }

    #[test]
    fn who_waits_gets_a_fault_or_is_called() {
        let queue = Queue::default();
        let turn = queue.turn();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| queue.wait(turn, Duration::MAX));
            while queue.idle() == 0 {
                std::thread::yield_now();
            }
            queue.push([fault(4)]);
            assert_eq!(first.join().unwrap(), Some(fault(4)));
            let second = scope.spawn(|| queue.wait(turn, Duration::from_secs(3600)));
            queue.call();
            assert_eq!(second.join().unwrap(), None);
        });
        // A call before the wait is not missed.
        assert_eq!(queue.wait(turn, Duration::MAX), None);
        assert_eq!(queue.wait(turn + 1, Duration::from_millis(1)), None);
    }
}
