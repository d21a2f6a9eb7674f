//! What things cost on a machine, in nanoseconds.

use serde::{Deserialize, Serialize};

use crate::time::Ns;

/// A cost by distance between two CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByDistance {
    /// The CPU itself.
    pub same: Ns,
    /// Another hardware thread of the core.
    pub core: Ns,
    /// Another core of the last-level cache.
    pub llc: Ns,
    /// Another last-level cache of the node.
    pub node: Ns,
    /// Another node.
    pub remote: Ns,
}

impl ByDistance {
    const fn new(costs: [Ns; 5]) -> ByDistance {
        let [same, core, llc, node, remote] = costs;
        ByDistance {
            same,
            core,
            llc,
            node,
            remote,
        }
    }

    pub(crate) fn table(&self) -> [Ns; 5] {
        [self.same, self.core, self.llc, self.node, self.remote]
    }
}

/// What things cost: measured by `amdahl sim calibrate`, published, or assumed.
///
/// All in nanoseconds but for the shares. A file need not name all of them; the others keep the
/// values of [`Costs::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// Where the numbers are from.
    pub source: String,
    /// From one thread to the next on a CPU, without what caches lose.
    pub context_switch: Ns,
    /// From interrupt to running of an idle CPU that did not sleep deeply.
    pub idle_exit: Ns,
    /// The same of a CPU that idled for longer than `deep_idle_after`.
    pub deep_idle_exit: Ns,
    /// How long a CPU idles before it sleeps deeply.
    pub deep_idle_after: Ns,
    /// What the waker pays to make a thread runnable, without the choice of a CPU.
    pub wake: Ns,
    /// What the waker pays to interrupt another CPU.
    pub ipi: Ns,
    /// A timer's or device's interrupt.
    pub interrupt: Ns,
    /// The scheduler's tick.
    pub tick: Ns,
    /// Time between ticks.
    pub tick_period: Ns,
    /// Into the kernel and back.
    pub syscall: Ns,
    /// A kibibyte copied into or out of the kernel.
    pub copy_kib: Ns,
    /// A read or write of a pipe beyond entry and copy: its lock is held for so long.
    pub pipe: Ns,
    /// An atomic operation on a cache line, by where the line was last written.
    pub line: ByDistance,
    /// What a thread loses in caches when it goes on elsewhere.
    pub migration: ByDistance,
    /// A run queue's lock is held for so long by who puts a task in or takes one.
    pub queue_hold: Ns,
    /// What waiting for a run queue's lock adds for each further waiter (a ticket lock's cost).
    pub queue_waiter: Ns,
    /// What each CPU that looks out for work at a run queue adds to holding its lock: it takes the line away.
    pub queue_poller: Ns,
    /// What a dispatcher does for each task that it assigns, beside finding a CPU and waking it.
    pub assign: Ns,
    /// To move a waiting task from one run queue to another, beside their locks.
    pub pull: Ns,
    /// To look at one CPU or queue while searching, near.
    pub examine: Ns,
    /// More of that when it is behind another last-level cache.
    pub examine_remote: Ns,
    /// A new thread, for its maker.
    pub spawn: Ns,
    /// A new process, for its maker.
    pub fork: Ns,
    /// A program replaced by another.
    pub exec: Ns,
    /// The end of a thread.
    pub exit: Ns,
    /// A page fault without the waiting for the address-space lock.
    pub fault: Ns,
    /// What a hardware thread gets of its core while the other one is busy, in thousandths.
    pub smt_permille: u32,
    /// Speed of a thread that only waits for memory when its memory is on another node, in thousandths.
    pub remote_memory_permille: u32,
    /// Speed of all CPUs, in thousandths of that for which workloads state their times.
    pub frequency_permille: u32,
    /// How far a task may be ahead of its run queue in virtual run time, and who gives way goes behind; sleepers get half of it. How
    /// long a task runs before another has its turn is the policy's answer to a tick.
    pub slice: Ns,
    /// A woken task takes the CPU at once when it has had so much less CPU time than who runs.
    pub wakeup_granularity: Ns,
}

impl Default for Costs {
    /// Orders of magnitude of a present server; measure yours.
    fn default() -> Costs {
        Costs {
            source: "assumed".to_owned(),
            context_switch: 1_000,
            idle_exit: 1_500,
            deep_idle_exit: 30_000,
            deep_idle_after: 500_000,
            wake: 500,
            ipi: 300,
            interrupt: 700,
            tick: 1_000,
            tick_period: 4_000_000,
            syscall: 150,
            copy_kib: 60,
            pipe: 250,
            line: ByDistance::new([5, 15, 50, 110, 160]),
            migration: ByDistance::new([0, 100, 1_000, 3_000, 6_000]),
            queue_hold: 100,
            queue_waiter: 0,
            queue_poller: 0,
            assign: 0,
            pull: 500,
            examine: 15,
            examine_remote: 100,
            spawn: 8_000,
            fork: 60_000,
            exec: 300_000,
            exit: 15_000,
            fault: 500,
            smt_permille: 620,
            remote_memory_permille: 600,
            frequency_permille: 1_000,
            slice: 3_000_000,
            wakeup_granularity: 1_000_000,
        }
    }
}

impl Costs {
    /// Nothing costs anything: for checks against theory.
    pub fn free() -> Costs {
        let none = ByDistance::new([0; 5]);
        Costs {
            source: "nothing costs anything".to_owned(),
            context_switch: 0,
            idle_exit: 0,
            deep_idle_exit: 0,
            wake: 0,
            ipi: 0,
            interrupt: 0,
            tick: 0,
            syscall: 0,
            copy_kib: 0,
            pipe: 0,
            line: none,
            migration: none,
            queue_hold: 0,
            pull: 0,
            examine: 0,
            examine_remote: 0,
            spawn: 0,
            fork: 0,
            exec: 0,
            exit: 0,
            fault: 0,
            smt_permille: 1_000,
            remote_memory_permille: 1_000,
            ..Costs::default()
        }
    }

    /// Checks ranges.
    ///
    /// # Errors
    /// Which number is outside.
    pub fn check(&self) -> Result<(), String> {
        let share = |name: &str, value: u32, max: u32| match value {
            1.. if value <= max => Ok(()),
            _ => Err(format!("{name} = {value} must be within 1 and {max}")),
        };
        share("smt_permille", self.smt_permille, 1_000)?;
        share("remote_memory_permille", self.remote_memory_permille, 1_000)?;
        share("frequency_permille", self.frequency_permille, 10_000)?;
        let serde_json::Value::Object(all) =
            serde_json::to_value(self).expect("numbers and a text")
        else {
            unreachable!("a struct is an object");
        };
        let second = 1_000_000_000;
        for (name, value) in &all {
            let within = |value: &serde_json::Value| value.as_u64().is_none_or(|ns| ns <= second);
            let is_fine = match value {
                serde_json::Value::Object(parts) => parts.values().all(within),
                value => within(value),
            };
            if !is_fine {
                return Err(format!("{name} is more than a second"));
            }
        }
        for (name, ns) in [("tick_period", self.tick_period), ("slice", self.slice)] {
            if ns < 10_000 {
                return Err(format!("{name} = {ns} must be at least 10000"));
            }
        }
        Ok(())
    }
}

const PUBLISHED: &str = include_str!("../costs/published.json");

/// Published costs of machines that people wrote about, by name. Each says in `source` where its numbers are from;
/// what the source does not tell is as in [`Costs::default`].
pub fn published() -> Vec<(String, Costs)> {
    let all: std::collections::BTreeMap<String, Costs> =
        serde_json::from_str(PUBLISHED).expect("the file is part of the crate and tested");
    all.into_iter().collect()
}
