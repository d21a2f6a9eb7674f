//! What an analysis tells.

use crate::chain::Chain;
use crate::event::{CpuId, Ns, Tid};
use crate::histogram::Histogram;
use crate::wakers::WakeRow;
use crate::wasted::WastedTable;

/// One thread, or several of one name that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadRow {
    /// Its number; 0 for several threads.
    pub tid: Tid,
    /// Its process; 0 if it is not of the selection.
    pub pid: Tid,
    /// Its name.
    pub name: Box<str>,
    /// It is a thread of the kernel.
    pub is_kernel: bool,
    /// How many threads this is.
    pub threads: u64,
    /// CPU on which it was seen last.
    pub last_cpu: Option<CpuId>,
    /// Time on CPUs.
    pub run_ns: Ns,
    /// Lengths of its stretches on a CPU, from switch to switch.
    pub slices: Histogram,
    /// Run queue latency after a wake-up: from waking to running.
    pub wake_wait: Histogram,
    /// Run queue latency after it was preempted or yielded.
    pub preempt_wait: Histogram,
    /// Time asleep, between sleeps and wake-ups that were seen.
    pub sleep_ns: Ns,
    /// Of that, time that the kernel accounts as block I/O.
    pub iowait_ns: Ns,
    /// Of `sleep_ns`, sleeps that signals do not end (state D).
    pub uninterruptible: Histogram,
    /// How often it left a CPU while runnable because another came.
    pub preempted: u64,
    /// How often it yielded.
    pub yielded: u64,
    /// How often it went to sleep.
    pub blocked: u64,
    /// Migrations by distance, as in [`DISTANCES`](crate::DISTANCES).
    pub migrations: [u64; 5],
    /// Of these, how many at a wake-up; the others were by balancing or by a change of affinity.
    pub migrations_at_wake: u64,
    /// Time that it waited while a CPU idled.
    pub wasted_ns: Ns,
}

impl ThreadRow {
    /// Time in run queues: runnable and not running.
    pub fn wait_ns(&self) -> Ns {
        self.wake_wait
            .sum_ns()
            .saturating_add(self.preempt_wait.sum_ns())
    }

    /// How often it left a CPU.
    pub fn switches(&self) -> u64 {
        self.preempted + self.yielded + self.blocked
    }

    /// It has slept.
    pub(crate) fn slept(&mut self, ns: Ns, in_iowait: bool, uninterruptible: bool) {
        self.sleep_ns += ns;
        self.iowait_ns += if in_iowait { ns } else { 0 };
        if uninterruptible {
            self.uninterruptible.add(ns);
        }
    }

    /// Adds another thread to the row.
    pub(crate) fn absorb(&mut self, other: &ThreadRow) {
        self.threads += other.threads;
        self.is_kernel |= other.is_kernel;
        self.run_ns = self.run_ns.saturating_add(other.run_ns);
        self.slices.merge(&other.slices);
        self.wake_wait.merge(&other.wake_wait);
        self.preempt_wait.merge(&other.preempt_wait);
        self.sleep_ns = self.sleep_ns.saturating_add(other.sleep_ns);
        self.iowait_ns = self.iowait_ns.saturating_add(other.iowait_ns);
        self.uninterruptible.merge(&other.uninterruptible);
        self.preempted += other.preempted;
        self.yielded += other.yielded;
        self.blocked += other.blocked;
        for (sum, more) in self.migrations.iter_mut().zip(other.migrations) {
            *sum += more;
        }
        self.migrations_at_wake += other.migrations_at_wake;
        self.wasted_ns = self.wasted_ns.saturating_add(other.wasted_ns);
    }
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuRow {
    /// Its number.
    pub cpu: CpuId,
    /// Time that threads ran on it.
    pub run_ns: Ns,
    /// Time that nobody did.
    pub idle_ns: Ns,
    /// Switches on it.
    pub switches: u64,
    /// Of these, how many took the CPU from a thread that could have gone on.
    pub preemptions: u64,
    /// Run queue latencies that ended on it.
    pub wait: Histogram,
    /// Integral of the number of waiting threads in its queue: divided by the time it is the mean length.
    pub queued_ns: Ns,
    /// Time with one waiting thread at least beside the one that ran.
    pub overloaded_ns: Ns,
    /// The most threads that waited in its queue at a time.
    pub queued_max: usize,
    /// Time that it idled while a thread waited elsewhere.
    pub idle_wasted_ns: Ns,
    /// Events of it that were lost.
    pub lost: u64,
}

/// Sums and what limits the trust in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events taken.
    pub events: u64,
    /// Context switches.
    pub switches: u64,
    /// Wake-ups of sleeping threads.
    pub wakeups: u64,
    /// New threads.
    pub forks: u64,
    /// Threads that ended.
    pub exits: u64,
    /// Migrations.
    pub migrations: u64,
    /// Events that the probe lost.
    pub lost: u64,
    /// Switches whose leaving thread was not the one that came before: one in between was not seen.
    pub mended: u64,
    /// Events refused since there were more CPUs or threads than any machine has.
    pub refused: u64,
    /// Wake-ups between names that are not in the table of wakers.
    pub wakeups_elsewhere: u64,
}

/// The tables of an analysis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// When it began: the first event, or what the settings say.
    pub begin: Ns,
    /// When it ended.
    pub end: Ns,
    /// Sums.
    pub totals: Totals,
    /// Threads, most CPU time first.
    pub threads: Vec<ThreadRow>,
    /// CPUs of which there were events, by number.
    pub cpus: Vec<CpuRow>,
    /// Run queue latency after wake-ups, all threads.
    pub wake_wait: Histogram,
    /// Run queue latency after preemptions, all threads.
    pub preempt_wait: Histogram,
    /// Stretches on a CPU, all threads.
    pub slices: Histogram,
    /// Migrations by distance, as in [`DISTANCES`](crate::DISTANCES).
    pub migrations: [u64; 5],
    /// CPUs that idled while threads waited.
    pub wasted: WastedTable,
    /// Who wakes whom, most often first.
    pub wakers: Vec<WakeRow>,
    /// The longest wake-up chains, longest first.
    pub chains: Vec<Chain>,
}
