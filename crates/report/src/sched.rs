//! What the scheduler did, as `amdahl sched` tells it: schema, terminal, page, picture.

mod check;
pub mod html;
pub mod load;
pub mod picture;
pub mod schema;
pub mod terminal;

pub use check::to_json;

/// Name of the picture in the folder of a result.
pub const PICTURE_FILE: &str = "threads-on-cpus.svg";
/// Name of the folder of events in the folder of a result.
pub const EVENTS_FOLDER: &str = "events";
