//! Is who is awaited late because it does more, or because it has no CPU? Learnt from how long the waits before lasted.
//!
//! It matters where others want the CPUs. A thread that sleeps while somebody of its team waits for a CPU gets no share of its
//! own meanwhile (EEVDF, like CFS before it, grants nothing for sleep), so that each takes its turns when it has to, one after the
//! other, and all wait each time. Who passes its turn then (`sched_yield`) stays in the queue and takes it at the same time. But a
//! turn is a slice, some milliseconds: who passes it for somebody who comes soon is late himself.

use crate::policy::SHORT_NS;

/// For whom a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// All are at work and are to come here.
    Team,
    /// The master, who does what is to be done between two regions, if there is anything.
    Master,
    /// Somebody else: a lock, a turn, a task.
    Other,
}

/// Longer than this who is awaited was not slower: members of a team mostly differ by less. A slice is longer.
const LATE_NS: u64 = 1_000_000;
/// After so long a turn is passed for whom one would expect before.
pub(crate) const PASS_AFTER_NS: u64 = 500_000;
/// Who has nothing to do between regions comes sooner than this.
const PROMPT_NS: u64 = PASS_AFTER_NS / 2;

/// A share of waits, of this: a mean in which older ones count less and less.
const ALL: u32 = 1 << 16;
/// The part of the mean that the last wait is.
const LAST: u32 = 8;

/// What one thread has learnt about its waits of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lateness {
    /// Of those longer than any spinning, how many were for threads without a CPU.
    late: u32,
    /// Of all, how many were short.
    prompt: u32,
}

impl Lateness {
    /// A wait has lasted so long.
    pub(crate) fn waited(&mut self, ns: u64) {
        let learn = |mean: &mut u32, is: bool| {
            *mean -= *mean / LAST;
            *mean += u32::from(is) * ALL / LAST;
        };
        learn(&mut self.prompt, ns < PROMPT_NS);
        if ns >= SHORT_NS {
            learn(&mut self.late, ns >= LATE_NS);
        }
    }

    /// Whether a turn is passed for who does not come within [`PASS_AFTER_NS`].
    pub(crate) fn passes_later(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Team => true,
            Awaited::Master => self.prompt > ALL / 4 * 3,
            Awaited::Other => false,
        }
    }

    /// Whether a turn is passed for who does not come while one spins.
    pub(crate) fn passes_at_once(&self, awaited: Awaited) -> bool {
        self.late > ALL / 2 && self.passes_later(awaited)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn after(waits: &[u64]) -> Lateness {
        let mut lateness = Lateness::default();
        for &ns in waits.iter().cycle().take(100) {
            lateness.waited(ns);
        }
        lateness
    }

    #[test]
    fn who_lost_its_cpu_is_passed_for_at_once_and_who_is_slower_later() {
        // Nothing is known.
        let new = Lateness::default();
        assert!(!new.passes_at_once(Awaited::Team) && new.passes_later(Awaited::Team));
        // Short waits, and now and then one of a slice.
        let taken = after(&[5_000, 10_000, 5_000, 20_000, 5 * MS / 2, 10_000]);
        assert!(taken.passes_at_once(Awaited::Team));
        // Members differ, and lose CPUs besides.
        let differ = after(&[100_000, 300_000, 200_000, 250_000, 5 * MS / 2, 150_000]);
        assert!(!differ.passes_at_once(Awaited::Team) && differ.passes_later(Awaited::Team));
        for lateness in [new, taken, differ] {
            let other = Awaited::Other;
            assert!(!lateness.passes_at_once(other) && !lateness.passes_later(other));
        }
    }

    #[test]
    fn a_master_with_work_between_regions_is_not_taken_for_one_without_a_cpu() {
        let master = Awaited::Master;
        assert!(!Lateness::default().passes_later(master));
        for work_ns in [MS * 7 / 10, 2 * MS, 300_000] {
            let busy = after(&[work_ns, work_ns, work_ns, 3 * MS]);
            assert!(!busy.passes_at_once(master) && !busy.passes_later(master));
        }
        let idle = after(&[
            10_000,
            100_000,
            5_000,
            20_000,
            30_000,
            5 * MS / 2,
            9_000,
            8_000,
        ]);
        assert!(idle.passes_later(master));
        let idle = after(&[
            10_000,
            10_000,
            5_000,
            20_000,
            9_000,
            5 * MS / 2,
            9_000,
            8_000,
        ]);
        assert!(idle.passes_at_once(master));
    }

    #[test]
    fn shares_stay_shares() {
        let (never, always) = (after(&[MS]), after(&[0]));
        assert!(never.late <= ALL && never.late > ALL - ALL / 16 && never.prompt == 0);
        assert!(always.prompt <= ALL && always.prompt > ALL - ALL / 16 && always.late == 0);
    }
}
