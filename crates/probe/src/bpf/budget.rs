//! How often a CPU is sampled: often in the beginning and after quiet times, seldom where much has been sampled already.

/// Samples that are taken at the full rate before anything is saved: what a short run needs for shares that are exact to some percent.
pub const GRANT: u64 = 200;

/// The samples of one CPU. What they may be in all is `GRANT` and one in so many periods of the full rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// A period of the full rate, in nanoseconds.
    period: u64,
    one_in: u32,
    taken: u64,
    /// Periods that a sample stands for now, and that those up to `changed` stand for.
    weight: u32,
    before: u32,
    changed: u64,
}

impl Budget {
    /// Nothing is taken yet, and sampling is at the full rate.
    pub fn new(period: u64, one_in: u32) -> Budget {
        Budget {
            period: period.max(1),
            one_in: one_in.max(1),
            taken: 0,
            weight: 1,
            before: 1,
            changed: 0,
        }
    }

    /// A sample was taken at `ts`. Returns how many periods of the full rate it stands for.
    pub fn take(&mut self, ts: u64) -> u32 {
        self.taken += 1;
        self.weight_at(ts)
    }

    /// The same of a sample of another kind, which goes with those of time.
    pub fn weight_at(&self, ts: u64) -> u32 {
        if ts > self.changed {
            self.weight
        } else {
            self.before
        }
    }

    /// How many periods of the full rate one is to be, if that is to change now, after `elapsed` nanoseconds of the run.
    pub fn wanted(&self, elapsed: u64) -> Option<u32> {
        let allowed = GRANT + elapsed / self.period / u64::from(self.one_in);
        let wanted = if self.weight == 1 {
            let is_used_up = self.taken >= allowed;
            if is_used_up { self.one_in } else { 1 }
        } else {
            // Not at each sample that is saved: a change has its cost, too.
            let is_saved = self.taken + GRANT / 2 <= allowed;
            if is_saved { 1 } else { self.one_in }
        };
        (wanted != self.weight).then_some(wanted)
    }

    /// Since `ts` a sample stands for `weight` periods.
    pub fn changed(&mut self, ts: u64, weight: u32) {
        (self.before, self.weight, self.changed) = (self.weight, weight, ts);
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
                    time += u64::from(budget.take(due)) * 2 * MS;
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
        let mut budget = Budget::new(2 * MS, 5);
        let (samples, time) = run(&mut budget, 0..2 * GRANT, 10);
        assert_eq!((samples, time), (GRANT, 2 * GRANT * MS));
    }

    #[test]
    fn long_runs_keep_to_the_budget_and_stand_for_all_their_time() {
        let mut budget = Budget::new(2 * MS, 5);
        let (samples, time) = run(&mut budget, 0..20_000, 10);
        assert!(samples <= GRANT + 2000 + 50, "{samples}");
        assert!(samples >= 2000, "{samples}");
        let all = 20_000 * MS;
        assert!(time.abs_diff(all) < all / 100, "{time}");
    }

    #[test]
    fn what_a_quiet_time_saves_is_spent_afterwards() {
        let mut budget = Budget::new(2 * MS, 5);
        run(&mut budget, 0..3000, 10);
        assert_eq!(budget.weight, 5);
        run(&mut budget, 3000..8000, 0);
        let (samples, _) = run(&mut budget, 8000..8500, 10);
        assert!(samples > 200, "{samples}");
    }

    #[test]
    fn cheap_samples_stay_at_the_full_rate() {
        let mut budget = Budget::new(2 * MS, 1);
        assert_eq!(run(&mut budget, 0..20_000, 10), (10_000, 20_000 * MS));
    }

    #[test]
    fn a_sample_from_before_a_change_has_its_old_weight() {
        let mut budget = Budget::new(2 * MS, 5);
        budget.changed(100, 5);
        assert_eq!((budget.take(100), budget.take(101)), (1, 5));
    }
}
