//! Locks over ranges, ours and others, behind one face.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock, TryLockError};
use std::thread::{self, Thread};

use amdahl_range_lock::RangeLock;

/// Runs a section while a range is locked.
pub trait Lock: Sync {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut());
    fn write(&self, range: Range<u64>, section: &mut dyn FnMut());
}

impl Lock for RangeLock {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let _guard = RangeLock::read(self, range);
        section();
    }

    fn write(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let _guard = RangeLock::write(self, range);
        section();
    }
}

/// The standard library's lock, for everything.
impl Lock for RwLock<()> {
    fn read(&self, _: Range<u64>, section: &mut dyn FnMut()) {
        let _guard = RwLock::read(self).expect("no panic");
        section();
    }

    fn write(&self, _: Range<u64>, section: &mut dyn FnMut()) {
        let _guard = RwLock::write(self).expect("no panic");
        section();
    }
}

/// The crate range-mutex: no readers.
impl Lock for range_mutex::RangeMutex<u8, Vec<u8>> {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        Lock::write(self, range, section);
    }

    fn write(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let _guard = self.lock(range.start as usize..range.end as usize);
        section();
    }
}

/// The crate range-lock, its form for interleaved slices: no readers, and no waiting. Slices of eight slots, one beside the other without a repetition, are
/// its locks; a range takes those that it touches in their order.
pub struct Slices(range_lock::RepVecRangeLock<u8>);

/// Slots of a slice, as many as the short ranges have.
const SLICE: usize = 8;

impl Slices {
    pub fn new(slots: usize) -> Self {
        let data = vec![0; slots];
        Slices(range_lock::RepVecRangeLock::new(data, SLICE, slots / SLICE))
    }

    /// Takes the first, and the others while it has that: in one order, so that nobody waits in a circle.
    fn hold(&self, slices: Range<usize>, section: &mut dyn FnMut()) {
        if slices.is_empty() {
            return section();
        }
        let mut pauses = 1;
        let _guard = loop {
            match self.0.try_lock(slices.start) {
                Ok(guard) => break guard,
                Err(TryLockError::WouldBlock) => pause(&mut pauses),
                Err(TryLockError::Poisoned(_)) => panic!("poisoned"),
            }
        };
        self.hold(slices.start + 1..slices.end, section);
    }
}

impl Lock for Slices {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        Lock::write(self, range, section);
    }

    fn write(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        self.hold(
            range.start as usize / SLICE..(range.end as usize).div_ceil(SLICE),
            section,
        );
    }
}

/// The crate range-lock: no readers, and no waiting.
impl Lock for range_lock::VecRangeLock<u8> {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        Lock::write(self, range, section);
    }

    fn write(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let mut pauses = 1;
        loop {
            match self.try_lock(range.start as usize..range.end as usize) {
                Ok(_guard) => return section(),
                Err(TryLockError::WouldBlock) => pause(&mut pauses),
                Err(TryLockError::Poisoned(_)) => panic!("poisoned"),
            }
        }
    }
}

/// Waits a little, then longer, then gives the CPU away.
fn pause(pauses: &mut u32) {
    if *pauses > 64 {
        return thread::yield_now();
    }
    (0..*pauses).for_each(|_| std::hint::spin_loop());
    *pauses *= 2;
}

/// An interval tree in a mutex; a request counts those before it, as in the range lock proposed for Linux (Kara 2013).
#[derive(Default)]
pub struct TreeInMutex(Mutex<Tree>);

#[derive(Default)]
struct Tree {
    requests: iset::IntervalMap<u64, Request>,
    latest: u64,
}

struct Request {
    number: u64,
    writes: bool,
    waiter: Option<Arc<Waiter>>,
}

struct Waiter {
    blockers: AtomicUsize,
    thread: Thread,
}

impl TreeInMutex {
    fn lock(&self, range: Range<u64>, writes: bool) -> u64 {
        let mut tree = self.0.lock().expect("no panic");
        let blockers = tree
            .requests
            .values(range.clone())
            .filter(|other| writes || other.writes)
            .count();
        let waiter = (blockers > 0).then(|| {
            Arc::new(Waiter {
                blockers: AtomicUsize::new(blockers),
                thread: thread::current(),
            })
        });
        tree.latest += 1;
        let number = tree.latest;
        let request = Request {
            number,
            writes,
            waiter: waiter.clone(),
        };
        tree.requests.force_insert(range, request);
        drop(tree);
        if let Some(waiter) = waiter {
            let is_blocked = || waiter.blockers.load(Ordering::Acquire) > 0;
            let mut pauses = 1;
            while is_blocked() && pauses <= 64 {
                pause(&mut pauses);
            }
            while is_blocked() {
                thread::park();
            }
        }
        number
    }

    fn unlock(&self, range: Range<u64>, writes: bool, number: u64) {
        let mut tree = self.0.lock().expect("no panic");
        tree.requests
            .remove_where(range.clone(), |request| request.number == number);
        let mut woken = Vec::new();
        for other in tree.requests.values(range) {
            if let Some(waiter) = &other.waiter
                && (writes || other.writes)
                && waiter.blockers.fetch_sub(1, Ordering::AcqRel) == 1
            {
                woken.push(waiter.thread.clone());
            }
        }
        drop(tree);
        woken.iter().for_each(Thread::unpark);
    }
}

impl Lock for TreeInMutex {
    fn read(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let number = self.lock(range.clone(), false);
        section();
        self.unlock(range, false, number);
    }

    fn write(&self, range: Range<u64>, section: &mut dyn FnMut()) {
        let number = self.lock(range.clone(), true);
        section();
        self.unlock(range, true, number);
    }
}
