//! Sequences of operations on an allocator of ranges, beside a list that is searched from its
//! beginning; and its layout as text.

#[path = "../../../crates/range-alloc/tests/model/mod.rs"]
mod model;
#[path = "../../../crates/range-alloc/tests/model/shared.rs"]
mod shared;

use amdahl_range_alloc::{Policy, RangeAlloc, Request};
use model::{Ask, Model};

/// Numbers out of bytes; zeros when they are used up.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn byte(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        u64::from(*first)
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | self.byte())
    }

    /// Mostly small, at times anything.
    fn size(&mut self) -> u64 {
        match self.byte() {
            255 => self.word(),
            254 => self.byte() << 8,
            small => small % 80,
        }
    }
}

const SPAN: u64 = 3000;

fn ask(numbers: &mut Numbers, start: u64) -> Ask {
    let kind = numbers.byte();
    let align = match kind % 16 {
        0 => numbers.size(),
        shift => 1 << (shift % 10),
    };
    let zone = if kind & 0x10 != 0 {
        let from = start.saturating_add(numbers.byte() * 12);
        from..from.saturating_add(numbers.byte() * 12)
    } else {
        0..u64::MAX
    };
    Ask {
        size: numbers.size(),
        align,
        phase: if kind & 0x20 != 0 { numbers.byte() } else { 0 },
        zone,
        policy: match kind >> 6 {
            0 | 1 => Policy::LowestAddress,
            2 => Policy::NextFit,
            _ => Policy::BestFit,
        },
    }
}

/// Alignment and phase to prepare for, some of which there are not.
fn grid(numbers: &mut Numbers) -> (u64, u64) {
    let align = match numbers.byte() {
        255 => 0,
        254 => numbers.size(),
        shift => 1 << (shift % 44),
    };
    (align, numbers.byte())
}

/// Stands before what is done with the form for many threads.
const SHARED: u64 = 255;

/// The first byte says where the arena lies and its granule, the others what is done.
pub fn operations(bytes: &[u8]) {
    let mut numbers = Numbers(bytes);
    let head = numbers.byte();
    if head == SHARED {
        return shared_operations(&mut numbers);
    }
    let granule = [1, 1, 4, 16][head as usize % 4];
    // The second is too long for words of 32 bits.
    let span = [SPAN, 1 << 37][usize::from(head & 8 != 0)];
    let start = match head & 4 {
        0 => head * 16,
        _ => (u64::MAX - 2 * span) & !15,
    };
    let range = start..start + span / 16 * 16;
    let mut arena = RangeAlloc::with_granule(range.clone(), granule).expect("an arena");
    let mut model = Model::new(range.clone(), granule);
    let mut live = Vec::new();
    if head & 24 == 24 {
        // What is done is done where words of 32 bits end.
        let reach = u64::from(u32::MAX) * granule;
        let below = reach - 16 * head;
        assert_eq!(arena.alloc_at(start, below), model.alloc_at(start, below));
    }
    while !numbers.0.is_empty() {
        let kind = numbers.byte();
        let pick = |live: &[u64], n: u64| match live.len() {
            0 => start,
            len => live[n as usize % len],
        };
        match kind % 8 {
            0..=3 => {
                let ask = ask(&mut numbers, start);
                let request = Request::new(ask.size)
                    .align(ask.align)
                    .phase(ask.phase)
                    .zone(ask.zone.clone())
                    .policy(ask.policy);
                let found = arena.alloc(&request);
                assert_eq!(found, model.alloc(&ask), "{ask:?}");
                live.extend(found);
            }
            4 => {
                let at = start.saturating_add(numbers.byte() * 12);
                let size = numbers.size();
                let found = arena.alloc_at(at, size);
                assert_eq!(found, model.alloc_at(at, size));
                if found.is_ok() {
                    live.push(at);
                }
            }
            5 => {
                let at = pick(&live, numbers.byte());
                assert_eq!(arena.free(at), model.free(at));
                live.retain(|kept| *kept != at);
            }
            6 => {
                let at = pick(&live, numbers.byte()).saturating_add(numbers.byte() % 64);
                let size = numbers.size();
                assert_eq!(arena.free_part(at, size), model.free_part(at, size));
            }
            _ if kind & 8 == 0 => {
                let at = pick(&live, numbers.byte());
                assert_eq!(arena.free_lazy(at), model.free_lazy(at));
            }
            _ => match kind >> 4 & 3 {
                1 => {
                    let (align, phase) = grid(&mut numbers);
                    let prepared = arena.prepare(align, phase);
                    assert_eq!(prepared, model.prepare(align, phase));
                }
                2 => model::reserve(&mut arena, numbers.byte() as usize),
                3 => model::shrink(&mut arena),
                _ => {
                    let mut told = Vec::new();
                    arena.purge(|range| told.push(range));
                    assert_eq!(told, model.purge());
                }
            },
        }
    }
    let segments: Vec<_> = arena.iter().collect();
    assert_eq!(segments, model.segments());
    for segment in segments {
        assert_eq!(
            arena.lookup(segment.range.start).map(|found| found.range),
            model.lookup(segment.range.start)
        );
    }
    assert!(
        model
            .gaps()
            .iter()
            .all(|gap| gap.end - gap.start <= arena.stats().largest_free)
    );
}

/// The same in the form for many threads, by one of them.
fn shared_operations(numbers: &mut Numbers) {
    use shared::Step;
    let head = numbers.byte();
    let granule = [1, 1, 4, 16][head as usize % 4];
    let start = match head & 4 {
        0 => head * 16,
        _ => (u64::MAX - 2 * SPAN) & !15,
    };
    let (span, slots) = (
        granule << (4 + (head >> 3) % 4),
        1 + (head >> 5 & 3) as usize,
    );
    // In half of the arenas slots keep freed blocks.
    let depth = 3 * (head >> 7) as usize;
    let steps = std::iter::from_fn(|| {
        if numbers.0.is_empty() {
            return None;
        }
        let kind = numbers.byte();
        Some(match kind % 8 {
            0..=3 => Step::Alloc(kind as usize >> 3, ask(numbers, start)),
            4 => {
                let at = start.saturating_add(numbers.byte() * 12);
                Step::AllocAt(at, numbers.size())
            }
            5 if kind & 8 == 0 => Step::Free(numbers.byte() as usize),
            5 => Step::FreeSized(numbers.byte() as usize, kind >> 4 & 1),
            6 if kind & 8 != 0 => Step::FreeAny(start.saturating_add(numbers.byte() * 12)),
            6 => {
                let (n, at) = (numbers.byte() as usize, numbers.byte() % 64);
                Step::FreePart(n, at, numbers.size())
            }
            _ if kind & 8 == 0 => Step::FreeLazy(numbers.byte() as usize),
            _ => match kind >> 4 & 3 {
                1 => {
                    let (align, phase) = grid(numbers);
                    Step::Prepare(align, phase)
                }
                2 => Step::Shrink,
                _ => Step::Purge,
            },
        })
    });
    let range = start..start + SPAN / 16 * 16;
    shared::run(range, granule, span, slots, depth, steps);
}

/// A layout as text: what was read can be written and read again.
pub fn layout(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(arena) = text.parse::<RangeAlloc>() else {
        return;
    };
    let again: RangeAlloc = arena.layout().to_string().parse().expect("it was written");
    assert!(again.iter().eq(arena.iter()));
    let _ = format!("{arena} {arena:#}");
}
