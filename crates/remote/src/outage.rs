//! For how long the other side was away, and when a read has waited long enough. Pure.

use std::time::{Duration, Instant};

/// The times in which nobody was there. Clocks of reads stand in the first part of each, which is the patience.
#[derive(Debug)]
pub struct Outages {
    patience: Duration,
    /// Since when nobody is there.
    since: Option<Instant>,
    /// How long clocks have stood before.
    stood: Duration,
}

impl Outages {
    pub fn new(patience: Duration) -> Outages {
        Outages {
            patience,
            since: None,
            stood: Duration::ZERO,
        }
    }

    /// Nobody is there. One that goes on begins no more.
    pub fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Somebody is.
    pub fn end(&mut self, now: Instant) {
        self.stood = self.stood(now);
        self.since = None;
    }

    /// How long the one that goes on may last until clocks go on; `None`: they do.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let lasts = now.saturating_duration_since(self.since?);
        self.patience
            .checked_sub(lasts)
            .filter(|left| !left.is_zero())
    }

    /// How long clocks have stood until now.
    fn stood(&self, now: Instant) -> Duration {
        let lasts = self.since.map(|since| now.saturating_duration_since(since));
        self.stood + lasts.unwrap_or_default().min(self.patience)
    }
}

/// When a read has waited long enough: the timeout after it began, and the patience after that at most, however often the other side goes away.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    begun: Instant,
    timeout: Duration,
    /// How long clocks had stood when it began.
    stood: Duration,
}

impl Deadline {
    pub fn new(outages: &Outages, timeout: Duration, now: Instant) -> Deadline {
        Deadline {
            begun: now,
            timeout,
            stood: outages.stood(now),
        }
    }

    /// What is left of the timeout.
    pub fn left(&self, outages: &Outages, now: Instant) -> Duration {
        let stood = outages.stood(now).saturating_sub(self.stood);
        let waited = now.saturating_duration_since(self.begun);
        let counts = waited.saturating_sub(stood.min(outages.patience));
        self.timeout.saturating_sub(counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn clocks_stand_for_the_patience_of_each_outage_and_of_each_read() {
        let at = Instant::now();
        let mut outages = Outages::new(second(10));
        let read = Deadline::new(&outages, second(3), at);
        assert_eq!(read.left(&outages, at + second(1)), second(2));
        outages.begin(at + second(1));
        outages.begin(at + second(4));
        assert_eq!(outages.left(at + second(4)), Some(second(7)));
        assert_eq!(read.left(&outages, at + second(11)), second(2));
        // From here on it is lost.
        assert_eq!(outages.left(at + second(11)), None);
        assert_eq!(read.left(&outages, at + second(12)), second(1));
        let late = Deadline::new(&outages, second(3), at + second(12));
        assert_eq!(late.left(&outages, at + second(14)), second(1));
        // It comes back after all, and goes again: who waited that long before waits no longer, and others do.
        outages.end(at + second(14));
        outages.begin(at + second(14));
        assert_eq!(read.left(&outages, at + second(14)), Duration::ZERO);
        assert_eq!(late.left(&outages, at + second(20)), second(1));
    }

    proptest! {
        /// Against counting each second.
        #[test]
        fn each_second_counts_or_stands(
            patience in 0u64..9,
            timeout in 1u64..9,
            first in 0usize..9,
            away in prop::collection::vec(any::<bool>(), 1..60),
        ) {
            let at = Instant::now();
            let mut outages = Outages::new(second(patience));
            let (mut read, mut lasts, mut stood, mut counted) = (None, 0, 0, 0);
            for (nth, is_away) in away.into_iter().enumerate() {
                let now = at + second(nth as u64);
                match is_away {
                    true => outages.begin(now),
                    false => outages.end(now),
                }
                lasts = if is_away { lasts + 1 } else { 0 };
                if nth == first {
                    read = Some(Deadline::new(&outages, second(timeout), now));
                }
                if let Some(read) = &read {
                    match is_away && lasts <= patience && stood < patience {
                        true => stood += 1,
                        false => counted += 1,
                    }
                    let left = read.left(&outages, now + second(1));
                    prop_assert_eq!(left, second(timeout.saturating_sub(counted)));
                    prop_assert!(nth as u64 - (first as u64) < patience + timeout || left.is_zero());
                }
                let stands = is_away && lasts < patience;
                prop_assert_eq!(outages.left(now + second(1)).is_some(), stands);
            }
        }
    }
}
