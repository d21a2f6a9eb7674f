//! The parts of `task` that several threads touch at once, for loom: all interleavings of small cases.

use std::ptr;

use crate::gate::Gate;
use crate::models::sleep_until;
use crate::sync::Ordering;

mod children;
mod memory;
mod queue;
mod unfinished;

use queue::{Board, Queue, Search};

/// What a queue needs of a task.
pub struct Task {
    number: u64,
    older: *mut Task,
    newer: *mut Task,
}

struct Shared {
    board: Board,
    queues: [Queue; 2],
    gate: Gate,
    task: *mut Task,
}

// SAFETY: a task is touched by who has it, and under the lock of the queue it is in.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> loom::sync::Arc<Shared> {
        let task = Box::into_raw(Box::new(Task {
            number: 0,
            older: ptr::null_mut(),
            newer: ptr::null_mut(),
        }));
        let shared = loom::sync::Arc::new(Shared {
            board: Board::default(),
            queues: [Queue::default(), Queue::default()],
            gate: Gate::new(),
            task,
        });
        for (id, queue) in shared.queues.iter().enumerate() {
            shared.board.enlist(id, queue);
        }
        shared
    }

    /// Thread 0 makes the task ready and calls.
    fn push_and_call(&self) {
        // SAFETY: the model's thread 0 calls it, once.
        unsafe { self.queues[0].push(self.task) };
        self.board.call(|| self.gate.ring(1) != 0);
    }

    /// As `run_one` does it.
    fn take_any(&self, id: usize) -> bool {
        loop {
            let mut task = self.queues[id].take_newest(0, || true);
            if task.is_null() {
                task = self.board.steal(id, &mut Search::Any(&mut || true));
            }
            if !task.is_null() {
                self.board.found(|| self.gate.ring(1) != 0);
                return true;
            }
            if !self.board.found_nothing() {
                return false;
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        drop(unsafe { Box::from_raw(self.task) });
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn who_sleeps_at_a_barrier_is_woken_for_a_task() {
    check(|| {
        let shared = Shared::new();
        let waiter = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || {
                let ran = std::cell::Cell::new(false);
                sleep_until(
                    &shared.gate,
                    || ran.get(),
                    |_| {
                        ran.set(shared.board.has_ready() && shared.take_any(1));
                        ran.get()
                    },
                );
            })
        };
        shared.push_and_call();
        waiter.join().unwrap();
    });
}

#[test]
fn a_task_is_taken_once() {
    check(|| {
        let shared = Shared::new();
        let thief = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || shared.take_any(1))
        };
        shared.push_and_call();
        let own = shared.take_any(0);
        assert!(own != thief.join().unwrap());
    });
}

/// As many as the fewest of which a haul is taken.
fn tasks() -> [Box<Task>; 4] {
    std::array::from_fn(|_| {
        Box::new(Task {
            number: 0,
            older: ptr::null_mut(),
            newer: ptr::null_mut(),
        })
    })
}

#[test]
fn what_is_taken_together_is_run_once_each_by_whoever_finds_it() {
    check(|| {
        let shared = Shared::new();
        let mut tasks = tasks();
        for task in &mut tasks {
            // SAFETY: the model's thread 0 is the owner.
            unsafe { shared.queues[0].push(&raw mut **task) };
        }
        let thief = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || {
                let haul = shared.board.steal_haul(1, &mut || true);
                let mut ran = 0;
                if !haul.is_null() {
                    ran += 1;
                    // SAFETY: the thread is the owner of queue 1 and has taken the tasks.
                    unsafe { shared.queues[1].keep((*haul).newer) };
                }
                while shared.take_any(1) {
                    ran += 1;
                }
                ran
            })
        };
        let mut ran = 0;
        while shared.take_any(0) {
            ran += 1;
        }
        assert_eq!(ran + thief.join().unwrap(), tasks.len());
    });
}

#[test]
fn who_sleeps_is_woken_for_what_another_keeps() {
    check(|| {
        let shared = Shared::new();
        let mut tasks = tasks();
        for task in &mut tasks {
            // SAFETY: the model's thread 0 is the owner, and nobody else runs yet.
            unsafe { shared.queues[0].push(&raw mut **task) };
        }
        // It has taken half, and the owner the rest, but not kept what it has taken.
        let haul = shared.board.steal_haul(1, &mut || true);
        assert!(!haul.is_null());
        while !shared.queues[0].take_newest(0, || true).is_null() {}
        let waiter = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || {
                let ran = std::cell::Cell::new(false);
                sleep_until(
                    &shared.gate,
                    || ran.get(),
                    |_| {
                        ran.set(shared.board.has_ready() && shared.take_any(0));
                        ran.get()
                    },
                );
            })
        };
        // SAFETY: the owner of queue 1 is the model's thread 0.
        unsafe { shared.queues[1].keep((*haul).newer) };
        shared.board.call(|| shared.gate.ring(1) != 0);
        waiter.join().unwrap();
    });
}

/// Thread `id` waits for a task that `may` tells, and looks for it everywhere at first and when it was nudged.
fn find(shared: &Shared, id: usize, may: &dyn Fn(*mut Task) -> bool) {
    let queue = &shared.queues[id];
    let ran = std::cell::Cell::new(false);
    let is_first = std::cell::Cell::new(true);
    sleep_until(
        &queue.gate,
        || ran.get(),
        |_| {
            let far = is_first.replace(false) || queue.was_nudged();
            let task = if far {
                shared.board.steal(id, &mut Search::Some(may, usize::MAX))
            } else {
                ptr::null_mut()
            };
            ran.set(!task.is_null());
            ran.get()
        },
    );
}

#[test]
fn who_waits_for_a_task_finds_it_wherever_it_becomes_ready() {
    check(|| {
        let shared = Shared::new();
        let waiter = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || find(&shared, 1, &|task| task == shared.task))
        };
        // SAFETY: the model's thread 0, once.
        unsafe { shared.queues[0].push_oldest(shared.task) };
        shared.queues[1].nudge();
        waiter.join().unwrap();
    });
}

#[test]
fn who_waits_for_a_task_finds_it_where_another_keeps_it() {
    check(|| {
        let shared = Shared::new();
        let mut tasks = tasks();
        for task in &mut tasks {
            // SAFETY: the model's thread 0 is the owner, and nobody else runs yet.
            unsafe { shared.queues[0].push(&raw mut **task) };
        }
        let awaited = (&raw mut *tasks[1]).addr();
        let waiter = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || find(&shared, 0, &|task| task.addr() == awaited))
        };
        let haul = shared.board.steal_haul(1, &mut || true);
        if !haul.is_null() {
            // SAFETY: the owner of queue 1 is the model's thread 0.
            unsafe { shared.queues[1].keep((*haul).newer) };
            shared.queues[0].nudge();
        }
        waiter.join().unwrap();
    });
}

#[test]
fn the_number_of_unfinished_tasks_comes_to_0_once() {
    fn make(shared: &Shared) {
        if shared.queues[0].unfinished.one_made() {
            shared.board.unfinished.fetch_add(1, Ordering::SeqCst);
        }
    }
    fn leave(shared: &Shared, is_last: bool) -> bool {
        is_last && shared.board.unfinished.fetch_sub(1, Ordering::SeqCst) == 1
    }
    check(|| {
        let shared = Shared::new();
        make(&shared);
        let other = {
            let shared = loom::sync::Arc::clone(&shared);
            loom::thread::spawn(move || {
                leave(&shared, shared.queues[0].unfinished.one_ended_elsewhere())
            })
        };
        make(&shared);
        shared.queues[0].unfinished.one_ended_here();
        let ended = leave(&shared, shared.queues[0].unfinished.settle());
        assert!(ended != other.join().unwrap());
        assert_eq!(shared.board.unfinished(), 0);
    });
}
