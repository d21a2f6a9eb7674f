//! A segmented lock beside lists of who holds and who waits for each segment.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use amdahl_range_lock::{Acquire, ByTask, Guard, RangeLock, Read, Write};

#[derive(Clone, Debug)]
pub enum Step {
    Request(RangeInclusive<u64>, bool),
    Try(RangeInclusive<u64>, bool),
    /// The n-th guard or future is dropped.
    Drop(usize),
    Downgrade(usize),
    Split(usize, u64),
}

/// What a segment has: numbers of requests, and whether they write.
#[derive(Default)]
struct Segment {
    held: Vec<(u64, bool)>,
    queue: VecDeque<(u64, bool)>,
}

impl Segment {
    fn can_take(&self, writes: bool) -> bool {
        match writes {
            true => self.held.is_empty(),
            false => self.held.iter().all(|(_, writes)| !writes),
        }
    }

    fn is_free(&self, writes: bool) -> bool {
        self.queue.is_empty() && self.can_take(writes)
    }

    fn serve(&mut self) {
        while let Some(&first) = self.queue.front().filter(|first| self.can_take(first.1)) {
            self.queue.pop_front();
            self.held.push(first);
        }
    }

    fn forget(&mut self, number: u64) {
        self.held.retain(|(held, _)| *held != number);
        self.queue.retain(|(waits, _)| *waits != number);
        self.serve();
    }
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

enum State<'a> {
    Reads(Acquire<'a, Read>),
    Writes(Acquire<'a, Write>),
    ReadHeld(Guard<'a, Read, ByTask>),
    WriteHeld(Guard<'a, Write, ByTask>),
}

struct Request<'a> {
    number: u64,
    writes: bool,
    /// In the order in which they are taken, and how many of them are, as far as the request knows.
    segments: Vec<usize>,
    taken: usize,
    state: State<'a>,
    flag: Arc<Flag>,
}

impl Request<'_> {
    fn is_held(&self) -> bool {
        matches!(self.state, State::ReadHeld(_) | State::WriteHeld(_))
    }

    fn poll(&mut self) {
        let waker = Waker::from(Arc::clone(&self.flag));
        let mut context = Context::from_waker(&waker);
        let held = match &mut self.state {
            State::Reads(future) => Pin::new(future).poll(&mut context).map(State::ReadHeld),
            State::Writes(future) => Pin::new(future).poll(&mut context).map(State::WriteHeld),
            State::ReadHeld(_) | State::WriteHeld(_) => return,
        };
        if let Poll::Ready(held) = held {
            self.state = held;
        }
    }
}

struct Both<'a> {
    lock: &'a RangeLock,
    granule: u64,
    segments: Vec<Segment>,
    requests: Vec<Request<'a>>,
    numbers: u64,
}

/// Takes the steps, with what holds after each.
pub fn run(granule: u64, segments: usize, steps: impl IntoIterator<Item = Step>) {
    let lock = RangeLock::segmented(granule, segments).expect("a lock");
    let mut both = Both {
        lock: &lock,
        granule,
        segments: (0..segments).map(|_| Segment::default()).collect(),
        requests: Vec::new(),
        numbers: 0,
    };
    for step in steps {
        both.step(step);
        both.check();
    }
    drop(both);
    assert!(lock.try_write(..).is_ok(), "something is left behind");
}

impl<'a> Both<'a> {
    fn segments_of(&self, range: &RangeInclusive<u64>) -> Vec<usize> {
        let (first, last) = (range.start() / self.granule, range.end() / self.granule);
        let count = self.segments.len() as u64;
        let granules = first..=last.min(first.saturating_add(count - 1));
        let mut all: Vec<usize> = granules.map(|granule| (granule % count) as usize).collect();
        all.sort_unstable();
        all
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn step(&mut self, step: Step) {
        let lock = self.lock;
        match step {
            Step::Request(range, writes) => {
                let mut request = Request {
                    number: self.number(),
                    writes,
                    segments: self.segments_of(&range),
                    taken: 0,
                    state: match writes {
                        true => State::Writes(lock.write_async(range)),
                        false => State::Reads(lock.read_async(range)),
                    },
                    flag: Arc::default(),
                };
                advance(&mut self.segments, &mut request);
                request.poll();
                self.requests.push(request);
            }
            Step::Try(range, writes) => {
                let segments = self.segments_of(&range);
                let is_free = segments.iter().all(|at| self.segments[*at].is_free(writes));
                let got = match writes {
                    true => lock.try_write(range.clone()).is_ok(),
                    false => lock.try_read(range.clone()).is_ok(),
                };
                assert_eq!(got, is_free, "{range:?}");
            }
            Step::Drop(n) if !self.requests.is_empty() => {
                let request = self.requests.remove(n % self.requests.len());
                self.forget(request.number);
            }
            Step::Downgrade(n) => self.change(n, |state| match state {
                State::WriteHeld(guard) => vec![State::ReadHeld(guard.downgrade())],
                state => vec![state],
            }),
            Step::Split(n, at) => self.change(n, |state| match state {
                State::WriteHeld(guard) => {
                    let (left, right) = guard.split_at(at);
                    vec![State::WriteHeld(left), State::WriteHeld(right)]
                }
                State::ReadHeld(guard) => {
                    let (left, right) = guard.split_at(at);
                    vec![State::ReadHeld(left), State::ReadHeld(right)]
                }
                state => vec![state],
            }),
            Step::Drop(_) => {}
        }
    }

    fn forget(&mut self, number: u64) {
        self.segments.iter_mut().for_each(|it| it.forget(number));
    }

    /// Puts guards in the place of a held one.
    fn change(&mut self, n: usize, change: impl FnOnce(State<'a>) -> Vec<State<'a>>) {
        let at = n % self.requests.len().max(1);
        if !self.requests.get(at).is_some_and(Request::is_held) {
            return;
        }
        let whole = self.requests.remove(at);
        for state in change(whole.state) {
            let (range, writes) = match &state {
                State::WriteHeld(guard) => (guard.range(), true),
                State::ReadHeld(guard) => (guard.range(), false),
                State::Reads(_) | State::Writes(_) => unreachable!("it is held"),
            };
            let Some(range) = range else { continue };
            let (number, segments) = (self.number(), self.segments_of(&range));
            for segment in &segments {
                self.segments[*segment].held.push((number, writes));
            }
            let part = Request {
                number,
                writes,
                taken: segments.len(),
                segments,
                state,
                flag: Arc::default(),
            };
            self.requests.insert(at, part);
        }
        // Now that the parts have what they need.
        self.forget(whole.number);
    }

    /// Whoever can go on was woken, and has its range when it has all segments.
    fn check(&mut self) {
        for request in &mut self.requests {
            if request.is_held() {
                continue;
            }
            let waits_for = request.segments[request.taken];
            let held = &self.segments[waits_for].held;
            if held.iter().any(|(held, _)| *held == request.number) {
                let was_woken = request.flag.0.swap(false, Ordering::SeqCst);
                assert!(was_woken, "it can go on, and sleeps");
                request.taken += 1;
                advance(&mut self.segments, request);
            }
            request.poll();
            assert_eq!(request.is_held(), request.taken == request.segments.len());
        }
    }
}

/// Takes one segment after the other, or waits.
fn advance(segments: &mut [Segment], request: &mut Request<'_>) {
    let me = (request.number, request.writes);
    while let Some(&next) = request.segments.get(request.taken) {
        if !segments[next].is_free(request.writes) {
            segments[next].queue.push_back(me);
            return;
        }
        segments[next].held.push(me);
        request.taken += 1;
    }
}
