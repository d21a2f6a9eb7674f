//! Other allocators of address ranges behind one trait.

use std::collections::BTreeMap;
use std::ops::Range;

use amdahl_range_alloc::{Policy, RangeAlloc, Request};

use super::red_black::{Id, NIL, RedBlack, Sum};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Ask {
    pub size: u64,
    pub align: u64,
    /// Where it may be; everywhere within the arena otherwise.
    pub zone: Option<Range<u64>>,
}

pub trait Allocator {
    fn alloc(&mut self, ask: &Ask) -> Option<u64>;
    fn free(&mut self, start: u64, size: u64);
}

/// An allocator that takes over a layout, where filling it would take hours.
pub trait Adopt: Allocator {
    /// `layout` is sorted.
    fn adopt(arena: Range<u64>, layout: &[(u64, u64)]) -> Self;
}

/// What a sorted layout leaves free.
pub fn gaps(arena: &Range<u64>, layout: &[(u64, u64)]) -> impl Iterator<Item = Range<u64>> {
    let los = std::iter::once(arena.start).chain(layout.iter().map(|(start, size)| start + size));
    let his = layout.iter().map(|(start, _)| *start).chain([arena.end]);
    los.zip(his)
        .filter(|(lo, hi)| lo < hi)
        .map(|(lo, hi)| lo..hi)
}

/// What traces ask for besides.
pub trait Replays: Allocator {
    fn alloc_at(&mut self, start: u64, size: u64);
    fn free_lazy(&mut self, start: u64, size: u64);
    fn free_part(&mut self, start: u64, size: u64);
    fn purge(&mut self);
}

/// This project's.
pub struct Ours(pub RangeAlloc);

impl Ours {
    pub fn new(arena: Range<u64>) -> Self {
        Ours(RangeAlloc::new(arena).expect("an arena"))
    }
}

impl Allocator for Ours {
    #[inline]
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let mut request = Request::new(ask.size).align(ask.align);
        if let Some(zone) = &ask.zone {
            request = request.zone(zone.clone());
        }
        self.0.alloc(&request).ok()
    }

    #[inline]
    fn free(&mut self, start: u64, size: u64) {
        let freed = self.0.free(start).expect("it is allocated");
        debug_assert_eq!(freed, size);
    }
}

/// The same, asked for no more than `vmem` is: room for an alignment instead of an alignment, and no zone.
pub struct AskedPlainly(RangeAlloc);

impl AskedPlainly {
    pub fn new(arena: Range<u64>) -> Self {
        AskedPlainly(RangeAlloc::new(arena).expect("an arena"))
    }
}

impl Allocator for AskedPlainly {
    #[inline]
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        self.0.alloc(&Request::new(ask.size + ask.align - 1)).ok()
    }

    #[inline]
    fn free(&mut self, start: u64, _size: u64) {
        self.0.free(start).expect("it is allocated");
    }
}

/// The same, the smallest gap that fits instead of the lowest.
pub struct BestFit(RangeAlloc);

impl Adopt for BestFit {
    fn adopt(arena: Range<u64>, layout: &[(u64, u64)]) -> Self {
        let mut all = RangeAlloc::new(arena).expect("an arena");
        for (start, size) in layout {
            all.alloc_at(*start, *size).expect("it is free");
        }
        BestFit(all)
    }
}

impl Allocator for BestFit {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let mut request = Request::new(ask.size).align(ask.align);
        if let Some(zone) = &ask.zone {
            request = request.zone(zone.clone());
        }
        self.0.alloc(&request.policy(Policy::BestFit)).ok()
    }

    fn free(&mut self, start: u64, _size: u64) {
        self.0.free(start).expect("it is allocated");
    }
}

impl Replays for Ours {
    fn alloc_at(&mut self, start: u64, size: u64) {
        self.0.alloc_at(start, size).expect("it is free");
    }

    fn free_lazy(&mut self, start: u64, _size: u64) {
        self.0.free_lazy(start).expect("it is allocated");
    }

    fn free_part(&mut self, start: u64, size: u64) {
        self.0.free_part(start, size).expect("it is a part");
    }

    fn purge(&mut self) {
        self.0.purge(|_| ());
    }
}

/// Two red-black trees, of free and of busy ranges. How a free range is chosen is `C`'s.
pub struct Trees<C: Choose> {
    free: RedBlack<C::Sum>,
    busy: RedBlack<()>,
    arena: Range<u64>,
    lazy: Vec<u64>,
}

/// Finds the free range for a request.
pub trait Choose {
    type Sum: Sum;
    fn choose(free: &RedBlack<Self::Sum>, ask: &Ask, from: u64) -> Option<Id>;
}

#[inline]
fn aligned(lo: u64, align: u64) -> u64 {
    (lo + align - 1) & !(align - 1)
}

#[inline]
fn holds((start, end): (u64, u64), ask: &Ask, from: u64) -> bool {
    aligned(start.max(from), ask.align) + ask.size <= end
}

/// Linux's rule: looks for size + align - 1 units, so that whatever is found fits; smaller ranges
/// that would fit are missed.
pub struct KernelRule;

impl Choose for KernelRule {
    type Sum = u64;

    fn choose(free: &RedBlack<u64>, ask: &Ask, mut from: u64) -> Option<Id> {
        let length = ask.size + ask.align - 1;
        let lower = from;
        let mut id = free.root();
        while id != NIL {
            if free.sum(free.left(id)) >= length && from < free.range(id).0 {
                id = free.left(id);
                continue;
            }
            if holds(free.range(id), ask, lower) {
                return Some(id);
            }
            if free.sum(free.right(id)) >= length {
                id = free.right(id);
                continue;
            }
            // Back to the first ancestor whose right side is still to be searched.
            loop {
                id = free.parent(id);
                if id == NIL {
                    return None;
                }
                if holds(free.range(id), ask, lower) {
                    return Some(id);
                }
                if free.sum(free.right(id)) >= length && from <= free.range(id).0 {
                    from = free.range(id).0 + 1;
                    id = free.right(id);
                    break;
                }
            }
        }
        None
    }
}

/// One maximum for each alignment of the workloads, 1 to 256: exact.
#[derive(Clone, Copy, PartialEq)]
pub struct PerAlignment([u64; 9]);

impl Sum for PerAlignment {
    const NONE: Self = PerAlignment([0; 9]);

    #[inline]
    fn of(start: u64, end: u64) -> Self {
        PerAlignment(std::array::from_fn(|shift| {
            end.saturating_sub(aligned(start, 1 << shift))
        }))
    }

    #[inline]
    fn join(self, other: Self) -> Self {
        PerAlignment(std::array::from_fn(|shift| {
            self.0[shift].max(other.0[shift])
        }))
    }
}

pub struct ExactRule;

impl Choose for ExactRule {
    type Sum = PerAlignment;

    fn choose(free: &RedBlack<PerAlignment>, ask: &Ask, from: u64) -> Option<Id> {
        let class = ask.align.trailing_zeros() as usize;
        let fits = |id: Id| free.sum(id).0[class] >= ask.size;
        // Down along the lower bound; above it the first subtree that fits has the answer.
        let (mut id, mut open) = (free.root(), [NIL; 64]);
        let mut depth = 0;
        while id != NIL {
            if free.range(id).1 <= from {
                id = free.right(id);
            } else {
                open[depth] = id;
                depth += 1;
                id = free.left(id);
                if from == 0 && !fits(id) {
                    break;
                }
            }
        }
        for at in (0..depth).rev() {
            let id = open[at];
            if holds(free.range(id), ask, from) {
                return Some(id);
            }
            let mut id = free.right(id);
            if !fits(id) {
                continue;
            }
            loop {
                if fits(free.left(id)) {
                    id = free.left(id);
                } else if holds(free.range(id), ask, from) {
                    return Some(id);
                } else {
                    id = free.right(id);
                }
            }
        }
        None
    }
}

impl<C: Choose> Trees<C> {
    pub fn new(arena: Range<u64>) -> Self {
        let mut free = RedBlack::new();
        free.insert(arena.start, arena.end);
        Trees {
            free,
            busy: RedBlack::new(),
            arena,
            lazy: Vec::new(),
        }
    }

    /// Takes a part out of a free range.
    fn take(&mut self, id: Id, start: u64, end: u64) {
        let (lo, hi) = self.free.range(id);
        match (lo == start, end == hi) {
            (true, true) => self.free.remove(id),
            (true, false) => self.free.resize(id, end, hi),
            (false, true) => self.free.resize(id, lo, start),
            (false, false) => {
                self.free.resize(id, end, hi);
                self.free.insert_at(self.free.place_below(id), lo, start);
            }
        }
    }

    /// Gives a range back, which joins its neighbours. One descent finds them and the place of a new node, as in Linux.
    fn give(&mut self, start: u64, end: u64) {
        let place = self.free.place(start);
        let (below, above) = (place.prev, place.next);
        let joins_below = below != NIL && self.free.range(below).1 == start;
        let joins_above = above != NIL && self.free.range(above).0 == end;
        match (joins_below, joins_above) {
            (false, false) => {
                self.free.insert_at(place, start, end);
            }
            (true, false) => self.free.resize(below, self.free.range(below).0, end),
            (false, true) => self.free.resize(above, start, self.free.range(above).1),
            (true, true) => {
                let (lo, hi) = (self.free.range(below).0, self.free.range(above).1);
                self.free.remove(above);
                self.free.resize(below, lo, hi);
            }
        }
    }
}

impl<C: Choose> Replays for Trees<C> {
    fn alloc_at(&mut self, start: u64, size: u64) {
        let (id, _) = self.free.neighbours(start);
        self.take(id, start, start + size);
        self.busy.insert(start, start + size);
    }

    fn free_lazy(&mut self, start: u64, _size: u64) {
        self.lazy.push(start);
    }

    fn free_part(&mut self, start: u64, size: u64) {
        let (id, _) = self.busy.neighbours(start);
        let (lo, hi) = self.busy.range(id);
        let end = start + size;
        match (lo == start, end == hi) {
            (true, true) => self.busy.remove(id),
            (true, false) => self.busy.resize(id, end, hi),
            (false, true) => self.busy.resize(id, lo, start),
            (false, false) => {
                self.busy.resize(id, end, hi);
                self.busy.insert_at(self.busy.place_below(id), lo, start);
            }
        }
        self.give(start, end);
    }

    fn purge(&mut self) {
        for start in std::mem::take(&mut self.lazy) {
            let id = self.busy.find(start).expect("it is allocated");
            let (start, end) = self.busy.range(id);
            self.busy.remove(id);
            self.give(start, end);
        }
    }
}

impl<C: Choose> Allocator for Trees<C> {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let zone = ask.zone.as_ref().unwrap_or(&self.arena);
        let id = C::choose(&self.free, ask, zone.start)?;
        let (lo, _) = self.free.range(id);
        let start = aligned(lo.max(zone.start), ask.align);
        let end = start + ask.size;
        if end > zone.end {
            return None;
        }
        self.take(id, start, end);
        self.busy.insert(start, end);
        Some(start)
    }

    fn free(&mut self, start: u64, size: u64) {
        let id = self.busy.find(start).expect("it is allocated");
        let (start, end) = self.busy.range(id);
        debug_assert_eq!(end - start, size);
        self.busy.remove(id);
        self.give(start, end);
    }
}

/// First fit over the free ranges in a `BTreeMap`, as one writes it on an afternoon. Exact.
pub struct FirstFit {
    free: BTreeMap<u64, u64>,
    busy: BTreeMap<u64, u64>,
}

impl Adopt for FirstFit {
    fn adopt(arena: Range<u64>, layout: &[(u64, u64)]) -> Self {
        FirstFit {
            free: gaps(&arena, layout)
                .map(|gap| (gap.start, gap.end))
                .collect(),
            busy: layout
                .iter()
                .map(|(start, size)| (*start, start + size))
                .collect(),
        }
    }
}

impl Allocator for FirstFit {
    fn alloc(&mut self, ask: &Ask) -> Option<u64> {
        let (from, to) = ask
            .zone
            .as_ref()
            .map_or((0, u64::MAX), |zone| (zone.start, zone.end));
        let first = self
            .free
            .range(..=from)
            .next_back()
            .map_or(from, |(start, _)| *start);
        let fits = |(lo, hi): (&u64, &u64)| {
            let start = aligned((*lo).max(from), ask.align);
            (start + ask.size <= *hi).then_some((start, *lo, *hi))
        };
        let (start, lo, hi) = self.free.range(first..).find_map(fits)?;
        let end = start + ask.size;
        if end > to {
            return None;
        }
        self.free.remove(&lo);
        if lo < start {
            self.free.insert(lo, start);
        }
        if end < hi {
            self.free.insert(end, hi);
        }
        self.busy.insert(start, end);
        Some(start)
    }

    fn free(&mut self, start: u64, _size: u64) {
        let mut end = self.busy.remove(&start).expect("it is allocated");
        let mut lo = start;
        if let Some((below, ends)) = self.free.range(..start).next_back()
            && *ends == start
        {
            lo = *below;
        }
        if let Some(above) = self.free.remove(&end) {
            end = above;
        }
        self.free.insert(lo, end);
    }
}
