//! Polls of a run in bounded memory.

use amdahl_speedup::snapshot::{Snapshot, ThreadState};

/// Memory for the polls of one run.
const BYTES_MAX: usize = 256 << 20;

/// Polls in order of time. What they tell adds up, so that fewer of them tell the same in less
/// detail: when there are too many, every second one is given up, and from then on every second
/// one of those that come.
#[derive(Debug)]
pub struct Polls {
    kept: Vec<Snapshot>,
    bytes: usize,
    bytes_max: usize,
    /// One in this many is kept, as a power of two.
    thinned: u32,
    seen: u64,
}

impl Default for Polls {
    fn default() -> Polls {
        Polls {
            kept: Vec::new(),
            bytes: 0,
            bytes_max: BYTES_MAX,
            thinned: 0,
            seen: 0,
        }
    }
}

fn bytes(poll: &Snapshot) -> usize {
    size_of::<Snapshot>()
        + size_of_val(&*poll.threads)
        + size_of_val(&*poll.cpus)
        + poll.threads.len() * size_of::<ThreadState>() / 4
}

impl Polls {
    /// Adds a poll, or does not. Those that read the times of CPUs are rare and dear.
    pub fn keep(&mut self, poll: Snapshot) {
        self.seen += 1;
        if poll.cpus.is_empty() && !self.seen.is_multiple_of(1 << self.thinned) {
            return;
        }
        self.bytes += bytes(&poll);
        self.kept.push(poll);
        if self.bytes > self.bytes_max {
            self.thinned += 1;
            let mut at = 0u64;
            self.kept.retain(|_| {
                at += 1;
                at.is_multiple_of(2)
            });
            self.bytes = self.kept.iter().map(bytes).sum();
        }
    }

    /// Those kept; `last` is the one that closes the run.
    pub fn end(mut self, last: Snapshot) -> Vec<Snapshot> {
        self.kept.push(last);
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(ts: u64) -> Snapshot {
        Snapshot {
            ts,
            ..Snapshot::default()
        }
    }

    #[test]
    fn long_runs_are_kept_in_less_detail() {
        let mut polls = Polls {
            bytes_max: 100 * bytes(&poll(0)),
            ..Polls::default()
        };
        for ts in 1..=10_000 {
            polls.keep(poll(ts));
        }
        let kept = polls.end(poll(10_001));
        assert!((50..=101).contains(&kept.len()), "{}", kept.len());
        assert_eq!(kept[kept.len() - 1].ts, 10_001);
        let steps: Vec<u64> = kept.windows(2).map(|two| two[1].ts - two[0].ts).collect();
        // Evenly, but for the newest that the next thinning would take, and the last one.
        let usual = steps[0];
        assert!(steps.iter().all(|step| *step <= usual), "{steps:?}");
        assert!(steps.iter().filter(|step| **step == usual).count() * 2 > steps.len());
    }
}
