//! Spin or sleep: the decision of one thread that waits, as a pure function.

/// How long threads spin before they sleep, as the environment says (OMP_WAIT_POLICY, GOMP_SPINCOUNT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Nothing was said: by what can be seen of the machine.
    Adaptive,
    /// So many turns of the loop, and `crowded` turns where threads are more than CPUs.
    Turns {
        /// Where there is a CPU for each thread.
        alone: u64,
        /// Where there is not.
        crowded: u64,
    },
}

/// What a waiting thread knows.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    /// Nanoseconds since the wait began, or since something else was done in between.
    pub waited_ns: u64,
    /// Nanoseconds of it since somebody else last ran on this CPU, as far as that is known.
    pub alone_ns: u64,
    /// Turns of the spin loop in that time.
    pub turns: u64,
    /// More threads are at work than can run at once.
    pub is_crowded: bool,
    /// Whoever yielded the CPU had it back soon until now.
    pub may_yield: bool,
    /// CPUs were taken from this program a moment ago.
    pub is_contended: bool,
    /// More threads are at work than a quota lets run all the time: time that is spun away is missing to the work.
    pub is_rationed: bool,
    /// Who is awaited was last seen on this very CPU.
    pub is_awaited_here: bool,
    /// Who is late is so because it lost its CPU, as waits before this one tell, and this thread has not passed yet.
    pub may_pass: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Look again soon.
    Spin,
    /// Let somebody else run who is ready (`sched_yield`), and look again.
    Yield,
    /// The same, once: let others have their turn on this CPU now, while they have it on that of who is awaited.
    Pass,
    /// Leave the CPU to others until woken.
    Sleep,
}

/// Turns that every wait spins before it looks at anything: a few microseconds at most, what a sleep and a
/// wake-up cost.
pub const FIRST_TURNS: u64 = 64;
/// The same where threads are more than CPUs: who is awaited may well be waiting for this very CPU.
pub const FIRST_TURNS_CROWDED: u64 = 8;
/// Where somebody else may want the CPU. What a sleep and a wake-up on another CPU cost: waits that end sooner are
/// spun through, and of those that do not, no more than that much is lost (Karlin et al.: Competitive Randomized
/// Algorithms for Nonuniform Problems, 1994). Less would be dear: who is woken is late by that much at the
/// next meeting, where the others then sleep too early again.
pub const SHORT_NS: u64 = 30_000;
/// Longer waits sleep, and longer sequences of yields end, even if nobody else wants the CPU: from here on the wake-up costs a hundredth of the wait.
pub const LONG_NS: u64 = 4_000_000;

impl Patience {
    /// Turns to spin before the first look at the clock.
    #[inline]
    pub fn first_turns(self, is_crowded: bool) -> u64 {
        match self {
            Patience::Adaptive if is_crowded => FIRST_TURNS_CROWDED,
            Patience::Adaptive => FIRST_TURNS,
            Patience::Turns { alone, crowded } => {
                FIRST_TURNS.min(if is_crowded { crowded } else { alone })
            }
        }
    }

    /// What a thread does that has waited in vain until now. `may_spin`, which is asked only if that decides, says
    /// whether fewer spin than can run.
    pub fn next(self, situation: Situation, may_spin: impl FnOnce() -> bool) -> Next {
        let (awake, waits) = match self {
            Patience::Adaptive => {
                let (awake, patience) = match situation {
                    // Nobody waits for this CPU: while it idles, the kernel brings one here who waits for another.
                    Situation {
                        is_crowded: true,
                        alone_ns: SHORT_NS..,
                        ..
                    } => (Next::Yield, 0),
                    Situation {
                        is_crowded: true,
                        may_yield: true,
                        ..
                    } => (Next::Yield, LONG_NS),
                    Situation {
                        is_crowded: true, ..
                    }
                    | Situation {
                        is_awaited_here: true,
                        ..
                    } => (Next::Spin, 0),
                    Situation {
                        is_contended: true,
                        may_pass: true,
                        ..
                    } => {
                        let waits = situation.waited_ns < SHORT_NS;
                        return if waits { Next::Spin } else { Next::Pass };
                    }
                    Situation {
                        is_contended: true, ..
                    }
                    | Situation {
                        is_rationed: true, ..
                    } => (Next::Spin, SHORT_NS),
                    _ => (Next::Spin, LONG_NS),
                };
                let waits = situation.waited_ns < patience;
                (awake, waits && (awake == Next::Yield || may_spin()))
            }
            Patience::Turns { alone, crowded } => {
                let turns = if situation.is_crowded { crowded } else { alone };
                (Next::Spin, situation.turns < turns)
            }
        };
        if waits { awake } else { Next::Sleep }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FREE: Situation = Situation {
        waited_ns: 10_000,
        alone_ns: 10_000,
        turns: 100,
        is_crowded: false,
        may_yield: true,
        is_contended: false,
        is_rationed: false,
        is_awaited_here: false,
        may_pass: false,
    };

    #[test]
    fn spins_only_on_a_cpu_that_nobody_else_wants() {
        let adaptive = Patience::Adaptive;
        assert_eq!(adaptive.next(FREE, || true), Next::Spin);
        assert_eq!(adaptive.next(FREE, || false), Next::Sleep);
        let short = Situation {
            waited_ns: SHORT_NS,
            ..FREE
        };
        assert_eq!(adaptive.next(short, || true), Next::Spin);
        let crowded = Situation {
            is_crowded: true,
            may_yield: false,
            ..FREE
        };
        let contended = Situation {
            is_contended: true,
            ..short
        };
        let rationed = Situation {
            is_rationed: true,
            ..FREE
        };
        assert_eq!(adaptive.next(rationed, || true), Next::Spin);
        let rationed = Situation {
            is_rationed: true,
            ..short
        };
        let long = Situation {
            waited_ns: LONG_NS,
            ..FREE
        };
        let here = Situation {
            is_awaited_here: true,
            ..FREE
        };
        for situation in [crowded, contended, rationed, long, here] {
            let unasked = || panic!("it does not decide");
            assert_eq!(adaptive.next(situation, unasked), Next::Sleep);
        }
    }

    #[test]
    fn of_too_many_threads_one_gives_its_cpu_to_the_next() {
        let adaptive = Patience::Adaptive;
        let crowded = Situation {
            is_crowded: true,
            is_awaited_here: true,
            is_contended: true,
            ..FREE
        };
        assert_eq!(adaptive.next(crowded, || false), Next::Yield);
        let long = Situation {
            waited_ns: LONG_NS,
            ..crowded
        };
        assert_eq!(adaptive.next(long, || true), Next::Sleep);
        let in_vain = Situation {
            alone_ns: SHORT_NS,
            ..crowded
        };
        assert_eq!(adaptive.next(in_vain, || true), Next::Sleep);
    }

    #[test]
    fn a_turn_is_passed_where_cpus_are_taken_from_threads_that_are_not_too_many() {
        let adaptive = Patience::Adaptive;
        let late = Situation {
            waited_ns: SHORT_NS,
            is_contended: true,
            may_pass: true,
            ..FREE
        };
        let unasked = || panic!("it does not decide");
        assert_eq!(adaptive.next(late, unasked), Next::Pass);
        let short = Situation {
            waited_ns: SHORT_NS - 1,
            ..late
        };
        assert_eq!(adaptive.next(short, unasked), Next::Spin);
        let alone = Situation {
            is_contended: false,
            ..late
        };
        assert_eq!(adaptive.next(alone, || true), Next::Spin);
        let here = Situation {
            is_awaited_here: true,
            ..late
        };
        let crowded = Situation {
            is_crowded: true,
            may_yield: false,
            ..late
        };
        let has_passed = Situation {
            may_pass: false,
            ..late
        };
        for situation in [here, crowded, has_passed] {
            assert_eq!(adaptive.next(situation, || true), Next::Sleep);
        }
    }

    #[test]
    fn what_the_environment_says_is_done() {
        let passive = Patience::Turns {
            alone: 0,
            crowded: 0,
        };
        assert_eq!(passive.first_turns(false), 0);
        let begun = Situation { turns: 0, ..FREE };
        assert_eq!(passive.next(begun, || true), Next::Sleep);
        let active = Patience::Turns {
            alone: 1 << 40,
            crowded: 1000,
        };
        let long = Situation {
            waited_ns: u64::MAX,
            turns: 1 << 39,
            is_contended: true,
            ..FREE
        };
        assert_eq!(active.next(long, || false), Next::Spin);
        assert_eq!(
            active.next(
                Situation {
                    is_crowded: true,
                    ..long
                },
                || true
            ),
            Next::Sleep
        );
    }
}
