//! What a task knows of its children: one word that says how many are left, who waits for them, and who frees the
//! task.
//!
//! | phase | count in the word | flags |
//! |---|---|---|
//! | the task runs | minus the children that ended | none |
//! | it waits for its children | children left | `WAITED` |
//! | it has ended | children left | `ENDED` |
//!
//! The number of children that were made is a plain variable of the task's own thread: only the change of phase adds
//! it to the word. So making a child costs no atomic operation, and a child that ends needs one.

use crate::sync::{AtomicU64, Ordering};

const WAITED: i64 = 1;
const ENDED: i64 = 2;
const FLAGS: i64 = WAITED | ENDED;
/// One child.
const ONE: i64 = 4;

/// What is left to do for the child that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// Others are left, or nobody waits for them.
    No,
    /// The parent waits for its children, and this was the last.
    Wake,
    /// The parent has ended before, and this was its last child: its memory is free.
    Free,
}

/// The word.
#[derive(Debug)]
pub(crate) struct Children {
    word: AtomicU64,
}

impl Default for Children {
    fn default() -> Children {
        Children {
            word: AtomicU64::new(0),
        }
    }
}

impl Children {
    /// A child has ended. The parent may be gone when this returns, unless it returns [`Last::Free`].
    #[inline]
    pub(crate) fn one_ended(&self) -> Last {
        // SeqCst: who waits adds itself to the sleepers of its gate and then reads the word; who ends the last child
        // changes the word and then reads the sleepers. Release: what the child did is done for who waits or frees.
        let old = self.word.fetch_sub(ONE as u64, Ordering::SeqCst) as i64;
        // While the parent runs the count is negative: it cannot come to 0.
        if old & !FLAGS != ONE {
            Last::No
        } else if old & ENDED != 0 {
            Last::Free
        } else {
            Last::Wake
        }
    }

    /// Whether all `made` children have ended. Asked by the parent while it runs; if so it begins anew with none.
    #[inline]
    pub(crate) fn have_all_ended(&self, made: u64) -> bool {
        let all = self.word.load(Ordering::Acquire) as i64 == -((made as i64) * ONE);
        if all {
            self.word.store(0, Ordering::Relaxed);
        }
        all
    }

    /// The parent begins to wait for `made` children.
    pub(crate) fn wait(&self, made: u64) {
        let added = (made as i64) * ONE + WAITED;
        self.word.fetch_add(added as u64, Ordering::SeqCst);
    }

    /// Whether the wait is over.
    #[inline]
    pub(crate) fn is_wait_over(&self) -> bool {
        self.word.load(Ordering::SeqCst) as i64 == WAITED
    }

    /// Whether the parent neither waits nor has ended: its number of children is its own thread's. Asked there.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.word.load(Ordering::Relaxed) as i64 & FLAGS == 0
    }

    /// Whether the parent has ended.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.word.load(Ordering::SeqCst) as i64 & ENDED != 0
    }

    /// After the wait: the parent begins anew with no children.
    pub(crate) fn waited(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// The parent, which has made `made` children, has ended. True: none is left, the caller frees it. Otherwise the
    /// last child does.
    #[inline]
    pub(crate) fn end(&self, made: u64) -> bool {
        if made == 0 {
            return true;
        }
        let added = (made as i64) * ONE + ENDED;
        let old = self.word.fetch_add(added as u64, Ordering::SeqCst) as i64;
        (old + added) & !FLAGS == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Make,
        EndOne,
        Wait,
    }

    proptest! {
        #[test]
        fn one_is_told_to_wake_or_free_and_that_is_the_last(
            steps in proptest::collection::vec(
                prop_oneof![Just(Step::Make), Just(Step::EndOne), Just(Step::Wait)], 0..60),
        ) {
            let children = Children::default();
            let (mut made, mut left) = (0, 0);
            for step in steps {
                match step {
                    Step::Make => {
                        made += 1;
                        left += 1;
                    }
                    Step::EndOne if left > 0 => {
                        left -= 1;
                        prop_assert_eq!(children.one_ended(), Last::No);
                    }
                    Step::EndOne => {}
                    Step::Wait => {
                        prop_assert_eq!(children.have_all_ended(made), left == 0);
                        if left > 0 {
                            children.wait(made);
                            prop_assert!(!children.is_wait_over());
                            while left > 0 {
                                left -= 1;
                                let expected = if left == 0 { Last::Wake } else { Last::No };
                                prop_assert_eq!(children.one_ended(), expected);
                            }
                            prop_assert!(children.is_wait_over());
                            children.waited();
                        }
                        made = 0;
                    }
                }
            }
            prop_assert_eq!(children.end(made), left == 0);
            if left > 0 {
                prop_assert!(children.has_ended());
            }
            while left > 0 {
                left -= 1;
                let expected = if left == 0 { Last::Free } else { Last::No };
                prop_assert_eq!(children.one_ended(), expected);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    #[test]
    fn a_task_that_ends_is_freed_once() {
        loom::model(|| {
            let children = Arc::new(Children::default());
            let freed = Arc::new(AtomicU32::new(0));
            let ends: Vec<_> = (0..2)
                .map(|_| {
                    let (children, freed) = (children.clone(), freed.clone());
                    loom::thread::spawn(move || {
                        if children.one_ended() == Last::Free {
                            freed.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            if children.end(2) {
                freed.fetch_add(1, Ordering::SeqCst);
            }
            for end in ends {
                end.join().unwrap();
            }
            assert_eq!(freed.load(Ordering::SeqCst), 1);
        });
    }

    #[test]
    fn who_waits_is_woken_or_sees_that_nobody_is_left() {
        loom::model(|| {
            let children = Arc::new(Children::default());
            let woken = Arc::new(AtomicU32::new(0));
            let ends: Vec<_> = (0..2)
                .map(|_| {
                    let (children, woken) = (children.clone(), woken.clone());
                    loom::thread::spawn(move || {
                        if children.one_ended() == Last::Wake {
                            woken.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            if !children.have_all_ended(2) {
                children.wait(2);
                while !children.is_wait_over() {
                    loom::thread::yield_now();
                }
            }
            for end in ends {
                end.join().unwrap();
            }
            assert!(woken.load(Ordering::SeqCst) <= 1);
        });
    }
}
