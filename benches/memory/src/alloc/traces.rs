//! What this kernel and real programs asked for, replayed: `traces/README.md`.

use std::collections::VecDeque;
use std::time::Instant;

use amdahl_figures::{Figure, Target, Unit};

use super::rivals::{Ask, KernelRule, Ours, Replays, Trees};
use crate::Effort;
use amdahl_figures::median;

const TRACES: [(&str, &str); 4] = [
    ("vmalloc", include_str!("../../traces/vmalloc.trace")),
    ("compile job", include_str!("../../traces/compile.trace")),
    ("JVM", include_str!("../../traces/jvm.trace")),
    ("database", include_str!("../../traces/database.trace")),
];

enum Step {
    At(u64, u64),
    Alloc(Ask),
    Free(usize),
    FreeLazy(usize),
    FreePart(usize, u64, u64),
    Purge,
}

/// One address space.
struct Space {
    range: std::ops::Range<u64>,
    steps: Vec<Step>,
    /// Blocks that the steps allocate.
    blocks: usize,
}

fn parse(text: &str) -> Vec<Space> {
    let mut spaces: Vec<Space> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let kind = words.next().expect("a word on each line");
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        let block = || numbers[0] as usize;
        let step = match kind {
            "arena" => {
                spaces.push(Space {
                    range: numbers[0]..numbers[1],
                    steps: Vec::new(),
                    blocks: 0,
                });
                continue;
            }
            "b" => Step::At(numbers[0], numbers[1]),
            "a" => Step::Alloc(Ask {
                size: numbers[0],
                align: numbers[1],
                zone: (numbers.len() > 2).then(|| numbers[2]..numbers[3]),
            }),
            "f" => Step::Free(block()),
            "l" => Step::FreeLazy(block()),
            "c" => Step::FreePart(block(), numbers[1], numbers[2]),
            "g" => Step::Purge,
            other => panic!("no step {other}"),
        };
        let space = spaces.last_mut().expect("an arena comes first");
        space.blocks += usize::from(matches!(step, Step::At(..) | Step::Alloc(_)));
        space.steps.push(step);
    }
    spaces
}

/// Replays; answers with the steps and the requests that were refused.
fn replay(allocator: &mut dyn Replays, space: &Space) -> (usize, usize) {
    let mut starts = Vec::with_capacity(space.blocks);
    let (mut steps, mut refused) = (0, 0);
    for step in &space.steps {
        steps += 1;
        let start = |block: &usize| -> Option<(u64, u64)> { starts[*block] };
        match step {
            Step::At(at, size) => {
                allocator.alloc_at(*at, *size);
                starts.push(Some((*at, *size)));
            }
            Step::Alloc(ask) => {
                let found = allocator.alloc(ask);
                refused += usize::from(found.is_none());
                starts.push(found.map(|start| (start, ask.size)));
            }
            Step::Free(block) => {
                if let Some((start, size)) = start(block) {
                    allocator.free(start, size);
                }
            }
            Step::FreeLazy(block) => {
                if let Some((start, size)) = start(block) {
                    allocator.free_lazy(start, size);
                }
            }
            Step::FreePart(block, offset, size) => {
                if let Some((start, _)) = start(block) {
                    allocator.free_part(start + offset, *size);
                }
            }
            Step::Purge => allocator.purge(),
        }
    }
    (steps, refused)
}

/// Nanoseconds of a step, and how many were refused.
fn time<A: Replays>(spaces: &[Space], new: fn(std::ops::Range<u64>) -> A) -> (f64, usize) {
    let mut allocators: VecDeque<A> = spaces
        .iter()
        .map(|space| new(space.range.clone()))
        .collect();
    let begun = Instant::now();
    let (mut steps, mut refused) = (0, 0);
    for (space, allocator) in spaces.iter().zip(&mut allocators) {
        let (more, none) = replay(allocator, space);
        steps += more;
        refused += none;
    }
    (begun.elapsed().as_nanos() as f64 / steps as f64, refused)
}

pub fn figures(effort: &Effort) -> Vec<Figure> {
    let rounds = if effort.quick { 9 } else { 51 };
    let rows = TRACES.map(|(name, text)| {
        eprintln!("alloc: trace of {name}");
        let spaces = parse(text);
        let (mut kernel, mut ours) = (Vec::new(), Vec::new());
        let mut refused = (0, 0);
        for _ in 0..rounds {
            let (ns, none) = time(&spaces, Trees::<KernelRule>::new);
            kernel.push(ns);
            refused.0 = none;
            let (ns, none) = time(&spaces, Ours::new);
            ours.push(ns);
            refused.1 = none;
        }
        let ns = median(ours.clone());
        Figure {
            name: format!("red-black tree, kernel's rule / ours: trace of {name}"),
            value: Ok(median(kernel) / median(ours)),
            unit: Unit::Ratio,
            target: Target::AtLeast(1.0),
            versus: format!(
                "{ns:.0} ns a step, {rounds} replays; {} and {} requests refused",
                refused.0, refused.1
            ),
        }
    });
    rows.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_is_read_and_every_request_met() {
        for (name, text) in TRACES {
            let spaces = parse(text);
            assert!(
                spaces.iter().map(|space| space.steps.len()).sum::<usize>() > 1000,
                "{name}"
            );
            assert_eq!(time(&spaces, Ours::new).1, 0, "{name}");
            time(&spaces, Trees::<KernelRule>::new);
        }
    }
}
