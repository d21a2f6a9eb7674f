//! Bytes as a sequence of operations on a lock, or on a map, beside a naive model.

#[path = "../../../crates/range-lock/tests/model/mod.rs"]
mod model;

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use amdahl_range_lock::{Acquire, ByTask, Guard, RangeLock, Read, SeqRangeMap, Write};

use crate::input::Input;

impl Input<'_> {
    /// Small addresses, or the last ones.
    fn address(&mut self) -> Option<u64> {
        let byte = u64::from(self.next()?);
        Some(if byte < 200 {
            byte
        } else {
            u64::MAX - (byte - 200)
        })
    }

    fn range(&mut self) -> Option<RangeInclusive<u64>> {
        let (one, other) = (self.address()?, self.address()?);
        Some(one.min(other)..=one.max(other))
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
    range: RangeInclusive<u64>,
    writes: bool,
    state: State<'a>,
    flag: Arc<Flag>,
}

impl Request<'_> {
    fn conflicts(&self, range: &RangeInclusive<u64>, writes: bool) -> bool {
        let overlap = self.range.start() <= range.end() && range.start() <= self.range.end();
        overlap && (self.writes || writes)
    }

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

/// Begins what is done with a segmented lock.
const SEGMENTED: u8 = 255;

/// Requests are granted in order, as soon as nothing before them is in conflict; the last one out leaves nothing.
pub fn lock(bytes: &[u8]) {
    if let [SEGMENTED, form, rest @ ..] = bytes {
        let (granule, segments) = (1 << (form % 4), 1 << (form / 4 % 6));
        let mut input = Input(&rest[..rest.len().min(600)]);
        return model::run(
            granule,
            segments,
            std::iter::from_fn(|| segmented_step(&mut input)),
        );
    }
    let lock = RangeLock::new();
    let mut requests: Vec<Request<'_>> = Vec::new();
    let mut input = Input(&bytes[..bytes.len().min(600)]);
    while let Some(()) = lock_step(&lock, &mut requests, &mut input) {
        for at in 0..requests.len() {
            let (before, rest) = requests.split_at_mut(at);
            let request = &mut rest[0];
            let is_free = !(before.iter()).any(|r| r.conflicts(&request.range, request.writes));
            if is_free && !request.is_held() {
                assert!(
                    request.flag.0.load(Ordering::SeqCst),
                    "it can go on, and sleeps"
                );
            }
            request.poll();
            assert_eq!(request.is_held(), is_free);
        }
    }
    drop(requests);
    assert!(lock.try_write(..).is_ok(), "something is left behind");
}

fn segmented_step(input: &mut Input<'_>) -> Option<model::Step> {
    use model::Step;
    let what = input.next()?;
    Some(match what {
        0..112 => Step::Request(input.range()?, what % 2 == 1),
        112..128 => Step::Try(input.range()?, what % 2 == 1),
        128..200 => Step::Drop(input.next()?.into()),
        200..220 => Step::Downgrade(input.next()?.into()),
        _ => Step::Split(input.next()?.into(), input.address()?),
    })
}

fn lock_step<'a>(
    lock: &'a RangeLock,
    requests: &mut Vec<Request<'a>>,
    input: &mut Input<'_>,
) -> Option<()> {
    let what = input.next()?;
    if what < 128 {
        let (range, writes) = (input.range()?, what % 2 == 1);
        let state = match writes {
            true => State::Writes(lock.write_async(range.clone())),
            false => State::Reads(lock.read_async(range.clone())),
        };
        let mut request = Request {
            range,
            writes,
            state,
            flag: Arc::default(),
        };
        request.poll();
        requests.push(request);
        return Some(());
    }
    let at = usize::from(input.next()?);
    if requests.is_empty() {
        return Some(());
    }
    let at = at % requests.len();
    let request = requests.remove(at);
    if what < 200 || !request.is_held() {
        return Some(());
    }
    let parts = match request.state {
        State::WriteHeld(guard) if what < 220 => vec![State::ReadHeld(guard.downgrade())],
        State::WriteHeld(guard) => {
            let (left, right) = guard.split_at(input.address()?);
            vec![State::WriteHeld(left), State::WriteHeld(right)]
        }
        State::ReadHeld(guard) => {
            let (left, right) = guard.split_at(input.address()?);
            vec![State::ReadHeld(left), State::ReadHeld(right)]
        }
        State::Reads(_) | State::Writes(_) => unreachable!("it is held"),
    };
    for state in parts {
        let (range, writes) = match &state {
            State::WriteHeld(guard) => (guard.range(), true),
            State::ReadHeld(guard) => (guard.range(), false),
            State::Reads(_) | State::Writes(_) => unreachable!("it is held"),
        };
        if let Some(range) = range {
            requests.insert(
                at,
                Request {
                    range,
                    writes,
                    state,
                    flag: Arc::default(),
                },
            );
        }
    }
    Some(())
}

/// The map has for each address what an array has, its ranges are whole, and neighbours differ.
pub fn map(bytes: &[u8]) {
    const CELLS: usize = 256;
    let map = SeqRangeMap::new();
    let mut array = [None; CELLS];
    let mut input = Input(&bytes[..bytes.len().min(2000)]);
    // Cell 199 stands for all addresses in the middle.
    let cell = |address: u64| match address {
        0..200 => address as usize,
        _ => 255 - (u64::MAX - address) as usize,
    };
    while let (Some(what), Some(range)) = (input.next(), input.range()) {
        let value = (what < 192).then_some(what % 4);
        let range = match range {
            // The middle belongs to the last small address.
            range if *range.end() == 199 => *range.start()..=u64::MAX - 56,
            range if *range.start() == u64::MAX - 55 => 199..=*range.end(),
            range => range,
        };
        let first = cell(*range.start());
        let last = if *range.end() == u64::MAX - 56 {
            199
        } else {
            cell(*range.end())
        };
        match value {
            Some(value) => map.insert(range, value),
            None => map.remove(range),
        }
        array[first..=last].fill(value);
    }
    let reader = map.reader();
    for at in 0..CELLS as u64 {
        let address = if at < 200 { at } else { u64::MAX - (255 - at) };
        assert_eq!(
            reader.get(address).copied(),
            array[at as usize],
            "{address}"
        );
    }
    let mut before: Option<(u64, u8)> = None;
    for (range, &value) in reader.snapshot() {
        let (start, end) = (*range.start(), *range.end());
        assert!(start <= end);
        if let Some((end_before, value_before)) = before {
            assert!(end_before < start);
            assert!(
                end_before + 1 < start || value_before != value,
                "not made one"
            );
        }
        before = Some((end, value));
    }
    assert_eq!(reader.snapshot().iter().count(), map.len());
}
