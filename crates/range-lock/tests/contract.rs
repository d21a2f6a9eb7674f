//! What every lock promises, whichever way it is built.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use amdahl_range_lock::{NotGranted, RangeLock, SegmentsError};
use common::{Count, block_on, locks, poll, waker};

#[test]
fn writers_exclude_all_others_and_readers_only_writers() {
    for lock in locks() {
        let writer = lock.write(8..12);
        assert_eq!(lock.try_read(11..12).unwrap_err(), NotGranted::WouldBlock);
        assert!(lock.try_write(0..=8).is_err());
        assert!(lock.try_write(12..16).is_ok() && lock.try_read(0..8).is_ok());
        let reader = writer.downgrade();
        assert!(lock.try_read(8..12).is_ok() && lock.try_write(8..12).is_err());
        drop(reader);
        assert!(lock.try_write(..).is_ok());
    }
}

#[test]
fn the_last_address_can_be_locked() {
    for lock in locks() {
        let last = lock.write(u64::MAX..=u64::MAX);
        assert_eq!(last.range(), Some(u64::MAX..=u64::MAX));
        assert!(lock.try_read(..).is_err() && lock.try_write(..=0).is_ok());
    }
}

#[test]
fn an_empty_range_conflicts_with_nothing() {
    for lock in locks() {
        let all = lock.write(..);
        let empty = lock.write(5..5);
        assert_eq!(empty.range(), None);
        let (left, right) = empty.split_at(5);
        assert_eq!(left.downgrade().range(), None);
        assert!(lock.try_read(9..9).is_ok());
        let (_, waker) = waker();
        assert!(poll(&mut lock.read_async(9..9), &waker).is_ready());
        drop((all, right));
    }
}

#[test]
fn halves_give_back_their_parts() {
    for lock in locks() {
        let (left, right) = lock.write(0..32).split_at(16);
        assert_eq!((left.range(), right.range()), (Some(0..=15), Some(16..=31)));
        drop(left);
        assert!(lock.try_write(0..16).is_ok() && lock.try_read(16..17).is_err());
        let (all, nothing) = right.split_at(40);
        assert_eq!(nothing.range(), None);
        drop(all);
        assert!(lock.try_write(..).is_ok());
    }
}

#[test]
fn a_segment_that_two_halves_share_is_free_after_both() {
    let lock = RangeLock::segmented(16, 4).expect("valid");
    let (left, right) = lock.write(0..32).split_at(8);
    drop(left);
    assert!(lock.try_read(0..1).is_err(), "its segment is shared");
    let right = right.downgrade();
    assert!(lock.try_read(0..1).is_ok());
    drop(right);
    assert!(lock.try_write(..).is_ok());
}

/// Nobody had it any more, and it was never free again.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn a_range_that_cannot_be_split_once_more_is_given_back() {
    const PARTS: u64 = 1 << 15;
    let lock = RangeLock::segmented(1 << 20, 4).expect("valid");
    let mut parts = Vec::new();
    let mut split = || {
        let mut rest = lock.write(0..PARTS + 8);
        for at in 1..PARTS + 4 {
            let (part, more) = rest.split_at(at);
            parts.push(part);
            rest = more;
        }
    };
    let said = catch_unwind(AssertUnwindSafe(&mut split)).expect_err("too many");
    let said = said.downcast_ref::<&str>().expect("a text");
    assert!(said.contains("fewer than 2^15 parts"), "{said}");
    assert!(parts.len() as u64 >= PARTS - 2, "{}", parts.len());
    assert!(lock.try_read(0..1).is_err());
    drop(parts);
    assert!(lock.try_write(..).is_ok());
}

/// They stayed exclusive: readers were kept out by nobody who wrote.
#[test]
fn readers_come_in_when_no_part_of_a_split_guard_writes() {
    let lock = RangeLock::segmented(16, 4).expect("valid");
    let thirds = || {
        let (left, rest) = lock.write(0..16).split_at(4);
        let (middle, right) = rest.split_at(8);
        (left, middle, right)
    };
    let is_read = || lock.try_read(0..1).is_ok();
    let is_free = || lock.try_write(0..1).is_ok();

    let (_, waker) = waker();
    let (left, middle, right) = thirds();
    let mut reader = lock.read_async(15..16);
    assert!(poll(&mut reader, &waker).is_pending());
    let (left, middle) = (left.downgrade(), middle.downgrade());
    assert!(!is_read() && poll(&mut reader, &waker).is_pending());
    let right = right.downgrade();
    assert!(poll(&mut reader, &waker).is_ready());
    assert!(is_read());
    // Parts of parts that read.
    let (one, other) = middle.split_at(6);
    drop((left, right, one));
    assert!(!is_free() && is_read());
    drop(other);
    assert!(is_free());

    let (left, middle, right) = thirds();
    let (left, middle) = (left.downgrade(), middle.downgrade());
    let (one, other) = middle.split_at(6);
    drop((left, one));
    assert!(!is_read());
    drop(right);
    assert!(is_read() && !is_free());
    drop(other);
    assert!(is_free());

    let (left, middle, right) = thirds();
    let left = left.downgrade();
    drop(left);
    drop(middle);
    assert!(!is_read());
    let mut writer = lock.write_async(0..16);
    assert!(poll(&mut writer, &waker).is_pending());
    drop(right);
    assert!(poll(&mut writer, &waker).is_ready());
}

#[test]
fn who_comes_first_is_served_first() {
    for lock in locks() {
        let (count, waker) = waker();
        let held = lock.read(0..4);
        let mut big = lock.write_async(..);
        assert!(poll(&mut big, &waker).is_pending());
        // Neither threads nor futures overtake a large range that waits, whatever they could have without it.
        assert!(lock.try_read(0..4).is_err());
        let mut small = lock.read_async(0..4);
        assert!(poll(&mut small, &waker).is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        drop(held);
        let Poll::Ready(big) = poll(&mut big, &waker) else {
            panic!("the first waits");
        };
        assert!(poll(&mut small, &waker).is_pending());
        drop(big);
        assert!(poll(&mut small, &waker).is_ready());
    }
}

#[test]
fn readers_behind_a_downgraded_writer_go_on_until_the_next_writer() {
    for lock in locks() {
        let (_, waker) = waker();
        let held = lock.write(0..8);
        let (mut before, mut writer) = (lock.read_async(0..4), lock.write_async(0..4));
        let mut after = lock.read_async(0..4);
        assert!(poll(&mut before, &waker).is_pending() && poll(&mut writer, &waker).is_pending());
        assert!(poll(&mut after, &waker).is_pending());
        let held = held.downgrade();
        assert!(poll(&mut after, &waker).is_pending());
        let Poll::Ready(before) = poll(&mut before, &waker) else {
            panic!("a reader waits for a reader");
        };
        drop((held, before));
        assert!(matches!(poll(&mut writer, &waker), Poll::Ready(_)));
        assert!(poll(&mut after, &waker).is_ready());
    }
}

#[test]
fn a_dropped_future_leaves_nothing_and_lets_others_go_on() {
    for lock in locks() {
        let (count, waker) = waker();
        let held = lock.read(0..4);
        let mut writer = lock.write_async(0..12);
        assert!(poll(&mut writer, &waker).is_pending());
        let mut reader = lock.read_async(0..4);
        assert!(poll(&mut reader, &waker).is_pending());
        let untouched = lock.write_async(0..4);
        drop((writer, untouched));
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "the reader is woken");
        let reader = poll(&mut reader, &waker);
        assert!(reader.is_ready());
        drop((held, reader));
        assert!(lock.try_write(..).is_ok());
    }
}

#[test]
fn a_future_dropped_after_it_was_granted_gives_the_range_back() {
    for lock in locks() {
        let (count, waker) = waker();
        let held = lock.write(0..4);
        let mut granted = lock.write_async(0..4);
        let mut next = lock.read_async(0..4);
        assert!(poll(&mut granted, &waker).is_pending() && poll(&mut next, &waker).is_pending());
        drop(held);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        drop(granted);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert!(poll(&mut next, &waker).is_ready());
    }
}

#[test]
fn the_latest_waker_is_woken() {
    for lock in locks() {
        let ((old, old_waker), (new, new_waker)) = (waker(), waker());
        let held = lock.write(0..4);
        let mut future = lock.read_async(0..4);
        assert!(poll(&mut future, &old_waker).is_pending());
        assert!(poll(&mut future, &new_waker).is_pending());
        drop(held);
        assert_eq!(old.0.load(Ordering::SeqCst), 0);
        assert_eq!(new.0.load(Ordering::SeqCst), 1);
        assert!(poll(&mut future, &new_waker).is_ready());
    }
}

#[test]
fn a_thread_and_a_future_wait_for_each_other() {
    for lock in locks() {
        let (ready, is_ready) = mpsc::channel();
        thread::scope(|scope| {
            let held = lock.write(0..8);
            let task = scope.spawn(|| {
                ready.send(()).expect("the test listens");
                block_on(async {
                    let write = lock.write_async(4..12).await;
                    write.range()
                })
            });
            is_ready.recv().expect("it runs");
            drop(held);
            assert_eq!(task.join().expect("no panic"), Some(4..=11));
        });
    }
}

#[test]
fn time_runs_out() {
    for lock in locks() {
        let held = lock.write(0..8);
        thread::scope(|scope| {
            scope.spawn(|| {
                let late = lock.try_read_for(0..4, Duration::from_millis(5));
                assert_eq!(late.unwrap_err(), NotGranted::TimedOut);
                let past = Instant::now();
                assert!(lock.try_write_until(0..4, past).is_err());
                assert!(
                    lock.try_write_for(8..12, Duration::ZERO).is_ok(),
                    "it is free"
                );
            });
        });
        drop(held);
        let for_ever = lock.try_write_for(.., Duration::MAX);
        assert!(for_ever.is_ok(), "those who gave up left nothing");
    }
}

#[test]
fn a_panic_gives_the_range_back() {
    for lock in locks() {
        thread::scope(|scope| {
            let dies = scope.spawn(|| {
                let _held = lock.write(0..8);
                panic!("on purpose");
            });
            assert!(dies.join().is_err());
        });
        assert!(lock.try_write(0..8).is_ok(), "there is no poison");
    }
}

/// Panics when it is woken.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

/// Of a segmented lock what the guard or the request had besides was held for ever, by nobody; of any lock what was downgraded.
#[test]
fn a_waker_that_panics_keeps_nothing_locked() {
    let bomb = Waker::from(Arc::new(Bomb));
    let panics = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();
    for lock in locks() {
        let is_free = || lock.try_write(..).is_ok();
        let wait = || {
            let (mut first, mut last) = (lock.read_async(0..4), lock.read_async(16..20));
            let (count, waker) = waker();
            assert!(poll(&mut first, &bomb).is_pending() && poll(&mut last, &waker).is_pending());
            (first, last, count)
        };
        let served = |(mut first, mut last, count): (_, _, Arc<Count>)| {
            assert_eq!(count.0.load(Ordering::SeqCst), 1, "all are woken");
            let (_, waker) = waker();
            assert!(poll(&mut first, &waker).is_ready() && poll(&mut last, &waker).is_ready());
        };

        for range in [0..20, 0..8] {
            let mut held = Some(lock.write(range.clone()));
            let mut first = lock.read_async(0..4);
            assert!(poll(&mut first, &bomb).is_pending());
            assert!(panics(&mut || drop(held.take())));
            drop(first);
            assert!(is_free(), "{range:?} was given back");
        }
        let mut held = Some(lock.write(0..20));
        let waiting = wait();
        assert!(panics(&mut || drop(held.take())));
        served(waiting);
        assert!(is_free());

        let mut held = Some(lock.write(0..20));
        let waiting = wait();
        assert!(panics(&mut || drop(
            held.take().map(|held| held.downgrade())
        )));
        served(waiting);
        assert!(is_free());

        // A holder that panics is not to end the process.
        let waiting = {
            let (held, waiting) = (lock.write(0..20).into_task(), wait());
            let dies = move || {
                let _held = held;
                panic!("as well");
            };
            assert!(catch_unwind(AssertUnwindSafe(dies)).is_err());
            waiting
        };
        served(waiting);
        assert!(is_free());

        let held = lock.read(8..12);
        let (mut writer, mut behind) = (Some(lock.write_async(0..20)), lock.read_async(8..9));
        let (_, waker) = waker();
        assert!(poll(writer.as_mut().expect("just made"), &waker).is_pending());
        assert!(poll(&mut behind, &bomb).is_pending());
        assert!(panics(&mut || drop(writer.take())));
        assert!(poll(&mut behind, &waker).is_ready());
        drop(held);
        assert!(is_free());
    }
}

/// What a request of a segmented lock had before the segment where it was to wait was held for ever, by nobody.
#[test]
fn a_waker_whose_clone_panics_keeps_nothing_locked() {
    use std::task::{RawWaker, RawWakerVTable};
    static BOMB: RawWakerVTable =
        RawWakerVTable::new(|_| panic!("on purpose"), |_| (), |_| (), |_| ());
    // SAFETY: nothing is done with the pointer.
    let bomb = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &BOMB)) };
    for lock in locks() {
        let held = lock.write(8..12);
        let mut writer = lock.write_async(0..20);
        assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut writer, &bomb).is_ready())).is_err());
        drop((writer, held));
        assert!(lock.try_write(..).is_ok());
        // The second of those for which it waits.
        let (first, last) = (lock.write(0..4), lock.write(8..12));
        let mut writer = lock.write_async(0..20);
        let (_, waker) = waker();
        assert!(poll(&mut writer, &waker).is_pending());
        drop(first);
        let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut writer, &bomb).is_ready()));
        drop((writer, last));
        assert!(lock.try_write(..).is_ok());
    }
}

#[test]
fn what_a_runtime_moves_between_threads_can_be_moved() {
    fn movable<T: Send>(_: &T) {}
    for lock in locks() {
        movable(&lock);
        movable(&lock.write_async(..));
        movable(&block_on(lock.read_async(..)));
        assert!(
            size_of_val(&lock) <= 1280,
            "it says 1.2 KB, not {}",
            size_of_val(&lock)
        );
    }
}

#[test]
fn a_guard_can_go_to_another_thread() {
    for lock in locks() {
        let guard = lock.write(0..8).into_task();
        thread::scope(|scope| {
            scope.spawn(move || drop(guard));
            drop(lock.write(0..4)); // Does not take itself for the holder.
        });
    }
}

/// The message of a panic.
#[cfg(debug_assertions)]
fn message(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("it panics");
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[test]
#[cfg(debug_assertions)]
fn a_thread_that_waits_for_itself_panics() {
    for lock in locks() {
        let held = lock.read(0..8);
        let said = message(|| drop(lock.write(7..20)));
        assert!(
            said.contains("Write 7..=19") && said.contains("Read 0..=7"),
            "{said}"
        );
        assert!(said.contains("contract.rs"), "{said}");
        drop(held);
        drop(lock.write(..));
        let (left, right) = lock.write(0..32).split_at(16);
        drop(right);
        let read = left.downgrade();
        drop(lock.write(16..32));
        let said = message(|| drop(lock.write(3..4)));
        assert!(said.contains("Read 0..=15"), "{said}");
        drop(read);
    }
}

/// Longer than anything takes that does not hang.
#[cfg(debug_assertions)]
const HANGS: Duration = Duration::from_secs(60);

/// It waited until the time was over for what it would have had to give back itself.
#[test]
#[cfg(debug_assertions)]
fn a_thread_that_waits_for_itself_for_a_time_panics() {
    for lock in locks() {
        let held = lock.write(0..8);
        for_each_timed(&lock, 7..20, HANGS, |request| {
            let said = message(|| assert_eq!(request(), Ok(())));
            assert!(
                said.contains("7..=19") && said.contains("Write 0..=7"),
                "{said}"
            );
            assert!(said.contains("contract.rs"), "{said}");
        });
        // Who does not wait is told, as by `try_read`.
        for_each_timed(&lock, 7..20, Duration::ZERO, |request| {
            assert_eq!(request(), Err(NotGranted::TimedOut));
        });
        // A guard that may be given back elsewhere is not this thread's.
        let held = held.into_task();
        for_each_timed(&lock, 7..20, Duration::from_millis(1), |request| {
            assert_eq!(request(), Err(NotGranted::TimedOut));
        });
        drop(held);
        for_each_timed(&lock, 7..20, HANGS, |request| assert_eq!(request(), Ok(())));
    }
}

/// Each of the requests with a time limit.
#[cfg(debug_assertions)]
fn for_each_timed(
    lock: &RangeLock,
    range: std::ops::Range<u64>,
    time: Duration,
    check: impl Fn(&dyn Fn() -> Result<(), NotGranted>),
) {
    let range = || range.clone();
    check(&|| lock.try_read_for(range(), time).map(drop));
    check(&|| lock.try_write_for(range(), time).map(drop));
    let until = || Instant::now() + time;
    check(&|| lock.try_read_until(range(), until()).map(drop));
    check(&|| lock.try_write_until(range(), until()).map(drop));
}

/// Whoever is before it may give up first, so that it is no deadlock.
#[test]
fn who_queues_for_a_time_behind_one_that_waits_for_it_is_told_that_it_is_over() {
    for lock in locks() {
        let (_, waker) = waker();
        let held = lock.read(0..8);
        let mut writer = lock.write_async(4..20);
        assert!(poll(&mut writer, &waker).is_pending());
        let late = lock.try_read_for(4..5, Duration::from_millis(5));
        assert_eq!(late.unwrap_err(), NotGranted::TimedOut);
        drop(writer);
        assert!(lock.try_read_for(4..5, Duration::from_millis(5)).is_ok());
        drop(held);
    }
}

/// What a thread says that panics, or nothing if it does not; a thread that hangs ends the test.
#[cfg(debug_assertions)]
fn said_by(work: impl FnOnce() + Send + 'static) -> Option<String> {
    let (end, is_over) = mpsc::channel();
    thread::spawn(move || {
        let panic = catch_unwind(AssertUnwindSafe(work)).err();
        let said = panic.map(|panic| panic.downcast_ref::<String>().expect("a text").clone());
        let _ = end.send(said);
    });
    is_over
        .recv_timeout(HANGS)
        .expect("a thread waits for itself for ever")
}

/// Segmented locks did not look behind whom a thread would queue.
#[test]
#[cfg(debug_assertions)]
fn a_reader_behind_a_writer_that_waits_for_it_panics() {
    for lock in locks().map(Arc::new) {
        let said = said_by(move || {
            let (_, waker) = waker();
            let _held = lock.read(0..8);
            let mut writer = lock.write_async(4..20);
            assert!(poll(&mut writer, &waker).is_pending());
            drop(lock.read(4..5));
        });
        let said = said.expect("it panics");
        assert!(
            said.contains("Read 4..=4") && said.contains("Read 0..=7"),
            "{said}"
        );
    }
}

/// A segmented lock has what its range needs before the segment for which it waits.
#[test]
#[cfg(debug_assertions)]
fn who_waits_for_a_part_keeps_the_others_waiting() {
    for lock in locks().map(Arc::new) {
        let said = said_by(move || {
            let (_, waker) = waker();
            let _held = lock.read(8..12);
            let mut all = lock.write_async(0..12);
            assert!(poll(&mut all, &waker).is_pending());
            drop(lock.read(0..4));
        });
        let said = said.expect("it panics");
        assert!(
            said.contains("Read 0..=3") && said.contains("Read 8..=11"),
            "{said}"
        );
    }
}

/// A waits behind C, C behind B, and B for A. Only the first of them was looked at.
#[test]
#[cfg(debug_assertions)]
fn a_chain_that_ends_at_its_beginning_panics() {
    for lock in locks().map(Arc::new) {
        let said = said_by(move || {
            let (_, waker) = waker();
            let _held = lock.read(12..16);
            let mut chain = [8..16, 4..12, 0..8].map(|range| lock.write_async(range));
            for one in &mut chain {
                assert!(poll(one, &waker).is_pending());
            }
            drop(lock.read(0..4));
        });
        let said = said.expect("it panics");
        assert!(
            said.contains("Read 12..=15") && said.contains("Read 0..=3"),
            "{said}"
        );
    }
}

/// Neither who is before nobody that waits for it, nor who only shares.
#[test]
fn who_can_go_on_does_not_panic() {
    for lock in locks().map(Arc::new) {
        let (wants, is_ready) = mpsc::channel();
        let (_, waker) = waker();
        let other = lock.write(20..24).into_task();
        let thread = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let _held = lock.read(0..4);
                wants.send(()).expect("the test listens");
                drop(lock.write(20..24));
            }
        });
        is_ready.recv().expect("it runs");
        let mut behind = lock.write_async(0..4);
        assert!(poll(&mut behind, &waker).is_pending());
        drop(other);
        thread.join().expect("no panic");
    }
}

/// The writer comes while the thread tries: neither before it looks, nor after it has queued up.
#[test]
#[cfg(debug_assertions)]
fn a_writer_that_comes_while_a_thread_tries_is_seen() {
    let rounds = if cfg!(miri) { 2 } else { 300 };
    let lock = Arc::new(RangeLock::new());
    for round in 0..rounds {
        let (_, waker) = waker();
        let other = lock.write(12..13).into_task();
        let ((begin, has_begun), (end, is_over)) = (mpsc::channel(), mpsc::channel());
        thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let held = lock.read(0..4);
                begin.send(()).expect("the test listens");
                // It panics unless it came first.
                let tries = AssertUnwindSafe(|| drop(lock.read(12..13)));
                let _ = catch_unwind(tries);
                drop(held);
                let _ = end.send(());
            }
        });
        has_begun.recv().expect("it runs");
        (0..round * 20).for_each(|_| std::hint::spin_loop());
        let mut writer = lock.write_async(0..16);
        let waits = poll(&mut writer, &waker);
        drop(other);
        let over = is_over.recv_timeout(HANGS);
        over.expect("a thread waits for itself for ever");
        drop((writer, waits));
    }
}

#[test]
#[cfg(debug_assertions)]
fn in_a_segmented_lock_neighbours_are_in_the_way() {
    let lock = RangeLock::segmented(16, 4).expect("valid");
    let _held = lock.write(0..2);
    assert!(message(|| drop(lock.write(8..9))).contains("Write 0..=1"));
    assert!(message(|| drop(lock.write(64..65))).contains("Write 64..=64"));
}

#[test]
fn segments_are_checked() {
    let error = |granule, segments| RangeLock::segmented(granule, segments).unwrap_err();
    assert_eq!(error(0, 1), SegmentsError::Granule(0));
    assert_eq!(error(12, 1), SegmentsError::Granule(12));
    assert_eq!(error(8, 0), SegmentsError::Segments(0));
    assert_eq!(error(8, 1 << 20), SegmentsError::Segments(1 << 20));
    assert_eq!(error(8, 12), SegmentsError::Segments(12));
    assert!(RangeLock::segmented(1 << 63, 1).is_ok());
    let one = RangeLock::segmented(1, 1).expect("valid");
    drop(one.write(..));
}

#[test]
fn thousands_of_ranges_by_one_thread() {
    let lock = RangeLock::new();
    let mut guards: Vec<_> = (0..20_000)
        .map(|at| lock.write(at * 10..at * 10 + 9))
        .collect();
    assert!(lock.try_read(100_000..100_001).is_err() && lock.try_read(100_009..100_010).is_ok());
    while !guards.is_empty() {
        let at = guards.len() * 7 / 11;
        drop(guards.swap_remove(at));
    }
    assert!(lock.try_write(..).is_ok());
}
