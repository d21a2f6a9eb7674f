//! What the scheduler did, as `amdahl sched` tells it: schema, terminal, page, pictures.

mod check;
pub mod csv;
pub mod html;
pub mod load;
pub mod picture;
pub mod schema;
pub mod terminal;
pub mod timelines;

pub use check::to_json;

/// Name of the picture of threads on CPUs in the folder of a result.
pub const PICTURE_FILE: &str = "threads-on-cpus.svg";
/// Name of the picture of what threads did over time.
pub const TIMELINES_FILE: &str = "threads-over-time.svg";
/// Name of the folder of events in the folder of a result.
pub const EVENTS_FOLDER: &str = "events";
