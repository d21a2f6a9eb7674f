//! The lock against a list of requests in the order in which they came: a request has its range when nothing before
//! it is in conflict with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use crate::span::Span;
use crate::{Acquire, ByTask, Guard, Kind, RangeLock, Read, Write};

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

enum Held<'a> {
    Read(Guard<'a, Read, ByTask>),
    Write(Guard<'a, Write, ByTask>),
}

enum State<'a> {
    ReadWaits(Acquire<'a, Read>),
    WriteWaits(Acquire<'a, Write>),
    Held(Held<'a>),
}

struct Request<'a> {
    span: Span,
    kind: Kind,
    state: State<'a>,
    flag: Arc<Flag>,
}

impl Request<'_> {
    fn conflicts(&self, span: Span, kind: Kind) -> bool {
        self.span.overlaps(span) && (self.kind == Kind::Write || kind == Kind::Write)
    }

    fn is_held(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    fn poll(&mut self) {
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut context = Context::from_waker(&waker);
        let held = match &mut self.state {
            State::ReadWaits(future) => match Pin::new(future).poll(&mut context) {
                Poll::Ready(guard) => Held::Read(guard),
                Poll::Pending => return,
            },
            State::WriteWaits(future) => match Pin::new(future).poll(&mut context) {
                Poll::Ready(guard) => Held::Write(guard),
                Poll::Pending => return,
            },
            State::Held(_) => return,
        };
        self.state = State::Held(held);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Request(Span, Kind),
    Try(Span, Kind),
    /// A guard or a future is dropped.
    Drop(usize),
    Downgrade(usize),
    Split(usize, u64),
    SplitLeaf(u64),
    JoinLeaves(Span),
    SpreadReaders,
}

fn spans() -> impl Strategy<Value = Span> {
    let start = prop_oneof![0..40_u64, u64::MAX - 9..=u64::MAX];
    let more = prop_oneof![5 => 0..12_u64, 1 => Just(u64::MAX)];
    (start, more).prop_map(|(start, more)| Span {
        start,
        last: start.saturating_add(more),
    })
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Read), Just(Kind::Write)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (spans(), kinds()).prop_map(|(span, kind)| Step::Request(span, kind)),
        2 => (spans(), kinds()).prop_map(|(span, kind)| Step::Try(span, kind)),
        6 => any::<usize>().prop_map(Step::Drop),
        1 => any::<usize>().prop_map(Step::Downgrade),
        2 => (any::<usize>(), 0..45_u64).prop_map(|(which, at)| Step::Split(which, at)),
        2 => (0..45_u64).prop_map(Step::SplitLeaf),
        1 => spans().prop_map(Step::JoinLeaves),
        1 => Just(Step::SpreadReaders),
    ];
    prop::collection::vec(step, 1..120)
}

struct Model<'a> {
    lock: &'a RangeLock,
    requests: Vec<Request<'a>>,
}

impl<'a> Model<'a> {
    fn step(&mut self, step: Step) {
        let lock = self.lock;
        match step {
            Step::Request(span, kind) => {
                let state = match kind {
                    Kind::Read => State::ReadWaits(lock.read_async(span.range())),
                    Kind::Write => State::WriteWaits(lock.write_async(span.range())),
                };
                let flag = Arc::<Flag>::default();
                let mut request = Request {
                    span,
                    kind,
                    state,
                    flag,
                };
                request.poll();
                self.requests.push(request);
            }
            Step::Try(span, kind) => {
                let is_free = !self.requests.iter().any(|r| r.conflicts(span, kind));
                let got = match kind {
                    Kind::Read => lock.try_read(span.range()).is_ok(),
                    Kind::Write => lock.try_write(span.range()).is_ok(),
                };
                assert_eq!(got, is_free, "{kind:?} {span:?}");
            }
            Step::Drop(which) if !self.requests.is_empty() => {
                self.requests.remove(which % self.requests.len());
            }
            Step::Downgrade(which) => self.change(which, |guard| match guard {
                Held::Write(guard) => vec![Held::Read(guard.downgrade())],
                read => vec![read],
            }),
            Step::Split(which, at) => self.change(which, |guard| match guard {
                Held::Write(guard) => {
                    let (left, right) = guard.split_at(at);
                    vec![Held::Write(left), Held::Write(right)]
                }
                Held::Read(guard) => {
                    let (left, right) = guard.split_at(at);
                    vec![Held::Read(left), Held::Read(right)]
                }
            }),
            Step::SplitLeaf(at) => lock.ordered().split_now(at),
            Step::JoinLeaves(span) => lock.ordered().join_now(span),
            Step::SpreadReaders => lock.ordered().spread_now(),
            Step::Drop(_) => {}
        }
    }

    /// Puts guards in the place of a held one.
    fn change(&mut self, which: usize, change: impl FnOnce(Held<'a>) -> Vec<Held<'a>>) {
        let at = which % self.requests.len().max(1);
        if !self.requests.get(at).is_some_and(Request::is_held) {
            return;
        }
        let State::Held(guard) = self.requests.remove(at).state else {
            return;
        };
        for guard in change(guard) {
            let (range, kind) = match &guard {
                Held::Read(guard) => (guard.range(), Kind::Read),
                Held::Write(guard) => (guard.range(), Kind::Write),
            };
            if let Some(range) = range {
                let request = Request {
                    span: Span::of(range).expect("not empty"),
                    kind,
                    state: State::Held(guard),
                    flag: Arc::default(),
                };
                self.requests.insert(at, request);
            }
        }
    }

    fn check(&mut self) {
        for at in 0..self.requests.len() {
            let (before, rest) = self.requests.split_at_mut(at);
            let request = &mut rest[0];
            let is_first = !before
                .iter()
                .any(|r| r.conflicts(request.span, request.kind));
            if is_first && !request.is_held() {
                let woken = request.flag.0.load(Ordering::SeqCst);
                assert!(
                    woken,
                    "{:?} {:?} can go on, and sleeps",
                    request.kind, request.span
                );
            }
            request.poll();
            assert_eq!(
                request.is_held(),
                is_first,
                "{:?} {:?}",
                request.kind,
                request.span
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 256 }))]

    #[test]
    fn requests_are_granted_in_order_and_as_soon_as_nothing_is_before_them(steps in steps()) {
        let lock = RangeLock::new();
        let mut model = Model { lock: &lock, requests: Vec::new() };
        for step in steps {
            model.step(step);
            model.check();
        }
        drop(model);
        prop_assert!(lock.try_write(..).is_ok(), "something is left behind");
    }
}

#[test]
fn leaves_split_at_a_border_and_join_again() {
    let lock = RangeLock::new();
    let ordered = lock.ordered();
    let crossing = lock.read(40..60);
    ordered.split_now(50);
    ordered.split_now(u64::MAX);
    assert_eq!(ordered.borders(), [50, u64::MAX]);
    assert!(lock.try_write(59..=59).is_err() && lock.try_write(40..41).is_err());
    assert!(lock.try_write(60..).is_ok());
    for _ in 0..20 {
        drop(lock.read(..));
    }
    assert_eq!(ordered.borders(), []);
    drop(crossing);
    assert!(lock.try_write(..).is_ok());
}

#[test]
fn readers_that_are_spread_are_found_by_writers() {
    let lock = RangeLock::new();
    lock.ordered().spread_now();
    let (low, high) = lock.read(10..30).split_at(20);
    assert!(lock.try_write(..11).is_err(), "gathers them");
    drop(low);
    assert!(lock.try_write(..20).is_ok() && lock.try_write(..=20).is_err());
    drop(high);
    assert!(lock.try_write(..).is_ok());
}

#[test]
fn a_full_table_of_leaves_makes_room_for_new_ones() {
    let lock = RangeLock::new();
    let ordered = lock.ordered();
    for at in 1..3000 {
        ordered.split_now(at * 10);
    }
    assert!(!ordered.borders().is_empty());
    assert!(lock.try_write(..).is_ok());
}

/// Who is alone in a leaf gives his range back by a token, without looking in. His entry may be in another leaf by then, and somebody else
/// alone in this one.
#[test]
fn nobody_gives_back_what_another_holds() {
    let lock = RangeLock::new();
    let ordered = lock.ordered();
    let is_free = |range: std::ops::Range<u64>| lock.try_write(range).is_ok();

    // Moved to a new leaf.
    let right = lock.write(50..60);
    ordered.split_now(40);
    assert_eq!(ordered.borders(), [40]);
    let left = lock.write(0..10);
    drop(right);
    assert!(!is_free(5..6) && is_free(50..60));

    // Moved to the first leaf, while the one that it was in goes on elsewhere.
    let right = lock.write(50..60);
    ordered.join_now(Span::ALL);
    ordered.split_now(70);
    assert_eq!(ordered.borders(), [70]);
    let other = lock.write(80..90);
    drop((left, right));
    assert!(!is_free(85..86) && is_free(0..60));
    drop(other);
    assert!(lock.try_write(..).is_ok());
}

/// Neither does a look from outside, nor a request in vain, take the token off or put it back.
#[test]
fn a_lone_holder_is_seen_by_all() {
    for kind in [Kind::Read, Kind::Write] {
        let lock = RangeLock::new();
        for _ in 0..3 {
            let (mut read, mut write) = (None, None);
            match kind {
                Kind::Read => read = Some(lock.read(10..20)),
                Kind::Write => write = Some(lock.write(10..20)),
            }
            assert!(lock.try_write(15..30).is_err() && lock.try_write(15..30).is_err());
            assert_eq!(lock.try_read(15..30).is_ok(), kind == Kind::Read);
            assert!(lock.try_write(20..30).is_ok());
            assert!(lock.ordered().borders().is_empty());
            assert!(lock.try_write(15..30).is_err());
            drop((read, write.map(crate::Guard::downgrade)));
            assert!(lock.try_write(15..30).is_ok());
        }
    }
}

/// Guards of readers that are spread, in more ways than the model above has.
mod spread {
    use std::cell::RefCell;
    #[cfg(all(target_os = "linux", not(miri)))]
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::LazyLock;
    use std::thread;

    use crate::ReadGuard;

    use super::*;

    fn spread() -> RangeLock {
        let lock = RangeLock::new();
        lock.ordered().spread_now();
        lock
    }

    #[test]
    fn a_thread_may_read_more_ranges_than_its_slot_has_room_for() {
        let lock = spread();
        let mut guards: Vec<_> = (0..100).map(|at| lock.read(at * 10..at * 10 + 5)).collect();
        assert!(lock.try_write(5..10).is_ok());
        for at in 0..100 {
            assert!(lock.try_write(at * 10 + 4..at * 10 + 6).is_err());
            lock.ordered().spread_now();
        }
        guards.drain(..50);
        assert!(lock.try_write(..500).is_ok() && lock.try_write(..501).is_err());
        drop(guards);
        assert!(lock.try_write(..).is_ok());
    }

    #[test]
    fn other_threads_give_back() {
        let lock = spread();
        for round in 0..100 {
            let guard = lock.read(0..10).into_task();
            let own = lock.read(5..7);
            thread::scope(|scope| {
                scope.spawn(|| {
                    assert_eq!(guard.range(), Some(0..=9));
                    drop(guard);
                });
            });
            if round % 10 == 0 {
                assert!(lock.try_write(0..5).is_ok() && lock.try_write(..).is_err());
                lock.ordered().spread_now();
            }
            drop(own);
        }
        assert!(lock.try_write(..).is_ok());
    }

    /// The thread's number, and with it the slot, may be another thread's by then.
    #[test]
    fn a_guard_outlives_the_number_of_its_thread() {
        thread_local!(static KEPT: RefCell<Option<ReadGuard<'static>>> = const { RefCell::new(None) });
        static LOCK: LazyLock<RangeLock> = LazyLock::new(spread);
        let lock = &*LOCK;
        for round in 0..50 {
            let keep = move || {
                // What is used first is destroyed last.
                KEPT.set(None);
                KEPT.set(Some(lock.read(round..100)));
            };
            thread::spawn(keep).join().expect("no panic");
            assert!(lock.try_write(..).is_ok());
            lock.ordered().spread_now();
        }
    }

    /// The child is registered for the heavy fence, or asks for it again: it must neither miss readers nor panic.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn the_child_of_a_fork_reads_and_writes_as_its_parent() {
        let lock = spread();
        let guard = lock.read(0..10);
        // SAFETY: the child uses this lock alone, whose mutexes nobody else has, and leaves without running what the parent will run.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it waits for something for ever.
            unsafe { libc::alarm(60) };
            let right = catch_unwind(AssertUnwindSafe(|| {
                let held = lock.try_write(5..6).is_err();
                drop(guard);
                let free = lock.try_write(..).is_ok();
                lock.ordered().spread_now();
                drop(lock.read(3..4));
                held && free && lock.try_write(..).is_ok()
            }));
            // SAFETY: as said above.
            unsafe { libc::_exit(i32::from(!right.unwrap_or(false))) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(lock.try_write(5..6).is_err(), "the parent still reads");
        drop(guard);
        assert!(lock.try_write(..).is_ok());
    }

    #[test]
    fn a_guard_that_a_dead_thread_forgot_is_held_for_ever() {
        let lock = spread();
        thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(lock.read(10..20)));
        });
        // This one has the same number, probably.
        thread::scope(|scope| {
            scope.spawn(|| drop(lock.read(0..30)));
        });
        assert!(lock.try_write(..11).is_err() && lock.try_write(19..).is_err());
        assert!(lock.try_write(..10).is_ok() && lock.try_write(20..).is_ok());
    }

    /// The two sides of the race for a slot, with what each did seen by the other.
    #[test]
    fn readers_and_a_writer_exclude_each_other() {
        const RANGES: u64 = 4;
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let lock = spread();
        let data: Vec<_> = (0..RANGES)
            .map(|_| [AtomicU64::new(0), AtomicU64::new(0)])
            .collect();
        let write = |at: u64, round: u64| {
            let _guard = lock.write(at * 10..at * 10 + 10);
            for half in &data[at as usize] {
                half.store(round, Ordering::Relaxed);
            }
        };
        let read = |at: u64| {
            let _guard = lock.read(..at * 10 + 1);
            for [one, other] in &data[..=at as usize] {
                assert_eq!(one.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
            }
        };
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for first in 0..3 {
                let (read, over) = (&read, &over);
                scope.spawn(move || {
                    let mut at = first;
                    while !over.load(Ordering::Relaxed) {
                        at = (at + 1) % RANGES;
                        read(at);
                    }
                });
            }
            for round in 0..rounds {
                write(round % RANGES, round);
                if round % 3 == 0 {
                    lock.ordered().spread_now();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}

/// Who is in a leaf and looks for the next one is led to any other by a table that is changed meanwhile: also to the one that he is in
/// himself, or to one below it, for which he must not wait.
#[test]
fn who_looks_for_the_next_leaf_waits_for_no_other() {
    let lock = Arc::new(RangeLock::new());
    let (done, is_done) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let crossing = {
        let (lock, stop) = (Arc::clone(&lock), Arc::clone(&stop));
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                drop(lock.write(25..35));
            }
        })
    };
    let borders = thread::spawn(move || {
        for _ in 0..100_000 {
            for at in [30, 20, 10] {
                lock.ordered().split_now(at);
            }
            lock.ordered().join_now(Span { start: 0, last: 19 });
        }
        stop.store(true, Ordering::Relaxed);
        crossing.join().unwrap();
        done.send(()).unwrap();
    });
    let long = Duration::from_secs(60);
    is_done
        .recv_timeout(long)
        .expect("they wait for each other");
    borders.join().unwrap();
}
