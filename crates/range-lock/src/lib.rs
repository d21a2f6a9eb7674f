//! Reader-writer locks over ranges.

mod future;
mod gate;
mod guard;
mod held;
mod lock;
mod map;
mod ordered;
mod segmented;
mod span;
mod sync;
mod wait;
mod waiter;

pub use future::Acquire;
pub use guard::{Access, ByTask, ByThread, Guard, Owner, Read, ReadGuard, Write, WriteGuard};
pub use lock::{NotGranted, RangeLock, SegmentsError};
pub use map::{Gaps, Iter, Reader, SeqRangeMap, Snapshot};

pub(crate) use sealed::Kind;

/// What only this crate implements.
mod sealed {
    use crate::guard::{ByTask, ByThread, Read, Write};

    /// Whether a request shares its range with others of its kind.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Kind {
        Read,
        Write,
    }

    pub trait Access {
        #[doc(hidden)]
        const KIND: Kind;
    }

    impl Access for Read {
        const KIND: Kind = Kind::Read;
    }

    impl Access for Write {
        const KIND: Kind = Kind::Write;
    }

    pub trait Owner {
        #[doc(hidden)]
        const IS_THREAD: bool;
    }

    impl Owner for ByThread {
        const IS_THREAD: bool = true;
    }

    impl Owner for ByTask {
        const IS_THREAD: bool = false;
    }
}

/// CPUs that this process may use, as far as that is known.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
