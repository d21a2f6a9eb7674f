//! Rows of the steady state: random sizes, alignments and zones at 10^3 to 10^6 live blocks.

use std::time::Duration;

use amdahl_figures::{Figure, Target, Unit};

use super::clock::{Clock, percentile};
use super::crates::{FreeSet, GfxRangeAlloc, VmAllocator, Vmem};
use super::random::{ISSUE, Mix, Run, Times, arena};
use super::rivals::{
    Adopt, Allocator, AskedPlainly, BestFit, ExactRule, FirstFit, KernelRule, Ours, Trees,
};
use crate::Effort;

/// Live blocks.
const SIZES: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];

const KERNEL: &str = "red-black tree, kernel's rule";
const EXACT: &str = "red-black tree, exact";
const FIRST_FIT: &str = "BTreeMap first fit";
/// Not a rival, but another policy.
const OWN_BEST_FIT: &str = "policy best fit";
/// It has neither alignments that work nor zones, so that ours is measured at its task as well.
const VMEM: &str = "crate vmem";

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let clock = Clock::new();
    let sizes = if effort.quick { &SIZES[..2] } else { &SIZES };
    let all = sizes.iter().flat_map(|live| at(effort, &clock, *live));
    all.chain(classes(effort, &clock)).collect()
}

/// Alignments up to 2^15 and up to 2^40, all of them in one arena: more than the nine of the other rows, which is what the
/// exact tree beside has sums for. Sixteen are one group of maxima, 41 are three, and need words of 64 bits.
fn classes(effort: &Effort, clock: &Clock) -> Vec<Figure> {
    let sizes = if effort.quick {
        &SIZES[..1]
    } else {
        &SIZES[1..]
    };
    let rows = [15, 40].map(|align| {
        // Zones as there are hold none of the large alignments.
        let mix = Mix {
            align,
            zoned: 0,
            ..ISSUE
        };
        let all = sizes.iter().map(move |live| (*live, mix.clone()));
        let all = all.map(|(live, mix)| of_classes(effort, clock, live, &mix));
        all.flatten().collect::<Vec<_>>()
    });
    rows.into_iter().flatten().collect()
}

fn of_classes(effort: &Effort, clock: &Clock, live: u64, mix: &Mix) -> Vec<Figure> {
    let classes = mix.align + 1;
    eprintln!("alloc: {live} live blocks, {classes} alignments");
    // Those of the largest alignment have four times the room that they need; half of it others lie in, whose alignment is smaller.
    let arena = 0..(live / classes + 2) << (mix.align + 2);
    let long = Duration::from_secs(60);
    let mut ours = Run::new(Ours::new(arena.clone()), live, mix);
    ours.fill(long);
    let mut kernel = Run::new(Trees::<KernelRule>::new(arena), live, mix);
    kernel.fill(long);
    let rounds = if effort.quick { 3 } else { 7 };
    let limit = Duration::from_millis(if effort.quick { 60 } else { 100 });
    for _ in 0..rounds {
        ours.measure(clock, 20_000, limit);
        kernel.measure(clock, 20_000, limit);
    }
    ours.times.sort();
    kernel.times.sort();
    let refused = format!("{} and {} requests refused", kernel.refused, ours.refused);
    let rows = KINDS.iter().flat_map(|(kind, of)| {
        let refused = &refused;
        let (ours, kernel) = (of(&ours.times), of(&kernel.times));
        RANKS.map(move |(which, share)| {
            let ns = percentile(ours, share);
            Figure {
                name: format!("{KERNEL} / ours: {classes} alignments: {kind} {which}, {live} live"),
                value: Ok(percentile(kernel, share) / ns.max(0.1)),
                unit: Unit::Ratio,
                target: Target::Stated,
                versus: format!("{ns:.0} ns, {} operations; {refused}", ours.len()),
            }
        })
    });
    rows.collect()
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
        (KERNEL, Box::new(kernel)),
        (EXACT, Box::new(exact)),
        (FIRST_FIT, adopted::<FirstFit>(live, &layout)),
        (OWN_BEST_FIT, adopted::<BestFit>(live, &layout)),
        (
            "crate vm-allocator",
            filled(VmAllocator::new(arena(live)), live, short),
        ),
        ("crate range-alloc", gfx(live, &layout, short)),
        ("crate rangemap", adopted::<FreeSet>(live, &layout)),
        (VMEM, filled(Vmem::new(arena(live)), live, short)),
    ];
    let mut plain = Run::new(AskedPlainly::new(arena(live)), live, &ISSUE);
    plain.fill(long);
    let rounds = if effort.quick { 3 } else { 7 };
    let limit = Duration::from_millis(if effort.quick { 60 } else { 100 });
    for _ in 0..rounds {
        ours.measure(clock, 20_000, limit);
        plain.measure(clock, 20_000, limit);
        for (_, rival) in &mut rivals {
            rival.measure(clock, 20_000, limit);
        }
    }
    ours.times.sort();
    plain.times.sort();
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
        all.extend(against(name, rival.as_ref(), "ours", &ours.times, live));
        if *name == VMEM {
            let asked = "ours, asked as plainly";
            all.extend(against(name, rival.as_ref(), asked, &plain.times, live));
        }
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

type TimesOf = fn(&Times) -> &[f32];

/// What is timed.
const KINDS: [(&str, TimesOf); 3] = [
    ("alloc", |times| &times.alloc),
    ("free", |times| &times.free),
    ("alloc and free", |times| &times.turn),
];

/// Where in the order of times.
const RANKS: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.99", 0.9999)];

fn own(live: u64, times: &Times, rounds: usize) -> Vec<Figure> {
    let rows = KINDS.iter().flat_map(|(kind, of)| {
        RANKS.map(move |(which, share)| Figure {
            name: format!("{kind} {which}, {live} live"),
            value: Ok(percentile(of(times), share)),
            unit: Unit::Ns,
            target: Target::Stated,
            versus: format!("{} operations in {rounds} rounds", of(times).len()),
        })
    });
    rows.collect()
}

/// What is demanded of a rival's time in relation to ours.
///
/// Of the tree with the kernel's rule 2, for each operation. A first fit over a map takes its time for the search, so that 10 is demanded of
/// allocations and of both operations together, but not of a free, in which nothing is searched for. Of the crates 1, for the same: whoever frees has
/// allocated, and may wait for the first alone. That holds for vmem as well, though its allocation has an easier task: any range
/// that is large enough, in no order.
fn target(name: &str, kind: &str, which: &str, live: u64) -> Target {
    if which == "p99.99" {
        return Target::Stated;
    }
    match name {
        KERNEL => Target::AtLeast(2.0),
        FIRST_FIT if live >= 10_000 && kind != "free" => Target::AtLeast(10.0),
        _ if name.starts_with("crate") && kind != "free" => Target::AtLeast(1.0),
        _ => Target::Stated,
    }
}

fn against(name: &str, rival: &dyn Measured, than: &str, ours: &Times, live: u64) -> Vec<Figure> {
    let times = rival.times();
    let versus = format!(
        "{} operations with {} live, {} requests refused",
        times.turn.len(),
        rival.live(),
        rival.refused()
    );
    let rows = KINDS.iter().flat_map(|(kind, of)| {
        let versus = &versus;
        RANKS.map(move |(which, share)| Figure {
            name: format!("{name} / {than}: {kind} {which}, {live} live"),
            value: Ok(percentile(of(times), share) / percentile(of(ours), share).max(0.1)),
            unit: Unit::Ratio,
            target: target(name, kind, which, live),
            versus: versus.clone(),
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows that have a target were stated without a limit.
    #[test]
    fn each_target_is_a_row_with_a_limit() {
        let limit = |name, kind, which, live| match target(name, kind, which, live) {
            Target::AtLeast(limit) => Some(limit),
            _ => None,
        };
        for which in ["p50", "p99"] {
            for kind in ["alloc", "free", "alloc and free"] {
                assert_eq!(limit(KERNEL, kind, which, 1000), Some(2.0));
            }
            for kind in ["alloc", "alloc and free"] {
                assert_eq!(limit(FIRST_FIT, kind, which, 1000), None);
                assert_eq!(limit(FIRST_FIT, kind, which, 10_000), Some(10.0));
                assert_eq!(limit("crate vmem", kind, which, 1000), Some(1.0));
            }
            assert_eq!(limit(EXACT, "alloc", which, 1000), None);
        }
        assert_eq!(limit(KERNEL, "alloc", "p99.99", 1000), None);
    }

    #[test]
    fn more_classes_than_nine_are_measured() {
        let few = Effort { quick: true };
        let rows = classes(&few, &Clock::new());
        for row in &rows {
            assert!(row.value.is_ok(), "{row:?}");
            assert!(
                row.versus.ends_with("; 0 and 0 requests refused"),
                "{row:?}"
            );
        }
        for classes in ["16 alignments", "41 alignments"] {
            assert!(rows.iter().any(|row| row.name.contains(classes)));
        }
    }
}
