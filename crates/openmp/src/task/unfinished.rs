//! Tasks of one thread that have not ended: counted so that making and ending them on that thread costs no atomic
//! operation.
//!
//! | the owner | count in the word | flag |
//! |---|---|---|
//! | is at work, and has made tasks | minus those that ended elsewhere | none |
//! | has settled: it waits at a meeting | those that have not ended | `SETTLED` |
//!
//! The owner's own part is a plain variable, and added when it settles. As long as it is at work, or the count is not
//! 0, the queue counts on the board.

use std::cell::Cell;

use crate::sync::{AtomicU64, Line, Ordering};

const SETTLED: i64 = 1;
/// One task.
const ONE: i64 = 2;

/// The count. `local` and `is_at_work` are the owner's alone.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    word: Line<AtomicU64>,
    /// Tasks made by the owner, minus those that ended here, since it settled.
    local: Cell<i64>,
    is_at_work: Cell<bool>,
}

impl Unfinished {
    /// The owner has made a task. True: the queue is to be counted on the board, before anybody sees the task.
    #[inline]
    pub(super) fn one_made(&self) -> bool {
        let begins = !self.is_at_work.replace(true);
        let mut is_first = false;
        if begins {
            let left = (self.word.swap(0, Ordering::SeqCst) as i64) / ONE;
            self.local.set(self.local.get() + left);
            is_first = left == 0;
        }
        self.local.set(self.local.get() + 1);
        is_first
    }

    /// Whether more than `limit` are left, asked by the owner. The others' line is read only where that may be.
    #[inline]
    pub(super) fn is_beyond(&self, limit: u64) -> bool {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.local.get() > limit && {
            let elsewhere = self.word.load(Ordering::Relaxed) as i64 / ONE;
            self.local.get() + elsewhere > limit
        }
    }

    /// A task of the owner has ended on its thread.
    #[inline]
    pub(super) fn one_ended_here(&self) {
        self.local.set(self.local.get() - 1);
    }

    /// A task of the owner has ended elsewhere. True: the queue is not to be counted on the board any more.
    #[inline]
    pub(super) fn one_ended_elsewhere(&self) -> bool {
        // While the owner is at work this is 0 or less.
        self.word.fetch_sub(ONE as u64, Ordering::SeqCst) as i64 == ONE + SETTLED
    }

    /// The owner comes to a meeting, or waits at one again. True: the queue is not to be counted on the board any
    /// more.
    #[inline]
    pub(super) fn settle(&self) -> bool {
        let flag = if self.is_at_work.replace(false) {
            SETTLED
        } else {
            0
        };
        let added = self.local.replace(0) * ONE + flag;
        if added == 0 {
            return false;
        }
        self.word.fetch_add(added as u64, Ordering::SeqCst) as i64 + added == SETTLED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn counts_on_the_board_while_a_task_is_left_and_not_after_a_meeting(
            steps in proptest::collection::vec(0u8..4, 0..80),
        ) {
            let unfinished = Unfinished::default();
            let (mut left, mut board) = (0_u64, 0);
            for step in steps.into_iter().chain([3]) {
                match step {
                    0 => {
                        left += 1;
                        board += i32::from(unfinished.one_made());
                        prop_assert!(unfinished.is_beyond(left - 1) && !unfinished.is_beyond(left));
                    }
                    1 if left > 0 => {
                        left -= 1;
                        unfinished.one_ended_here();
                    }
                    2 if left > 0 => {
                        left -= 1;
                        board -= i32::from(unfinished.one_ended_elsewhere());
                    }
                    3 => {
                        board -= i32::from(unfinished.settle());
                        prop_assert_eq!(board, i32::from(left > 0));
                    }
                    _ => {}
                }
                prop_assert!(board == 1 || board == 0 && left == 0);
            }
        }
    }
}
