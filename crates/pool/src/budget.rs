//! What a quota leaves for bursts. Pure.
//!
//! A quota is so much CPU time in each period, whoever uses it when. Work that comes in bursts is through with twice the threads in
//! half the time, and nobody is held back; work that goes on would use up a period's time at its beginning, and stand still for the rest.

use std::collections::VecDeque;

/// What was used is added up over so long: the period of nearly all quotas.
const WINDOW_NS: u64 = 100_000_000;
/// From this part of the quota on threads are as many as it has CPUs, so that it lasts to the end of the period.
const TIGHT: f64 = 0.9;
/// Below this part more may run again.
const LOOSE: f64 = 0.5;
/// A burst has so many times the quota's threads: the time of a period lasts for half of it, in which several looks are taken.
const BURST: f64 = 2.0;

/// The latest looks.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// How long each was, and the CPU time that was used meanwhile, ns.
    looks: VecDeque<(u64, u64)>,
    wall_ns: u64,
    used_ns: u64,
    /// For so long after somebody was held back there are no bursts: others may use the quota.
    held_ns: u64,
    is_tight: bool,
}

impl Budget {
    /// In the last `wall_ns` the pool used `used_ns` of CPU time, and may have been held back. Whether the quota is nearly used up. O(1) amortised.
    pub(crate) fn look(
        &mut self,
        quota: Option<f64>,
        wall_ns: u64,
        used_ns: u64,
        is_throttled: bool,
    ) -> bool {
        let Some(quota) = quota else {
            *self = Budget::default();
            return false;
        };
        self.looks.push_back((wall_ns, used_ns));
        self.wall_ns += wall_ns;
        self.used_ns += used_ns;
        while let Some(&(wall_ns, used_ns)) = self.looks.front()
            && self.wall_ns - wall_ns >= WINDOW_NS
        {
            self.looks.pop_front();
            self.wall_ns -= wall_ns;
            self.used_ns -= used_ns;
        }
        // What is left of the period counts, not how long was looked at.
        let part = self.used_ns as f64 / (quota * self.wall_ns.max(WINDOW_NS) as f64);
        self.held_ns = match is_throttled {
            true => WINDOW_NS,
            false => self.held_ns.saturating_sub(wall_ns),
        };
        self.is_tight = self.held_ns > 0 || part >= TIGHT || self.is_tight && part >= LOOSE;
        self.is_tight
    }

    /// So many threads may run under the quota.
    pub(crate) fn threads(&self, quota: f64) -> u32 {
        match self.is_tight {
            true => without_burst(quota),
            false => (quota * BURST).ceil().max(1.0) as u32,
        }
    }
}

/// So many threads never use more than the quota, but for its last part of a CPU.
pub(crate) fn without_burst(quota: f64) -> u32 {
    quota.ceil().max(1.0) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const QUOTA: Option<f64> = Some(2.5);

    /// Looks of 10 ms at a pool that uses so many CPUs.
    fn looks(budget: &mut Budget, cpus: f64, times: u32) -> u32 {
        for _ in 0..times {
            budget.look(QUOTA, 10 * MS, (10.0 * cpus) as u64 * MS, false);
        }
        budget.threads(2.5)
    }

    #[test]
    fn bursts_have_twice_the_threads_until_the_quota_is_nearly_used_up() {
        let mut budget = Budget::default();
        assert_eq!(budget.threads(2.5), 5);
        assert_eq!(budget.threads(0.3), 1);
        // 225 ms of 250 ms are used up after 45 ms, before anybody is held back.
        assert_eq!(looks(&mut budget, 5.0, 4), 5);
        assert_eq!(looks(&mut budget, 5.0, 1), 3);
        // Who goes on keeps what the quota has.
        assert_eq!(looks(&mut budget, 2.5, 100), 3);
        assert_eq!(looks(&mut budget, 1.5, 100), 3, "and who uses much of it");
        assert_eq!(looks(&mut budget, 1.0, 10), 5);
        assert!(budget.looks.len() <= 11);
    }

    #[test]
    fn who_is_held_back_has_no_bursts_until_it_uses_less() {
        let mut budget = Budget::default();
        // Others in the group use it up.
        assert!(budget.look(QUOTA, 10 * MS, 5 * MS, true));
        assert_eq!(looks(&mut budget, 0.5, 9), 3);
        assert_eq!(looks(&mut budget, 0.5, 1), 5);
        assert!(!budget.look(None, 10 * MS, 100 * MS, false), "no quota");
    }
}
