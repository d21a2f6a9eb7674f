//! Tasks that run where they are made: because they may not be deferred, or because the others have enough to do.

use std::ffi::c_void;
use std::ptr;

use super::wait::{wait_for_dependences, wait_for_event};
use super::{
    Body, Copy, Creation, FLAG_DEPEND, FLAG_DETACH, FLAG_FINAL, FLAG_MERGEABLE, FLAG_PRIORITY,
    FLAG_UNTIED, Queue, Task, begin_to_run, copy_data, dependences, free, new_task, nothing,
    own_queue,
};
use crate::icv;
use crate::team::Team;
use crate::thread::Thread;

/// Ready tasks of each thread of the team, on average, from which on new tasks run at once.
const READY_PER_THREAD: u32 = 64;
/// Tasks that one thread has made and that wait for others, or have a priority, before new ones run at once: memory
/// has an end.
const LEFT_OF_ONE: u64 = 4096;
/// Tasks within each other that the only thread of a team runs at once: stacks have an end.
const DEEP: u32 = 64;
/// The same in bytes of the stack.
const DEEP_BYTES: usize = 256 << 10;

/// Flags of tasks that say nothing to who runs them at once.
const FLAGS_PLAIN: u32 = FLAG_UNTIED | FLAG_FINAL | FLAG_MERGEABLE;

/// The short way of [`spawn`](super::spawn): runs a task on the data themselves if it is not to be deferred, because it may not or
/// because the other threads have enough to do. False: nothing was done, it needs more than that.
///
/// Programs may make millions of tasks of some nanoseconds each. So what stands for the last one is kept, and used again
/// as it is: only what is new is written, and no memory is sought. No line is written that others read.
///
/// # Safety
/// `thread` is the calling thread's; the body may be called with the data.
#[inline(always)]
pub unsafe fn run_plain(
    thread: *mut Thread,
    body: Body,
    data: *mut c_void,
    may_defer: bool,
    flags: u32,
) -> bool {
    // SAFETY: the caller's promise; the queue is the calling thread's own.
    unsafe {
        let queue = own_queue(thread);
        if queue.is_null() || flags & !FLAGS_PLAIN != 0 {
            return false;
        }
        let (team, parent) = (&*(*thread).at.team, (*thread).task);
        let is_due = !may_defer || (*parent).is_final || are_many_ready(team, &*queue);
        // The only thread of a team keeps count of how deep it is.
        if !is_due || team.nthreads == 1 || team.may_be_cancelled {
            return false;
        }
        let own = &(*queue).own;
        let task = match own.spare.replace(ptr::null_mut()) {
            task if task.is_null() => new_spare(thread, queue),
            task => task,
        };
        (*task).icv = (*parent).icv;
        (*task).parent = parent;
        (*task).group = (*parent).group;
        (*task).is_final = (*parent).is_final || flags & FLAG_FINAL != 0;
        begin_to_run(thread, queue, task);
        body(data);
        (*thread).task = parent;
        if (*task).made != 0 || (*task).table.is_some() || !own.spare.get().is_null() {
            end_at_once(task, queue);
        } else {
            // Nobody knows it: it has no children, and was in no queue.
            own.spare.set(task);
        }
        true
    }
}

#[cold]
unsafe fn new_spare(thread: *mut Thread, queue: *const Queue) -> *mut Task {
    let creation = Creation {
        body: nothing,
        data: ptr::null_mut(),
        copy: None,
        bytes: 0,
        align: 1,
        may_defer: false,
        flags: 0,
        depend: ptr::null(),
        priority: 0,
        detach: ptr::null_mut(),
    };
    // SAFETY: the caller's promise.
    unsafe { new_task(thread, queue, &creation, false, false) }
}

/// A task has ended that ran where it was made.
#[inline(never)]
unsafe fn end_at_once(task: *mut Task, queue: *const Queue) {
    // SAFETY: the task has run here, and nobody but its children knows it.
    unsafe {
        (*task).table = None;
        if (*task).children.end((*task).made) {
            free(task, queue);
        }
    }
}

/// Whether nobody else could run the task, and nothing is to be done before it: others may come with a higher
/// priority, and one that depends on others may have to wait for an event that its maker fulfills.
#[inline]
pub(super) unsafe fn is_alone(thread: *mut Thread, creation: &Creation) -> bool {
    // SAFETY: the caller's promise; the thread is in a team.
    unsafe {
        (*(*thread).at.team).nthreads == 1
            && ((*thread).depth == 0
                || (*thread).depth < DEEP && (*thread).stack.abs_diff(stack_address()) < DEEP_BYTES)
            && (creation.flags & FLAG_PRIORITY == 0 || icv::globals().max_task_priority == 0)
            && (creation.flags & FLAG_DEPEND == 0 || (*(*thread).task).table.is_none())
    }
}

/// Where the stack is, about.
#[inline]
fn stack_address() -> usize {
    let here = 0_u8;
    std::hint::black_box(&raw const here).addr()
}

#[inline(never)]
pub(super) unsafe fn run_now(
    thread: *mut Thread,
    queue: *const Queue,
    creation: &Creation,
    copy: Copy,
    adjust: &mut dyn FnMut(*mut c_void),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let parent = (*thread).task;
        if creation.flags & FLAG_DEPEND != 0 && (*parent).table.is_some() {
            wait_for_dependences(thread, &dependences(creation.depend));
        }
        let with_data = creation.copy.is_some() || copy == Copy::Always;
        let task = new_task(thread, queue, creation, with_data, false);
        if with_data {
            copy_data(thread, task, creation, adjust);
        }
        begin_to_run(thread, queue, task);
        if (*thread).depth == 0 {
            (*thread).stack = stack_address();
        }
        (*thread).depth += 1;
        ((*task).body)((*task).data);
        (*thread).depth -= 1;
        if creation.flags & FLAG_DETACH != 0 {
            wait_for_event(thread, task);
        }
        (*thread).task = parent;
        end_at_once(task, queue);
    }
}

/// Whether as many tasks are ready as keep the team busy: those of this thread and, by estimate, of all who make
/// some.
#[inline]
pub(super) fn has_enough(team: &Team, queue: &Queue) -> bool {
    are_many_ready(team, queue) || are_many_left(team, queue)
}

#[inline]
fn are_many_ready(team: &Team, queue: &Queue) -> bool {
    let ready = queue.len();
    // Without a division: it would take longer than all the rest.
    ready >= READY_PER_THREAD
        && u64::from(ready) * makers(team) > u64::from(READY_PER_THREAD) * u64::from(team.nthreads)
}

#[inline]
fn are_many_left(team: &Team, queue: &Queue) -> bool {
    queue.unfinished.is_beyond(LEFT_OF_ONE) && {
        let enough = u64::from(READY_PER_THREAD) * u64::from(team.nthreads) / makers(team);
        queue.unfinished.is_beyond(LEFT_OF_ONE + enough)
    }
}

/// Threads that have tasks which have not ended, at least 1.
#[inline]
fn makers(team: &Team) -> u64 {
    u64::from(team.board.unfinished().max(1))
}
