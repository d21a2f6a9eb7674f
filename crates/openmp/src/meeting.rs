//! When is a meeting over: all have arrived, and no task is left.
//!
//! The last one to arrive and whoever ends the last task may be two threads, and the second may belong to no team. One
//! of them, and one only, lets the team go on. Both write their part and then read the other's, with a sequentially
//! consistent fence between, so at least one finds both done; the number in the token keeps one who was late from ending a later
//! meeting for the one he meant.

use crate::sync::{AtomicU32, AtomicU64, Line, Ordering, fence};

/// What all do when a meeting is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// They go on in the region.
    Barrier,
    /// The master goes on behind it.
    End,
}

/// Who has come to the ends of regions of a team of few threads: a number that only grows, so that the master, which looks at it and at the tasks that are left, sees
/// itself when the region is over. Others only wake it if it sleeps, and may do so late: in the next region.
#[derive(Debug, Default)]
pub(crate) struct Few {
    come: Line<AtomicU32>,
}

impl Few {
    /// A thread has come. True: it is the one that makes the number `all`, and what the others did before has happened before this returns.
    #[inline]
    pub(crate) fn come(&self, all: u32) -> bool {
        self.come.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == all
    }

    /// Whether all have come, and what they did before has happened.
    #[inline]
    pub(crate) fn are_there(&self, all: u32) -> bool {
        self.come.load(Ordering::Acquire) == all
    }

    /// Counts anew. Nobody may be coming.
    pub(crate) fn reset(&self) {
        self.come.store(0, Ordering::Relaxed);
    }
}

/// The state of a team's meetings at which tasks are left when all have arrived.
#[derive(Debug, Default)]
pub(crate) struct Full {
    /// The number of the meeting times 2, plus 1 for the end of a region; 0: none.
    token: Line<AtomicU64>,
    /// How many there were. Written by the last one to arrive only.
    count: AtomicU64,
}

impl Full {
    /// All have arrived. True: the caller lets them go on.
    pub(crate) fn all_arrived(&self, meeting: Meeting, unfinished: impl Fn() -> u32) -> bool {
        if unfinished() == 0 {
            return true;
        }
        let number = self.count.load(Ordering::Relaxed) + 1;
        self.count.store(number, Ordering::Relaxed);
        let token = number << 1 | u64::from(meeting == Meeting::End);
        // Release: who claims it sees what the others did before they arrived.
        self.token.store(token, Ordering::Release);
        // Pairs with the fence in `tasks_ended`.
        fence(Ordering::SeqCst);
        unfinished() == 0 && self.claim(token)
    }

    /// The number of unfinished tasks has become 0. What the caller has to let go on, if it is the one.
    pub(crate) fn tasks_ended(&self, unfinished: impl Fn() -> u32) -> Option<Meeting> {
        // Pairs with the fence in `all_arrived`.
        fence(Ordering::SeqCst);
        // Acquire: the tasks are counted after it, or their number might be from before this meeting.
        let token = self.token.load(Ordering::Acquire);
        (token != 0 && unfinished() == 0 && self.claim(token)).then_some(if token & 1 == 1 {
            Meeting::End
        } else {
            Meeting::Barrier
        })
    }

    fn claim(&self, token: u64) -> bool {
        self.token
            .compare_exchange(token, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Nobody waits for tasks any more (the region was cancelled). Nobody else may be in the team.
    pub(crate) fn reset(&self) {
        self.token.store(0, Ordering::Relaxed);
    }
}
