//! Rows of the steady state: random sizes, alignments and zones at 10^3 to 10^6 live blocks.

use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit};

use super::clock::{Clock, percentile};
use super::crates::{FreeSet, GfxRangeAlloc, VmAllocator, Vmem};
use super::random::{ISSUE, Run, Times, arena};
use super::rivals::{Adopt, Allocator, BestFit, ExactRule, FirstFit, KernelRule, Ours, Trees};
use crate::Effort;

/// Live blocks.
const SIZES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];

/// Not a rival, but another policy.
const OWN_BEST_FIT: &str = "policy best fit";

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let clock = Clock::new();
    let sizes = if effort.quick { &SIZES[..2] } else { &SIZES };
    sizes
        .iter()
        .flat_map(|live| at(effort, &clock, *live))
        .collect()
}

/// Something that is measured in turn with others.
trait Measured {
    fn measure(&mut self, clock: &Clock, turns: usize, limit: Duration);
    fn sort(&mut self);
    fn times(&self) -> &Times;
    fn live(&self) -> usize;
    fn refused(&self) -> u64;
}

impl<A: Allocator> Measured for Run<A> {
    fn measure(&mut self, clock: &Clock, turns: usize, limit: Duration) {
        Run::measure(self, clock, turns, limit);
    }
    fn sort(&mut self) {
        self.times.sort();
    }
    fn times(&self) -> &Times {
        &self.times
    }
    fn live(&self) -> usize {
        self.live.len()
    }
    fn refused(&self) -> u64 {
        self.refused
    }
}

fn filled<A: Allocator + 'static>(allocator: A, live: u64, limit: Duration) -> Box<dyn Measured> {
    let mut run = Run::new(allocator, live, &ISSUE);
    run.fill(limit);
    Box::new(run)
}

fn adopted<A: Adopt + 'static>(live: u64, layout: &[(u64, u64)]) -> Box<dyn Measured> {
    let allocator = A::adopt(arena(live), layout);
    Box::new(Run::adopt(allocator, layout.to_vec(), &ISSUE))
}

/// It takes a layout over in O(n^2).
fn gfx(live: u64, layout: &[(u64, u64)], limit: Duration) -> Box<dyn Measured> {
    if live > 50_000 {
        filled(GfxRangeAlloc::new(arena(live)), live, limit)
    } else {
        adopted::<GfxRangeAlloc>(live, layout)
    }
}

fn at(effort: &Effort, clock: &Clock, live: u64) -> Vec<Figure> {
    eprintln!("alloc: {live} live blocks");
    let long = Duration::from_secs(60);
    let mut ours = Run::new(Ours::new(arena(live)), live, &ISSUE);
    ours.fill(long);
    let mut kernel = Run::new(Trees::<KernelRule>::new(arena(live)), live, &ISSUE);
    kernel.fill(long);
    let mut exact = Run::new(Trees::<ExactRule>::new(arena(live)), live, &ISSUE);
    exact.fill(long);
    let layout = ours.layout();
    let differ = exact
        .layout()
        .iter()
        .zip(&layout)
        .filter(|(a, b)| a != b)
        .count();
    let height =
        |layout: &[(u64, u64)]| layout.last().map_or(0, |(start, size)| start + size) as f64;
    let higher = height(&kernel.layout()) / height(&layout);
    let bytes = ours.allocator.0.stats().footprint_bytes as f64 / live as f64;

    let short = Duration::from_secs(if effort.quick { 1 } else { 2 });
    let mut rivals: Vec<(&str, Box<dyn Measured>)> = vec![
        ("red-black tree, kernel's rule", Box::new(kernel)),
        ("red-black tree, exact", Box::new(exact)),
        ("BTreeMap first fit", adopted::<FirstFit>(live, &layout)),
        (OWN_BEST_FIT, adopted::<BestFit>(live, &layout)),
        (
            "crate vm-allocator",
            filled(VmAllocator::new(arena(live)), live, short),
        ),
        ("crate range-alloc", gfx(live, &layout, short)),
        ("crate rangemap", adopted::<FreeSet>(live, &layout)),
        ("crate vmem", filled(Vmem::new(arena(live)), live, short)),
    ];
    let rounds = if effort.quick { 3 } else { 7 };
    let limit = Duration::from_millis(if effort.quick { 60 } else { 100 });
    for _ in 0..rounds {
        ours.measure(clock, 20_000, limit);
        for (_, rival) in &mut rivals {
            rival.measure(clock, 20_000, limit);
        }
    }
    ours.times.sort();
    rivals.iter_mut().for_each(|(_, rival)| rival.sort());

    let mut all = own(live, &ours.times, rounds);
    all.push(Figure {
        name: format!("blocks placed otherwise than an exact search does, {live} live"),
        value: Ok(differ as f64),
        unit: Unit::Ratio,
        target: Target::AtMost(0.0),
        versus: "an exact red-black tree after the same requests".to_owned(),
    });
    all.push(stated(
        format!("highest address, kernel's rule / ours, {live} live"),
        higher,
    ));
    all.push(stated(
        format!("bytes of bookkeeping a block, {live} live"),
        bytes,
    ));
    for (name, rival) in &rivals {
        all.extend(against(name, rival.as_ref(), &ours.times, live));
    }
    all
}

fn stated(name: String, value: f64) -> Figure {
    Figure {
        name,
        value: Ok(value),
        unit: Unit::Ratio,
        target: Target::Stated,
        versus: String::new(),
    }
}

fn own(live: u64, times: &Times, rounds: usize) -> Vec<Figure> {
    let kinds = [("alloc", &times.alloc), ("free", &times.free)];
    let rows = kinds.iter().flat_map(|(kind, times)| {
        let shares = [("p50", 0.5), ("p99", 0.99), ("p99.99", 0.9999)];
        shares.map(move |(which, share)| Figure {
            name: format!("{kind} {which}, {live} live"),
            value: Ok(percentile(times, share)),
            unit: Unit::Ns,
            target: Target::Stated,
            versus: format!("{} operations in {rounds} rounds", times.len()),
        })
    });
    rows.collect()
}

fn against(name: &str, rival: &dyn Measured, ours: &Times, live: u64) -> Vec<Figure> {
    let times = rival.times();
    let ratio = |share: f64, of: fn(&Times) -> &Vec<f32>| {
        percentile(of(times), share) / percentile(of(ours), share).max(0.1)
    };
    let versus = format!(
        "{} operations with {} live, {} requests refused",
        times.turn.len(),
        rival.live(),
        rival.refused()
    );
    let row = |what: &str, value: f64, target: Target| Figure {
        name: format!("{name} / ours: {what}, {live} live"),
        value: Ok(value),
        unit: Unit::Ratio,
        target,
        versus: versus.clone(),
    };
    let (median, p99) = (0.5, 0.99);
    if name.starts_with("red-black") {
        let target = if name.ends_with("rule") {
            Target::AtLeast(2.0)
        } else {
            Target::Stated
        };
        return vec![
            row("alloc p50", ratio(median, |t| &t.alloc), target),
            row("alloc p99", ratio(p99, |t| &t.alloc), target),
            row("free p50", ratio(median, |t| &t.free), target),
            row("free p99", ratio(p99, |t| &t.free), target),
            row(
                "alloc and free p50",
                ratio(median, |t| &t.turn),
                Target::Stated,
            ),
        ];
    }
    let target = match name {
        "BTreeMap first fit" if live >= 10_000 => Target::AtLeast(10.0),
        "BTreeMap first fit" | OWN_BEST_FIT => Target::Stated,
        _ => Target::AtLeast(1.0),
    };
    vec![
        row(
            "alloc p50",
            ratio(median, |t| &t.alloc),
            if name.starts_with("crate") {
                Target::Stated
            } else {
                target
            },
        ),
        row(
            "alloc and free p50",
            ratio(median, |t| &t.turn),
            if name.starts_with("crate") {
                target
            } else {
                Target::Stated
            },
        ),
    ]
}
