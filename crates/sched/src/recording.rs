//! Events in files.
//!
//! A recording is a folder of *parts*, `000001.parquet` and so on. Each part is a complete Parquet file of
//! up to 262,144 events in order of time, and names the threads that occur in it, so that
//! parts can be read alone, in any tool, and the oldest can be removed. A part appears whole, by a rename: what a
//! writer that is killed loses is the part that it had in memory.
//!
//! | column | type | what |
//! |---|---|---|
//! | `ts` | int64 | nanoseconds of the monotonic clock |
//! | `kind` | text | `switch`, `waking`, `migrate`, `fork`, `thread`, `allowed`, `lost` |
//! | `cpu` | uint32 | where; of `migrate` and `fork`: the run queue that the thread comes to |
//! | `tid` | uint32 | who: of `switch` who leaves, of `waking` who is woken |
//! | `other` | uint32 | of `switch` who comes, of `waking` who wakes, of `fork` the parent, of `thread` its process, of `lost` how many |
//! | `detail` | text | of `switch`: `preempted`, `yielded`, `blocked`, `iowait`, `unint`, `unint-iowait`, `exited`; of `waking`: `thread`, `timer`, `interrupt`; of `thread`: `kernel`, `user`; of `allowed`: `everywhere`, `list` |
//! | `place` | uint32 | of `waking` the CPU where the woken thread last ran, of `migrate` the run queue that it leaves, of `fork` the process |
//! | `text` | text | of `thread` its name, of `allowed` the CPUs as a list |
//!
//! Times are delta-encoded, the rest are dictionaries; all of it is compressed by zstd. That makes some 4 to 6 bytes of an event.

mod folder;
mod read;
mod row;
mod write;

pub use folder::{FolderError, FolderReader, FolderWriter, Kept, Window, is_part};
pub use read::{Part, ReadError, read_part};
pub use write::{Meta, PartWriter, WriteError};

/// Name and version of the format, in the metadata of each part.
pub const SCHEMA: &str = "amdahl.sched-events/1";
/// Events of a part at most, facts about its threads not counted.
pub const PART_EVENTS_MAX: usize = 1 << 18;
/// Rows of a part at most; files with more are refused.
const PART_ROWS_MAX: usize = 1 << 20;
