//! What the runtime shows of itself: its variables, and which thread runs where.

mod affinity;
mod environment;

pub use affinity::{Captured, FormatError, Place, SHOWN_BYTES_MAX, affinity, capture, show};
pub use environment::environment;
