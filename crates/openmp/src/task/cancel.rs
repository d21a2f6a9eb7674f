//! Cancellation: `cancel` and `cancellation point`.

use super::group::is_task_cancelled;
use crate::icv;
use crate::sync::Ordering;
use crate::thread::Thread;

/// The innermost region of the team.
pub const PARALLEL: u32 = 1;
/// The loop.
pub const LOOP: u32 = 2;
/// The sections.
pub const SECTIONS: u32 = 4;
/// The innermost taskgroup.
pub const TASKGROUP: u32 = 8;

/// Cancels what `which` names if `is_meant`, otherwise the same as [`is_cancelled`]. True: the caller is to leave it.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn cancel(thread: *mut Thread, which: u32, is_meant: bool) -> bool {
    // SAFETY: the caller's promise; the team and the group are the thread's.
    unsafe {
        if !icv::globals().cancellation {
            return false;
        }
        if !is_meant {
            return is_cancelled(thread, which);
        }
        let team = (*thread).at.team.as_ref();
        if which & (LOOP | SECTIONS) != 0 {
            // Outside of a team only the caller is in the loop.
            if let Some(team) = team {
                team.is_share_cancelled.store(true, Ordering::SeqCst);
            }
        } else if which & TASKGROUP != 0 {
            if let Some(group) = (*(*thread).task).group.as_ref() {
                group.cancel();
            }
        } else if let Some(team) = team {
            team.cancel();
        }
        true
    }
}

/// Whether what `which` names was cancelled.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn is_cancelled(thread: *mut Thread, which: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if !icv::globals().cancellation {
            return false;
        }
        let Some(team) = (*thread).at.team.as_ref() else {
            return which & TASKGROUP != 0 && is_task_cancelled((*thread).task);
        };
        if which & (LOOP | SECTIONS) != 0 {
            return team.is_share_cancelled.load(Ordering::Relaxed);
        }
        // Cancelling the region cancels its tasks as well.
        team.is_cancelled.load(Ordering::Relaxed)
            || which & TASKGROUP != 0 && is_task_cancelled((*thread).task)
    }
}
