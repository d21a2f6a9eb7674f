//! What a worker does that waits for the next region of its team: it may have been taken away meanwhile, or taken away and
//! given back before it noticed, and docks are opened for either.

use crate::gate::Gate;
use crate::sync::{AtomicU32, Ordering};

/// How a worker stands at a dock.
#[derive(Debug)]
pub(crate) struct Berth {
    /// The generation of the dock that it knows.
    seen: u32,
    /// The generation from which on it takes part, once it has: how far away that is may have any sign after 2^31 regions.
    joined: Option<u32>,
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
            joined: None,
        }
    }

    /// `is_mine`: whether the worker still plays the part; asked after the dock was looked at, since who takes it away
    /// opens the dock afterwards.
    #[inline]
    pub(crate) fn next<T>(
        &mut self,
        dock: &Gate<T>,
        is_mine: impl FnOnce() -> bool,
        join_at: &AtomicU32,
    ) -> Next {
        let now = dock.generation();
        if !is_mine() {
            return Next::Leave;
        }
        // Written before the part was given: what says that it is the worker's says this as well.
        self.come(now, join_at.load(Ordering::Relaxed))
    }

    fn come(&mut self, now: u32, join_at: u32) -> Next {
        let has_joined = self.joined == Some(join_at) || now.wrapping_sub(join_at) as i32 >= 0;
        self.joined = has_joined.then_some(join_at);
        let is_new = now != self.seen;
        self.seen = now;
        if is_new && has_joined {
            Next::Begin
        } else {
            Next::Wait(now)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn regions_begin_however_many_there_were() {
        for first in [0_u32, 7, u32::MAX - 1] {
            let now = |after: u32| first.wrapping_add(after);
            let join_at = now(1);
            let mut berth = Berth::new(&AtomicU32::new(join_at));
            assert_eq!(berth.come(now(0), join_at), Next::Wait(now(0)));
            for after in [1, 2, 1 << 30, 1 << 31, (1 << 31) + 1, 3 << 30, u32::MAX] {
                assert_eq!(berth.come(now(after), join_at), Next::Begin, "{after}");
                assert_eq!(berth.come(now(after), join_at), Next::Wait(now(after)));
            }
            // Taken away and given back for a later region, which it did not notice.
            let later = now(3);
            assert_eq!(berth.come(now(2), later), Next::Wait(now(2)));
            assert_eq!(berth.come(now(3), later), Next::Begin);
        }
    }
}
