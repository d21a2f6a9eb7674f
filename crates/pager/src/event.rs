//! What a pager tells its owner.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use crate::source::SourceError;
use crate::sync::Word;

/// Something that the owner should know. Pages count from the first page of the first region by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Pages could not be had. Who touches them, or waits for them, gets SIGBUS (SIGSEGV where the kernel cannot poison pages):
    /// the memory is not what it should be, so its user must not go on.
    Lost {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
        /// Why.
        why: Loss,
    },
    /// Lost pages of memory that was handed over cannot be marked, by a kernel before 6.6, or were not until the pager ended, because the memory was
    /// about to change: who touches them waits, instead of
    /// being stopped, until their owner gives them up or is ended, which is the thing to do.
    Unstopped {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
    },
    /// A fault on memory that is registered and was not named to the pager: its content is not known. It is treated as lost.
    Outside {
        /// Of the page.
        address: usize,
    },
    /// The messages of a descriptor cannot be read. All that is missing of its memory is lost.
    Unreadable {
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
    /// Pages could not be fetched in the background. Nobody waits for them; a fault tries again.
    NotFetched {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
        /// Why.
        why: Loss,
    },
    /// The background has ended, after some tries, though pages are missing, or no hope is left for them. Nobody waits for them; a fault tries again,
    /// and so does [`start_background`](crate::Pager::start_background).
    Unfilled {
        /// How many.
        pages: usize,
    },
    /// The owner of memory gave content up (a balloon). It reads as zero from now on.
    Removed {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
    },
    /// Memory was unmapped: it is served no longer.
    Unmapped {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
    },
    /// Memory was moved to another address, where it cannot be served: what was missing is lost.
    Moved {
        /// The first.
        page: usize,
        /// How many.
        pages: usize,
    },
    /// The process forked. In the child what was missing is lost: who touches it gets SIGBUS.
    Forked,
    /// A thread of the pager panicked, and began anew.
    Restarted,
    /// Where the threads run that fault cannot be read, since they are of another process, end at once, or there is no /proc: readers are not bound
    /// [near](crate::Builder::near) them. Told once.
    NotNear,
}

/// Why pages are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The source says no.
    #[error("{0}")]
    Source(SourceError),
    /// The source did not give the page within the pager's timeout.
    #[error("the source gave no answer in time")]
    Timeout,
    /// The kernel did not put the page into place.
    #[error("putting pages into place: {}", std::io::Error::from(*.0))]
    Kernel(rustix::io::Errno),
    /// The messages of the descriptor could not be read.
    #[error("reading messages: {}", std::io::Error::from(*.0))]
    Unreadable(rustix::io::Errno),
    /// The pager was stopped before.
    #[error("the pager was stopped")]
    Stopped,
}

/// Events on their way: bounded, and filled without locks or allocation.
pub(crate) struct Events {
    queue: ArrayQueue<Event>,
    dropped: AtomicU64,
    told: Word,
}

/// More than that nobody has asked for: the rest is counted.
const ROOM: usize = 1024;

impl Events {
    pub fn new() -> Events {
        Events {
            queue: ArrayQueue::new(ROOM),
            dropped: AtomicU64::new(0),
            told: Word::new(),
        }
    }

    /// Async-signal-safe.
    pub fn tell(&self, event: Event) {
        if self.queue.push(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Release: pairs with the Acquire in `next`.
        self.told
            .value()
            .fetch_add(1, crate::sync::Ordering::Release);
        self.told.wake_one();
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// The next event, waiting for it at most so long.
    pub fn next(&self, at_most: Duration) -> Option<Event> {
        let until = Instant::now().checked_add(at_most);
        loop {
            let seen = self.told.value().load(crate::sync::Ordering::Acquire);
            if let Some(event) = self.queue.pop() {
                return Some(event);
            }
            let left = match until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                return None;
            }
            self.told.sleep(seen, left);
        }
    }
}
