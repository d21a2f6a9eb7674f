//! All interleavings of what is lock-free, under loom.

use std::task::{Wake, Waker};

use loom::sync::Arc;
use loom::thread;

use crate::counts::{Counts, SharedCounts};
use crate::deque::{Deque, Steal};
use crate::latch::Latch;
use crate::outcome::Outcome;
use crate::parker::Parker;
use crate::spawn::JoinError;
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};
use crate::watch::Watch;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

fn entry(n: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(n)
}

/// Entries that the threads got, each bit once.
fn note(seen: &AtomicU32, entry: *mut u8) {
    if !entry.is_null() {
        let bit = 1 << entry.addr();
        assert_eq!(
            seen.fetch_or(bit, Ordering::Relaxed) & bit,
            0,
            "given twice"
        );
    }
}

fn drain(deque: &Deque<u8>, seen: &AtomicU32) {
    loop {
        let popped = deque.pop();
        if popped.is_null() {
            return;
        }
        note(seen, popped);
    }
}

#[test]
fn owner_and_thief_share() {
    model(|| {
        let deque = Arc::new(Deque::new(4));
        let seen = Arc::new(AtomicU32::new(0));
        deque.push(entry(1));
        deque.push(entry(2));
        deque.publish();
        let thief = {
            let (deque, seen) = (deque.clone(), seen.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Steal::Got(got) = deque.steal() {
                        note(&seen, got);
                    }
                }
            })
        };
        note(&seen, deque.pop());
        deque.push(entry(3));
        deque.publish();
        drain(&deque, &seen);
        thief.join().unwrap();
        drain(&deque, &seen);
        assert_eq!(seen.load(Ordering::Relaxed), 0b1110);
    });
}

#[test]
fn a_thief_forces_while_the_owner_pops_and_pushes() {
    model(|| {
        let deque = Arc::new(Deque::new(4));
        let seen = Arc::new(AtomicU32::new(0));
        deque.push(entry(1));
        deque.push(entry(2));
        let thief = {
            let (deque, seen) = (deque.clone(), seen.clone());
            thread::spawn(move || {
                if let Steal::Got(got) = deque.force(1) {
                    note(&seen, got);
                }
            })
        };
        note(&seen, deque.pop());
        note(&seen, deque.pop());
        deque.push(entry(3));
        note(&seen, deque.pop());
        thief.join().unwrap();
        drain(&deque, &seen);
        assert_eq!(seen.load(Ordering::Relaxed), 0b1110);
    });
}

#[test]
fn two_thieves_force_and_steal() {
    model(|| {
        let deque = Arc::new(Deque::new(4));
        let seen = Arc::new(AtomicU32::new(0));
        deque.push(entry(1));
        deque.push(entry(2));
        let thieves: Vec<_> = [1, 2]
            .map(|who| {
                let (deque, seen) = (deque.clone(), seen.clone());
                thread::spawn(move || {
                    let found = match who {
                        1 => deque.force(who),
                        _ => match deque.steal() {
                            Steal::Private => deque.force(who),
                            found => found,
                        },
                    };
                    if let Steal::Got(got) = found {
                        note(&seen, got);
                    }
                })
            })
            .into();
        note(&seen, deque.pop());
        thieves.into_iter().for_each(|thief| thief.join().unwrap());
        drain(&deque, &seen);
        assert_eq!(seen.load(Ordering::Relaxed), 0b110);
    });
}

/// The ring is as short as the thieves are slow: a claimed slot is not written over before it is read.
#[test]
fn a_slot_is_free_only_when_its_thief_has_read_it() {
    model(|| {
        let deque = Arc::new(Deque::new(1));
        let seen = Arc::new(AtomicU32::new(0));
        deque.push(entry(1));
        deque.publish();
        let thief = {
            let (deque, seen) = (deque.clone(), seen.clone());
            thread::spawn(move || match deque.steal() {
                Steal::Got(got) => note(&seen, got),
                _ => {}
            })
        };
        let mut expected = 0b10;
        if deque.push(entry(2)) {
            expected |= 0b100;
        }
        drain(&deque, &seen);
        thief.join().unwrap();
        drain(&deque, &seen);
        assert_eq!(seen.load(Ordering::Relaxed), expected);
    });
}

#[test]
fn no_wake_up_is_lost_by_a_parker() {
    model(|| {
        let parker = Arc::new(Parker::default());
        let told = Arc::new(AtomicBool::new(false));
        let waker = {
            let (parker, told) = (parker.clone(), told.clone());
            thread::spawn(move || {
                told.store(true, Ordering::Relaxed);
                parker.unpark();
            })
        };
        assert!(parker.park(None));
        assert!(
            told.load(Ordering::Relaxed),
            "what was written before is seen"
        );
        waker.join().unwrap();
    });
}

#[test]
fn a_latch_wakes_who_waits_for_it() {
    model(|| {
        let parker = Arc::new(Parker::default());
        let latch = Arc::new(Latch::new(&parker));
        let setter = {
            let (latch, parker) = (latch.clone(), parker.clone());
            thread::spawn(move || {
                // SAFETY: both are kept by this thread.
                unsafe { Latch::set(&raw const *latch) };
                drop(parker);
            })
        };
        while !latch.is_set() {
            if latch.will_sleep() {
                parker.park(None);
                latch.has_woken();
            }
        }
        setter.join().unwrap();
    });
}

/// The protocol of sleeping: a worker that finds nothing and sleeps, and somebody who queues and looks for sleepers.
/// Whatever the order, the work is seen or the worker is woken.
#[test]
fn no_work_is_left_while_a_worker_sleeps() {
    model(|| {
        let counts = Arc::new(SharedCounts::new(Counts::new(2).start().search()));
        let is_asleep = Arc::new(AtomicBool::new(false));
        let work = Arc::new(AtomicBool::new(false));
        let parker = Arc::new(Parker::default());
        let giver = {
            let (counts, is_asleep, work, parker) = (
                counts.clone(),
                is_asleep.clone(),
                work.clone(),
                parker.clone(),
            );
            thread::spawn(move || {
                work.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                // `Registry::wake_any`.
                if counts.load().wants_waking() && is_asleep.swap(false, Ordering::AcqRel) {
                    counts.change(Counts::wake);
                    parker.unpark();
                }
            })
        };
        // `Registry::fall_asleep`.
        counts.change(Counts::sleep);
        is_asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if !work.load(Ordering::Acquire) {
            // Would sleep for ever if the giver has not seen it; loom reports that as a deadlock.
            parker.park(None);
        }
        // `Registry::rise`.
        if is_asleep.swap(false, Ordering::AcqRel) {
            counts.change(Counts::wake);
        }
        giver.join().unwrap();
        assert!(work.load(Ordering::Acquire));
        let counts = counts.load();
        assert_eq!(
            (counts.awake(), counts.sleeping(), counts.searching()),
            (1, 0, 1)
        );
    });
}

/// The watch goes to sleep while a worker is woken, finds work and goes on: it is told or sees that somebody is awake.
#[test]
fn the_watch_does_not_sleep_while_somebody_works() {
    model(|| {
        let counts = Counts::new(2).start().search().sleep();
        let counts = Arc::new(SharedCounts::new(counts));
        let watch = Arc::new(Watch::default());
        let is_ending = AtomicBool::new(false);
        let giver = {
            let (counts, watch) = (counts.clone(), watch.clone());
            thread::spawn(move || {
                // `Registry::notify`, and what the woken does.
                counts.change(Counts::wake);
                watch.wake();
                counts.change(Counts::found);
            })
        };
        // Would sleep for ever if it is not told; loom reports that as a deadlock.
        watch.sleep(&counts, &is_ending);
        giver.join().unwrap();
    });
}

/// The same where only the worker that is about to leave may take the work until it has left: whoever of the three comes
/// last sees the others.
#[test]
fn no_work_is_left_in_the_queue_of_who_leaves() {
    #[derive(Default)]
    struct Shared {
        has_left: AtomicBool,
        work: AtomicBool,
        is_asleep: AtomicBool,
        parker: Parker,
    }
    model(|| {
        let counts = Counts::new(3).start().start().search();
        let counts = Arc::new(SharedCounts::new(counts));
        let shared = Arc::new(Shared::default());
        // `Registry::wake_any`.
        let wake_any = |counts: &SharedCounts, shared: &Shared| {
            if counts.load().wants_waking() && shared.is_asleep.swap(false, Ordering::AcqRel) {
                counts.change(Counts::wake);
                shared.parker.unpark();
            }
        };
        let giver = {
            let (counts, shared) = (counts.clone(), shared.clone());
            thread::spawn(move || {
                shared.work.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
                wake_any(&counts, &shared);
            })
        };
        let leaver = {
            let (counts, shared) = (counts.clone(), shared.clone());
            thread::spawn(move || {
                // `Registry::leave_queue`.
                shared.has_left.store(true, Ordering::SeqCst);
                fence(Ordering::SeqCst);
                if shared.work.load(Ordering::Acquire) {
                    wake_any(&counts, &shared);
                }
            })
        };
        let may_take =
            || shared.has_left.load(Ordering::SeqCst) && shared.work.load(Ordering::Acquire);
        loop {
            // `Registry::fall_asleep`.
            counts.change(Counts::sleep);
            shared.is_asleep.swap(true, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            let is_there = may_take();
            if !is_there {
                shared.parker.park(None);
            }
            // `Registry::rise`.
            if shared.is_asleep.swap(false, Ordering::AcqRel) {
                counts.change(Counts::wake);
            }
            if is_there || may_take() {
                break;
            }
        }
        giver.join().unwrap();
        leaver.join().unwrap();
    });
}

/// Who asks for the result has it, or is told later; and what it asked with before is not told instead.
#[test]
fn who_registers_is_told_or_finds_the_result() {
    struct Told(AtomicU32);
    impl Wake for Told {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    model(|| {
        let outcome = Arc::new(Outcome::new());
        let finisher = {
            let outcome = outcome.clone();
            thread::spawn(move || {
                assert!(outcome.begin());
                outcome.finish(Ok(7));
            })
        };
        let told = [0, 1].map(|_| std::sync::Arc::new(Told(AtomicU32::new(0))));
        // As a handle that is polled by one task and then by another one.
        // SAFETY: this thread alone takes the result.
        let ask = |told: &std::sync::Arc<Told>| unsafe {
            outcome.take_or_register(&Waker::from(told.clone()))
        };
        let found = ask(&told[0]).or_else(|| ask(&told[1]));
        finisher.join().unwrap();
        let found = found.unwrap_or_else(|| {
            assert_eq!(told[1].0.load(Ordering::Acquire), 1);
            // SAFETY: as above.
            unsafe { outcome.take() }
        });
        assert_eq!(found.unwrap(), 7);
    });
}

/// Work is run or cancelled, and who waits is told of the one that it was.
#[test]
fn work_is_begun_or_cancelled() {
    model(|| {
        let outcome = Arc::new(Outcome::new());
        let runner = {
            let outcome = outcome.clone();
            thread::spawn(move || {
                let begins = outcome.begin();
                if begins {
                    outcome.finish(Ok(()));
                }
                begins
            })
        };
        let noop = Waker::noop();
        // SAFETY: this thread alone takes the result.
        let found = unsafe { outcome.take_or_register(noop) };
        let cancels = outcome.cancel();
        if cancels {
            outcome.finish(Err(JoinError::Cancelled));
        }
        assert_ne!(runner.join().unwrap(), cancels);
        // SAFETY: as above.
        let found = found.unwrap_or_else(|| unsafe { outcome.take() });
        assert_eq!(found.is_err(), cancels);
    });
}
