//! `result.json` of `amdahl mem`.
//!
//! Sizes are in bytes, times in seconds. Unknown fields are ignored on reading; `schema` names the
//! version.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::bounded;
use crate::check::{FRAMES_MAX, ITEMS_MAX, SITES_MAX, WORDS_MAX};
use crate::schema::{Machine, Notice, Source};

/// Name and version of the format. The number changes when a reader must change.
pub const SCHEMA: &str = "amdahl.mem/1";

/// The result of `amdahl mem`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of the tool that wrote it.
    pub amdahl_version: String,
    /// The command, or what was watched instead (`process 12`, `control group /x`, `the system`), by words.
    #[serde(deserialize_with = "bounded::<_, _, WORDS_MAX>")]
    pub command: Vec<String>,
    /// When it began, RFC 3339.
    pub started: String,
    /// How long it was watched.
    pub duration_s: f64,
    /// The machine.
    pub machine: Machine,
    /// Where the figures come from, and what is missing.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub sources: Vec<Source>,
    /// What the reader must know.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub warnings: Vec<Notice>,
    /// Processes with most memory first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub processes: Vec<ProcessMemory>,
    /// Huge pages.
    pub huge: HugePages,
    /// Page faults.
    pub faults: Faults,
    /// The address-space lock.
    pub mmap_lock: MmapLock,
    /// Misses of the translation lookaside buffers; `None` without counters.
    pub tlb: Option<Tlb>,
    /// Placement on nodes; `None` where it is not known.
    pub numa: Option<Numa>,
    /// The kernel's own address ranges; `None` where it is not known.
    pub vmalloc: Option<Vmalloc>,
}

/// The memory of a process when it was looked at last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessMemory {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// In memory.
    pub resident_bytes: u64,
    /// Of those, in huge pages.
    pub huge_bytes: u64,
    /// In small pages that could be in huge ones.
    pub obstructed_bytes: u64,
    /// Number of mappings.
    pub mappings: u64,
}

/// Memory of the whole machine in bytes, and what of it is in huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// Anonymous memory.
    pub anonymous_bytes: u64,
    /// Of it in huge pages.
    pub anonymous_huge_bytes: u64,
    /// Shared memory and tmpfs.
    pub shmem_bytes: u64,
    /// Of it in huge pages.
    pub shmem_huge_bytes: u64,
}

/// Huge pages: what is in them, what is not and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugePages {
    /// Of a huge page; 0 if the kernel has none.
    pub size_bytes: u64,
    /// Of a small page.
    pub page_bytes: u64,
    /// `transparent_hugepage/enabled` as it holds for huge pages: `always`, `madvise`, `never`.
    pub anonymous: String,
    /// `transparent_hugepage/shmem_enabled` likewise.
    pub shmem: String,
    /// `transparent_hugepage/defrag`.
    pub defrag: String,
    /// Sizes of large pages.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub sizes: Vec<PageSize>,
    /// Pools of hugetlb pages.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub pools: Vec<Pool>,
    /// Free memory by zone.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub free: Vec<Zone>,
    /// Share of the machine's blocks of the size of a huge page whose pages can be moved.
    pub movable: Option<f64>,
    /// Huge pages given at faults on the whole machine while it was watched.
    pub given: Option<u64>,
    /// Huge pages refused likewise.
    pub refused: Option<u64>,
    /// What of the whole machine is in huge pages.
    pub machine: Option<Coverage>,
    /// What keeps memory in small pages, most bytes first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub obstacles: Vec<ObstacleReport>,
    /// Mappings, those with the most bytes in small pages first.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub mappings: Vec<MappingReport>,
    /// Mappings that are not listed, all of them small.
    pub mappings_left_out: u64,
}

/// A size of large pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageSize {
    /// Of a page.
    pub bytes: u64,
    /// Switch for anonymous memory, empty if unknown.
    pub anonymous: String,
    /// Switch for shared memory, empty if unknown.
    pub shmem: String,
    /// Given since boot on the whole machine.
    pub given: Option<u64>,
    /// Refused since boot on the whole machine.
    pub refused: Option<u64>,
    /// In use now on the whole machine.
    pub in_use: Option<u64>,
}

/// A pool of hugetlb pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Of a page.
    pub bytes: u64,
    /// Pages in it.
    pub pages: u64,
    /// Of those, free ones.
    pub free: u64,
}

/// Free memory of a zone of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Zone {
    /// Node.
    pub node: u32,
    /// Name.
    pub name: String,
    /// Free memory.
    pub free_bytes: u64,
    /// Huge pages that could be given at once.
    pub huge_pages: u64,
    /// Share of the free memory that is in pieces too small for a huge page.
    pub unusable: f64,
    /// Why a huge page would be refused: 0 for want of memory, 1 because it is in pieces.
    pub fragmentation: Option<f64>,
}

/// Something that keeps memory in small pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObstacleReport {
    /// Stable name, e.g. `not-advised`.
    pub id: String,
    /// What it is.
    pub text: String,
    /// What would help.
    pub remedy: String,
    /// Memory that it keeps in small pages, at most.
    pub bytes: u64,
    /// Mappings that have it.
    pub mappings: u64,
    /// Huge pages that could replace the small ones, 0 if nothing can be done.
    pub huge_pages: u64,
    /// Small pages that they would replace: page faults and page table entries saved.
    pub pages: u64,
}

/// A mapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappingReport {
    /// Process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// First address, hexadecimal.
    pub start: String,
    /// Size of the range of addresses.
    pub bytes: u64,
    /// File or name, empty for anonymous memory.
    pub name: String,
    /// `anonymous`, `stack`, `shmem`, `file`, `hugetlb`, `special`.
    pub backing: String,
    /// `madvise(MADV_HUGEPAGE)` was called.
    pub is_advised: bool,
    /// In memory.
    pub resident_bytes: u64,
    /// Of those, in huge pages.
    pub huge_bytes: u64,
    /// Bytes by size of page where the administrator asks; empty if not known.
    pub sizes: BTreeMap<u64, u64>,
    /// Bytes whose pages were looked at for `sizes`; the others are taken to be alike.
    pub sizes_seen_bytes: u64,
    /// Bytes by node; empty if not known.
    pub nodes: BTreeMap<u32, u64>,
    /// Small pages whose first use was seen, by the node of the CPU.
    pub touched: BTreeMap<u32, u64>,
    /// What keeps how much of it in small pages: id and bytes.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub obstacles: Vec<(String, u64)>,
    /// Small pages that huge ones could replace.
    pub gain_pages: u64,
    /// Page tables that would not be needed.
    pub gain_table_bytes: u64,
}

/// Page faults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// How many were seen.
    pub count: u64,
    /// Time from the fault until the program went on; 0 if it was not measured.
    pub seconds: f64,
    /// The times were measured.
    pub is_timed: bool,
    /// How many the kernel counted for the same processes, with those on behalf of the kernel
    /// (`MAP_POPULATE`, pinning), which are not seen.
    pub accounted: Option<u64>,
    /// Events that were lost.
    pub lost: u64,
    /// By kind.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub kinds: Vec<FaultKind>,
    /// By code, most time first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub sites: Vec<FaultSite>,
    /// Faults at places that are not listed.
    pub left_out: u64,
}

/// Faults of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultKind {
    /// Stable name, e.g. `first-touch`.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// The longest.
    pub max_s: f64,
}

/// Faults of one kind at one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FaultSite {
    /// Their kind.
    pub kind: String,
    /// How many.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// The longest.
    pub max_s: f64,
    /// Process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// What was mapped there: a file or a name, empty for anonymous memory.
    pub object: String,
    /// System call that used the memory, empty for the program itself.
    pub syscall: String,
    /// The code.
    pub code: Code,
}

/// A place in the code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Code {
    /// The function to look at, empty if unknown.
    pub symbol: String,
    /// Program or library.
    pub module: String,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// The call stack, innermost first.
    #[serde(deserialize_with = "bounded::<_, _, FRAMES_MAX>")]
    pub stack: Vec<String>,
}

/// The address-space lock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MmapLock {
    /// Waits by operation of the waiter, most time first.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub waits: Vec<LockRow>,
    /// How long it was held was asked for.
    pub has_holds: bool,
    /// How long it was held, by operation of the holder.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub holds: Vec<LockRow>,
    /// Those of `holds` by processes that are not watched, and their waits, which are not in `waits`.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub strangers: Vec<LockStranger>,
    /// Waits by code.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub sites: Vec<LockSite>,
}

/// Waits or holds of one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockRow {
    /// `mmap`, `munmap`, `fault`, `proc-reader`, ...
    pub operation: String,
    /// `read` or `write`.
    pub mode: String,
    /// How many.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// The longest.
    pub max_s: f64,
    /// 99 of 100 were shorter, to a hundredth; `None` if only sums are known.
    pub p99_s: Option<f64>,
}

/// Holds and waits of processes of one name that are not watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockStranger {
    /// What they did.
    pub operation: String,
    /// `read` or `write`.
    pub mode: String,
    /// Holds.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// The longest.
    pub max_s: f64,
    /// Waits.
    pub waits: u64,
    /// All together.
    pub waited_s: f64,
    /// The longest.
    pub waited_max_s: f64,
    /// Name of their process.
    pub process: String,
    /// How many processes have it.
    pub processes: u64,
    /// Process whose lock it was.
    pub of_pid: u32,
    /// Its name.
    pub of_process: String,
}

/// Waits of one operation at one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockSite {
    /// Operation of the waiter.
    pub operation: String,
    /// `read` or `write`.
    pub mode: String,
    /// How many.
    pub count: u64,
    /// All together.
    pub seconds: f64,
    /// The longest.
    pub max_s: f64,
    /// Process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// The code.
    pub code: Code,
}

/// Misses of the translation lookaside buffers in user code.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tlb {
    /// Instructions.
    pub instructions: f64,
    /// Misses on the data side.
    pub data_misses: Option<f64>,
    /// Misses on the instruction side.
    pub instruction_misses: Option<f64>,
    /// Per thousand instructions.
    pub data_per_thousand: Option<f64>,
    /// Per thousand instructions.
    pub instruction_per_thousand: Option<f64>,
    /// Smallest share of the time that a counter was counting; below 1 figures are scaled.
    pub counted: f64,
}

/// Placement on nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Numa {
    /// By node.
    #[serde(deserialize_with = "bounded::<_, _, ITEMS_MAX>")]
    pub nodes: Vec<Node>,
    /// Share of the accesses that go to another node, if threads run where they used memory first and all
    /// use all memory alike.
    pub remote: Option<f64>,
    /// Share of the memory on the node that has most.
    pub concentration: f64,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// Memory of the processes that is on it.
    pub bytes: u64,
    /// Small pages that its CPUs used first while it was watched.
    pub touched: u64,
}

/// The kernel's own address ranges.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vmalloc {
    /// Ranges allocated.
    pub allocs: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Ranges refused.
    pub failed: u64,
    /// Ranges given back.
    pub frees: u64,
    /// Times that all CPUs were interrupted to forget them.
    pub purges: u64,
    /// Ranges that became free thereby.
    pub purged: u64,
    /// Most bytes that waited for it.
    pub lazy_bytes_max: u64,
    /// Who allocated.
    #[serde(deserialize_with = "bounded::<_, _, SITES_MAX>")]
    pub sites: Vec<VmallocSite>,
}

/// Who allocated address ranges of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VmallocSite {
    /// Process, 0 for all others together.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// System call, empty outside of one.
    pub syscall: String,
    /// Ranges.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// The largest.
    pub max_bytes: u64,
}
