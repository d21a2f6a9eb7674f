//! Taskgroups: tasks and their descendants that somebody waits for together.

use std::ptr;
use std::sync::atomic::AtomicBool as StdAtomicBool;

use super::queue::Queue;
use super::wait::wait_for;
use super::{Task, is_cancelled};
use crate::icv;
use crate::sync::{AtomicU64, Ordering};
use crate::thread::Thread;

const WAITED: u64 = 1;
/// One task.
const ONE: u64 = 2;

/// A taskgroup. Lives until the task that began it has waited for its end.
#[derive(Debug)]
pub struct Group {
    /// Tasks that have not ended times 2, plus 1 if their end is waited for.
    word: AtomicU64,
    /// The one around it.
    pub prev: *mut Group,
    /// Of the thread that began it.
    owner: *const Queue,
    /// Reductions that tasks of the group take part in: the compiler's array.
    pub reductions: *mut usize,
    is_cancelled: StdAtomicBool,
    /// Made for the reductions of a loop: cancelling it cancels the one around it.
    pub is_workshare: bool,
}

impl Group {
    pub(super) fn add_task(&self) {
        self.word.fetch_add(ONE, Ordering::Relaxed);
    }

    /// A task of the group has ended. The group may be gone when this returns.
    pub(super) fn task_ended(&self) {
        let owner = self.owner;
        // SeqCst: against the sleepers of the owner's gate. Release: what the task did is done for who waits.
        if self.word.fetch_sub(ONE, Ordering::SeqCst) == ONE + WAITED {
            // SAFETY: queues are never freed; groups with tasks are those of threads in a team.
            unsafe { (*owner).gate.ring(1) };
        }
    }

    /// A task of the group was made ready: its owner may wait for that.
    pub(super) fn task_ready(&self) {
        if self.word.load(Ordering::SeqCst) & WAITED != 0 {
            // SAFETY: queues are never freed.
            unsafe { (*self.owner).nudge() };
        }
    }

    pub(super) fn owner(&self) -> *const Queue {
        self.owner
    }

    /// The group that `cancel taskgroup` within this one means.
    fn to_cancel(&self) -> &Group {
        // SAFETY: the group around this one lives longer.
        match unsafe { self.prev.as_ref() } {
            Some(prev) if self.is_workshare => prev,
            _ => self,
        }
    }

    /// Its tasks that were not begun are not run any more.
    pub(super) fn cancel(&self) {
        self.to_cancel().is_cancelled.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
            || self.to_cancel().is_cancelled.load(Ordering::SeqCst)
    }
}

/// A taskgroup begins.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn start(thread: *mut Thread) -> *mut Group {
    // SAFETY: the caller's promise; a running task's group is its thread's to change.
    unsafe {
        let task = (*thread).task;
        let prev = (*task).group;
        let group = Box::into_raw(Box::new(Group {
            word: AtomicU64::new(0),
            prev,
            owner: super::own_queue(thread),
            reductions: super::reduction::of(thread, prev),
            is_cancelled: StdAtomicBool::new(false),
            is_workshare: false,
        }));
        (*task).group = group;
        group
    }
}

/// The taskgroup that the calling thread's task has begun last ends: all its tasks have ended.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn end(thread: *mut Thread) {
    // SAFETY: the caller's promise; the group is freed when nobody else has it.
    unsafe {
        let task = (*thread).task;
        let group = (*task).group;
        if group.is_null() {
            return;
        }
        if (*group).word.load(Ordering::Acquire) != 0 {
            (*group).word.fetch_or(WAITED, Ordering::SeqCst);
            wait_for(thread, group, &|| {
                (*group).word.load(Ordering::SeqCst) == WAITED
            });
        }
        (*task).group = (*group).prev;
        drop(Box::from_raw(group));
    }
}

/// Whether the taskgroup of a task, or its team, was cancelled.
///
/// # Safety
/// `task` is the calling thread's current one, or one that nobody runs.
#[inline]
pub(super) unsafe fn is_task_cancelled(task: *mut Task) -> bool {
    // SAFETY: the caller's promise.
    icv::globals().cancellation && unsafe { is_cancelled((*task).team, (*task).group) }
}

impl Default for Group {
    fn default() -> Group {
        Group {
            word: AtomicU64::new(0),
            prev: ptr::null_mut(),
            owner: ptr::null(),
            reductions: ptr::null_mut(),
            is_cancelled: StdAtomicBool::new(false),
            is_workshare: false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cancelling_within_a_loop_with_reductions_means_the_group_around_it() {
        let mut outer = Group::default();
        let inner = Group {
            prev: &raw mut outer,
            is_workshare: true,
            ..Group::default()
        };
        inner.cancel();
        assert!(inner.is_cancelled());
        // SAFETY: nobody else has it.
        unsafe { assert!((*inner.prev).is_cancelled()) };
        let nested = Group {
            prev: inner.prev,
            ..Group::default()
        };
        assert!(!nested.is_cancelled());
    }
}
