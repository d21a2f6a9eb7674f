//! `result.json` of `amdahl sched`.
//!
//! Times are in seconds, counts are over the whole recording. Unknown fields are ignored on reading.
//! Everything read from a file is untrusted: see [`load`](super::load).

use serde::{Deserialize, Serialize};

use crate::bounded::bounded;
use crate::check::{CPUS_MAX, ITEMS_MAX, SITES_MAX, WORDS_MAX};
use crate::schema::{Machine, Notice, Source};

/// Name and version of the format.
pub const SCHEMA: &str = "amdahl.sched/1";
/// Rows of CPUs at most.
const CPU_ROWS: usize = CPUS_MAX as usize;
/// Runs of equal cells of one CPU at most.
pub(crate) const RUNS_MAX: usize = 4_096;
/// Links of a chain at most.
pub(crate) const LINKS_MAX: usize = 256;

/// The result of `amdahl sched`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the tool that wrote it.
    pub amdahl_version: String,
    /// What was recorded, in words or as the command typed.
    #[serde(deserialize_with = "bounded::<_, _, WORDS_MAX>")]
    pub command: Vec<String>,
    /// When it began, RFC 3339.
    pub started: String,
    /// The machine.
    pub machine: Machine,
    /// Where the figures come from, and what is missing.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub sources: Vec<Source>,
    /// Length of the recording.
    pub wall_s: f64,
    /// Sums.
    pub totals: Totals,
    /// Run queue latency after wake-ups.
    pub wake_latency: Latency,
    /// Run queue latency after preemptions and yields.
    pub preempt_latency: Latency,
    /// Stretches on a CPU from switch to switch.
    pub slices: Latency,
    /// Migrations by what the two CPUs share.
    pub migrations: Migrations,
    /// CPUs that idled while threads waited.
    pub wasted: Wasted,
    /// By number.
    #[serde(deserialize_with = "bounded::<_, _, CPU_ROWS>")]
    pub cpus: Vec<CpuEntry>,
    /// Most CPU time first; those left out are in `threads_elsewhere`.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub threads: Vec<ThreadEntry>,
    /// Threads that are not in `threads`.
    pub threads_elsewhere: Elsewhere,
    /// Who wakes whom, most often first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub wakers: Vec<WakerEntry>,
    /// The longest chains of wake-ups, longest first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub chains: Vec<ChainEntry>,
    /// CPUs of guests that run here.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub guests: Vec<GuestEntry>,
    /// Inside a guest: what the hypervisor took.
    #[serde(deserialize_with = "bounded::<_, _, CPU_ROWS>")]
    pub steal: Vec<StealEntry>,
    /// Threads on CPUs over time.
    pub picture: Option<Picture>,
    /// What threads did over time.
    pub timelines: Option<Timelines>,
    /// The events, where they were kept.
    pub recording: Option<Recording>,
    /// What the reader must know.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub warnings: Vec<Notice>,
}

impl SchedResult {
    /// Made of events: without them there are sums of time alone.
    pub fn has_events(&self) -> bool {
        self.totals.switches > 0
    }
}

/// Counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Totals {
    pub switches: u64,
    /// Switches away from a thread that could have gone on.
    pub preemptions: u64,
    pub wakeups: u64,
    pub forks: u64,
    pub exits: u64,
    pub migrations: u64,
    /// Events recorded.
    pub events: u64,
    /// Events that found their buffer full.
    pub events_lost: u64,
    /// Events that were not looked at, for there were too many CPUs or threads.
    pub events_refused: u64,
    /// Switches that were not seen, and bridged.
    pub switches_mended: u64,
}

/// A distribution of durations. Quantiles are at most 1/16 too large, the rest is exact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub count: u64,
    pub total_s: f64,
    pub mean_s: f64,
    pub p50_s: f64,
    pub p90_s: f64,
    pub p99_s: f64,
    pub max_s: f64,
    /// Counts by powers of two of nanoseconds: (upper end in seconds, count), those without any left out.
    #[serde(deserialize_with = "bounded::<_, _, 64>")]
    pub histogram: Vec<(f64, u64)>,
}

/// Migrations by what the two CPUs share at least.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Migrations {
    /// The physical core.
    pub core: u64,
    /// The last-level cache.
    pub llc: u64,
    /// The NUMA node.
    pub node: u64,
    /// Nothing: from node to node.
    pub across: u64,
    /// A CPU is not in the topology.
    pub unknown: u64,
}

impl Migrations {
    /// Over all distances.
    pub fn total(&self) -> u64 {
        let parts = [self.core, self.llc, self.node, self.across, self.unknown];
        parts.iter().fold(0, |sum, part| sum.saturating_add(*part))
    }
}

/// CPU time that was idle while a thread waited elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wasted {
    /// The affinity of every thread that waited forbade the CPU.
    pub affinity_s: f64,
    /// The thread was woken onto a busy queue while the CPU was idle.
    pub placement_s: f64,
    /// The CPU went idle later, and nobody moved the thread for more than a tick.
    pub balancing_s: f64,
    /// The same for less than a tick.
    pub transient_s: f64,
    /// Of all this what came in turns shorter than `brief_limit_s`, in which the CPU idled while always
    /// somebody waited.
    pub brief_s: f64,
    /// The limit.
    pub brief_limit_s: f64,
    /// Pairs of CPUs, largest first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub pairs: Vec<WastedPair>,
    /// Time of pairs that are not in `pairs`.
    pub other_pairs_s: f64,
}

impl Wasted {
    /// By reason, as `wasted.pairs[].reason` calls them.
    pub fn by_reason(&self) -> [(&'static str, f64); 4] {
        [
            ("affinity", self.affinity_s),
            ("placement", self.placement_s),
            ("balancing", self.balancing_s),
            ("transient", self.transient_s),
        ]
    }

    /// Over all reasons.
    pub fn total_s(&self) -> f64 {
        self.by_reason().iter().map(|(_, seconds)| seconds).sum()
    }

    /// What came in longer turns.
    pub fn lasting_s(&self) -> f64 {
        (self.total_s() - self.brief_s).max(0.0)
    }
}

/// Wasted time between two CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WastedPair {
    /// The CPU that idled.
    pub idle_cpu: u32,
    /// The CPU in whose queue a thread waited.
    pub busy_cpu: u32,
    /// `affinity`, `placement`, `balancing` or `transient`.
    pub reason: String,
    /// For how long.
    pub total_s: f64,
    /// In how many stretches.
    pub stretches: u64,
    /// The longest of them.
    pub longest_s: f64,
}

/// One CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuEntry {
    /// Its number.
    pub cpu: u32,
    /// Time that threads ran on it.
    pub run_s: f64,
    /// Time that nobody did.
    pub idle_s: f64,
    /// Of that, while a thread waited elsewhere.
    pub idle_wasted_s: f64,
    /// Time with a thread that waited beside the one that ran.
    pub overloaded_s: f64,
    /// Switches on it.
    pub switches: u64,
    /// Switches away from a thread that could have gone on.
    pub preemptions: u64,
    /// Threads waiting in its queue, mean over time.
    pub queue_mean: f64,
    /// The most of them at a time.
    pub queue_max: u64,
    /// Run queue latencies that ended on it.
    pub latency: Latency,
    /// Events of it that were lost.
    pub events_lost: u64,
}

/// One thread, or several of one name that are gone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadEntry {
    /// Thread id; 0 for several threads.
    pub tid: u32,
    /// Its process; 0 if it is not of the selection.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// It is a thread of the kernel.
    pub is_kernel: bool,
    /// How many threads this is.
    pub threads: u64,
    /// CPU on which it was seen last.
    pub last_cpu: Option<u32>,
    /// Time on CPUs.
    pub run_s: f64,
    /// Time runnable and not running.
    pub wait_s: f64,
    /// Time that it waited while a CPU idled.
    pub wasted_s: f64,
    /// Time asleep, as far as it was seen.
    pub sleep_s: f64,
    /// Of that, for block I/O.
    pub iowait_s: f64,
    /// Of `sleep_s`, in sleeps that signals do not end (state D).
    pub uninterruptible_s: f64,
    /// Run queue latency after wake-ups.
    pub wake_latency: Latency,
    /// Run queue latency after preemptions and yields.
    pub preempt_latency: Latency,
    /// Stretches on a CPU.
    pub slices: Latency,
    /// How often it left a CPU while runnable because another came.
    pub preempted: u64,
    /// How often it yielded.
    pub yielded: u64,
    /// How often it went to sleep.
    pub blocked: u64,
    /// Migrations.
    pub migrations: Migrations,
    /// Of these, how many at a wake-up.
    pub migrations_at_wake: u64,
}

/// Sums over threads without a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Elsewhere {
    /// How many.
    pub threads: u64,
    /// Their time on CPUs.
    pub run_s: f64,
    /// Their time in run queues.
    pub wait_s: f64,
}

/// Wake-ups between threads of two names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WakerEntry {
    /// Name of the waking threads, `[timer]` or `[interrupt]`.
    pub waker: String,
    /// Name of the woken ones.
    pub woken: String,
    /// How often.
    pub count: u64,
    /// How often the woken one went to another last-level cache.
    pub to_other_llc: u64,
    /// Mean time until it ran.
    pub latency_mean_s: f64,
    /// The longest.
    pub latency_max_s: f64,
}

/// A sequence of threads of which each woke the next one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChainEntry {
    /// From the first wake-up until the last thread slept.
    pub total_s: f64,
    /// What began it: `timer`, `interrupt` or `thread`.
    pub began_by: String,
    /// It goes further back than is shown.
    pub is_cut: bool,
    /// From the first to the last.
    #[serde(deserialize_with = "bounded::<_, _, LINKS_MAX>")]
    pub links: Vec<ChainLink>,
}

/// One thread's part in a chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChainLink {
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// When it was woken, from the beginning of the chain.
    pub woken_s: f64,
    /// For how long it waited to run.
    pub waited_s: f64,
    /// From then until it woke the next one, or slept.
    pub active_s: f64,
}

/// A guest's CPU: a thread of a virtual machine monitor on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestEntry {
    /// What runs the guest.
    pub vmm: String,
    /// Its process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The guest's number of the CPU; absent if it is not known which one the thread runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest_cpu: Option<u32>,
    /// Time that it ran.
    pub run_s: f64,
    /// Phantom time in run queues: the guest believes the CPU to run, but the thread waits for one here.
    pub phantom_s: f64,
    /// The longest stretch of it.
    pub phantom_max_s: f64,
    /// Of 100 stretches, 99 are not longer.
    pub phantom_p99_s: f64,
    /// Phantom time of the other kind, blocked in the host: the guest believes the CPU to run, but the thread sleeps
    /// uninterruptibly (a page of its memory is brought in, a lock of the host is taken). A CPU that the guest has
    /// halted sleeps interruptibly.
    pub blocked_s: f64,
    /// The longest stretch of it.
    pub blocked_max_s: f64,
    /// How often it was preempted.
    pub preempted: u64,
}

/// What the hypervisor took of a CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StealEntry {
    /// Which.
    pub cpu: u32,
    /// How much, to the resolution of the kernel's clock tick.
    pub steal_s: f64,
}

/// The events on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recording {
    /// Bytes of all parts.
    pub bytes: u64,
    /// Events in them.
    pub events: u64,
    /// Events that were dropped because the space was used up, oldest first.
    pub events_dropped: u64,
}

/// Which thread ran on which CPU, in columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Picture {
    /// Length of a column.
    pub column_s: f64,
    /// Columns.
    pub columns: u32,
    /// Threads that a cell can name.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub threads: Vec<PictureThread>,
    /// CPUs by number.
    #[serde(deserialize_with = "bounded::<_, _, CPU_ROWS>")]
    pub cpus: Vec<PictureCpu>,
}

/// A thread in the picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PictureThread {
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub name: String,
}

/// A CPU in the picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PictureCpu {
    /// Its number.
    pub cpu: u32,
    /// Runs of equal cells from the left: how many columns, the index in `threads` of who ran
    /// longest plus one (0: nobody, or a thread that is not named), and for how much of the time in sixteenths.
    #[serde(deserialize_with = "bounded::<_, _, RUNS_MAX>")]
    pub runs: Vec<[u32; 3]>,
}

/// What threads did, in columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timelines {
    /// Length of a column.
    pub column_s: f64,
    /// Columns.
    pub columns: u32,
    /// Most CPU time first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub threads: Vec<Timeline>,
    /// Threads that are not in it.
    pub elsewhere: u64,
}

/// What a thread did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// Thread id.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Runs of equal cells from the left: how many columns, and for how many sixteenths of them the thread ran, waited for a
    /// CPU, slept uninterruptibly, and slept otherwise. Each is rounded up as far as the sixteen are not used up; what is
    /// missing is not known.
    #[serde(deserialize_with = "bounded::<_, _, RUNS_MAX>")]
    pub runs: Vec<[u32; 5]>,
}
