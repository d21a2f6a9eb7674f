use core::ops::Range;

use crate::by_size::BySize;
use crate::error::{AllocError, ArenaError, FreeError, OutOfMemory};
use crate::isa;
use crate::request::{self, MAX_ALIGN, Policy, Request, Wanted};
use crate::tree::AnyTree;
use crate::tree::edit::{Cut, Emptied, Filled, Free, FreeLazily, Lookup, Place, PlaceAt, Reclaim};
#[cfg(feature = "std")]
use crate::tree::edit::{FreeLarge, Freed};

/// An allocation, as [`RangeAlloc::lookup`] finds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    /// Its addresses.
    pub range: Range<u64>,
    /// Freed lazily, not purged yet.
    pub is_lazy: bool,
}

/// Allocates ranges of the addresses `start..end`, in whatever unit they are.
///
/// n is the number of allocations. Memory is taken by allocations only: freeing never allocates and
/// never fails for lack of memory. Each allocation takes about 31 to 53 bytes of
/// bookkeeping; one that finds no room there for more moves all of it, which
/// [`reserve`](RangeAlloc::reserve) does beforehand. So does the first one beyond 2^32 - 1 granules from `start`, after which
/// each takes about twice as many bytes.
///
/// ```
/// use amdahl_range_alloc::{RangeAlloc, Request};
///
/// let mut arena = RangeAlloc::new(0x1000..0x10_0000)?;
/// let a = arena.alloc(&Request::new(0x30))?;
/// let b = arena.alloc(&Request::new(0x100).align(0x1000))?;
/// assert_eq!((a, b), (0x1000, 0x2000));
/// assert_eq!(arena.lookup(0x20ff).unwrap().range, 0x2000..0x2100);
/// assert_eq!(arena.free(a), Ok(0x30));
/// assert!(arena.free(a).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RangeAlloc {
    pub(crate) tree: AnyTree,
    pub(crate) range: Range<u64>,
    /// Up to where allocations may lie as long as words are narrow.
    reach: u64,
    pub(crate) granule: u64,
    pub(crate) blocks: usize,
    pub(crate) busy: u64,
    pub(crate) lazy_blocks: usize,
    pub(crate) lazy: u64,
    /// Where the last allocation under `Policy::NextFit` ended.
    cursor: u64,
    /// The gaps by size, once somebody has asked for the best fit.
    by_size: Option<BySize>,
    /// What `isa::has_simd` says.
    simd: bool,
}

impl RangeAlloc {
    /// An arena with all of its addresses free.
    ///
    /// # Errors
    /// The range is empty, or there is no memory.
    pub fn new(range: Range<u64>) -> Result<Self, ArenaError> {
        RangeAlloc::with_granule(range, 1)
    }

    /// The same in granules, a power of two: sizes are rounded up to multiples of it, and every
    /// allocation begins at one.
    ///
    /// # Errors
    /// The granule is not a power of two up to [`MAX_ALIGN`], the range is empty or not a whole number of
    /// granules from address 0, or there is no memory.
    pub fn with_granule(range: Range<u64>, granule: u64) -> Result<Self, ArenaError> {
        if !granule.is_power_of_two() || granule > MAX_ALIGN {
            return Err(ArenaError::Granule { granule });
        }
        if range.is_empty() {
            return Err(ArenaError::Empty { range });
        }
        if !range.start.is_multiple_of(granule) || !range.end.is_multiple_of(granule) {
            return Err(ArenaError::Uneven { range, granule });
        }
        let grid = request::grid(granule, 0, granule).map_err(ArenaError::Request)?;
        let tree = AnyTree::new(&range, granule.trailing_zeros(), grid)?;
        Ok(RangeAlloc {
            reach: tree.reach(),
            tree,
            cursor: range.start,
            range,
            granule,
            blocks: 0,
            busy: 0,
            lazy_blocks: 0,
            lazy: 0,
            by_size: None,
            simd: isa::has_simd(),
        })
    }

    /// The addresses.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// What sizes and starts are multiples of.
    pub fn granule(&self) -> u64 {
        self.granule
    }

    /// Prepares for requests of an alignment and phase.
    ///
    /// The first request of each alignment and phase takes O(n) otherwise. 64 pairs of
    /// alignment and phase are kept, which is more than there are alignments; requests for further
    /// ones get the same exact answers, but may look at gaps in vain.
    ///
    /// # Errors
    /// The same as for a request.
    pub fn prepare(&mut self, align: u64, phase: u64) -> Result<(), AllocError> {
        let grid = request::grid(align, phase, self.granule)?;
        if grid.mask / self.granule >= u64::from(u32::MAX) {
            // Narrow words do not tell such alignments apart.
            self.widen()?;
        }
        self.tree.prepare(grid)
    }

    /// Takes the memory that `blocks` more allocations need at most, so that none of them fails for
    /// lack of it, but for what the first [`Policy::BestFit`] takes, and the first request of an alignment that
    /// was not [prepared](RangeAlloc::prepare).
    ///
    /// # Errors
    /// There is not so much.
    pub fn reserve(&mut self, blocks: usize) -> Result<(), OutOfMemory> {
        self.widen()?;
        // Each may split a leaf that is full now; those that are split take 15 more.
        let (leaves, inners) = self.tree.nodes();
        let leaves = leaves.min(blocks) + blocks / 15 + 1;
        let inners = inners.min(leaves) + leaves / 15 + self.tree.levels() + 2;
        self.tree.reserve(leaves, inners)?;
        match &mut self.by_size {
            Some(index) => {
                let gaps = self.blocks + self.lazy_blocks + 2;
                index.reserve(gaps.saturating_add(blocks))
            }
            None => Ok(()),
        }
    }

    /// Gives back the memory for bookkeeping that the allocations there are do not need, what was
    /// [reserved](RangeAlloc::reserve) included. Alignments are forgotten that were not [prepared](RangeAlloc::prepare) and that no request has needed
    /// since the last call, so that allocating and freeing costs less; the next request for one makes it known
    /// again. O(n), and as much memory as is needed afterwards.
    ///
    /// Words that have become wide, with the first allocation beyond 2^32 - 1 granules, stay so.
    ///
    /// # Errors
    /// There is no memory for the smaller copy. Nothing has changed then.
    pub fn shrink_to_fit(&mut self) -> Result<(), OutOfMemory> {
        let by_size = match &self.by_size {
            // As many as there may be when blocks are freed.
            Some(_) => Some(BySize::new(self, self.blocks + self.lazy_blocks + 1)?),
            None => None,
        };
        self.tree.shrink()?;
        self.by_size = by_size;
        Ok(())
    }

    /// Whether an allocation at `start` takes no memory: its leaf has room, or there is a node for each that splits.
    #[cfg(feature = "std")]
    pub(crate) fn has_spare_at(&self, start: u64) -> bool {
        self.by_size.is_none() && self.tree.has_spare_at(start)
    }

    /// Allocates; answers with the start.
    ///
    /// O(log n), wherever the answer lies: the tree knows for each alignment in use what fits where.
    /// See [`Policy`] for what differs, and [`prepare`](RangeAlloc::prepare) for the first request of an
    /// alignment.
    ///
    /// # Errors
    /// The request is not possible in itself, no gap fits, or there is no memory. Nothing has
    /// changed then.
    #[inline]
    pub fn alloc(&mut self, request: &Request) -> Result<u64, AllocError> {
        Ok(self.fill(request)?.block.start)
    }

    /// The same, and which gap it was.
    #[inline(always)]
    pub(crate) fn fill(&mut self, request: &Request) -> Result<Filled, AllocError> {
        let mut wanted = Wanted::new(request, &self.range, self.granule)?;
        if wanted.from == self.range.start {
            // The search need not look for its beginning.
            wanted.from = 0;
        }
        let found = match request.policy {
            Policy::LowestAddress => self.lowest(&wanted)?,
            Policy::NextFit => self.next(&wanted)?,
            Policy::BestFit => self.best(&wanted)?,
        };
        found.ok_or(AllocError::NoSpace { lazy: self.lazy })
    }

    /// A request in the units of the arena.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn wanted(&self, request: &Request) -> Result<Wanted, AllocError> {
        Wanted::new(request, &self.range, self.granule)
    }

    #[inline(always)]
    fn lowest(&mut self, wanted: &Wanted) -> Result<Option<Filled>, OutOfMemory> {
        self.reserve_gap()?;
        let filled = match self.tree.place_on_top(wanted) {
            None => self.tree.run(self.simd, Place { wanted })?,
            filled => filled,
        };
        let Some(filled) = filled else {
            return self.lowest_beyond(wanted);
        };
        self.has_filled(&filled);
        Ok(Some(filled))
    }

    /// Nothing was found as far as words reach: only the top gap goes on beyond that.
    #[cold]
    fn lowest_beyond(&mut self, wanted: &Wanted) -> Result<Option<Filled>, OutOfMemory> {
        if wanted.to <= self.reach || !wanted.fits_in(&self.tree.top_gap()) {
            return Ok(None);
        }
        self.widen()?;
        self.lowest(wanted)
    }

    /// Lets allocations lie anywhere in the arena. After an error nothing has changed.
    fn widen(&mut self) -> Result<(), OutOfMemory> {
        if self.reach < self.range.end {
            self.tree.widen()?;
            self.reach = self.tree.reach();
        }
        Ok(())
    }

    fn next(&mut self, wanted: &Wanted) -> Result<Option<Filled>, OutOfMemory> {
        let mut found = None;
        if self.cursor > wanted.from && self.cursor < wanted.to {
            let from = self.cursor;
            found = self.lowest(&Wanted { from, ..*wanted })?;
        }
        if found.is_none() {
            found = self.lowest(wanted)?;
        }
        if let Some(filled) = &found {
            self.cursor = filled.block.end;
        }
        Ok(found)
    }

    fn best(&mut self, wanted: &Wanted) -> Result<Option<Filled>, AllocError> {
        if self.by_size.is_none() {
            let room = self.blocks + self.lazy_blocks + 2;
            self.by_size = Some(BySize::new(self, room)?);
        }
        let index = self.by_size.as_ref();
        let found = index.and_then(|index| index.best(wanted));
        let Some(start) = found else {
            return Ok(None);
        };
        self.place_at(start..start + wanted.size).map(Some)
    }

    /// Allocates `size` units (rounded up to granules) at `start`.
    ///
    /// O(log n).
    ///
    /// # Errors
    /// The range is not in the arena, something is allocated there, or there is no memory.
    /// Nothing has changed then.
    pub fn alloc_at(&mut self, start: u64, size: u64) -> Result<(), AllocError> {
        self.fill_at(start, size)?;
        Ok(())
    }

    /// The same, and which gap it was.
    pub(crate) fn fill_at(&mut self, start: u64, size: u64) -> Result<Filled, AllocError> {
        let block = request::block_at(start, size, &self.range, self.granule)?;
        self.place_at(block)
    }

    fn place_at(&mut self, block: Range<u64>) -> Result<Filled, AllocError> {
        // Below the top gap something is in the way.
        if block.end > self.reach && block.start >= self.tree.top_gap().start {
            self.widen()?;
        }
        self.reserve_gap()?;
        let filled = self.tree.run(self.simd, PlaceAt { block })?;
        self.has_filled(&filled);
        Ok(filled)
    }

    /// Frees the allocation that begins at `start`; answers with its size.
    ///
    /// O(log n). Allocates no memory.
    ///
    /// # Errors
    /// No allocation begins there; the error says what there is instead.
    #[inline]
    pub fn free(&mut self, start: u64) -> Result<u64, FreeError> {
        let block = self.empty(start, None)?.block;
        Ok(block.end - block.start)
    }

    /// The same for callers who know the size (rounded up to granules), so that it is checked.
    ///
    /// # Errors
    /// No allocation of this size begins there; the error says what there is instead.
    pub fn free_sized(&mut self, start: u64, size: u64) -> Result<(), FreeError> {
        let whole = size.checked_next_multiple_of(self.granule).unwrap_or(0);
        let freed = self.empty(start, Some(whole));
        freed.map_err(|error| error.for_size(size))?;
        Ok(())
    }

    /// Frees, and tells the gap that there is now.
    #[inline(always)]
    pub(crate) fn empty(&mut self, start: u64, size: Option<u64>) -> Result<Emptied, FreeError> {
        self.check_inside(start)?;
        let free = Free { start, size };
        let emptied = match self.tree.free_top(&free) {
            None => self.tree.run(self.simd, free)?,
            Some(emptied) => emptied,
        };
        self.has_freed(&emptied);
        Ok(emptied)
    }

    /// What was allocated is free.
    #[inline(always)]
    fn has_freed(&mut self, emptied: &Emptied) {
        self.has_emptied(emptied);
        self.blocks -= 1;
        self.busy -= emptied.block.end - emptied.block.start;
    }

    /// As [`empty`](Self::empty), unless it is a block of `small` units or less, which stays as it is.
    #[cfg(feature = "std")]
    pub(crate) fn empty_large(
        &mut self,
        start: u64,
        size: Option<u64>,
        small: u64,
    ) -> Result<Freed, FreeError> {
        self.check_inside(start)?;
        let free = Free { start, size };
        let freed = self.tree.run(self.simd, FreeLarge { free, small })?;
        if let Freed::Emptied(emptied) = &freed {
            self.has_freed(emptied);
        }
        Ok(freed)
    }

    /// Frees a part of an allocation, as `munmap` does: what is left stays allocated, as one
    /// allocation or as two.
    ///
    /// O(log n). The start and size are multiples of the granule.
    ///
    /// # Errors
    /// The part is not within one allocation. Cutting one into two may lack memory. Nothing
    /// has changed then.
    pub fn free_part(&mut self, start: u64, size: u64) -> Result<(), FreeError> {
        self.empty_part(start, size)?;
        Ok(())
    }

    /// The same; answers with the part, and the gap that there is now.
    pub(crate) fn empty_part(&mut self, start: u64, size: u64) -> Result<Emptied, FreeError> {
        if !self.range.contains(&start) {
            return Err(FreeError::Outside { start });
        }
        let is_even = start.is_multiple_of(self.granule) && size.is_multiple_of(self.granule);
        if size == 0 || !is_even || size > self.range.end - start {
            return Err(FreeError::Part { start, size });
        }
        self.check_inside(start)?;
        self.reserve_gap()?;
        let part = start..start + size;
        let emptied = self.tree.run(self.simd, Cut { part: part.clone() })?;
        self.has_emptied(&emptied);
        let Emptied { block, gap } = emptied;
        let is_all = size == block.end - block.start;
        let is_middle = start > block.start && start + size < block.end;
        self.blocks = self.blocks + usize::from(is_middle) - usize::from(is_all);
        self.busy -= size;
        Ok(Emptied { block: part, gap })
    }

    /// Frees the allocation that begins at `start`, but does not let its addresses be used again
    /// before [`purge`](RangeAlloc::purge); answers with its size.
    ///
    /// O(log n). Allocates no memory.
    ///
    /// # Errors
    /// As [`free`](RangeAlloc::free).
    pub fn free_lazy(&mut self, start: u64) -> Result<u64, FreeError> {
        self.check_inside(start)?;
        let block = self.tree.run(self.simd, FreeLazily { start })?;
        let size = block.end - block.start;
        self.lazy_blocks += 1;
        self.lazy += size;
        self.blocks -= 1;
        self.busy -= size;
        Ok(size)
    }

    /// Lets everything that was freed lazily be used again; answers with the number of units.
    ///
    /// Each range is told to `retire` first, in the order of addresses: there is the place to flush
    /// what still refers to it. O(log n) for each. Allocates no memory.
    pub fn purge(&mut self, mut retire: impl FnMut(Range<u64>)) -> u64 {
        let before = self.lazy;
        while let Some(block) = self.first_lazy() {
            retire(block.clone());
            self.reclaim(block.start);
        }
        before
    }

    /// The lowest range that is freed lazily.
    fn first_lazy(&self) -> Option<Range<u64>> {
        self.tree.first_lazy()
    }

    /// The same of those that begin at an address, which is where the arena begins or another range ends, or above.
    #[cfg(feature = "std")]
    pub(crate) fn first_lazy_from(&self, from: u64) -> Option<Range<u64>> {
        self.tree.first_lazy_from(from.max(self.range.start))
    }

    /// Lets what is freed lazily at `start` be used again.
    pub(crate) fn reclaim(&mut self, start: u64) -> Emptied {
        let emptied = self.tree.run(self.simd, Reclaim { start });
        self.lazy_blocks -= 1;
        self.lazy -= emptied.block.end - emptied.block.start;
        self.has_emptied(&emptied);
        emptied
    }

    /// The allocation that holds an address.
    ///
    /// O(log n).
    pub fn lookup(&self, address: u64) -> Option<Allocation> {
        if !(self.range.start..self.reach).contains(&address) {
            return None;
        }
        let (range, is_lazy) = self.tree.look(self.simd, Lookup { address })?;
        Some(Allocation { range, is_lazy })
    }

    /// Whether something may be allocated at `start`.
    #[inline(always)]
    fn check_inside(&self, start: u64) -> Result<(), FreeError> {
        if (self.range.start..self.reach).contains(&start) {
            Ok(())
        } else if self.range.contains(&start) {
            Err(FreeError::NotAllocated { start })
        } else {
            Err(FreeError::Outside { start })
        }
    }

    /// Room in the index for one gap more now, and for another when all blocks are freed.
    #[inline]
    fn reserve_gap(&mut self) -> Result<(), OutOfMemory> {
        match &mut self.by_size {
            None => Ok(()),
            Some(index) => index.reserve(self.blocks + self.lazy_blocks + 2),
        }
    }

    #[inline]
    fn has_filled(&mut self, filled: &Filled) {
        let Filled { gap, block } = filled;
        self.blocks += 1;
        self.busy += block.end - block.start;
        if let Some(index) = &mut self.by_size {
            index.remove(gap.clone());
            index.insert(gap.start..block.start);
            index.insert(block.end..gap.end);
        }
    }

    #[inline]
    fn has_emptied(&mut self, emptied: &Emptied) {
        let Emptied { block, gap } = emptied;
        if let Some(index) = &mut self.by_size {
            index.remove(gap.start..block.start);
            index.remove(block.end..gap.end);
            index.insert(gap.clone());
        }
    }

    /// Bytes on the heap for bookkeeping.
    pub(crate) fn bytes(&self) -> usize {
        self.tree.bytes() + self.by_size.as_ref().map_or(0, BySize::bytes)
    }
}
