//! `spread` beside shared atomics, locks, and the crates that people use.

mod counters;
mod histograms;
mod locks;
mod masks;
mod measure;

use amdahl_figures::Figure;

use crate::Effort;

/// Measures; tells on standard error what it is at.
pub fn figures(effort: &Effort) -> Vec<Figure> {
    // More threads would need CPUs that share nothing but memory to say more.
    let threads = amdahl_topology::allowed().map_or(1, |cpus| cpus.len().min(2));
    [
        counters::figures,
        masks::figures,
        histograms::figures,
        locks::figures,
    ]
    .iter()
    .flat_map(|part| part(effort, threads))
    .collect()
}
