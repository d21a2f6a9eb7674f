use core::ops::Range;

use crate::error::AllocError;
use crate::isa::Grid;

/// The largest alignment: 2^40.
pub const MAX_ALIGN: u64 = 1 << 40;

/// Which of the gaps that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Policy {
    /// The one that gives the lowest address of all that are possible. O(log n).
    #[default]
    LowestAddress,
    /// The first one above the end of the last allocation under this policy, else the lowest.
    /// O(log n).
    NextFit,
    /// The smallest; of equal ones the lowest. O(log n) plus the gaps that are large enough
    /// but do not fit because of alignment or zone. The first use builds an index in
    /// O(n log n), which later makes every change slower.
    BestFit,
}

/// What to allocate: a size, and what to keep to.
///
/// ```
/// use amdahl_range_alloc::{Policy, Request};
/// let huge_page = Request::new(512).align(512);
/// let below_4g = Request::new(8).zone(0..1 << 20).policy(Policy::BestFit);
/// # let _ = (huge_page, below_4g);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub(crate) size: u64,
    pub(crate) align: u64,
    pub(crate) phase: u64,
    pub(crate) zone: Range<u64>,
    pub(crate) policy: Policy,
}

impl Request {
    /// A range of `size` units anywhere, as low as possible.
    pub const fn new(size: u64) -> Self {
        Request {
            size,
            align: 1,
            phase: 0,
            zone: 0..u64::MAX,
            policy: Policy::LowestAddress,
        }
    }

    /// Begins at a multiple of this power of two, up to [`MAX_ALIGN`].
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// Begins this far above a multiple of the alignment (less than the alignment).
    pub const fn phase(mut self, phase: u64) -> Self {
        self.phase = phase;
        self
    }

    /// Lies as a whole within these addresses.
    pub fn zone(mut self, zone: Range<u64>) -> Self {
        self.zone = zone;
        self
    }

    /// Chooses among the gaps that fit.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }
}

/// A request in which everything goes together, in the units of an arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub size: u64,
    pub grid: Grid,
    /// Lowest start.
    pub from: u64,
    /// Highest end.
    pub to: u64,
}

/// Where starts may be, and a granule more if that is coarser.
#[inline]
pub(crate) fn grid(align: u64, phase: u64, granule: u64) -> Result<Grid, AllocError> {
    if !align.is_power_of_two() || align > MAX_ALIGN {
        return Err(AllocError::Align { align });
    }
    let align = align.max(granule);
    // A granule is a power of two; the compiler does not know and would divide.
    if phase >= align || phase & (granule - 1) != 0 {
        return Err(AllocError::Phase { phase, align });
    }
    let mask = align - 1;
    Ok(Grid { mask, phase })
}

/// Rounds up to granules, powers of two.
#[inline]
pub(crate) fn whole(size: u64, granule: u64) -> Result<u64, AllocError> {
    if size == 0 {
        return Err(AllocError::ZeroSize);
    }
    let rounded = size.checked_add(granule - 1);
    let rounded = rounded.ok_or(AllocError::TooLarge { size })?;
    Ok(rounded & !(granule - 1))
}

/// What `alloc_at` is to allocate, in whole granules.
pub(crate) fn block_at(
    start: u64,
    size: u64,
    arena: &Range<u64>,
    granule: u64,
) -> Result<Range<u64>, AllocError> {
    let outside = AllocError::Outside { start, size };
    let size = whole(size, granule)?;
    if !arena.contains(&start) || !start.is_multiple_of(granule) || size > arena.end - start {
        return Err(outside);
    }
    Ok(start..start + size)
}

impl Wanted {
    #[inline]
    pub(crate) fn new(
        request: &Request,
        arena: &Range<u64>,
        granule: u64,
    ) -> Result<Self, AllocError> {
        let size = whole(request.size, granule)?;
        let grid = grid(request.align, request.phase, granule)?;
        let from = request.zone.start.max(arena.start);
        let to = request.zone.end.min(arena.end);
        if from >= to {
            let zone = request.zone.clone();
            return Err(AllocError::Zone { zone });
        }
        Ok(Wanted {
            size,
            grid,
            from,
            to,
        })
    }

    /// Whether it may begin at an address, which is far enough from the end of the numbers.
    #[cfg(feature = "std")]
    #[inline]
    pub(crate) fn may_be_at(&self, start: u64) -> bool {
        self.grid.pad(start) == 0 && start >= self.from && start + self.size <= self.to
    }

    /// Whether a gap has room for it.
    pub(crate) fn fits_in(&self, gap: &Range<u64>) -> bool {
        self.block_in(gap).is_some()
    }

    /// The lowest place for it in a gap.
    pub(crate) fn block_in(&self, gap: &Range<u64>) -> Option<Range<u64>> {
        let lo = gap.start.max(self.from);
        let start = lo.checked_add(self.grid.pad(lo))?;
        let end = start.checked_add(self.size)?;
        (end <= gap.end.min(self.to)).then_some(start..end)
    }
}
