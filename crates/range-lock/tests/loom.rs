//! What threads do to each other in the lock and in the map.
//!
//! Under loom all interleavings are explored, within its bounds:
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p amdahl-range-lock --release --test loom
//!
//! Of what frees the map's nodes loom sees a model: it finds what the map does wrong, not what seize does (DESIGN.md).
//!
//! Without it, each of them is run some hundred times by real threads.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use amdahl_range_lock::{ByTask, NotGranted, RangeLock, SeqRangeMap, WriteGuard};

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::Arc,
    thread::{self, Thread},
};
#[cfg(not(loom))]
use std::{
    sync::Arc,
    thread::{self, Thread},
};

/// A number that is not to be used by two threads at a time.
#[cfg(loom)]
#[derive(Default)]
struct Number(UnsafeCell<u32>);

#[cfg(not(loom))]
#[derive(Default)]
struct Number(std::cell::UnsafeCell<u32>);

// SAFETY: those who use it have locked its range.
unsafe impl Sync for Number {}
// SAFETY: it is a number.
unsafe impl Send for Number {}

impl Number {
    fn add(&self) {
        #[cfg(loom)]
        // SAFETY: the caller has locked it for writing; loom checks that.
        self.0.with_mut(|number| unsafe { *number += 1 });
        #[cfg(not(loom))]
        // SAFETY: the caller has locked it for writing.
        unsafe {
            *self.0.get() += 1;
        }
    }

    fn get(&self) -> u32 {
        #[cfg(loom)]
        // SAFETY: the caller has locked it; loom checks that.
        return self.0.with(|number| unsafe { *number });
        #[cfg(not(loom))]
        // SAFETY: the caller has locked it.
        unsafe {
            *self.0.get()
        }
    }
}

#[cfg(loom)]
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    if model.preemption_bound.is_none() {
        model.preemption_bound = Some(2);
    }
    model.check(test);
}

#[cfg(not(loom))]
fn model(test: impl Fn() + Sync + Send + 'static) {
    (0..300).for_each(|_| test());
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn waker() -> Waker {
    Waker::from(std::sync::Arc::new(Unpark(thread::current())))
}

fn block_on<F: Future>(future: F) -> F::Output {
    let (mut future, waker) = (pin!(future), waker());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Polls once, and gives up.
fn poll_and_drop<F: Future>(future: F) {
    let waker = waker();
    let _ = pin!(future).poll(&mut Context::from_waker(&waker));
}

type Shared = Arc<(RangeLock, Number)>;

fn shared(lock: RangeLock) -> Shared {
    Arc::new((lock, Number::default()))
}

fn both() -> [fn() -> RangeLock; 2] {
    [RangeLock::new, || {
        RangeLock::segmented(8, 2).expect("valid")
    }]
}

fn spawn(
    shared: &Shared,
    work: impl FnOnce(&RangeLock, &Number) + Send + 'static,
) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || work(&shared.0, &shared.1))
}

/// Another thread does this with a guard of that lock.
fn spawn_with(
    shared: &Shared,
    guard: WriteGuard<'_, ByTask>,
    work: impl FnOnce(WriteGuard<'_, ByTask>, &Number) + Send + 'static,
) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    // SAFETY: `work` cannot keep it, and the thread keeps its lock until that is over.
    let guard: WriteGuard<'static, ByTask> = unsafe { std::mem::transmute(guard) };
    thread::spawn(move || work(guard, &shared.1))
}

/// Another thread uses the number and gives the guard back.
fn gives_back(shared: &Shared, guard: WriteGuard<'_, ByTask>) -> thread::JoinHandle<()> {
    spawn_with(shared, guard, |guard, number| {
        number.add();
        drop(guard);
    })
}

fn is_free(shared: &Shared) {
    assert!(shared.0.try_write(..).is_ok(), "something is left behind");
}

/// A guard for writing that can go to other threads: of a thread, or of a future.
fn both_ways(lock: &RangeLock, by_future: bool) -> WriteGuard<'_, ByTask> {
    match by_future {
        true => block_on(lock.write_async(0..8)),
        false => lock.write(0..8).into_task(),
    }
}

#[test]
fn two_writers_wait_for_each_other() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let other = spawn(&shared, |lock, number| {
                let _guard = lock.write(0..10);
                number.add();
            });
            let guard = shared.0.write(5..20);
            shared.1.add();
            drop(guard);
            other.join().expect("no panic");
            assert_eq!(shared.1.get(), 2);
        });
    }
}

#[test]
fn a_reader_a_writer_and_a_future() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let writer = spawn(&shared, |lock, number| {
                let guard = lock.write(0..4);
                number.add();
                let read = guard.downgrade();
                assert!(number.get() > 0);
                drop(read);
            });
            let task = spawn(&shared, |lock, number| {
                let _guard = block_on(lock.write_async(2..20));
                number.add();
            });
            let guard = shared.0.read(0..20);
            assert!(shared.1.get() <= 2);
            drop(guard);
            writer.join().expect("no panic");
            task.join().expect("no panic");
            is_free(&shared);
        });
    }
}

#[test]
fn a_future_is_dropped_while_it_is_granted() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let gives_up = spawn(&shared, |lock, _| poll_and_drop(lock.write_async(0..20)));
            let waits = spawn(&shared, |lock, number| {
                let _guard = lock.read(0..2);
                number.get();
            });
            let guard = shared.0.write(0..4);
            shared.1.add();
            drop(guard);
            gives_up.join().expect("no panic");
            waits.join().expect("no panic");
            is_free(&shared);
        });
    }
}

/// Who waits needs both halves: each may be the last.
#[test]
fn halves_are_given_back_by_two_threads() {
    for by_future in [false, true] {
        for lock in both() {
            model(move || {
                let shared = shared(lock());
                let low = Arc::new(Number::default());
                let waits = spawn(&shared, {
                    let low = Arc::clone(&low);
                    move |lock, high| {
                        let _guard = lock.write(2..6);
                        high.add();
                        low.add();
                    }
                });
                let (left, right) = both_ways(&shared.0, by_future).split_at(4);
                let gives = gives_back(&shared, right);
                low.add();
                drop(left);
                waits.join().expect("no panic");
                gives.join().expect("no panic");
                assert_eq!((low.get(), shared.1.get()), (2, 2));
                is_free(&shared);
            });
        }
    }
}

/// A reader that waits for both comes in while the downgraded one is still held.
#[test]
fn one_half_is_downgraded_while_the_other_is_given_back() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let waits = spawn(&shared, |lock, high| {
                let _guard = lock.read(2..6);
                assert!(high.get() <= 1);
            });
            let (left, right) = shared.0.write(0..8).into_task().split_at(4);
            let gives = gives_back(&shared, right);
            let left = left.downgrade();
            waits.join().expect("no panic");
            gives.join().expect("no panic");
            assert!(shared.0.try_read(0..8).is_ok() && shared.0.try_write(0..4).is_err());
            drop(left);
            is_free(&shared);
        });
    }
}

/// A writer waits until all of it is given back, in whatever order writers become readers and go.
#[test]
fn halves_are_downgraded_and_given_back_by_two_threads() {
    for lock in both() {
        for right_downgrades in [false, true] {
            model(move || {
                let shared = shared(lock());
                let waits = spawn(&shared, |lock, high| {
                    let _guard = lock.write(2..6);
                    high.add();
                });
                let (left, right) = shared.0.write(0..8).into_task().split_at(4);
                let gives = spawn_with(&shared, right, move |right, high| {
                    high.add();
                    if right_downgrades {
                        let right = right.downgrade();
                        assert!(high.get() > 0);
                        drop(right);
                    }
                });
                drop(left.downgrade());
                waits.join().expect("no panic");
                gives.join().expect("no panic");
                assert_eq!(shared.1.get(), 2);
                is_free(&shared);
            });
        }
    }
}

/// A part gets more holders while others of its guard leave.
#[test]
fn a_half_is_split_again_while_the_other_is_given_back() {
    for lock in both() {
        for downgrades in [false, true] {
            model(move || {
                let shared = shared(lock());
                let waits = spawn(&shared, |lock, number| {
                    let _guard = lock.write(0..8);
                    number.add();
                });
                let (left, right) = shared.0.write(0..8).into_task().split_at(4);
                let gives = gives_back(&shared, right);
                if downgrades {
                    let (one, other) = left.downgrade().split_at(2);
                    drop(one);
                    assert!(shared.0.try_write(2..3).is_err());
                    drop(other);
                } else {
                    let (one, other) = left.split_at(2);
                    drop(one);
                    assert!(shared.0.try_read(2..3).is_err());
                    drop(other);
                }
                waits.join().expect("no panic");
                gives.join().expect("no panic");
                assert_eq!(shared.1.get(), 2);
                is_free(&shared);
            });
        }
    }
}

/// Whose future is polled by another task meanwhile sleeps until that one is woken.
#[test]
fn the_latest_waker_is_woken_by_who_gives_back_meanwhile() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let guard = shared.0.write(0..4).into_task();
            let gives = gives_back(&shared, guard);
            let mut future = shared.0.write_async(2..20);
            let first = pin!(&mut future).poll(&mut Context::from_waker(Waker::noop()));
            let guard = match first {
                Poll::Ready(guard) => guard,
                Poll::Pending => block_on(&mut future),
            };
            shared.1.add();
            drop(guard);
            gives.join().expect("no panic");
            assert_eq!(shared.1.get(), 2);
            is_free(&shared);
        });
    }
}

/// Under loom it is over after one look; else about as long as the others take.
fn some_time() -> Duration {
    match cfg!(loom) {
        true => Duration::from_secs(3600),
        false => Duration::from_micros(50),
    }
}

#[test]
fn time_runs_out_while_the_range_is_granted() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let guard = shared.0.write(0..4).into_task();
            let gives = gives_back(&shared, guard);
            let timed = shared.0.try_write_for(2..20, some_time());
            let mut sum = 1;
            match &timed {
                Ok(_) => {
                    shared.1.add();
                    sum += 1;
                }
                Err(error) => assert_eq!(*error, NotGranted::TimedOut),
            }
            drop(timed);
            gives.join().expect("no panic");
            assert_eq!(shared.1.get(), sum);
            is_free(&shared);
        });
    }
}

/// Who waits behind a request whose time is over goes on, though the range is not given back.
#[test]
fn time_runs_out_before_others_that_wait() {
    for lock in both() {
        model(move || {
            let shared = shared(lock());
            let held = shared.0.read(0..4);
            let timed = spawn(&shared, |lock, _| {
                let late = lock.try_write_for(2..20, some_time());
                assert!(late.is_err(), "it is held");
            });
            let waits = spawn(&shared, |lock, number| {
                let _guard = lock.read(0..12);
                number.get();
            });
            waits.join().expect("no panic");
            timed.join().expect("no panic");
            drop(held);
            is_free(&shared);
        });
    }
}

/// Under loom, one meeting is enough for a leaf to split, one crossing for it to join, and one meeting of readers for
/// them to spread.
#[test]
fn the_lock_adapts_while_it_is_used() {
    model(|| {
        let shared = shared(RangeLock::new());
        let low = spawn(&shared, |lock, number| {
            for _ in 0..2 {
                let _guard = lock.write(0..10);
                number.add();
            }
        });
        for _ in 0..2 {
            drop(shared.0.write(10..20));
        }
        let guard = shared.0.read(5..15);
        assert!(shared.1.get() <= 2);
        drop(guard);
        low.join().expect("no panic");
        assert!(shared.0.try_write(..).is_ok());
    });
}

#[test]
fn readers_spread_and_are_gathered_by_a_writer() {
    model(|| {
        let shared = shared(RangeLock::new());
        let reader = spawn(&shared, |lock, number| {
            for _ in 0..2 {
                let _guard = lock.read(0..10);
                number.get();
            }
        });
        drop(shared.0.read(0..10));
        let guard = shared.0.write(5..6);
        shared.1.add();
        drop(guard);
        reader.join().expect("no panic");
        assert!(shared.0.try_write(..).is_ok());
    });
}

#[test]
fn a_map_is_seen_before_or_after_a_change() {
    model(|| {
        let map = Arc::new(SeqRangeMap::new());
        map.insert(0..10, 1);
        let writer = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                map.insert(3..5, 2);
                map.remove(4..9);
            })
        };
        let reader = map.reader();
        let found: Vec<_> = reader
            .snapshot()
            .iter()
            .map(|(range, v)| (range, *v))
            .collect();
        let versions = [
            vec![(0..=9, 1)],
            vec![(0..=2, 1), (3..=4, 2), (5..=9, 1)],
            vec![(0..=2, 1), (3..=3, 2), (9..=9, 1)],
        ];
        assert!(versions.contains(&found), "{found:?}");
        drop(reader);
        writer.join().expect("no panic");
        assert_eq!(map.len(), 3);
    });
}

/// Two versions are replaced meanwhile. Loom finds who looks at a node that could be freed by then, and who finds one of which he
/// does not see all.
#[test]
fn what_a_reader_has_found_is_kept_until_it_is_refreshed() {
    model(|| {
        let map = Arc::new(SeqRangeMap::new());
        map.insert(0..10, 1);
        let writer = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                map.insert(0..10, 2);
                map.insert(0..10, 3);
            })
        };
        let mut reader = map.reader();
        let snapshot = reader.snapshot();
        let first = snapshot.get(5).copied();
        let second = reader.get(5).copied();
        assert_eq!(snapshot.get(5).copied(), first);
        reader.refresh();
        let third = reader.get(5).copied();
        drop(reader);
        let seen = [first, second, third, map.get(5)];
        assert!(first.is_some() && seen.is_sorted(), "{seen:?}");
        writer.join().expect("no panic");
        assert_eq!(map.get(5), Some(3));
    });
}

#[test]
fn two_writers_replace_what_a_reader_has_found() {
    model(|| {
        let map = Arc::new(SeqRangeMap::new());
        map.insert(0..10, 1);
        let writers = [2..4, 6..8].map(|range| {
            let map = Arc::clone(&map);
            thread::spawn(move || map.insert(range, 2))
        });
        let reader = map.reader();
        let ranges = reader.snapshot().iter().count();
        assert!([1, 3, 5].contains(&ranges), "{ranges}");
        drop(reader);
        for writer in writers {
            writer.join().expect("no panic");
        }
        assert_eq!(map.len(), 5);
    });
}

/// More ranges than one leaf has: what a change does not touch is in both versions.
#[test]
fn leaves_that_a_change_shares_are_kept() {
    model(|| {
        let ranges = (0..18).map(|at| (2 * at..2 * at + 1, at));
        let map: Arc<SeqRangeMap<u64>> = Arc::new(ranges.collect());
        let writer = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.remove(0..2))
        };
        let reader = map.reader();
        let sum: u64 = reader.snapshot().iter().map(|(_, at)| at + 1).sum();
        assert!([171, 170].contains(&sum), "{sum}");
        drop(reader);
        writer.join().expect("no panic");
        assert_eq!(map.get(34), Some(17));
    });
}
