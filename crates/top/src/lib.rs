//! The live screen over lock waits, scheduling and memory: results and keys in, frames and wishes
//! out.
//!
//! Pure: no terminal, no clock, no recording. Who uses it owns the terminal, feeds [`Screen::key`]
//! and [`Screen::take`], draws with [`draw()`], and does what the [`Wish`]es say. The same tables as
//! plain text, for scripts, are [`text()`].
//!
//! All names in results are foreign: control characters never reach a cell.

mod detail;
mod draw;
mod filter;
mod grid;
mod help;
mod layout;
mod screen;
mod snapshot;
mod text;
mod views;

pub use draw::draw;
pub use filter::Filter;
pub use grid::{Cell, Column, Grid, Row};
pub use screen::{Key, Order, Screen, Wish};
pub use snapshot::{By, Data, Shape, Snapshot, Tab};
pub use text::{json, text};
