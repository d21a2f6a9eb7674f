//! What the screen asks of the thread that records.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use amdahl_top::{By, Tab};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Asked {
    /// Which view records.
    pub tab: Tab,
    /// What makes its rows.
    pub by: By,
    /// Time between two snapshots.
    pub interval: Duration,
    /// Another number: begin from nothing.
    pub turn: u64,
    /// End.
    pub is_over: bool,
}

/// Asked by one thread, done by another.
pub struct Control {
    asked: Mutex<Asked>,
    changed: Condvar,
}

impl Control {
    /// At first this is asked for.
    pub fn new(tab: Tab, by: By, interval: Duration) -> Control {
        let asked = Asked {
            tab,
            by,
            interval,
            turn: 0,
            is_over: false,
        };
        Control {
            asked: Mutex::new(asked),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        // It is plain data: whole even where a thread panicked with it.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is asked for now.
    pub fn now(&self) -> Asked {
        *self.lock()
    }

    /// Asks for something else.
    pub fn ask(&self, change: impl FnOnce(&mut Asked)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `turn` is over or `at_most` has passed. Whether the turn goes on.
    pub fn wait(&self, turn: u64, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let mut asked = self.lock();
        while asked.turn == turn && !asked.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            let woken = self.changed.wait_timeout(asked, left);
            asked = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}
