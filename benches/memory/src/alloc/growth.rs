//! The longest single allocation while an arena grows.

use amdahl_figures::{Figure, Target, Unit, median};
use amdahl_range_alloc::{RangeAlloc, Request};

use super::clock::{Clock, percentile};
use super::random::{ISSUE, Random, arena};
use crate::Effort;

/// Blocks at the end.
const BLOCKS: usize = 1_000_000;

/// What allocations take until there are so many blocks, sorted.
fn grown(clock: &Clock, blocks: usize, reserves: bool) -> Vec<f32> {
    let mut all = RangeAlloc::new(arena(blocks as u64)).expect("an arena");
    for bits in 0..=ISSUE.align {
        all.prepare(1 << bits, 0).expect("there is memory");
    }
    if reserves {
        all.reserve(blocks).expect("there is memory");
    }
    let mut random = Random::new(7);
    let mut times = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        let request = Request::new(1 + random.below(ISSUE.size));
        let request = request.align(1 << random.below(ISSUE.align + 1));
        let from = clock.now();
        let start = all.alloc(&request);
        let to = clock.now();
        start.expect("there is space");
        times.push(clock.ns(from, to));
    }
    times.sort_unstable_by(f32::total_cmp);
    times
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    eprintln!("alloc: growth");
    let clock = Clock::new();
    let rounds = if effort.quick { 1 } else { 5 };
    let blocks = if effort.quick { BLOCKS / 10 } else { BLOCKS };
    let kinds = [("without reserve", false), ("reserved", true)];
    let mut longest = [Vec::new(), Vec::new()];
    let mut usual = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (at, (_, reserves)) in kinds.iter().enumerate() {
            let times = grown(&clock, blocks, *reserves);
            longest[at].push(percentile(&times, 1.0));
            usual[at].push(percentile(&times, 0.9999));
        }
    }
    let rows = kinds.iter().zip(longest).zip(usual);
    rows.map(|(((kind, _), longest), usual)| Figure {
        name: format!("longest allocation while growing to {blocks} blocks, {kind}"),
        value: Ok(median(longest)),
        unit: Unit::Ns,
        target: Target::Stated,
        versus: format!("p99.99 {:.0} ns; median of {rounds}", median(usual)),
    })
    .collect()
}
