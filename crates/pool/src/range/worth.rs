//! Whether short ranges are worth a helper, by how long they took with one and without: pure but for the words.
//!
//! A helper that is awake costs the caller some tenths of a microsecond, and the lines of the data that it takes. Whether a range of a
//! few microseconds gets faster by one depends on the machine, on what the range reads, and on where the helper is: it is tried now and then.

use std::sync::atomic::{AtomicU64, Ordering};

/// What takes longer alone is worth a helper in any case.
const SHORT_NS: u64 = 20_000;
/// A helper has to save more than this part of the time: it takes as much of another CPU.
const SAVES: u64 = 20;
/// Of so many ranges of a site ...
const PERIOD: u64 = 4096;
/// ... the first ones are worked on the other way, to see how long that takes now: so many with helpers, of whom the first has to be woken ...
const TRIAL_SHARED: u64 = 64;
/// ... or so many alone.
const TRIAL_ALONE: u64 = 16;
/// So many times must be known before one way is preferred to the other.
const ENOUGH: u64 = 16;
/// The mean is of about so many.
const MEAN: u64 = 8;
/// Sites that a caller remembers.
const SITES: usize = 16;

/// What one caller remembers. Hints of one thread at a time, so no update is atomic as a whole.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Sites([Site; SITES]);

/// Ranges that begin at one place in the program, with about as many chunks.
#[derive(Debug, Default)]
pub(crate) struct Site {
    key: AtomicU64,
    alone: Times,
    shared: Times,
    turns: AtomicU64,
}

/// How long ranges took.
#[derive(Debug, Default)]
struct Times {
    mean_ns: AtomicU64,
    count: AtomicU64,
}

/// How a range is to be worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Helpers come as soon as there is one awake, or the range has turned out to be worth waking one.
    Usual,
    /// Only the latter, and those before it do not count.
    Alone,
}

impl Default for Sites {
    fn default() -> Self {
        Sites(std::array::from_fn(|_| Site::default()))
    }
}

impl Sites {
    /// What is remembered of the ranges of a key. Another one that had its place is forgotten. O(1).
    pub(crate) fn at(&self, key: u64) -> &Site {
        // Fibonacci hashing: the keys are made of addresses.
        let site = &self.0[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60) as usize];
        if site.key.load(Ordering::Relaxed) != key {
            site.key.store(key, Ordering::Relaxed);
            for word in [
                &site.alone.count,
                &site.shared.count,
                &site.turns,
                &site.alone.mean_ns,
                &site.shared.mean_ns,
            ] {
                word.store(0, Ordering::Relaxed);
            }
        }
        site
    }
}

const _: () = assert!(SITES == 1 << 4);

#[cfg(all(test, not(any(loom, miri))))]
impl Sites {
    /// As if all that were there had long taken so long, alone and with helpers.
    pub(crate) fn set(&self, alone_ns: u64, shared_ns: u64) {
        for site in &self.0 {
            for (times, ns) in [(&site.alone, alone_ns), (&site.shared, shared_ns)] {
                times.count.store(ENOUGH, Ordering::Relaxed);
                times.mean_ns.store(ns, Ordering::Relaxed);
            }
            site.turns.store(TRIAL_SHARED, Ordering::Relaxed);
        }
    }
}

impl Site {
    /// How the next range is to be worked on.
    pub(crate) fn way(&self) -> Way {
        let turn = self.turns.load(Ordering::Relaxed);
        self.turns.store(turn.wrapping_add(1), Ordering::Relaxed);
        let at = turn % PERIOD;
        let (alone, shared) = (self.alone.get(), self.shared.get());
        match (alone, shared) {
            (_, None) => Way::Usual,
            (None, Some(shared_ns)) if shared_ns > SHORT_NS => Way::Usual,
            (None, Some(_)) => Way::Alone,
            (Some(alone_ns), Some(shared_ns)) => {
                let is_worth =
                    alone_ns > SHORT_NS || shared_ns < alone_ns.saturating_sub(alone_ns / SAVES);
                let is_trial = match is_worth {
                    true => alone_ns <= SHORT_NS && at < TRIAL_ALONE,
                    false => at < TRIAL_SHARED,
                };
                match is_worth != is_trial {
                    true => Way::Usual,
                    false => Way::Alone,
                }
            }
        }
    }

    /// A range took so long from its begin until nobody was in it any more, with helpers or without.
    pub(crate) fn took(&self, ns: u64, was_shared: bool) {
        match was_shared {
            true => self.shared.add(ns),
            false => self.alone.add(ns),
        }
    }
}

impl Times {
    fn get(&self) -> Option<u64> {
        let is_known = self.count.load(Ordering::Relaxed) >= ENOUGH;
        is_known.then(|| self.mean_ns.load(Ordering::Relaxed))
    }

    /// One more. Who lost the CPU meanwhile counts as twice as long as usual.
    fn add(&self, ns: u64) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.saturating_add(1), Ordering::Relaxed);
        let mean = self.mean_ns.load(Ordering::Relaxed);
        let next = match count {
            0 => ns,
            _ => {
                let ns = ns.min(mean.saturating_mul(2));
                mean - mean / MEAN + ns / MEAN
            }
        };
        self.mean_ns.store(next.max(MEAN), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Of `times` ranges, how many were shared: each takes so long alone, and so long with a helper that is awake. A helper is woken by
    /// twenty in a row that want one.
    fn shared_of(site: &Site, times: u64, alone_ns: u64, shared_ns: u64) -> u64 {
        let mut in_a_row = 0;
        let mut shared = 0;
        for _ in 0..times {
            match site.way() {
                Way::Usual => in_a_row += 1,
                Way::Alone => in_a_row = 0,
            }
            let is_shared = in_a_row > 20;
            shared += u64::from(is_shared);
            site.took(if is_shared { shared_ns } else { alone_ns }, is_shared);
        }
        shared
    }

    #[test]
    fn helpers_come_where_they_save_time_and_what_changes_is_seen() {
        let site = Site::default();
        let period = 2 * PERIOD;
        shared_of(&site, 200, 3_300, 5_400);
        // Trials apart.
        let shared = shared_of(&site, period, 3_300, 5_400);
        assert!((1..=2 * TRIAL_SHARED).contains(&shared), "{shared}");
        shared_of(&site, period, 3_300, 2_700);
        let shared = shared_of(&site, period, 3_300, 2_700);
        assert!(shared >= period * 98 / 100, "{shared}");
        // What saves next to nothing takes a CPU for it.
        shared_of(&site, period, 3_300, 3_200);
        let shared = shared_of(&site, period, 3_300, 3_200);
        assert!(shared <= 2 * TRIAL_SHARED, "{shared}");
        // They got longer.
        shared_of(&site, period, 30_000, 29_000);
        let shared = shared_of(&site, period, 30_000, 29_000);
        assert!(shared > period - 30, "{shared}");
    }

    #[test]
    fn who_was_always_helped_tries_it_alone() {
        let site = Site::default();
        (0..ENOUGH).for_each(|_| site.took(5_400, true));
        for _ in 0..ENOUGH {
            assert_eq!(site.way(), Way::Alone);
            site.took(3_300, false);
        }
        for _ in 0..TRIAL_SHARED {
            site.way();
        }
        assert_eq!(site.way(), Way::Alone);
    }

    #[test]
    fn long_ranges_are_never_tried_alone() {
        let site = Site::default();
        for _ in 0..2 * PERIOD {
            assert_eq!(site.way(), Way::Usual);
            site.took(200_000, true);
        }
    }

    #[test]
    fn one_that_lost_its_cpu_changes_little() {
        let site = Site::default();
        (0..100).for_each(|_| site.took(3_000, false));
        site.took(5_000_000, false);
        let mean = site.alone.get().unwrap();
        assert!((3_000..3_500).contains(&mean), "{mean}");
        (0..200).for_each(|_| site.took(0, false));
        site.took(u64::MAX, false);
        assert!(site.alone.get().unwrap() < 100);
    }

    #[test]
    fn another_site_begins_anew() {
        let sites = Sites::default();
        (0..ENOUGH).for_each(|_| sites.at(7).took(5_400, true));
        assert_eq!(sites.at(7).way(), Way::Alone);
        // Some of so many have the same place.
        for key in 8..1000 {
            sites.at(key).way();
        }
        assert_eq!(sites.at(7).way(), Way::Usual);
    }
}
