//! How often to look: as often as is wanted, and as seldom as its cost demands.

use std::time::Duration;

/// Of one CPU, at most, is spent on looking: half a percent, with a fifth to spare.
const SHARE: f64 = 0.004;
/// A page that is renewed more seldom is of no use.
const LONGEST: Duration = Duration::from_secs(10);

/// Chooses the time between ticks.
#[derive(Clone, Debug)]
pub struct Pace {
    wanted: Duration,
    /// Moving average of a tick's CPU time.
    cost_s: f64,
}

impl Pace {
    /// A tick each `wanted`, if that is cheap enough.
    pub fn new(wanted: Duration) -> Pace {
        Pace {
            wanted,
            cost_s: 0.0,
        }
    }

    /// A tick has taken `cost` of CPU time.
    pub fn spent(&mut self, cost: Duration) {
        self.cost_s += (cost.as_secs_f64() - self.cost_s) / 8.0;
    }

    /// Time between ticks from now on.
    pub fn interval(&self) -> Duration {
        let bearable = Duration::try_from_secs_f64(self.cost_s / SHARE).unwrap_or(LONGEST);
        // Steps, or the page would tell another interval each time.
        let factor = bearable.as_secs_f64() / self.wanted.as_secs_f64().max(1e-3);
        let steps = factor.max(1.0).log2().ceil().clamp(0.0, 20.0);
        self.wanted
            .mul_f64(steps.exp2())
            .min(LONGEST.max(self.wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn cheap_ticks_come_as_wanted() {
        let mut pace = Pace::new(20 * MS);
        assert_eq!(pace.interval(), 20 * MS);
        for _ in 0..100 {
            pace.spent(Duration::from_micros(50));
        }
        assert_eq!(pace.interval(), 20 * MS);
    }

    #[test]
    fn dear_ticks_become_rare_until_they_are_cheap_again() {
        let mut pace = Pace::new(20 * MS);
        for _ in 0..100 {
            pace.spent(MS);
        }
        // A millisecond is 0.4 % of 250.
        assert_eq!(pace.interval(), 320 * MS);
        for _ in 0..100 {
            pace.spent(Duration::from_secs(100));
        }
        assert_eq!(pace.interval(), LONGEST);
        for _ in 0..1000 {
            pace.spent(Duration::ZERO);
        }
        assert_eq!(pace.interval(), 20 * MS);
    }

    #[test]
    fn one_slow_tick_changes_little() {
        let mut pace = Pace::new(100 * MS);
        pace.spent(MS);
        assert_eq!(pace.interval(), 100 * MS);
    }
}
