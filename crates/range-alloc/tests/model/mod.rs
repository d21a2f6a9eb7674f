//! The same allocator in its simplest form: a sorted list, searched from the beginning.

use std::collections::BTreeMap;
use std::ops::Range;

use amdahl_range_alloc::{AllocError, FreeError, Policy, RangeAlloc, Segment, State};

/// What there is to ask.
#[derive(Clone, Debug)]
pub struct Ask {
    pub size: u64,
    pub align: u64,
    pub phase: u64,
    pub zone: Range<u64>,
    pub policy: Policy,
}

pub struct Model {
    range: Range<u64>,
    granule: u64,
    /// Start to end and whether freed lazily.
    blocks: BTreeMap<u64, (u64, bool)>,
    cursor: u64,
}

impl Model {
    pub fn new(range: Range<u64>, granule: u64) -> Self {
        Model {
            cursor: range.start,
            range,
            granule,
            blocks: BTreeMap::new(),
        }
    }

    pub fn segments(&self) -> Vec<Segment> {
        let mut all = Vec::new();
        let mut from = self.range.start;
        let mut push = |range: Range<u64>, state| {
            if !range.is_empty() {
                all.push(Segment { range, state });
            }
        };
        for (start, (end, lazy)) in &self.blocks {
            push(from..*start, State::Free);
            push(*start..*end, if *lazy { State::Lazy } else { State::Busy });
            from = *end;
        }
        push(from..self.range.end, State::Free);
        all
    }

    pub fn gaps(&self) -> Vec<Range<u64>> {
        let free = self
            .segments()
            .into_iter()
            .filter(|segment| segment.state == State::Free);
        free.map(|segment| segment.range).collect()
    }

    fn lazy(&self) -> u64 {
        let lazy = self.blocks.iter().filter(|(_, (_, lazy))| *lazy);
        lazy.map(|(start, (end, _))| end - start).sum()
    }

    /// The lowest start in a gap, on paper.
    fn start_in(
        gap: &Range<u64>,
        from: u64,
        to: u64,
        size: u64,
        align: u64,
        phase: u64,
    ) -> Option<u64> {
        let lo = u128::from(gap.start.max(from));
        let (align, phase) = (u128::from(align), u128::from(phase));
        let start = (lo + align - phase).div_ceil(align) * align - align + phase;
        let end = start + u128::from(size);
        (end <= u128::from(gap.end.min(to))).then_some(start as u64)
    }

    /// Nothing but whether there is such an alignment and phase.
    pub fn prepare(&self, align: u64, phase: u64) -> Result<(), AllocError> {
        if align.count_ones() != 1 || align > 1 << 40 {
            return Err(AllocError::Align { align });
        }
        let align = align.max(self.granule);
        if phase >= align || !phase.is_multiple_of(self.granule) {
            return Err(AllocError::Phase { phase, align });
        }
        Ok(())
    }

    pub fn alloc(&mut self, ask: &Ask) -> Result<u64, AllocError> {
        if ask.size == 0 {
            return Err(AllocError::ZeroSize);
        }
        let Some(size) = ask.size.checked_next_multiple_of(self.granule) else {
            return Err(AllocError::TooLarge { size: ask.size });
        };
        self.prepare(ask.align, ask.phase)?;
        let (align, phase) = (ask.align.max(self.granule), ask.phase);
        let (from, to) = (
            ask.zone.start.max(self.range.start),
            ask.zone.end.min(self.range.end),
        );
        if from >= to {
            return Err(AllocError::Zone {
                zone: ask.zone.clone(),
            });
        }
        let gaps = self.gaps();
        let starts = |from: u64| {
            gaps.iter().filter_map(move |gap| {
                Self::start_in(gap, from, to, size, align, phase).map(|start| (gap, start))
            })
        };
        let start = match ask.policy {
            Policy::NextFit => starts(self.cursor.max(from)).chain(starts(from)).next(),
            Policy::BestFit => starts(from).min_by_key(|(gap, _)| gap.end - gap.start),
            _ => starts(from).next(),
        };
        let Some((_, start)) = start else {
            return Err(AllocError::NoSpace { lazy: self.lazy() });
        };
        if ask.policy == Policy::NextFit {
            self.cursor = start + size;
        }
        self.blocks.insert(start, (start + size, false));
        Ok(start)
    }

    pub fn alloc_at(&mut self, start: u64, asked: u64) -> Result<(), AllocError> {
        if asked == 0 {
            return Err(AllocError::ZeroSize);
        }
        let Some(size) = asked.checked_next_multiple_of(self.granule) else {
            return Err(AllocError::TooLarge { size: asked });
        };
        let end = u128::from(start) + u128::from(size);
        if !self.range.contains(&start)
            || end > u128::from(self.range.end)
            || !start.is_multiple_of(self.granule)
        {
            return Err(AllocError::Outside { start, size: asked });
        }
        let end = start + size;
        let mut in_way = self
            .blocks
            .iter()
            .filter(|(a, (b, _))| **a < end && *b > start);
        if let Some((a, (b, _))) = in_way.next() {
            return Err(AllocError::Occupied { by: *a..*b });
        }
        self.blocks.insert(start, (end, false));
        Ok(())
    }

    /// The block that holds an address and is not freed lazily.
    fn holder(&self, start: u64) -> Result<Range<u64>, FreeError> {
        if !self.range.contains(&start) {
            return Err(FreeError::Outside { start });
        }
        let holder = self
            .blocks
            .iter()
            .find(|(a, (b, _))| **a <= start && start < *b);
        let (a, (b, lazy)) = holder.ok_or(FreeError::NotAllocated { start })?;
        if *lazy {
            return Err(FreeError::FreedLazily { start });
        }
        Ok(*a..*b)
    }

    fn owned(&self, start: u64) -> Result<Range<u64>, FreeError> {
        let of = self.holder(start)?;
        if of.start == start {
            Ok(of)
        } else {
            Err(FreeError::Inside { start, of })
        }
    }

    pub fn free(&mut self, start: u64) -> Result<u64, FreeError> {
        let block = self.owned(start)?;
        self.blocks.remove(&start);
        Ok(block.end - block.start)
    }

    pub fn free_lazy(&mut self, start: u64) -> Result<u64, FreeError> {
        let block = self.owned(start)?;
        self.blocks.insert(start, (block.end, true));
        Ok(block.end - block.start)
    }

    pub fn free_part(&mut self, start: u64, size: u64) -> Result<(), FreeError> {
        if !self.range.contains(&start) {
            return Err(FreeError::Outside { start });
        }
        let error = FreeError::Part { start, size };
        if size == 0
            || !start.is_multiple_of(self.granule)
            || !size.is_multiple_of(self.granule)
            || size > self.range.end - start
        {
            return Err(error);
        }
        let (block, end) = (self.holder(start)?, start + size);
        if end > block.end {
            return Err(error);
        }
        self.blocks.remove(&block.start);
        if block.start < start {
            self.blocks.insert(block.start, (start, false));
        }
        if end < block.end {
            self.blocks.insert(end, (block.end, false));
        }
        Ok(())
    }

    pub fn purge(&mut self) -> Vec<Range<u64>> {
        let lazy: Vec<_> = self
            .blocks
            .iter()
            .filter(|(_, (_, lazy))| *lazy)
            .map(|(a, (b, _))| *a..*b)
            .collect();
        self.blocks.retain(|_, (_, lazy)| !*lazy);
        lazy
    }

    pub fn lookup(&self, address: u64) -> Option<Range<u64>> {
        let holder = self
            .blocks
            .iter()
            .find(|(a, (b, _))| **a <= address && address < *b);
        holder.map(|(a, (b, _))| *a..*b)
    }
}

/// Takes memory, and changes nothing else.
#[allow(dead_code, reason = "not all tests have arenas for one thread")]
pub fn reserve(arena: &mut RangeAlloc, blocks: usize) {
    let before = arena.stats();
    assert_eq!(arena.reserve(blocks), Ok(()));
    let mut now = arena.stats();
    assert!(now.footprint_bytes >= before.footprint_bytes);
    now.footprint_bytes = before.footprint_bytes;
    assert_eq!(now, before);
    // As much again is there already.
    assert_eq!(arena.reserve(blocks), Ok(()));
    let again = arena.stats().footprint_bytes;
    arena.reserve(blocks / 2).expect("it is there");
    assert_eq!(arena.stats().footprint_bytes, again);
}

/// Gives memory back, and changes nothing else.
#[allow(dead_code, reason = "not all tests have arenas for one thread")]
pub fn shrink(arena: &mut RangeAlloc) {
    let before = arena.stats();
    assert_eq!(arena.shrink_to_fit(), Ok(()));
    let mut now = arena.stats();
    assert!(now.footprint_bytes <= before.footprint_bytes);
    assert!((1..=before.alignments).contains(&now.alignments));
    (now.footprint_bytes, now.alignments) = (before.footprint_bytes, before.alignments);
    assert_eq!(now, before);
}
