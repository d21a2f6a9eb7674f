//! How often a CPU is sampled: often in the beginning and after quiet times, seldom where much has been sampled already.

use std::collections::VecDeque;

/// Samples that are taken at the full rate before anything is saved: what a short run needs for shares that are exact to some percent.
pub const GRANT: u64 = 200;

/// A sample is read this long after a newer one of its CPU at most.
const LATE_NS: u64 = 1_000_000_000;

/// The samples of one CPU. What they may be in all is `GRANT` and one in so many periods of the full rate.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    /// A period of the full rate, in nanoseconds.
    period: u64,
    one_in: u32,
    taken: u64,
    /// What the counter of samples said last, modulo 2^32.
    counted: u32,
    /// Since when a sample stands for how many periods, in order; the first since ever. Samples before the second have been read.
    weights: VecDeque<(u64, u32)>,
}

impl Budget {
    /// Nothing is taken yet, as the counter of samples says `counted`, and sampling is at the full rate.
    pub fn new(period: u64, one_in: u32, counted: u32) -> Budget {
        Budget {
            period: period.max(1),
            one_in: one_in.max(1),
            taken: 0,
            counted,
            weights: VecDeque::from([(0, 1)]),
        }
    }

    /// The counter of samples says `counted` now.
    pub fn count(&mut self, counted: u32) {
        self.taken += u64::from(counted.wrapping_sub(self.counted));
        self.counted = counted;
    }

    /// How many periods of the full rate a sample of `ts` stands for, which is read now.
    pub fn weight_at(&mut self, ts: u64) -> u32 {
        let is_passed = |&(since, _): &(u64, u32)| since + LATE_NS < ts;
        while self.weights.get(1).is_some_and(is_passed) {
            self.weights.pop_front();
        }
        let is_since = |&&(since, _): &&(u64, u32)| since < ts;
        let found = self.weights.iter().rev().find(is_since);
        found.unwrap_or(&self.weights[0]).1
    }

    fn weight(&self) -> u32 {
        self.weights[self.weights.len() - 1].1
    }

    /// How many periods of the full rate one is to be, if that is to change now, after `elapsed` nanoseconds of the run.
    pub fn wanted(&self, elapsed: u64) -> Option<u32> {
        let allowed = GRANT + elapsed / self.period / u64::from(self.one_in);
        let weight = self.weight();
        let wanted = if weight == 1 {
            let is_used_up = self.taken >= allowed;
            if is_used_up { self.one_in } else { 1 }
        } else {
            // Not at each sample that is saved: a change has its cost, too.
            let is_saved = self.taken + GRANT / 2 <= allowed;
            if is_saved { 1 } else { self.one_in }
        };
        (wanted != weight).then_some(wanted)
    }

    /// Until how long after the begin of the run the rate cannot change, as of `elapsed`, up to which all samples are counted: one
    /// comes in each period at most.
    pub fn steady_until(&self, elapsed: u64) -> u64 {
        let one_in = u64::from(self.one_in);
        if self.weight() == 1 {
            let allowed = GRANT + elapsed / self.period / one_in;
            elapsed + allowed.saturating_sub(self.taken) * self.period
        } else {
            self.taken.saturating_sub(GRANT / 2) * self.period * one_in
        }
    }

    /// Since `ts` a sample stands for `weight` periods.
    pub fn changed(&mut self, ts: u64, weight: u32) {
        self.weights.push_back((ts, weight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A CPU that is busy in `busy` of each 10 ms. Returns the samples taken and what they stand for, looked at every 50 ms as the
    /// drain does.
    fn run(budget: &mut Budget, ms: std::ops::Range<u64>, busy: u64) -> (u64, u64) {
        let (mut samples, mut time, mut due) = (0, 0, ms.start * MS);
        for now in ms.clone() {
            while due <= now * MS {
                let weight = budget.weight_at(due);
                if due / MS % 10 < busy {
                    samples += 1;
                    budget.count(budget.counted.wrapping_add(1));
                    time += u64::from(weight) * 2 * MS;
                }
                due += u64::from(weight) * 2 * MS;
            }
            if now % 50 == 0
                && let Some(weight) = budget.wanted(now * MS)
            {
                budget.changed(now * MS, weight);
                due = now * MS + u64::from(weight) * 2 * MS;
            }
        }
        (samples, time)
    }

    #[test]
    fn short_runs_are_sampled_in_full() {
        let mut budget = Budget::new(2 * MS, 5, u32::MAX);
        let (samples, time) = run(&mut budget, 0..2 * GRANT, 10);
        assert_eq!((samples, time), (GRANT, 2 * GRANT * MS));
    }

    #[test]
    fn long_runs_keep_to_the_budget_and_stand_for_all_their_time() {
        let mut budget = Budget::new(2 * MS, 5, u32::MAX);
        let (samples, time) = run(&mut budget, 0..20_000, 10);
        assert!(samples <= GRANT + 2000 + 50, "{samples}");
        assert!(samples >= 2000, "{samples}");
        let all = 20_000 * MS;
        assert!(time.abs_diff(all) < all / 100, "{time}");
    }

    #[test]
    fn what_a_quiet_time_saves_is_spent_afterwards() {
        let mut budget = Budget::new(2 * MS, 5, u32::MAX);
        run(&mut budget, 0..3000, 10);
        assert_eq!(budget.weight(), 5);
        run(&mut budget, 3000..8000, 0);
        let (samples, _) = run(&mut budget, 8000..8500, 10);
        assert!(samples > 200, "{samples}");
    }

    #[test]
    fn no_rate_changes_before_it_is_said_to() {
        for busy in [0, 1, 5, 10] {
            let mut budget = Budget::new(2 * MS, 5, u32::MAX);
            let (mut steady, mut changes) = (0, 0);
            for from in (0..20_000).step_by(50) {
                // Quiet in the middle third.
                let busy = if (7000..14_000).contains(&from) {
                    0
                } else {
                    busy
                };
                run(&mut budget, from..from + 50, busy);
                let elapsed = (from + 50) * MS;
                if budget.wanted(elapsed).is_some() {
                    assert!(elapsed >= steady, "{elapsed} {steady}");
                    changes += 1;
                }
                steady = budget.steady_until(elapsed);
            }
            assert_eq!(changes > 0, busy > 1, "{busy}");
        }
        // A CPU that nobody uses is not looked at for the first 200 samples.
        assert_eq!(
            Budget::new(2 * MS, 5, u32::MAX).steady_until(0),
            GRANT * 2 * MS
        );
    }

    #[test]
    fn cheap_samples_stay_at_the_full_rate() {
        let mut budget = Budget::new(2 * MS, 1, 0);
        assert_eq!(run(&mut budget, 0..20_000, 10), (10_000, 20_000 * MS));
    }

    #[test]
    fn samples_have_the_weight_of_their_time_however_late_they_are_read() {
        let mut budget = Budget::new(2 * MS, 5, u32::MAX);
        let second = LATE_NS;
        for (at, weight) in [(1, 5), (2, 1), (3, 5)] {
            budget.changed(at * second, weight);
        }
        // As two CPUs in turn write to a ring, not quite in order.
        let at = [
            1,
            second,
            second + 1,
            second,
            2 * second + 1,
            3 * second,
            4 * second,
        ];
        assert_eq!(at.map(|at| budget.weight_at(at)), [1, 1, 5, 1, 1, 1, 5]);
        budget.weight_at(5 * second);
        assert_eq!(budget.weights, [(3 * second, 5)]);
    }
}
