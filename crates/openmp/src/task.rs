//! Tasks: they are made, wait for others, run, end. The protocol is in DESIGN.md.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr as StdAtomicPtr, AtomicU32 as StdAtomicU32};

use crate::icv::{self, Icv};
use crate::sync::Ordering;
use crate::team::Team;
use crate::thread::Thread;
use crate::{message, sys, thread};

mod at_once;
pub mod cancel;
mod children;
pub mod depend;
pub mod group;
pub mod loops;
mod memory;
mod queue;
pub mod reduction;
mod unfinished;
mod wait;
pub(crate) mod worth;

pub use at_once::run_plain;
pub use group::Group;
pub use queue::{Board, Queue};
pub use reduction::{begin_workshare, join_reductions, register_reductions};
pub use wait::{give_way, run_one, wait, wait_depend};

use at_once::{has_enough, is_alone, run_now};
use children::{Children, Last};
use depend::{Dependence, Node, Successor, Table};

/// The body of a task, as the compiler outlines it.
pub type Body = unsafe extern "C-unwind" fn(*mut c_void);
/// Copies the data of a task, where bytes are not enough: to, from.
pub type CopyFn = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);

/// Any thread may go on with it.
pub const FLAG_UNTIED: u32 = 1 << 0;
/// A task all of whose descendants run at once.
pub const FLAG_FINAL: u32 = 1 << 1;
/// It may be run as a part of its parent.
pub const FLAG_MERGEABLE: u32 = 1 << 2;
/// There are dependences.
pub const FLAG_DEPEND: u32 = 1 << 3;
/// There is a priority.
pub const FLAG_PRIORITY: u32 = 1 << 4;
/// A loop that counts upwards.
pub const FLAG_UP: u32 = 1 << 8;
/// The amount is of iterations for each task, not of tasks.
pub const FLAG_GRAINSIZE: u32 = 1 << 9;
/// The tasks of the loop may be deferred.
pub const FLAG_IF: u32 = 1 << 10;
/// The loop has no taskgroup of its own.
pub const FLAG_NOGROUP: u32 = 1 << 11;
/// The loop has reductions.
pub const FLAG_REDUCTION: u32 = 1 << 12;
/// The task ends when its event is fulfilled.
pub const FLAG_DETACH: u32 = 1 << 13;
/// The amount is exact.
pub const FLAG_STRICT: u32 = 1 << 14;

/// Events of tasks: what has happened.
mod event {
    /// The task has none.
    pub(super) const NONE: u32 = 0;
    /// Neither has its body ended nor was it fulfilled.
    pub(super) const OPEN: u32 = 1;
    pub(super) const FULFILLED: u32 = 2;
    pub(super) const BODY_ENDED: u32 = 3;
}

/// A task, explicit or implicit.
///
/// | fields | who touches them |
/// |---|---|
/// | `children`, `on`, `event`, `unmet`, `awaited` | anybody |
/// | `made`, `group`, `table`, `first_number`, `icv` | who makes it, then the thread that runs it |
/// | `older`, `newer`, `number` | under the lock of the queue it is in |
/// | all others | who makes it; later they do not change |
pub struct Task {
    /// Its control variables.
    pub icv: Icv,
    /// The task that made it. Gone when this task has ended.
    pub parent: *mut Task,
    children: Children,
    /// Children since the last `taskwait`.
    made: u64,
    is_explicit: bool,
    is_final: bool,
    is_deferred: bool,
    /// Its data were copied by a function: it is run even if it was cancelled, so that they are destroyed.
    is_copied: bool,
    /// The queue of the thread that runs it; null before, and outside of all regions.
    on: StdAtomicPtr<Queue>,
    /// What that thread puts into its queue from this number on are descendants of this task.
    first_number: u64,
    group: *mut Group,
    team: *mut Team,
    /// The queue of the thread that made it.
    home: *const Queue,
    body: Body,
    data: *mut c_void,
    priority: i32,
    number: u64,
    older: *mut Task,
    newer: *mut Task,
    event: StdAtomicU32,
    /// What others that depend on this task wait for.
    node: Option<Arc<Node>>,
    /// Tasks that it waits for before it is ready, plus 1 while they are looked for.
    unmet: StdAtomicU32,
    /// Tasks that it waits for while it runs, plus 1 while they are looked for.
    awaited: StdAtomicU32,
    /// Dependences of its children.
    table: Option<Box<Table<Arc<Node>>>>,
}

unsafe extern "C-unwind" fn nothing(_: *mut c_void) {}

impl Task {
    /// The implicit task of one thread of a region.
    pub fn implicit(parent: *mut Task, icv: Icv) -> Task {
        Task {
            icv,
            parent,
            children: Children::default(),
            made: 0,
            is_explicit: false,
            is_final: false,
            is_deferred: false,
            is_copied: false,
            on: StdAtomicPtr::new(ptr::null_mut()),
            first_number: queue::FIRST_NUMBER,
            group: ptr::null_mut(),
            team: ptr::null_mut(),
            home: ptr::null(),
            body: nothing,
            data: ptr::null_mut(),
            priority: 0,
            number: 0,
            older: ptr::null_mut(),
            newer: ptr::null_mut(),
            event: StdAtomicU32::new(event::NONE),
            node: None,
            unmet: StdAtomicU32::new(0),
            awaited: StdAtomicU32::new(0),
            table: None,
        }
    }
}

/// A task to be made.
#[derive(Clone, Copy)]
pub struct Creation {
    /// What it runs.
    pub body: Body,
    /// With this, or a copy of it.
    pub data: *mut c_void,
    /// How the copy is made; bytes are copied if there is none.
    pub copy: Option<CopyFn>,
    /// Bytes of the data.
    pub bytes: usize,
    /// Their alignment, a power of two.
    pub align: usize,
    /// It need not run at once.
    pub may_defer: bool,
    /// `FLAG_`s.
    pub flags: u32,
    /// Dependences, if the flags say that there are some; see [`depend::parse`].
    pub depend: *const *mut c_void,
    /// If the flags say that there is one.
    pub priority: i32,
    /// Where the handle of its event goes, if the flags say that it has one.
    pub detach: *mut *mut c_void,
}

/// Whether a task that runs at once works on the data or on a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copy {
    IfDeferred,
    Always,
}

/// The queue of the calling thread; null outside of all regions.
#[inline]
unsafe fn own_queue(thread: *mut Thread) -> *const Queue {
    // SAFETY: the calling thread's own.
    unsafe { (*thread).at.queue }
}

/// Whether tasks of the team, or of the group, are not to be run any more.
#[inline]
unsafe fn is_cancelled(team: *const Team, group: *const Group) -> bool {
    // SAFETY: teams are never freed; a group is there as long as it has tasks.
    unsafe {
        team.as_ref()
            .is_some_and(|t| t.is_cancelled.load(Ordering::Relaxed))
            || group.as_ref().is_some_and(Group::is_cancelled)
    }
}

/// Makes a task. Runs it at once if it may not be deferred, or if enough others are ready.
///
/// # Safety
/// `thread` is the calling thread's. The body may be called with the data, or a copy of them, by any thread of the
/// team until the next barrier.
#[inline]
pub unsafe fn spawn(thread: *mut Thread, creation: &Creation) {
    // SAFETY: the caller's promise.
    unsafe { spawn_within(thread, creation, Copy::IfDeferred, &mut |_| {}) };
}

#[inline]
unsafe fn spawn_within(
    thread: *mut Thread,
    creation: &Creation,
    copy: Copy,
    adjust: &mut dyn FnMut(*mut c_void),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let parent = (*thread).task;
        let queue = own_queue(thread);
        let team = (*thread).at.team;
        if !team.is_null() && (*team).may_be_cancelled && is_cancelled(team, (*parent).group) {
            return;
        }
        let is_deferred = creation.may_defer
            && !team.is_null()
            && !(*parent).is_final
            // Whoever makes a task may be the one who fulfills its event, and must not wait for it.
            && (creation.flags & FLAG_DETACH != 0
                || !is_alone(thread, creation) && !has_enough(&*team, &*queue));
        if is_deferred {
            defer(thread, queue, creation, adjust);
        } else {
            run_now(thread, queue, creation, copy, adjust);
        }
    }
}

/// The priority that counts.
#[inline]
fn priority(creation: &Creation) -> i32 {
    if creation.flags & FLAG_PRIORITY != 0 {
        creation.priority.min(icv::globals().max_task_priority)
    } else {
        0
    }
}

/// A new task as the compiler wants it, with room for a copy of the data behind it, which is not made.
#[inline]
unsafe fn new_task(
    thread: *mut Thread,
    queue: *const Queue,
    creation: &Creation,
    with_data: bool,
    is_deferred: bool,
) -> *mut Task {
    // SAFETY: the memory is this function's, and long enough.
    unsafe {
        let parent = (*thread).task;
        let align = creation.align.max(1);
        let data_bytes = if with_data {
            creation.bytes.saturating_add(align - 1)
        } else {
            0
        };
        let bytes = size_of::<Task>().saturating_add(data_bytes);
        let memory = match queue.as_ref() {
            Some(queue) => queue.blocks.take(bytes),
            None => memory::lone(bytes),
        };
        let data = if with_data {
            let behind = memory.add(size_of::<Task>());
            behind.add(behind.align_offset(align)).cast()
        } else {
            creation.data
        };
        let flags = creation.flags;
        let task = memory.cast::<Task>();
        task.write(Task {
            is_explicit: true,
            is_final: (*parent).is_final || flags & FLAG_FINAL != 0,
            is_deferred,
            group: (*parent).group,
            team: (*thread).at.team,
            home: queue,
            body: creation.body,
            data,
            priority: priority(creation),
            event: StdAtomicU32::new(if flags & FLAG_DETACH != 0 {
                event::OPEN
            } else {
                event::NONE
            }),
            // Who fulfills the event rings there: before anybody has the handle.
            on: StdAtomicPtr::new(match is_deferred {
                true => ptr::null_mut(),
                false => queue.cast_mut(),
            }),
            ..Task::implicit(parent, (*parent).icv)
        });
        if flags & FLAG_DETACH != 0 {
            *creation.detach = task.cast();
            if !creation.data.is_null() {
                // The task's own copy of the handle stands first in its data.
                *creation.data.cast::<*mut c_void>() = task.cast();
            }
        }
        task
    }
}

/// Fills the copy of the data.
#[inline]
unsafe fn copy_data(
    thread: *mut Thread,
    task: *mut Task,
    creation: &Creation,
    adjust: &mut dyn FnMut(*mut c_void),
) {
    // SAFETY: the caller's promise.
    unsafe {
        match creation.copy {
            Some(copy) => {
                // What it calls may ask which task it is in.
                let before = (*thread).task;
                (*thread).task = task;
                copy((*task).data, creation.data);
                (*thread).task = before;
                (*task).is_copied = true;
            }
            None => ptr::copy_nonoverlapping(
                creation.data.cast::<u8>(),
                (*task).data.cast::<u8>(),
                creation.bytes,
            ),
        }
        adjust((*task).data);
    }
}

#[inline]
unsafe fn begin_to_run(thread: *mut Thread, queue: *const Queue, task: *mut Task) {
    // SAFETY: the calling thread's own queue; nobody else runs the task.
    unsafe {
        if let Some(own) = queue.as_ref() {
            (*task).on.store(queue.cast_mut(), Ordering::Relaxed);
            (*task).first_number = own.next_number();
        }
        (*thread).task = task;
    }
}

#[inline(never)]
unsafe fn defer(
    thread: *mut Thread,
    queue: *const Queue,
    creation: &Creation,
    adjust: &mut dyn FnMut(*mut c_void),
) {
    // SAFETY: the task is this thread's until it is pushed; its parent and group live as long as it has not ended.
    unsafe {
        let parent = (*thread).task;
        let team = (*thread).at.team;
        let task = new_task(thread, queue, creation, true, true);
        copy_data(thread, task, creation, adjust);
        let group = (*task).group;
        if !(*task).is_copied && group::is_task_cancelled(task) {
            return free(task, queue);
        }
        (*parent).made += 1;
        if (*parent).on.load(Ordering::Relaxed).is_null() {
            (*parent).on.store(queue.cast_mut(), Ordering::Relaxed);
        }
        if let Some(group) = group.as_ref() {
            group.add_task();
        }
        if (*queue).unfinished.one_made() {
            (*team).board.unfinished.fetch_add(1, Ordering::SeqCst);
        }
        if creation.flags & FLAG_DEPEND != 0 && !is_ready_now(parent, task, creation.depend) {
            return;
        }
        if (*task).priority > 0 {
            (*team).board.push_urgent(task, (*task).priority);
        } else {
            (*queue).push(task);
        }
        if let Some(group) = group.as_ref() {
            group.task_ready();
        }
        (*team).board.call(|| (*team).wake_for_tasks(1));
    }
}

unsafe fn dependences(depend: *const *mut c_void) -> Vec<Dependence> {
    // SAFETY: the caller's promise.
    match unsafe { depend::parse(depend) } {
        Ok(dependences) => dependences,
        Err(kind) => message::fatal(format_args!(
            "unknown omp_depend_t dependence type {}",
            kind.0
        )),
    }
}

/// Enters a task that was just made among those its siblings depend on. True: it waits for none. Otherwise who ends
/// the last one makes it ready.
unsafe fn is_ready_now(parent: *mut Task, task: *mut Task, depend: *const *mut c_void) -> bool {
    // SAFETY: the parent is the calling thread's; the task is until its predecessors are all told.
    unsafe {
        let dependences = dependences(depend);
        let node = Arc::new(Node::default());
        (*task).node = Some(node.clone());
        (*task).unmet.store(1, Ordering::Relaxed);
        (*parent)
            .table
            .get_or_insert_default()
            .add(&node, &dependences, |before| {
                (*task).unmet.fetch_add(1, Ordering::Relaxed);
                if !before.tell(Successor::Task(task)) {
                    (*task).unmet.fetch_sub(1, Ordering::Relaxed);
                }
            });
        // AcqRel: what all predecessors did is done before the task runs.
        (*task).unmet.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// Runs a task that was taken from a queue.
unsafe fn run(thread: *mut Thread, queue: *const Queue, task: *mut Task) {
    // SAFETY: the task is nobody else's; `queue` is the calling thread's own.
    unsafe { run_before(thread, queue, task, || {}) };
}

/// The same where the calling thread waits at a meeting. Once the last task has ended the region may end, and the queue may be another thread's: what
/// was made here meanwhile is added up before whatever lets somebody end the task. `ran` is called when its body has ended.
unsafe fn run_at_meeting(
    thread: *mut Thread,
    queue: *const Queue,
    task: *mut Task,
    ran: impl FnOnce(),
) {
    // SAFETY: as above. The task counts in its home's queue until it has ended, and in no other.
    unsafe {
        let (team, is_ours) = ((*task).team, (*task).home == queue);
        let settle = || {
            if (*queue).unfinished.settle() {
                uncount(team);
            }
        };
        let let_go = || {
            ran();
            // Otherwise nobody else ends it, and once is enough.
            if !is_ours || (*task).event.load(Ordering::Relaxed) != event::NONE {
                settle();
            }
        };
        if run_before(thread, queue, task, let_go) && is_ours {
            settle();
        }
    }
}

/// Runs a task, and calls `let_go` before others can learn that its body has ended. Whether it has been ended here.
unsafe fn run_before(
    thread: *mut Thread,
    queue: *const Queue,
    task: *mut Task,
    let_go: impl FnOnce(),
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if (*task).is_copied || !group::is_task_cancelled(task) {
            let before = (*thread).task;
            begin_to_run(thread, queue, task);
            ((*task).body)((*task).data);
            (*thread).task = before;
            (*task).table = None;
            let_go();
            if (*task).event.load(Ordering::Relaxed) != event::NONE {
                // AcqRel: pairs with itself in `fulfill`; the later of the two ends the task.
                let seen = (*task).event.swap(event::BODY_ENDED, Ordering::AcqRel);
                if seen == event::OPEN {
                    return false;
                }
            }
        }
        end(task, queue, false);
        true
    }
}

/// A deferred task has ended. `queue` is the calling thread's own, or null if it is of another team.
/// `is_elsewhere`: not where the task ran.
unsafe fn end(task: *mut Task, queue: *const Queue, is_elsewhere: bool) {
    // SAFETY: the task is nobody else's; what it belongs to lives until it is told that the task has ended.
    unsafe {
        let (parent, group, team, home) =
            ((*task).parent, (*task).group, (*task).team, (*task).home);
        if let Some(node) = (*task).node.take() {
            for successor in node.end() {
                tell(successor, queue, is_elsewhere);
            }
        }
        if (*task).children.end((*task).made) {
            free(task, queue);
        }
        let waiting: *const Queue = (*parent).on.load(Ordering::Relaxed);
        if waiting == queue
            && (*parent).children.is_running()
            && (*parent).event.load(Ordering::Relaxed) == event::NONE
        {
            // It is on this thread, below this task. One with an event might be ended elsewhere.
            (*parent).made -= 1;
        } else {
            match (*parent).children.one_ended() {
                Last::No => {}
                Last::Wake => {
                    (*waiting).gate.ring(1);
                }
                Last::Free => free(parent, queue),
            }
        }
        if let Some(group) = group.as_ref() {
            group.task_ended();
        }
        // Last: then the region may end.
        if queue == home {
            (*home).unfinished.one_ended_here();
        } else if (*home).unfinished.one_ended_elsewhere() {
            uncount(team);
        }
    }
}

/// A queue has no tasks that have not ended, and its thread waits at a meeting.
unsafe fn uncount(team: *mut Team) {
    // SAFETY: teams are never freed.
    unsafe {
        if (*team).board.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
            (*team).tasks_ended();
        }
    }
}

/// The calling thread comes to a meeting of its team: whoever ends its last task from now on says so.
///
/// # Safety
/// `thread` is the calling thread's, in a team.
#[inline]
pub(crate) unsafe fn settle(thread: *mut Thread) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*own_queue(thread)).unfinished.settle() {
            uncount((*thread).at.team);
        }
    }
}

/// One that `successor` waits for has ended.
unsafe fn tell(successor: Successor, queue: *const Queue, is_elsewhere: bool) {
    // SAFETY: a successor is there until the last that it waits for has told it.
    unsafe {
        match successor {
            Successor::Waiter(task) => {
                let waiting = (*task).on.load(Ordering::Relaxed);
                if (*task).awaited.fetch_sub(1, Ordering::SeqCst) == 1 {
                    (*waiting).gate.ring(1);
                }
            }
            Successor::Task(task) => {
                if (*task).unmet.fetch_sub(1, Ordering::AcqRel) == 1 {
                    make_ready(task, queue, is_elsewhere);
                }
            }
        }
    }
}

/// The queues of those who may wait for a task and may run nothing else, or null: of its parent, and of who waits for its group.
unsafe fn waiters(task: *mut Task) -> [*const Queue; 2] {
    // SAFETY: the task is the caller's, and has not ended.
    unsafe {
        let parent_on: *const Queue = (*(*task).parent).on.load(Ordering::Relaxed);
        let owner = (*task).group.as_ref().map_or(ptr::null(), Group::owner);
        [parent_on, owner]
    }
}

unsafe fn make_ready(task: *mut Task, queue: *const Queue, is_elsewhere: bool) {
    // SAFETY: the task is nobody else's until it is pushed. What is looked at later is never freed.
    unsafe {
        let team = (*task).team;
        let waiters = waiters(task);
        if (*task).priority > 0 {
            (*team).board.push_urgent(task, (*task).priority);
        } else if queue.is_null() {
            (*(*task).home).push_oldest(task);
        } else if is_elsewhere {
            (*queue).push_oldest(task);
        } else {
            (*queue).push(task);
        }
        // Who waits for it, and may run nothing else, looks for it everywhere.
        for waiting in waiters {
            if waiting.is_null() {
                continue;
            }
            if waiting != queue {
                (*waiting).nudge();
            } else if is_elsewhere || (*task).priority > 0 {
                // This thread, in a wait below: the task is not its newest.
                (*waiting).will_look();
            }
        }
        (*team).board.call(|| (*team).wake_for_tasks(1));
    }
}

/// Gives back the memory of a task that has ended and whose children have ended.
unsafe fn free(task: *mut Task, queue: *const Queue) {
    // SAFETY: nobody else has the task. Queues are never freed; where there is none the memory is a lone one.
    unsafe {
        let home = (*task).home;
        ptr::drop_in_place(task);
        let blocks = if home.is_null() {
            ptr::null()
        } else {
            &raw const (*home).blocks.0
        };
        memory::give_back(task.cast(), blocks, home == queue);
    }
}

/// `omp_fulfill_event`, from any thread.
///
/// # Safety
/// `handle` is that of a task whose event was not fulfilled.
pub unsafe fn fulfill(handle: usize) {
    // SAFETY: the caller's promise: the task has not ended. One that waits for its event itself may be gone after
    // the exchange.
    unsafe {
        let task = handle as *mut Task;
        let (is_deferred, waiting) = ((*task).is_deferred, (*task).on.load(Ordering::Relaxed));
        let event = &raw const (*task).event;
        // SeqCst: against the sleepers of the gate; see also `run`.
        match (*event).swap(event::FULFILLED, Ordering::SeqCst) {
            event::OPEN if is_deferred => {}
            event::OPEN if waiting.is_null() => {
                sys::futex_wake(event.cast(), 1);
            }
            event::OPEN => {
                (*waiting).gate.ring(1);
            }
            event::BODY_ENDED => {
                let queue = match thread::known() {
                    Some(thread) if (*thread).at.team == (*task).team => own_queue(thread),
                    _ => ptr::null(),
                };
                end(task, queue, true);
            }
            _ => message::fatal(format_args!(
                "omp_fulfill_event: {handle:#x} event is invalid or has already been fulfilled!"
            )),
        }
    }
}

/// Whether the calling thread's task is final.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn is_final(thread: *mut Thread) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*(*thread).task).is_final }
}

/// Whether the calling thread's task is an explicit one.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn is_explicit(thread: *mut Thread) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*(*thread).task).is_explicit }
}

/// The implicit task of the calling thread has come to the end of its region.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn end_implicit(thread: *mut Thread) {
    // SAFETY: the task's plain fields are its thread's. Its children look at its word only, and have all ended
    // before it is replaced.
    unsafe {
        let task = (*thread).task;
        if (*task).table.is_some() {
            (*task).table = None;
        }
        settle(thread);
    }
}
