//! `spread` beside shared atomics, locks, and the crates that people use.

mod counters;
mod measure;

use amdahl_figures::Figure;

use crate::Effort;

/// Measures; tells on standard error what it is at.
pub fn figures(effort: &Effort) -> Vec<Figure> {
    counters::figures(effort)
}
