//! When to switch over: by how long the guest would stand still.

use std::time::Duration;

/// What a migration may cost the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long it may stand still.
    pub downtime_max: Duration,
    /// Rounds, at least 1.
    pub rounds_max: u32,
    /// Whether pages may be fetched after the switch-over, when rounds do not help any more. A source that fails then is the guest's end.
    pub post_copy: bool,
    /// Whether the guest may be asked to write less ([`Guest::throttle`](crate::Guest::throttle)).
    pub throttle: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            downtime_max: Duration::from_millis(100),
            rounds_max: 30,
            post_copy: true,
            throttle: false,
        }
    }
}

/// A round, as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Pages that it was to bring.
    pub pages: u64,
    /// Bytes that were sent for them.
    pub bytes: u64,
    /// How long it took, until all were in their places.
    pub took: Duration,
    /// How much of that went by with sending and waiting for the receipt; the rest, with reading the memory.
    pub sending: Duration,
    /// How much of that with waiting for the receipt alone.
    pub turnaround: Duration,
    /// Pages that were written meanwhile.
    pub dirty_pages: u64,
    /// How long the guest would stand still if these were all that is left: what is compared with
    /// [`downtime_max`](Limits::downtime_max).
    pub downtime_estimate: Duration,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Another round.
    Again,
    /// Another round, the guest being slowed down by so many percent.
    Slower(u8),
    /// Switch over.
    Switch,
    /// It does not become less.
    GiveUp,
}

/// What to do about pages that were written until the guest stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// They are sent while it stands still.
    Send,
    /// They are fetched later.
    Leave,
    /// The guest goes on, for another round.
    Retry,
    /// There are no rounds left.
    GiveUp,
}

/// Bytes of a page with what is said about it.
const PAGE_BYTES: u64 = 4096 + 40;
/// Fewer bytes than that do not tell how fast the way is.
const TELLING: u64 = 256 << 10;
/// The guest is slowed down by that much first, and then by half of it more each time.
const SLOWER: u8 = 20;
const SLOWEST: u8 = 99;

#[derive(Clone, Debug)]
pub(crate) struct Convergence {
    limits: Limits,
    /// There and back: the shortest that was seen, since what was sent before may still be on its way.
    turnaround: Option<Duration>,
    rounds: u32,
    bytes_per_second: f64,
    /// Bytes that were sent since that was measured, and how long that took.
    sent: (u64, Duration),
    throttle: u8,
    stalls: u32,
}

impl Convergence {
    pub fn new(limits: Limits) -> Convergence {
        Convergence {
            limits,
            turnaround: None,
            rounds: 0,
            bytes_per_second: 0.0,
            sent: (0, Duration::ZERO),
            throttle: 0,
            stalls: 0,
        }
    }

    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    pub fn throttle(&self) -> u8 {
        self.throttle
    }

    /// How long the guest stands still if that is all that is left: twice there and back, and the bytes.
    pub fn downtime(&self, state_bytes: u64, pages: u64) -> Duration {
        let bytes = pages.saturating_mul(PAGE_BYTES).saturating_add(state_bytes);
        let seconds = bytes as f64 / self.bytes_per_second.max(1.0);
        // Longer than anybody waits.
        let bytes = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let turnaround = self.turnaround.unwrap_or_default();
        bytes.saturating_add(2 * turnaround.min(Duration::from_secs(3600)))
    }

    /// The same for what is dirty after a round that has not been told yet.
    pub fn downtime_after(&self, round: &Round, state_bytes: u64) -> Duration {
        let mut next = self.clone();
        next.after(round, state_bytes);
        next.downtime(state_bytes, round.dirty_pages)
    }

    pub fn after(&mut self, round: &Round, state_bytes: u64) -> Decision {
        self.rounds += 1;
        let shortest = self.turnaround.unwrap_or(round.turnaround);
        self.turnaround = Some(shortest.min(round.turnaround));
        let speed = |bytes: u64, took: Duration| {
            bytes as f64 / took.max(Duration::from_nanos(1)).as_secs_f64()
        };
        if self.bytes_per_second == 0.0 && round.bytes < TELLING {
            // Better than nothing, and forgotten as soon as there is better.
            self.bytes_per_second = speed(round.bytes, round.sending);
        } else {
            // Small rounds tell together what each of them does not.
            let (bytes, took) = self.sent;
            let bytes = bytes.saturating_add(round.bytes);
            let took = took.saturating_add(round.sending);
            self.sent = (bytes, took);
            if bytes >= TELLING {
                self.bytes_per_second = speed(bytes, took);
                self.sent = (0, Duration::ZERO);
            }
        }
        if round.dirty_pages == 0
            || self.downtime(state_bytes, round.dirty_pages) <= self.limits.downtime_max
        {
            return Decision::Switch;
        }
        // The first round brings all, so its rest tells nothing about the next.
        let stalls = self.rounds > 1 && round.dirty_pages >= round.pages - round.pages / 4;
        self.stalls = if stalls { self.stalls + 1 } else { 0 };
        if self.rounds >= self.limits.rounds_max {
            return match self.limits.post_copy {
                true => Decision::Switch,
                false => Decision::GiveUp,
            };
        }
        if stalls && self.limits.throttle && self.throttle < SLOWEST {
            self.throttle = match self.throttle {
                0 => SLOWER,
                before => (before + SLOWER / 2).min(SLOWEST),
            };
            return Decision::Slower(self.throttle);
        }
        if self.stalls >= 2 && self.limits.post_copy {
            return Decision::Switch;
        }
        Decision::Again
    }

    /// The guest stands still, and so much is left.
    pub fn rest(&self, state_bytes: u64, pages: u64) -> Rest {
        if pages == 0 || self.downtime(state_bytes, pages) <= self.limits.downtime_max {
            Rest::Send
        } else if self.limits.post_copy {
            Rest::Leave
        } else if self.rounds < self.limits.rounds_max {
            Rest::Retry
        } else {
            Rest::GiveUp
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn round(pages: u64, millis: u64, dirty_pages: u64) -> Round {
        Round {
            pages,
            bytes: pages * 4096,
            took: Duration::from_millis(millis),
            sending: Duration::from_millis(millis),
            turnaround: Duration::ZERO,
            dirty_pages,
            downtime_estimate: Duration::ZERO,
        }
    }

    #[test]
    fn who_writes_little_is_switched_as_soon_as_the_pause_is_short() {
        let mut plan = Convergence::new(Limits::default());
        // 1 GiB/s; the state needs 64 ms and the pages 103 ms.
        assert_eq!(
            plan.after(&round(262_144, 1000, 27_000), 64 * MIB),
            Decision::Again
        );
        assert_eq!(
            plan.after(&round(27_000, 103, 2_600), 64 * MIB),
            Decision::Switch
        );
        assert_eq!(plan.rest(64 * MIB, 2_600), Rest::Send);
        // More was written until it stood still.
        assert_eq!(plan.rest(64 * MIB, 100_000), Rest::Leave);
    }

    #[test]
    fn who_writes_as_fast_as_is_sent_is_switched_with_pages_missing_or_slowed_down_or_left() {
        let stalls = round(100_000, 400, 100_000);
        let limits = Limits::default();
        let mut plan = Convergence::new(limits);
        plan.after(&round(262_144, 1000, 100_000), 0);
        assert_eq!(plan.after(&stalls, 0), Decision::Again);
        assert_eq!(plan.after(&stalls, 0), Decision::Switch);

        let limits = Limits {
            throttle: true,
            post_copy: false,
            rounds_max: 20,
            ..limits
        };
        let mut plan = Convergence::new(limits);
        plan.after(&round(262_144, 1000, 100_000), 0);
        let mut slower = Vec::new();
        let last = loop {
            match plan.after(&stalls, 0) {
                Decision::Slower(by) => slower.push(by),
                Decision::Again => {}
                other => break other,
            }
        };
        assert_eq!(slower, [20, 30, 40, 50, 60, 70, 80, 90, 99]);
        assert_eq!((last, plan.rounds()), (Decision::GiveUp, 20));
        assert_eq!(plan.rest(0, 100_000), Rest::GiveUp);
    }

    #[test]
    fn a_slow_beginning_is_forgotten_also_by_small_rounds() {
        let mut plan = Convergence::new(Limits::default());
        // 40 KiB in a second: the other side was not awake yet, and read nothing but zeros here.
        let first = Round {
            turnaround: Duration::from_millis(900),
            ..round(10, 1000, 60)
        };
        assert_eq!(plan.after(&first, 0), Decision::Again);
        let small = Round {
            turnaround: Duration::from_millis(1),
            ..round(60, 1, 30)
        };
        let mut rounds = 0;
        while plan.after(&small, 0) == Decision::Again {
            rounds += 1;
            assert!(rounds < 5, "{plan:?}");
        }
        assert!(
            plan.downtime(0, 60) < Duration::from_millis(100),
            "{plan:?}"
        );
    }

    #[test]
    fn odd_figures_do_no_harm() {
        let mut plan = Convergence::new(Limits::default());
        let endless = Round {
            sending: Duration::MAX,
            turnaround: Duration::MAX,
            ..round(0, 0, 0)
        };
        assert_eq!(plan.after(&endless, u64::MAX), Decision::Switch);
        let mut plan = Convergence::new(Limits::default());
        plan.after(&round(0, 0, 5), u64::MAX);
        assert!(plan.downtime(u64::MAX, u64::MAX) > Duration::from_secs(1 << 30));
    }
}
