//! `result.json` of `amdahl locks`. Rules as in [`crate::schema`]: unknown fields are ignored,
//! everything read is untrusted.

use serde::{Deserialize, Serialize};

use crate::bounded::bounded;
use crate::check::{FRAMES_MAX, ITEMS_MAX, WORDS_MAX};
use crate::schema::{Machine, Notice, Source};

/// Name and version of the format.
pub const SCHEMA: &str = "amdahl.locks/1";

/// Owners and chains of a row, at most.
pub(super) const PARTS_MAX: usize = 256;

/// The result of `amdahl locks`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LocksResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the tool that wrote it.
    pub amdahl_version: String,
    /// What was watched, in words: `the system`, `process 4711`, `cgroup /x`; empty for a command.
    pub target: String,
    /// The command, if one was started.
    #[serde(deserialize_with = "bounded::<_, _, WORDS_MAX>")]
    pub command: Vec<String>,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it was watched.
    pub seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// Where the figures come from, and what is missing.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub sources: Vec<Source>,
    /// What makes a row: `site`, `thread`, `process`, `lock` or `stack`.
    pub by: String,
    /// By what rows are sorted, the largest first: `total`, `times`, `max`, `mean` or `p99`; empty is `total`.
    pub sort: String,
    /// Relative error of `p99_s`, at most.
    pub p99_error: f64,
    /// Waits, in the order of `sort`.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub rows: Vec<LockRow>,
    /// How long locks were held, by the site that acquired, where that was recorded; in the same order.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub holds: Vec<LockRow>,
    /// Rows that are not here, since there were too many; the last.
    pub rows_left_out: u64,
    /// Waiting time of the rows that are not here.
    pub left_out_s: f64,
    /// Events that the probe saw.
    pub events: u64,
    /// Events that it lost: waits that are not counted.
    pub events_lost: u64,
    /// Stacks that it lost: places that may have no name.
    pub stacks_lost: u64,
    /// Groups of waits whose thread and lock had to be forgotten to stay within memory.
    pub folded_threads: u64,
    /// Groups of waits whose place had to be forgotten as well.
    pub folded_places: u64,
    /// What the reader must know.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub warnings: Vec<Notice>,
    /// It was interrupted; what is here is what was measured.
    pub partial: bool,
}

/// Waits, or holds, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockRow {
    /// What was waited for, in the field's words: `spinlock`, `pthread mutex`, `mmap_lock (read)`.
    pub what: String,
    /// `lock`, `barrier` or `partner` (conditions, messages, idle workers: no loss as such).
    pub class: String,
    /// It is a lock of the kernel.
    pub in_kernel: bool,
    /// The code that waits; of several sites the one with the longest waits.
    pub site: CodeSite,
    /// The program's own line that led to a kernel lock.
    pub from: CodeSite,
    /// Sites of the row.
    pub sites: u64,
    /// Process name, in rows of one thread, process or lock.
    pub process: String,
    /// Thread name, in rows of one thread.
    pub thread: String,
    /// Process id, or 0.
    pub pid: u32,
    /// Thread id, or 0.
    pub tid: u32,
    /// Address of the lock in rows of one lock, e.g. `0x7f00c0de`; else empty.
    pub address: String,
    /// Calls that waited (holds: times that it was held).
    pub times: u64,
    /// Sleeps in them: more than `times` where woken threads found the lock taken again.
    pub sleeps: u64,
    /// Waits that had not ended.
    pub open: u64,
    /// Waits that had begun before the recording did, from whose begin they count: times are lower bounds.
    pub before: u64,
    /// Counts and times are lower bounds: only samples were seen.
    pub at_least: bool,
    /// All together.
    pub total_s: f64,
    /// The longest.
    pub max_s: f64,
    /// `total_s / times`.
    pub mean_s: f64,
    /// 99 of 100 are not longer; null if single waits are not known.
    pub p99_s: Option<f64>,
    /// Different locks, at least.
    pub locks: u64,
    /// Different threads, at least.
    pub threads: u64,
    /// Call stack of the longest waits, innermost first.
    #[serde(deserialize_with = "bounded::<_, _, FRAMES_MAX>")]
    pub stack: Vec<String>,
    /// Who released the lock and thereby ended waits (holds: who held it), most time first.
    #[serde(deserialize_with = "bounded::<_, _, PARTS_MAX>")]
    pub owners: Vec<Owner>,
    /// Sleeps that nobody in `owners` ended: time-outs, signals, and owners that had no room.
    pub unowned: u64,
    /// What holders waited for themselves while others waited for them, most time first.
    #[serde(deserialize_with = "bounded::<_, _, PARTS_MAX>")]
    pub nested: Vec<Nested>,
}

/// A line of code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeSite {
    /// Function; empty if unknown.
    pub symbol: String,
    /// Source file, if known.
    pub file: Option<String>,
    /// Line, if known.
    pub line: Option<u32>,
    /// ELF file, `[kernel]`, `[jit]`; empty if unknown.
    pub module: String,
}

/// Who ended waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// Process name.
    pub process: String,
    /// Thread name.
    pub thread: String,
    /// Different threads of this name, at least.
    pub threads: u64,
    /// Where it released the lock (holds: acquired it).
    pub site: CodeSite,
    /// Sleeps that it ended (holds: holds).
    pub times: u64,
    /// How long those sleeps, or holds, were together.
    pub seconds: f64,
}

/// What a holder waited for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Nested {
    /// From the holder on: what it waited for, what the holder of that waited for, and so on.
    #[serde(deserialize_with = "bounded::<_, _, PARTS_MAX>")]
    pub chain: Vec<Step>,
    /// Waits that it made longer.
    pub times: u64,
    /// By how much, together.
    pub seconds: f64,
}

/// One step of a chain of waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Step {
    /// What was waited for.
    pub what: String,
    /// Where.
    pub site: CodeSite,
}
