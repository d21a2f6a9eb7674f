//! The degree of parallelism: how many threads a region gets that may have fewer than it asks for. `sizing` decides, this
//! asks for what it decides by.

use std::sync::atomic::Ordering;

use amdahl_phantom_page::{Finder, Followed};

use crate::kept::Kept;
use crate::sizing::Sizing;
use crate::thread::Thread;
use crate::{capacity, icv, stats, sys, team};

/// The number of threads of a region. `specified`: by a clause, 0 if there is none; `useful`: more cannot be used
/// (sections), 0 if that is not known.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn resolve(thread: *mut Thread, specified: u32, useful: u32) -> u32 {
    if specified == 1 {
        return 1;
    }
    // SAFETY: the caller's promise.
    let (icv, at) = unsafe { (Thread::icv(thread), (*thread).at) };
    if at.active_level >= icv.max_active_levels {
        return 1;
    }
    capacity::follow();
    let by_clause = specified != 0;
    let mut threads = if by_clause { specified } else { icv.nthreads };
    if icv::globals().own.dynamic.unwrap_or(icv.dynamic) {
        threads = threads.min(self::threads());
        if useful != 0 {
            threads = threads.min(useful);
        }
    }
    if icv.thread_limit != u32::MAX && threads > 1 {
        let left = icv.thread_limit.saturating_sub(1);
        let mut reserved = threads - 1;
        // SAFETY: the group's counter lives as long as its initial thread, or as its target region.
        if let Some(busy) = unsafe { at.group.as_ref() } {
            // Relaxed: a count, and nothing else is known by it.
            let reserve = |busy: u32| {
                reserved = (threads - 1).min(left.saturating_sub(busy));
                Some(busy + reserved)
            };
            let _ = busy.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve);
            // SAFETY: the caller's own.
            unsafe { (*thread).reserved = reserved };
        }
        threads = reserved.min(left) + 1;
    }
    stats::asked(threads, by_clause);
    threads.max(1)
}

struct State {
    sizing: Sizing,
    page: Followed,
}

static STATE: Kept<State> = Kept::new();

/// After `fork`, in the child.
pub(crate) fn in_child() {
    STATE.in_child();
}

/// Threads that a region may have whose size is the runtime's to choose. A lock and a clock; who finds the lock taken
/// takes `usable`.
pub fn threads() -> u32 {
    let usable = capacity::usable_cpus();
    let Ok(mut state) = STATE.lock().try_lock() else {
        return usable;
    };
    let now = sys::monotonic_ns();
    let lost = team::CONTENTION.missed_ns();
    let state = state.get_or_insert_with(|| State {
        sizing: Sizing::new(now, lost, usable),
        page: Followed::new(Finder::from_environment()),
    });
    if state.sizing.is_due(now) {
        let _whole = sys::not_cancelled();
        let published = state.page.read(now);
        let sizing = &mut state.sizing;
        sizing.look(now, published, lost, sys::stolen_ns, usable);
    }
    state.sizing.cpus().min(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread was choosing while another one forked. Nobody gave the lock back in the child, whose teams stayed as large as
    /// could be.
    #[test]
    fn a_child_of_fork_can_choose_whoever_was_choosing() {
        team::init();
        let _choosing = STATE.lock().lock();
        // SAFETY: the child calls nothing but what follows.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_stuck = STATE.lock().try_lock().is_err();
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(is_stuck)) };
        }
        let mut status = 0;
        // SAFETY: our child; `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
