//! Threads on places: which place a thread is on, and the kernel's part of it.

use crate::icv::{ProcBind, globals};
use crate::places::{Assignment, Partition, assign};
use crate::thread::Thread;

/// Has the kernel keep the calling thread on a place, unless it is there already. Where the kernel refuses, the
/// thread runs where it did.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn move_to(thread: *mut Thread, place: u32) {
    // SAFETY: the caller's promise.
    let was = unsafe { std::mem::replace(&mut (*thread).place, place + 1) };
    if was != place + 1
        && let Some(cpus) = globals().places.as_ref().and_then(|list| list.get(place))
    {
        let _ = amdahl_topology::set_allowed(0, cpus);
    }
}

/// Puts a thread that no region has made onto the first place, if threads are bound and it is on none yet. All
/// places are its partition.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn enter(thread: *mut Thread) {
    let Some(list) = &globals().places else {
        return;
    };
    // SAFETY: the caller's promise.
    unsafe {
        if (*thread).place == 0 {
            (*thread).at.places = (0, list.len());
            move_to(thread, 0);
        }
    }
}

/// How the threads of a region are bound that has this `proc_bind` clause (`False`: none). Where binding is off the
/// clause does not turn it on.
pub fn policy(bind: ProcBind, clause: ProcBind) -> ProcBind {
    match (bind, clause) {
        (ProcBind::False, _) | (_, ProcBind::False) => bind,
        (_, clause) => clause,
    }
}

/// Where the threads of a region go that the calling thread begins; `None` where they stay as they are.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn of_team(thread: *mut Thread, policy: ProcBind, threads: u32) -> Option<Assignment> {
    globals().places.as_ref()?;
    // SAFETY: the caller's promise.
    unsafe {
        enter(thread);
        let (off, len) = (*thread).at.places;
        assign(policy, threads, Partition { off, len }, (*thread).place - 1)
    }
}
