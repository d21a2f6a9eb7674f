//! `range-alloc` beside other allocators of address ranges.

mod cases;
mod clock;
mod crates;
mod random;
mod red_black;
mod rivals;
mod steady;
mod threads;
mod traces;

use amdahl_figures::Figure;

use crate::Effort;

/// Measures; tells on standard error what it is at.
pub fn figures(effort: &Effort) -> Vec<Figure> {
    let clock = clock::Clock::new();
    let mut all = steady::figures(effort, &clock);
    all.extend(cases::figures(effort));
    all.extend(traces::figures(effort));
    all.extend(threads::figures(effort));
    all
}
