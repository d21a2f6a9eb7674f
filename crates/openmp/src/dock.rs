//! What a worker does that waits for the next region of its team: it may have been taken away meanwhile, or taken away and
//! given back before it noticed, and docks are opened for either.

use crate::gate::Gate;
use crate::sync::{AtomicU32, Ordering};

/// How a worker stands at a dock.
#[derive(Debug)]
pub(crate) struct Berth {
    /// The generation of the dock that it knows.
    seen: u32,
}

/// What it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It plays another part now, or none.
    Leave,
    /// A region has begun in which it takes part.
    Begin,
    /// It waits until the dock has another generation than this.
    Wait(u32),
}

impl Berth {
    /// Before a worker's first region with a member, which takes part from this generation of the dock on.
    pub(crate) fn new(join_at: &AtomicU32) -> Berth {
        Berth {
            // What is before is not its own.
            seen: join_at.load(Ordering::Relaxed).wrapping_sub(1),
        }
    }

    /// `is_mine`: whether the worker still plays the part; asked after the dock was looked at, since who takes it away
    /// opens the dock afterwards.
    #[inline]
    pub(crate) fn next(
        &mut self,
        dock: &Gate,
        is_mine: impl FnOnce() -> bool,
        join_at: &AtomicU32,
    ) -> Next {
        let now = dock.generation();
        if !is_mine() {
            return Next::Leave;
        }
        // Written before the part was given: what says that it is the worker's says this as well.
        let has_joined = now.wrapping_sub(join_at.load(Ordering::Relaxed)) as i32 >= 0;
        let is_new = now != self.seen;
        self.seen = now;
        if is_new && has_joined {
            Next::Begin
        } else {
            Next::Wait(now)
        }
    }
}
