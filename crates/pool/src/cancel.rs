//! Tokens by which work learns that nobody wants it any more.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::sync::{AtomicBool, Mutex, Ordering, lock_of_handle};

/// Tells work that nobody wants it any more. Clones are the same token.
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Token>);

#[derive(Default)]
struct Token {
    is_cancelled: AtomicBool,
    /// Futures that wait for something, by their addresses. A token keeps none of them.
    waiting: Mutex<HashMap<usize, Weak<dyn Cancels>>>,
}

/// What is told at once.
pub(crate) trait Cancels: Send + Sync {
    /// The token was cancelled.
    fn cancelled(self: Arc<Self>);
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on [`is_cancelled`](Self::is_cancelled); work with this token that has not begun never begins, and futures with it
    /// are dropped instead of polled. One that waits is woken for that. O(futures that wait with this token).
    pub fn cancel(&self) {
        // Before the lock is taken: whoever takes it later sees it in `add`.
        self.0.is_cancelled.store(true, Ordering::Release);
        let waiting = std::mem::take(&mut *lock_of_handle(&self.0.waiting));
        for task in waiting.into_values() {
            if let Some(task) = task.upgrade() {
                task.cancelled();
            }
        }
    }

    /// Long work asks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::Acquire)
    }

    /// `task`, which is at `address`, is told. False: the token is cancelled already, and it is not.
    pub(crate) fn add(&self, address: usize, task: Weak<dyn Cancels>) -> bool {
        let mut waiting = lock_of_handle(&self.0.waiting);
        if self.is_cancelled() {
            return false;
        }
        waiting.insert(address, task);
        true
    }

    /// What is at `address` need not be told any more.
    pub(crate) fn remove(&self, address: usize) {
        let gone = lock_of_handle(&self.0.waiting).remove(&address);
        drop(gone);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiting(&self) -> usize {
        lock_of_handle(&self.0.waiting).len()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelToken")
            .field(&self.is_cancelled())
            .finish()
    }
}
