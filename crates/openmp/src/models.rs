//! All interleavings of small cases (`RUSTFLAGS="--cfg loom" cargo test --release -p amdahl-openmp --lib`).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::chain::{Chain, Link, Value};
use crate::contention::{Contention, Own};
use crate::count::Arrivals;
use crate::dock::{Berth, Next};
use crate::gate::{Gate, Manner};
use crate::lateness::Awaited;
use crate::lock::Lock;
use crate::meeting::{Few, Full, Meeting};
use crate::policy::Patience;
use crate::release::{Rest, open_all, pass_on};
use crate::spinners::{Place, Spinners};
use crate::tree::{self, Tree};

/// Interleavings with up to three preemptions, more take too long.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Runs it here and in two other threads; returns when all have.
fn three_run<T: Send + Sync + 'static>(shared: &Arc<T>, run: impl Fn(&T) + Copy + Send + 'static) {
    let others = [(); 2].map(|()| {
        let shared = Arc::clone(shared);
        thread::spawn(move || run(&shared))
    });
    run(shared);
    for other in others {
        other.join().unwrap();
    }
}

/// Waits as one does who sleeps at once.
pub(crate) fn sleep_until(
    gate: &Gate,
    is_done: impl FnMut() -> bool,
    other: impl FnMut(&Place<'_>) -> bool,
) {
    let contention = Contention::new();
    let mut own = Own::default();
    let mut manner = asleep(&mut own, &contention);
    gate.wait(&mut manner, is_done, other);
}

#[test]
fn no_opening_is_missed() {
    check(|| {
        let shared = Arc::new((Gate::new(), AtomicU32::new(0)));
        let waiters: Vec<_> = (0..1)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (gate, written) = &*shared;
                    sleep_until(gate, || gate.generation() != 0, |_| false);
                    assert_eq!(written.load(Ordering::Relaxed), 1);
                })
            })
            .collect();
        shared.1.store(1, Ordering::Relaxed);
        shared.0.open();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn who_sleeps_is_woken_for_work() {
    check(|| {
        let shared = Arc::new((Gate::new(), AtomicU32::new(0)));
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, work) = &*shared;
                let done = std::cell::Cell::new(false);
                sleep_until(
                    gate,
                    || done.get(),
                    |_| {
                        done.set(work.swap(0, Ordering::SeqCst) == 1);
                        done.get()
                    },
                );
            })
        };
        shared.1.fetch_add(1, Ordering::SeqCst);
        shared.0.ring(1);
        waiter.join().unwrap();
    });
}

#[test]
fn a_barrier_lets_nobody_through_early() {
    struct Shared {
        tree: Tree,
        arrivals: Arrivals,
        gate: Gate,
        steps: [AtomicU32; 2],
    }
    check(|| {
        let tree = Tree::by_number(2);
        let mut arrivals = Arrivals::default();
        arrivals.grow(&tree);
        let shared = Arc::new(Shared {
            tree,
            arrivals,
            gate: Gate::new(),
            steps: [AtomicU32::new(0), AtomicU32::new(0)],
        });
        let run = |id: usize, shared: &Shared| {
            for step in 1..=2 {
                shared.steps[id].store(step, Ordering::Relaxed);
                let seen = shared.gate.generation();
                if shared.arrivals.arrive(id, &shared.tree) {
                    shared.gate.open();
                } else {
                    sleep_until(&shared.gate, || shared.gate.generation() != seen, |_| false);
                }
                assert!(shared.steps[1 - id].load(Ordering::Relaxed) >= step);
            }
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || run(1, &shared))
        };
        run(0, &shared);
        other.join().unwrap();
    });
}

/// Three leaves, where in the models more than two are many: who opens leaves one to who waits in another. Twice, since
/// what is left from the first barrier must not be there at the second one.
#[test]
fn a_tree_of_leaves_lets_all_go_and_nobody_early() {
    struct Shared {
        tree: Tree,
        arrivals: Arrivals,
        gates: [(Gate, Rest); 3],
        steps: [AtomicU32; 3],
    }
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let tree = Tree::of_leaves(3);
        assert!(tree.leaves() > tree::FAN_IN && tree.nodes() == 5);
        let mut arrivals = Arrivals::default();
        arrivals.grow(&tree);
        let shared = Arc::new(Shared {
            tree,
            arrivals,
            gates: [(); 3].map(|()| (Gate::new(), Rest::none())),
            steps: [(); 3].map(|()| AtomicU32::new(0)),
        });
        let run = |id: usize, shared: &Shared| {
            let gate = |leaf: u32| {
                let (gate, rest) = &shared.gates[leaf as usize];
                (gate, rest)
            };
            for step in 1..=2 {
                shared.steps[id].store(step, Ordering::Relaxed);
                let own = &shared.gates[id].0;
                let seen = own.generation();
                if shared.arrivals.arrive(id, &shared.tree) {
                    open_all(&shared.tree, id as u32, || false, gate, |_| {});
                } else {
                    sleep_until(own, || own.generation() != seen, |_| false);
                    pass_on(&shared.tree, id as u32, gate, |_| {});
                }
                for other in &shared.steps {
                    assert!(other.load(Ordering::Relaxed) >= step);
                }
            }
        };
        let others: Vec<_> = (1..3)
            .map(|id| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || run(id, &shared))
            })
            .collect();
        run(0, &shared);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// What two who wait in the same leaf find left is done by one of them.
#[test]
fn what_is_left_is_done_once() {
    check(|| {
        let shared = Arc::new((Gate::new(), Rest::none(), AtomicU32::new(0)));
        let run = |shared: &(Gate, Rest, AtomicU32)| {
            sleep_until(&shared.0, || shared.0.generation() != 0, |_| false);
            if shared.1.take().is_some() {
                shared.2.fetch_add(1, Ordering::Relaxed);
            }
        };
        let others: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || run(&shared))
            })
            .collect();
        shared.1.leave(7);
        shared.0.open();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(shared.2.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn one_and_only_one_ends_a_meeting() {
    check(|| {
        // One task is left; who ends it is not the one who arrives last.
        let shared = Arc::new((Full::default(), AtomicU32::new(1), AtomicU32::new(0)));
        let ender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (full, unfinished, ended) = &*shared;
                unfinished.fetch_sub(1, Ordering::SeqCst);
                if full
                    .tasks_ended(|| unfinished.load(Ordering::SeqCst))
                    .is_some()
                {
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let (full, unfinished, ended) = &*shared;
        if full.all_arrived(Meeting::Barrier, || unfinished.load(Ordering::SeqCst)) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
        ender.join().unwrap();
        assert_eq!(ended.load(Ordering::Relaxed), 1);
        assert!(full.tasks_ended(|| 0).is_none());
    });
}

/// The master of few threads sees by itself that all have come and no task is left, or is woken when both are so; and what the others did has happened.
#[test]
fn the_master_of_few_goes_on_when_the_last_has_come_and_the_last_task_has_ended() {
    struct Shared {
        few: Few,
        gate: Gate,
        unfinished: AtomicU32,
        done: [loom::cell::UnsafeCell<bool>; 2],
    }
    // SAFETY: loom sees to it that the cells are not used by two at once.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}
    check(|| {
        let shared = Arc::new(Shared {
            few: Few::default(),
            gate: Gate::new(),
            unfinished: AtomicU32::new(1),
            done: [
                loom::cell::UnsafeCell::new(false),
                loom::cell::UnsafeCell::new(false),
            ],
        });
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // SAFETY: before it has come.
                shared.done[0].with_mut(|done| unsafe { *done = true });
                if shared.few.come(2) {
                    shared.gate.ring(1);
                }
            })
        };
        let ender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // SAFETY: before the task has ended.
                shared.done[1].with_mut(|done| unsafe { *done = true });
                if shared.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
                    shared.gate.ring(1);
                }
            })
        };
        let is_over = || shared.few.are_there(2) && shared.unfinished.load(Ordering::SeqCst) == 0;
        if !shared.few.come(2) || !is_over() {
            sleep_until(&shared.gate, is_over, |_| false);
        }
        for done in &shared.done {
            // SAFETY: the region is over.
            assert!(done.with(|done| unsafe { *done }));
        }
        worker.join().unwrap();
        ender.join().unwrap();
    });
}

/// How one waits who sleeps at once.
fn asleep<'a>(own: &'a mut Own, contention: &'a Contention) -> Manner<'a> {
    Manner {
        patience: Patience::Turns {
            alone: 0,
            crowded: 0,
        },
        is_crowded: true,
        are_crowded: || true,
        own,
        contention,
        is_awaited_here: &|| false,
        place: Place::default(),
        awaited: Awaited::Other,
    }
}

/// What is in a link: who took it how often, and whether that is the model's own.
#[derive(Default)]
struct Seen {
    entered: AtomicU32,
    turn: loom::cell::UnsafeCell<u32>,
}

impl Value for Seen {
    fn renew(&mut self) {
        // Whoever still was in the link would be seen writing or reading at the same time.
        self.turn.with_mut(|turn| {
            // SAFETY: loom sees to it that nobody else does.
            unsafe { *turn = 0 }
        });
        self.entered.store(0, Ordering::Relaxed);
    }
}

/// Two threads go through a chain, links of which are used again as soon as both have left them.
#[test]
fn each_link_is_made_once_and_used_again_when_all_have_left() {
    struct Shared(Chain<Seen>, *mut Link<Seen>);
    // SAFETY: the chain's protocol, which is what the model is about.
    unsafe impl Sync for Shared {}
    // SAFETY: as above.
    unsafe impl Send for Shared {}
    check(|| {
        let mut chain = Chain::default();
        let first = chain.begin(2);
        let shared = Arc::new(Shared(chain, first));
        let run = |id: u32, Shared(chain, first): &Shared| {
            let mut link = *first;
            let mut made = 0;
            for turn in 1..=3 {
                let contention = Contention::new();
                let mut own = Own::default();
                // SAFETY: `link` is where this thread is.
                let (next, is_first) = unsafe {
                    chain.advance(
                        link,
                        id,
                        || asleep(&mut own, &contention),
                        |seen, threads| {
                            assert_eq!(threads, 2);
                            // SAFETY: loom sees to it that nobody else does.
                            seen.turn.with_mut(|t| unsafe { *t = turn });
                        },
                    )
                };
                link = next;
                made += u32::from(is_first);
                // SAFETY: this thread is in the link.
                let seen: &Seen = unsafe { &*link };
                // SAFETY: loom sees to it that nobody writes it.
                assert_eq!(seen.turn.with(|t| unsafe { *t }), turn);
                assert!(seen.entered.fetch_add(1, Ordering::Relaxed) < 2);
            }
            made
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || run(1, &shared))
        };
        let made = run(0, &shared) + other.join().unwrap();
        assert_eq!(made, 3);
    });
}

#[test]
fn a_lock_is_one_thread_s_at_a_time_and_nobody_sleeps_on() {
    struct Shared(Lock, loom::cell::UnsafeCell<u32>);
    // SAFETY: the number is used under the lock.
    unsafe impl Sync for Shared {}
    check(|| {
        let shared = Arc::new(Shared(Lock::default(), loom::cell::UnsafeCell::new(0)));
        let run = |shared: &Shared| {
            let contention = Contention::new();
            let mut own = Own::default();
            if !shared.0.try_acquire() {
                shared.0.wait(&mut asleep(&mut own, &contention));
            }
            // SAFETY: under the lock.
            shared.1.with_mut(|number| unsafe { *number += 1 });
            shared.0.release();
        };
        three_run(&shared, run);
        // SAFETY: nobody else is there any more.
        assert_eq!(shared.1.with(|number| unsafe { *number }), 3);
    });
}

/// Three threads, two of which can run: whatever the order, and when it becomes one, no more spin than that.
#[test]
fn no_more_spin_than_can_run() {
    struct Shared {
        spinners: Spinners,
        spinning: AtomicU32,
    }
    check(|| {
        let shared = Arc::new(Shared {
            spinners: Spinners::default(),
            spinning: AtomicU32::new(0),
        });
        shared.spinners.set_threads(3);
        let run = |shared: &Shared| {
            let place = Place::among(&shared.spinners);
            if place.may_spin(2) {
                assert!(shared.spinning.fetch_add(1, Ordering::SeqCst) < 2);
                shared.spinning.fetch_sub(1, Ordering::SeqCst);
                // What it knew before this one may have been older.
                place.may_spin(1);
            }
        };
        three_run(&shared, run);
        // All have given their places back.
        let places = [(); 2].map(|()| Place::among(&shared.spinners));
        assert!(places.iter().all(|place| place.may_spin(2)));
        assert!(!Place::among(&shared.spinners).may_spin(2));
        assert!(!places[0].may_spin(1) && places[1].may_spin(1));
    });
}

/// A worker serves a team, is taken away, and is given back before it may have noticed. It takes part in each region once, when
/// what it reads there is written, and never because its dock was opened for another reason.
#[test]
fn a_worker_begins_each_region_that_is_its_own_and_no_other() {
    struct Shared {
        dock: Gate,
        /// The worker's own gate, and whether it has a part.
        idle: Gate,
        has_part: AtomicU32,
        join_at: AtomicU32,
        /// The number of the region.
        region: loom::cell::UnsafeCell<u32>,
        ended: Gate,
    }
    // SAFETY: loom sees to it that nobody reads the number while it is written.
    unsafe impl Sync for Shared {}
    impl Shared {
        fn give(&self) {
            let next = self.dock.generation().wrapping_add(1);
            self.join_at.store(next, Ordering::Relaxed);
            self.has_part.store(1, Ordering::SeqCst);
            self.idle.open();
        }

        fn take_away(&self) {
            self.has_part.store(0, Ordering::SeqCst);
            self.dock.open();
        }

        fn begin(&self, region: u32) {
            // SAFETY: loom sees to it that nobody reads it.
            self.region.with_mut(|number| unsafe { *number = region });
            self.dock.open();
        }

        fn wait_for_end(&self, region: u32) {
            sleep_until(&self.ended, || self.ended.generation() == region, |_| false);
        }

        fn serve(&self) {
            let is_mine = || self.has_part.load(Ordering::SeqCst) == 1;
            let mut served = 0;
            loop {
                sleep_until(&self.idle, is_mine, |_| false);
                let mut berth = Berth::new(&self.join_at);
                loop {
                    match berth.next(&self.dock, is_mine, &self.join_at) {
                        Next::Leave => break,
                        Next::Begin => {
                            served += 1;
                            // SAFETY: loom sees to it that nobody writes it.
                            assert_eq!(self.region.with(|number| unsafe { *number }), served);
                            self.ended.open();
                            if served == 2 {
                                return;
                            }
                        }
                        Next::Wait(seen) => {
                            sleep_until(&self.dock, || self.dock.generation() != seen, |_| false);
                        }
                    }
                }
            }
        }
    }
    check(|| {
        let shared = Arc::new(Shared {
            dock: Gate::new(),
            idle: Gate::new(),
            has_part: AtomicU32::new(0),
            join_at: AtomicU32::new(0),
            region: loom::cell::UnsafeCell::new(0),
            ended: Gate::new(),
        });
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.serve())
        };
        shared.give();
        shared.begin(1);
        shared.wait_for_end(1);
        shared.take_away();
        shared.give();
        shared.begin(2);
        shared.wait_for_end(2);
        worker.join().unwrap();
    });
}
