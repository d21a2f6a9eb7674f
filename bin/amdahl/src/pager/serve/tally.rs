//! What was done for a VM by all processes that have served it, one after the other.

use std::time::Duration;

use amdahl_pager::Stats;
use amdahl_pager::succession::COUNTERS;

/// Sums, as they are kept in a ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    faults: u64,
    pages: u64,
    zero_pages: u64,
    background_pages: u64,
    removed_pages: u64,
    retries: u64,
    served_ms: u64,
    /// Not 0: the working set is there.
    replayed: u64,
}

impl Tally {
    /// With what another pager has done since then. Lost pages are known by themselves.
    pub fn plus(self, stats: &Stats, served: Duration) -> Tally {
        Tally {
            faults: self.faults.saturating_add(stats.faults),
            pages: self.pages.saturating_add(stats.pages),
            zero_pages: self.zero_pages.saturating_add(stats.zero_pages),
            background_pages: self.background_pages.saturating_add(stats.background_pages),
            removed_pages: self.removed_pages.saturating_add(stats.removed_pages),
            retries: self.retries.saturating_add(stats.retries),
            served_ms: millis(self.served(served)),
            replayed: self.replayed,
        }
    }

    /// The sums, with the latencies of the last one.
    pub fn with(self, stats: &Stats) -> Stats {
        let all = self.plus(stats, Duration::ZERO);
        let mut stats = stats.clone();
        stats.faults = all.faults;
        stats.pages = all.pages;
        stats.zero_pages = all.zero_pages;
        stats.background_pages = all.background_pages;
        stats.removed_pages = all.removed_pages;
        stats.retries = all.retries;
        stats
    }

    /// How long it was served, by others and then for so long by us.
    pub fn served(self, by_us: Duration) -> Duration {
        Duration::from_millis(self.served_ms).saturating_add(by_us)
    }

    /// Whether its working set was fetched.
    pub fn is_replayed(self) -> bool {
        self.replayed != 0
    }

    /// It was.
    pub fn replayed(self, is_replayed: bool) -> Tally {
        Tally {
            replayed: u64::from(is_replayed),
            ..self
        }
    }

    /// As numbers.
    pub fn counters(self) -> [u64; COUNTERS] {
        let mut counters = [0; COUNTERS];
        let known = [
            self.faults,
            self.pages,
            self.zero_pages,
            self.background_pages,
            self.removed_pages,
            self.retries,
            self.served_ms,
            self.replayed,
        ];
        counters[..known.len()].copy_from_slice(&known);
        counters
    }
}

impl From<[u64; COUNTERS]> for Tally {
    fn from(counters: [u64; COUNTERS]) -> Tally {
        Tally {
            faults: counters[0],
            pages: counters[1],
            zero_pages: counters[2],
            background_pages: counters[3],
            removed_pages: counters[4],
            retries: counters[5],
            served_ms: counters[6],
            replayed: counters[7],
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_they_were() {
        let mut counters = [0; COUNTERS];
        for (nth, counter) in counters.iter_mut().take(8).enumerate() {
            *counter = nth as u64 + 1;
        }
        let tally = Tally::from(counters);
        assert_eq!(tally.counters(), counters);
        assert!(tally.is_replayed() && !tally.replayed(false).is_replayed());
        let served = tally.served(Duration::from_secs(1));
        assert_eq!(served, Duration::from_millis(1007));
        // Nothing that another process wrote makes it panic.
        let all = Tally::from([u64::MAX; COUNTERS]);
        assert_eq!(all.served(Duration::MAX), Duration::MAX);
    }
}
