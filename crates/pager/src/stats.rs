//! What a pager has done, counted without shared lines.

use amdahl_spread::{Buckets, Counter, Histogram, Snapshot};

/// Sums while it runs.
pub(crate) struct Tally {
    pub faults: Counter,
    pub windows: Counter,
    pub pages: Counter,
    pub zero_pages: Counter,
    pub shared_pages: Counter,
    pub moved_blocks: Counter,
    pub background_pages: Counter,
    pub waits: Counter,
    pub overtaken: Counter,
    pub handed_over: Counter,
    pub retries: Counter,
    pub lost_pages: Counter,
    pub removed_pages: Counter,
    pub reader_moves: Counter,
    pub latency: Histogram,
}

/// A minute: who waited longer is above all buckets.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// 2^-5: 3 %.
const PRECISION: u32 = 5;

impl Tally {
    pub fn new() -> Tally {
        let buckets = Buckets::new(PRECISION, LATENCY_NS_MAX).expect("a precision that is allowed");
        Tally {
            faults: Counter::new(),
            windows: Counter::new(),
            pages: Counter::new(),
            zero_pages: Counter::new(),
            shared_pages: Counter::new(),
            moved_blocks: Counter::new(),
            background_pages: Counter::new(),
            waits: Counter::new(),
            overtaken: Counter::new(),
            handed_over: Counter::new(),
            retries: Counter::new(),
            lost_pages: Counter::new(),
            removed_pages: Counter::new(),
            reader_moves: Counter::new(),
            latency: Histogram::new(buckets),
        }
    }

    pub fn stats(&self) -> Stats {
        let read = |counter: &Counter| counter.read().max(0) as u64;
        Stats {
            faults: read(&self.faults),
            windows: read(&self.windows),
            pages: read(&self.pages),
            zero_pages: read(&self.zero_pages),
            shared_pages: read(&self.shared_pages),
            moved_blocks: read(&self.moved_blocks),
            background_pages: read(&self.background_pages),
            waits: read(&self.waits),
            overtaken: read(&self.overtaken),
            handed_over: read(&self.handed_over),
            retries: read(&self.retries),
            lost_pages: read(&self.lost_pages),
            removed_pages: read(&self.removed_pages),
            reader_moves: read(&self.reader_moves),
            latency_ns: self.latency.snapshot(),
        }
    }
}

/// What a pager has done since it started. Pages are of 4 KiB.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Faults that were told.
    pub faults: u64,
    /// Fetches because of a fault: a page, or a window around it.
    pub windows: u64,
    /// Pages put into place with content, for faults or in the background.
    pub pages: u64,
    /// Pages put into place as zeros: the source said so, or its content turned out to be.
    pub zero_pages: u64,
    /// Of `pages`, those that are the one copy of [`CleanPages`](crate::CleanPages), mapped instead of copied.
    pub shared_pages: u64,
    /// Huge pages that were moved into place, or whole ones of shared memory that were filled in its file and mapped.
    pub moved_blocks: u64,
    /// Of `pages` and `zero_pages`, those fetched in the background or for a working set.
    pub background_pages: u64,
    /// Faults on pages that somebody else fetched just then.
    pub waits: u64,
    /// Faults on pages that were just being fetched ahead: fetched for themselves, without waiting for that.
    pub overtaken: u64,
    /// Faults that their reader gave to another thread.
    pub handed_over: u64,
    /// Fetches that were tried again after an error.
    pub retries: u64,
    /// Pages that the source did not give, or that were moved to where they cannot be served: who touches them gets a signal.
    pub lost_pages: u64,
    /// Pages whose content was given up.
    pub removed_pages: u64,
    /// How often readers were bound anew, [near](crate::Builder::near) the threads whose faults they serve or to all CPUs again.
    pub reader_moves: u64,
    /// From when a fault was known to the pager until its page was in place, in nanoseconds.
    pub latency_ns: Snapshot,
}
