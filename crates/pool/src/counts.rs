//! Who is busy, searches or sleeps: one word, so that each decision sees all of it at one instant.
//!
//! Pure transitions on [`Counts`]; [`SharedCounts`] applies them by compare-and-swap.

use crate::sync::{AtomicU64, Ordering, Padded};

const BITS: u32 = 12;
const FIELD: u64 = (1 << BITS) - 1;
const SEARCHING: u32 = 0;
const SLEEPING: u32 = BITS;
const AWAKE: u32 = 2 * BITS;
const GUESTS: u32 = 3 * BITS;
const LIMIT: u32 = 4 * BITS;
/// Somebody would take work: derived from the others, and the sign, which is one test on the fast path.
const HUNGRY: u64 = 1 << 63;

/// The largest number of threads and guests.
pub(crate) const MOST: u32 = FIELD as u32;

/// A value of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts(u64);

impl Counts {
    /// `limit` threads may run at a time; none does yet.
    pub(crate) fn new(limit: u32) -> Self {
        Counts(0).with_limit(limit)
    }

    fn field(self, shift: u32) -> u32 {
        (self.0 >> shift & FIELD) as u32
    }

    /// Workers that look for work.
    pub(crate) fn searching(self) -> u32 {
        self.field(SEARCHING)
    }
    /// Workers that sleep and may be woken for any work.
    pub(crate) fn sleeping(self) -> u32 {
        self.field(SLEEPING)
    }
    /// Workers that run something or search.
    pub(crate) fn awake(self) -> u32 {
        self.field(AWAKE)
    }
    /// Threads of the program that work in the pool.
    pub(crate) fn guests(self) -> u32 {
        self.field(GUESTS)
    }
    /// How many threads should run at a time.
    pub(crate) fn limit(self) -> u32 {
        self.field(LIMIT)
    }

    /// Workers that may be awake: guests run in the place of workers, but one worker always may.
    pub(crate) fn places(self) -> u32 {
        self.limit().saturating_sub(self.guests()).max(1)
    }

    /// More workers are awake than should be.
    pub(crate) fn is_surplus(self) -> bool {
        self.awake() > self.places()
    }

    /// One more may run.
    pub(crate) fn has_room(self) -> bool {
        self.awake() < self.places()
    }

    /// A sleeper should be woken for new work: nobody searches and there is a place.
    pub(crate) fn wants_waking(self) -> bool {
        self.searching() == 0 && self.sleeping() > 0 && self.has_room()
    }

    #[cfg(test)]
    pub(crate) fn is_hungry(self) -> bool {
        self.0 & HUNGRY != 0
    }

    fn step(self, up: &[u32], down: &[u32]) -> Self {
        let mut word = self.0 & !HUNGRY;
        for &shift in up {
            debug_assert!(word >> shift & FIELD < FIELD);
            word += 1 << shift;
        }
        for &shift in down {
            debug_assert!(word >> shift & FIELD > 0);
            word -= 1 << shift;
        }
        Counts(word).derived()
    }

    fn derived(self) -> Self {
        if self.searching() > 0 || self.wants_waking() {
            Counts(self.0 | HUNGRY)
        } else {
            Counts(self.0 & !HUNGRY)
        }
    }

    pub(crate) fn with_limit(self, limit: u32) -> Self {
        let limit = u64::from(limit.clamp(1, MOST));
        Counts(self.0 & !(FIELD << LIMIT) | limit << LIMIT).derived()
    }
    /// A worker without work begins to look for some.
    pub(crate) fn search(self) -> Self {
        self.step(&[SEARCHING], &[])
    }
    /// It has found some.
    pub(crate) fn found(self) -> Self {
        self.step(&[], &[SEARCHING])
    }
    /// It has found none and will sleep.
    pub(crate) fn sleep(self) -> Self {
        self.step(&[SLEEPING], &[SEARCHING, AWAKE])
    }
    /// A sleeper is awake and searches.
    pub(crate) fn wake(self) -> Self {
        self.step(&[SEARCHING, AWAKE], &[SLEEPING])
    }
    /// A worker starts or comes back, busy.
    pub(crate) fn start(self) -> Self {
        self.step(&[AWAKE], &[])
    }
    /// A busy worker ends or blocks, and cannot be woken for any work.
    pub(crate) fn stop(self) -> Self {
        self.step(&[], &[AWAKE])
    }
    pub(crate) fn enter(self) -> Self {
        self.step(&[GUESTS], &[])
    }
    pub(crate) fn leave(self) -> Self {
        self.step(&[], &[GUESTS])
    }
}

/// The word itself, on its own line.
pub(crate) struct SharedCounts(Padded<AtomicU64>);

impl SharedCounts {
    pub(crate) fn new(counts: Counts) -> Self {
        SharedCounts(Padded(AtomicU64::new(counts.0)))
    }

    /// A hint without order, for each push.
    #[inline(always)]
    pub(crate) fn is_hungry(&self) -> bool {
        (self.0.load(Ordering::Relaxed) as i64) < 0
    }

    pub(crate) fn load(&self) -> Counts {
        Counts(self.0.load(Ordering::SeqCst))
    }

    /// What it was before, and what it is now.
    pub(crate) fn change(&self, step: impl Fn(Counts) -> Counts) -> (Counts, Counts) {
        let mut before = Counts(self.0.load(Ordering::Relaxed));
        loop {
            let now = step(before);
            // SeqCst: the protocol of sleeping orders these changes against queues (DESIGN.md).
            match self
                .0
                .compare_exchange_weak(before.0, now.0, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return (before, now),
                Err(found) => before = Counts(found),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn guests_take_places_but_not_the_last() {
        let mut counts = Counts::new(2);
        for _ in 0..2 {
            counts = counts.start().search().sleep();
        }
        assert!(counts.wants_waking() && counts.is_hungry());
        counts = counts.enter();
        assert!(counts.wants_waking(), "one place is left");
        counts = counts.wake();
        assert!(counts.is_hungry(), "somebody searches");
        counts = counts.found();
        assert!(!counts.wants_waking() && !counts.is_hungry() && !counts.is_surplus());
        counts = counts.enter();
        assert!(!counts.is_surplus(), "one worker always may run");
        counts = counts.leave().leave();
        assert!(counts.wants_waking());
        assert_eq!(
            (counts.awake(), counts.sleeping(), counts.guests()),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_lower_limit_makes_a_surplus() {
        let counts = Counts::new(3).start().start().start();
        assert!(!counts.is_surplus());
        assert!(counts.with_limit(2).is_surplus());
        assert_eq!(counts.with_limit(0).limit(), 1);
        let asleep = counts.with_limit(2).search().sleep();
        assert!(!asleep.is_surplus() && !asleep.is_hungry());
    }
}
