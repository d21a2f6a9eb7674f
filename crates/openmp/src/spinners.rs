//! How many threads of a team spin at once: no more than can run, so that those who spin leave a CPU to those who are
//! awaited.
//!
//! Where as many can run as the team has threads, nobody counts: the shared line is touched only by who begins or ends
//! to spin in a team that CPUs were taken from, and there only after the first short look that every wait begins with.

use std::cell::Cell;

use crate::sync::{AtomicU32, Line, Ordering};

/// Those of one team.
#[derive(Debug, Default)]
pub struct Spinners {
    /// Relaxed throughout: a number, and nothing else is known by it.
    count: Line<AtomicU32>,
    /// Threads of the team.
    threads: AtomicU32,
}

impl Spinners {
    /// The team has so many threads from now on.
    pub fn set_threads(&self, threads: u32) {
        self.threads.store(threads, Ordering::Relaxed);
    }

    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> bool {
        let (set, seen) = (Ordering::Relaxed, Ordering::Relaxed);
        self.count.fetch_update(set, seen, to).is_ok()
    }
}

/// What one thread that waits has of the [`Spinners`]: a place among them, or none. Given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Place<'a> {
    /// `None` where nobody counts.
    among: Option<&'a Spinners>,
    is_held: Cell<bool>,
}

impl<'a> Place<'a> {
    /// None yet.
    #[inline]
    pub(crate) fn among(spinners: &'a Spinners) -> Place<'a> {
        Place {
            among: Some(spinners),
            is_held: Cell::new(false),
        }
    }

    /// Whether the thread may spin on where `limit` threads can run. Asked again and again: the limit changes. One
    /// atomic operation to begin or to end, a load in between, nothing on shared lines where the limit is no limit.
    pub(crate) fn may_spin(&self, limit: u32) -> bool {
        let Some(spinners) = self.among else {
            return true;
        };
        if limit >= spinners.threads.load(Ordering::Relaxed) {
            self.leave();
            return true;
        }
        let holds = if self.is_held.get() {
            // As many leave as are too many.
            !spinners.change(|count| (count > limit).then(|| count - 1))
        } else {
            spinners.change(|count| (count < limit).then(|| count + 1))
        };
        self.is_held.set(holds);
        holds
    }

    /// The thread does something else.
    #[inline]
    pub(crate) fn leave(&self) {
        if self.is_held.replace(false)
            && let Some(spinners) = self.among
        {
            spinners.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn team(threads: u32) -> Spinners {
        let spinners = Spinners::default();
        spinners.set_threads(threads);
        spinners
    }

    #[test]
    fn where_all_can_run_nobody_counts() {
        let spinners = team(4);
        let places = [(); 4].map(|()| Place::among(&spinners));
        assert!(places.iter().all(|place| place.may_spin(4)));
        assert_eq!(spinners.count.load(Ordering::Relaxed), 0);
        assert!(Place::default().may_spin(1));
    }

    #[test]
    fn a_place_is_given_back() {
        let spinners = team(4);
        let first = Place::among(&spinners);
        assert!(first.may_spin(1) && first.may_spin(1));
        assert!(!Place::among(&spinners).may_spin(1));
        first.leave();
        first.leave();
        let second = Place::among(&spinners);
        assert!(second.may_spin(1));
        drop(second);
        assert_eq!(spinners.count.load(Ordering::Relaxed), 0);
    }

    proptest! {
        /// Whatever the limit does: once all have looked again no more spin than it says, and as many as it says if they are
        /// that many.
        #[test]
        fn as_many_spin_as_can_run(threads in 1_u32..40, limits in prop::collection::vec(1_u32..50, 1..20)) {
            let spinners = team(threads);
            let places: Vec<Place<'_>> = (0..threads).map(|_| Place::among(&spinners)).collect();
            for limit in limits {
                // Those who spin look first: who sleeps does not look.
                let (spin, sleep): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.is_held.get());
                let mut spinning = 0;
                for place in spin.into_iter().chain(sleep) {
                    spinning += u32::from(place.may_spin(limit));
                }
                prop_assert_eq!(spinning, limit.min(threads));
                let counted = if limit >= threads { 0 } else { limit };
                prop_assert_eq!(spinners.count.load(Ordering::Relaxed), counted);
            }
        }
    }
}
