//! What a thread does that waits for tasks: it runs those that it may.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::depend::{Dependence, Successor};
use super::queue::{HAUL, Queue, Search};
use super::{Group, Task, dependences, event, group, own_queue, run, run_at_meeting, waiters};
use crate::lateness::Awaited;
use crate::spinners::Place;
use crate::sync::{Ordering, spin_loop};
use crate::sys;
use crate::thread::Thread;

/// How many of the oldest tasks of each queue a waiting thread looks at in passing.
const GLANCE: usize = 8;
/// So many tasks that a waiting thread has run, and it looks for its oldest child, which newer tasks could keep away for ever.
const IN_TURN: u32 = 1024;

/// Runs one ready task of the team in whose barrier (or behind whose end) `thread` waits. False: there was none, or
/// `is_over`, which is asked while nobody else can take the task, says that the thread is not in that region any
/// more.
///
/// # Safety
/// `thread` is the calling thread's; it is in a team, or was in the last region.
pub unsafe fn run_one(thread: *mut Thread, is_over: &mut dyn FnMut() -> bool) -> bool {
    // SAFETY: teams, their boards and queues are never freed. The implicit task knows the thread's queue if it has
    // made tasks; the members must not be looked at, they may be changing already.
    unsafe {
        let team = (*thread).at.team;
        if team.is_null() {
            // Its first region has not begun.
            return false;
        }
        let id = (*thread).at.id as usize;
        let board = &(*team).board;
        let queue = board.queue(id);
        loop {
            let mut is_mine = || !is_over();
            let mut task = board.take_urgent(&mut Search::Any(&mut is_mine));
            if task.is_null() {
                task = (*queue).take_newest(0, &mut is_mine);
            }
            if !task.is_null() {
                board.found(|| (*team).wake_for_tasks(1));
                run_at_meeting(thread, queue, task, || {});
                return true;
            }
            if board.seems_ready() && run_stolen(thread, queue, is_over) {
                return true;
            }
            if is_over() || !board.found_nothing() {
                return false;
            }
        }
    }
}

/// Runs a task that others have made, where that is worth it; otherwise after a while.
///
/// # Safety
/// See [`run_one`].
unsafe fn run_stolen(
    thread: *mut Thread,
    queue: *const Queue,
    is_over: &mut dyn FnMut() -> bool,
) -> bool {
    // SAFETY: see `run_one`. The queue may be another thread's once the task has ended; what was measured is the thread's.
    unsafe {
        let worth = &raw mut (*thread).worth;
        let mut begun = sys::monotonic_ns();
        while !(*worth).is_due(begun) {
            if is_over() {
                return false;
            }
            spin_loop();
            begun = sys::monotonic_ns();
        }
        let team = (*thread).at.team;
        let (board, id) = (&(*team).board, (*thread).at.id as usize);
        let mut is_mine = || !is_over();
        let mut task = match (*worth).pays() {
            true => board.steal_haul(id, &mut is_mine),
            false => ptr::null_mut(),
        };
        let is_haul = !task.is_null();
        if is_haul {
            keep(queue, (*task).newer);
            // Who has found nothing meanwhile may sleep.
            board.call(|| (*team).wake_for_tasks(1));
        } else {
            task = board.steal(id, &mut Search::Any(&mut is_mine));
            if task.is_null() {
                return false;
            }
        }
        board.found(|| (*team).wake_for_tasks(1));
        let started = sys::monotonic_ns();
        let ran = Cell::new(started);
        run_at_meeting(thread, queue, task, || ran.set(sys::monotonic_ns()));
        (*worth).ran(ran.get() - started);
        if !is_haul {
            let now = sys::monotonic_ns();
            (*worth).took((started - begun) + (now - ran.get()), now);
        }
        true
    }
}

/// Keeps tasks, linked by `newer`, that were taken from others. Who waits for one of them may not have found it meanwhile, and looks again.
unsafe fn keep(queue: *const Queue, haul: *mut Task) {
    // SAFETY: the tasks are the calling thread's until they are kept; queues are never freed.
    unsafe {
        let mut waiting = [ptr::null(); 2 * HAUL as usize];
        let (mut count, mut task) = (0, haul);
        while !task.is_null() {
            for who in waiters(task) {
                // They are mostly the same.
                let is_new = !who.is_null() && who != queue && !waiting[..count].contains(&who);
                if is_new {
                    waiting[count] = who;
                    count += 1;
                }
            }
            task = (*task).newer;
        }
        (*queue).keep(haul);
        for who in &waiting[..count] {
            (**who).nudge();
        }
    }
}

/// The calling thread's task waits until `is_done`; meanwhile it runs its descendants, and tasks of `group`.
///
/// Which it may run: the task scheduling constraint asks for descendants of the task. What the thread itself has
/// made since the task began are those. Elsewhere it looks for children, for tasks of the group, and for
/// grandchildren. Children and tasks of the group it must find wherever they are: it may be the only thread that may
/// run them.
pub(super) unsafe fn wait_for(thread: *mut Thread, group: *mut Group, is_done: &dyn Fn() -> bool) {
    // SAFETY: the thread is in a region, which does not end while it waits.
    unsafe {
        let queue = own_queue(thread);
        // Tasks that the waiting task has made itself, with nothing to wait for, are in the own queue, or run already, or are in the hauls of others, which are looked at in
        // passing.
        let team = &*(*thread).at.team;
        let board = &team.board;
        let is_elsewhere =
            (*(*thread).task).table.is_some() || !group.is_null() || board.has_urgent();
        let (is_far, was_nudged) = (&Cell::new(is_elsewhere), &Cell::new(false));
        let turns = Cell::new(0_u32);
        let mut other = move |place: &Place<'_>| {
            turns.set(turns.get().wrapping_add(1));
            if turns.get().is_multiple_of(IN_TURN) && run_oldest_child(thread, queue, place) {
                return true;
            }
            if (*queue).was_nudged() {
                was_nudged.set(true);
                is_far.set(true);
            }
            let far = if is_far.get() { usize::MAX } else { GLANCE };
            let ran = run_descendant(thread, queue, group, far, place);
            // There may be more of what it was nudged for.
            is_far.set(is_far.get() && ran);
            ran
        };
        (*queue).begin_wait();
        while !is_done() {
            if !other(&Place::default()) {
                let mut manner = team.manner(&mut (*thread).own, Awaited::Other, &|| false);
                (*queue).gate.wait(&mut manner, is_done, &mut other);
                break;
            }
        }
        (*queue).end_wait(was_nudged.get());
    }
}

/// Runs the newest task of the calling thread that was made since its task began.
unsafe fn run_own(thread: *mut Thread, queue: *const Queue) -> bool {
    // SAFETY: the thread is in a team; the queue is its own.
    unsafe {
        let from = (*(*thread).task).first_number;
        let task = (*queue).take_newest(from, || true);
        if !task.is_null() {
            run(thread, queue, task);
        }
        !task.is_null()
    }
}

/// Runs the oldest of the children of the calling thread's task that it has made ready itself, or one that others have taken and keep.
unsafe fn run_oldest_child(thread: *mut Thread, queue: *const Queue, place: &Place<'_>) -> bool {
    // SAFETY: the thread is in a team; the queue is its own.
    unsafe {
        let waiting = (*thread).task;
        let may = |task: *mut Task| (*task).parent == waiting;
        let mut task = (*queue).take_oldest(&may);
        if task.is_null() {
            // Others may have it, but do not run it yet.
            let board = &(*(*thread).at.team).board;
            task = board.steal((*thread).at.id as usize, &mut Search::Some(&may, 1));
        }
        if !task.is_null() {
            place.leave();
            run(thread, queue, task);
        }
        !task.is_null()
    }
}

unsafe fn run_descendant(
    thread: *mut Thread,
    queue: *const Queue,
    group: *mut Group,
    far: usize,
    place: &Place<'_>,
) -> bool {
    // SAFETY: see `wait_for`. A task in a queue has not ended, so its parent is there.
    unsafe {
        let waiting = (*thread).task;
        let board = &(*(*thread).at.team).board;
        let may = |task: *mut Task| {
            let parent = (*task).parent;
            parent == waiting
                || !group.is_null() && (*task).group == group
                // While the parent has not ended its own parent is there: it is this one, and not another one at the
                // same address.
                || (*parent).parent == waiting && !(*parent).children.has_ended()
        };
        let mut search = Search::Some(&may, far);
        let mut task = board.take_urgent(&mut search);
        if task.is_null() {
            task = (*queue).take_newest((*waiting).first_number, || true);
        }
        if task.is_null() && board.seems_ready() {
            task = board.steal((*thread).at.id as usize, &mut search);
        }
        if task.is_null() {
            return false;
        }
        place.leave();
        run(thread, queue, task);
        true
    }
}

/// `taskwait`: all children of the calling thread's task have ended.
///
/// # Safety
/// `thread` is the calling thread's.
#[inline]
pub unsafe fn wait(thread: *mut Thread) {
    // SAFETY: the caller's promise; deferred children are made in teams only.
    unsafe {
        let task = (*thread).task;
        if (*task).made == 0 {
            return;
        }
        // Children that this thread runs now need no word.
        let queue = own_queue(thread);
        let board = &(*(*thread).at.team).board;
        let mut left = IN_TURN;
        while (*task).made != 0 && left != 0 && !board.has_urgent() && run_own(thread, queue) {
            // The children may have ended elsewhere while their descendants go on here.
            if (*task).children.have_all_ended((*task).made) {
                (*task).made = 0;
                return;
            }
            left -= 1;
        }
        let made = (*task).made;
        if !(*task).children.have_all_ended(made) {
            (*task).children.wait(made);
            wait_for(thread, ptr::null_mut(), &|| (*task).children.is_wait_over());
            (*task).children.waited();
        }
        (*task).made = 0;
    }
}

/// `taskwait depend`: the children that a task with these dependences would wait for have ended.
///
/// # Safety
/// `thread` is the calling thread's; see [`super::depend::parse`].
pub unsafe fn wait_depend(thread: *mut Thread, depend: *const *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*(*thread).task).table.is_some() && !group::is_task_cancelled((*thread).task) {
            wait_for_dependences(thread, &dependences(depend));
        }
    }
}

pub(super) unsafe fn wait_for_dependences(thread: *mut Thread, dependences: &[Dependence]) {
    // SAFETY: the task is the calling thread's; it is told before this returns.
    unsafe {
        let task = (*thread).task;
        let awaited = &raw const (*task).awaited;
        (*awaited).store(1, Ordering::Relaxed);
        if let Some(table) = &(*task).table {
            table.look(dependences, |before| {
                (*awaited).fetch_add(1, Ordering::SeqCst);
                if !before.tell(Successor::Waiter(task)) {
                    (*awaited).fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        if (*awaited).fetch_sub(1, Ordering::SeqCst) != 1 {
            wait_for(thread, ptr::null_mut(), &|| {
                (*awaited).load(Ordering::SeqCst) == 0
            });
        }
    }
}

/// A task that ran at once has come to the end of its body: its event is awaited.
pub(super) unsafe fn wait_for_event(thread: *mut Thread, task: *mut Task) {
    // SAFETY: the task is the calling thread's current one.
    unsafe {
        let event = &raw const (*task).event;
        let is_fulfilled = || (*event).load(Ordering::SeqCst) == event::FULFILLED;
        if !(*thread).at.team.is_null() {
            return wait_for(thread, ptr::null_mut(), &is_fulfilled);
        }
        while !is_fulfilled() {
            sys::futex_wait(&*event, event::OPEN);
        }
    }
}

/// `taskyield`: runs one task that may run now, if there is one.
///
/// # Safety
/// `thread` is the calling thread's.
pub unsafe fn give_way(thread: *mut Thread) {
    // SAFETY: the caller's promise.
    unsafe {
        let queue = own_queue(thread);
        if !queue.is_null() && (*queue).len() != 0 {
            run_descendant(thread, queue, ptr::null_mut(), GLANCE, &Place::default());
        }
    }
}
