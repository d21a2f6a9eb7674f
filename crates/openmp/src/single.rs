//! `single`: what one thread of a team does, whichever comes first.

use std::ffi::c_void;
use std::ptr;

use crate::share;
use crate::sync::Ordering;
use crate::team;
use crate::thread::Thread;

/// Whether the calling thread is the one.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn start(thread: *mut Thread) -> bool {
    // SAFETY: the team is the thread's.
    unsafe {
        let Some(team) = (*thread).at.team.as_ref() else {
            return true;
        };
        let own = (*thread).at.singles;
        (*thread).at.singles = own + 1;
        // Relaxed: nothing else is handed over; the construct's end is a barrier where the program wants one. The load
        // keeps the late ones from taking the line from each other.
        team.singles.load(Ordering::Relaxed) == own
            && team
                .singles
                .compare_exchange(own, own + 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// `single copyprivate`: null for the one, who is to call [`copy_end`]; for the others what it gave.
///
/// # Safety
/// `thread` is the calling thread's; all threads of the team call it.
pub unsafe fn copy_start(thread: *mut Thread) -> *mut c_void {
    // SAFETY: a thread's share stays as it is while the thread is in it.
    unsafe {
        let (share, is_first) = share::enter(thread, |_, _| {});
        if is_first {
            return ptr::null_mut();
        }
        team::barrier(thread);
        // Relaxed: written before the barrier.
        share.copied.load(Ordering::Relaxed)
    }
}

/// The one hands `data` to the others.
///
/// # Safety
/// `thread` is the calling thread's, for which [`copy_start`] returned null.
pub unsafe fn copy_end(thread: *mut Thread, data: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        if (*thread).at.team.is_null() {
            return;
        }
        if let Some(share) = share::current(thread) {
            share.copied.store(data, Ordering::Relaxed);
        }
        team::barrier(thread);
    }
}
