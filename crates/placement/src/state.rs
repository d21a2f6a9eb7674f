//! What a policy remembers.

use crate::{CpuId, SpinState};

/// What a policy remembers of one CPU. Only the CPU itself uses it, so it needs no lock; a thread that runs on no
/// CPU of the machine and wakes tasks has one of its own.
///
/// Its fields are the policies' own; callers make it, keep it and tell [`Policy::ran`](crate::Policy::ran).
#[derive(Clone, Debug)]
pub struct CpuState {
    /// Where the last search of a bounded window ended.
    pub(crate) cursor: CpuId,
    /// How far the present search for work has come.
    pub(crate) search: Search,
    /// When the CPU became idle; `None` while it runs something.
    pub(crate) idle_since_ns: Option<u64>,
    /// Average length of an idle period.
    pub(crate) idle_ns: u64,
    /// Average cost of a search for an idle CPU.
    pub(crate) scan_ns: u64,
    /// The most that a pull from each level has cost lately, and when it was last made smaller.
    pub(crate) pull_ns: [u64; LEVELS],
    pub(crate) pull_decayed_ns: u64,
    /// When the next periodic balance of each level is due.
    pub(crate) balance_ns: [u64; LEVELS],
    /// When its ticks may tell an idle CPU again to look for work.
    pub(crate) kick_ns: u64,
    /// The same, an idle thread of its core.
    pub(crate) kick_core_ns: u64,
    /// Its last tick told an idle CPU to look for work.
    pub(crate) has_kicked: bool,
    /// How long this CPU waited for work.
    pub(crate) spin: SpinState,
}

/// Longer idle periods count as this long, so that a pull is not forbidden long after them; the first average, too.
/// Twice the kernel's `sched_migration_cost`.
pub(crate) const IDLE_NS_MAX: u64 = 1_000_000;

/// Core, LLC, node, machine.
pub(crate) const LEVELS: usize = 4;

/// A search for work that may be continued after a failure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Search {
    /// Which part of a composed policy searches.
    pub part: usize,
    /// How many candidates this part has named.
    pub named: u32,
}

impl CpuState {
    /// The state of a CPU that has just come to life. `seed` is its number; it makes CPUs begin their searches at
    /// different places.
    pub fn new(seed: u32) -> Self {
        CpuState {
            cursor: seed,
            search: Search::default(),
            idle_since_ns: None,
            idle_ns: IDLE_NS_MAX,
            scan_ns: 0,
            pull_ns: [0; LEVELS],
            pull_decayed_ns: 0,
            balance_ns: [0; LEVELS],
            kick_ns: 0,
            kick_core_ns: 0,
            has_kicked: false,
            spin: SpinState::default(),
        }
    }

    /// What is known of the waits of this CPU.
    pub fn spin(&self) -> &SpinState {
        &self.spin
    }
}

/// An average that forgets an eighth at each step, as the kernel's `update_avg`.
pub(crate) fn averaged(average: u64, sample: u64) -> u64 {
    if sample >= average {
        average + (sample - average) / 8
    } else {
        average - (average - sample) / 8
    }
}
