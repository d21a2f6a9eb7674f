//! Work on many threads whose results come in the order in which it was given away.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use amdahl_pool::{Handle, Pool, Priority, Spawn};

use crate::{Error, Result};

/// How far something has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of memory so far.
    pub done_bytes: u64,
    /// Bytes of memory in all, where that is known before the end.
    pub total_bytes: Option<u64>,
}

/// Who is told of it; may end it.
pub(crate) type Watcher<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

pub(crate) fn tell(
    watcher: &mut Watcher<'_>,
    done_bytes: u64,
    total_bytes: Option<u64>,
) -> Result<()> {
    let progress = Progress {
        done_bytes,
        total_bytes,
    };
    match watcher(progress) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}

/// Threads on the CPUs that may be used; at most `threads` of them.
pub(crate) fn pool(threads: Option<u32>) -> Result<Pool> {
    let builder = Pool::builder().name("image");
    let builder = match threads {
        Some(threads) => builder.threads_max(threads.max(1)),
        None => builder,
    };
    builder
        .build()
        .map_err(|error| Error::io("start", Path::new("threads"), io::Error::other(error)))
}

/// Work that was given away and not yet taken back.
pub(crate) struct InOrder<T> {
    flying: VecDeque<Handle<T>>,
    spawn: Spawn,
}

impl<T: Send + 'static> InOrder<T> {
    /// `first`: before work of another queue.
    pub fn new(first: bool) -> InOrder<T> {
        let priority = if first {
            Priority::High
        } else {
            Priority::Normal
        };
        InOrder {
            flying: VecDeque::new(),
            spawn: Spawn::new().priority(priority),
        }
    }

    pub fn len(&self) -> usize {
        self.flying.len()
    }

    pub fn give(&mut self, pool: &Pool, work: impl FnOnce() -> T + Send + 'static) {
        self.flying.push_back(pool.spawn_with(&self.spawn, work));
    }

    pub fn is_ready(&self) -> bool {
        self.flying.front().is_some_and(Handle::is_done)
    }

    /// Waits for the oldest.
    ///
    /// # Panics
    /// As the work did.
    pub fn take(&mut self) -> Option<T> {
        match self.flying.pop_front()?.join() {
            Ok(done) => Some(done),
            Err(error) => {
                error.resume();
                unreachable!("nobody cancels this work")
            }
        }
    }
}

impl<T> Drop for InOrder<T> {
    /// What has not begun need not begin: somebody has given up.
    fn drop(&mut self) {
        for handle in &self.flying {
            handle.cancel();
        }
    }
}
