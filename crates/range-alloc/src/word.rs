//! The numbers in nodes: 32 bits as long as nothing lies beyond the first 2^32 - 1 granules, else 64.

use core::fmt::Debug;
use core::ops::Range;

use crate::isa::Grid;
use crate::pool::Zeroed;

/// A number in a node.
pub(crate) trait Word: Copy + Ord + Debug + Zeroed {
    const ZERO: Self;
    const ONE: Self;
    const MAX: Self;
    /// Whether it has all bits of an address.
    const IS_WIDE: bool;

    /// The lowest bits of a number.
    fn of(number: u64) -> Self;
    fn get(self) -> u64;
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    fn saturating_add(self, other: Self) -> Self;
    fn saturating_sub(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
}

macro_rules! word {
    ($word:ty) => {
        // SAFETY: an integer.
        unsafe impl Zeroed for $word {}

        impl Word for $word {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const MAX: Self = <$word>::MAX;
            const IS_WIDE: bool = <$word>::BITS == u64::BITS;

            #[inline(always)]
            fn of(number: u64) -> Self {
                number as $word
            }
            #[inline(always)]
            fn get(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn wrapping_add(self, other: Self) -> Self {
                <$word>::wrapping_add(self, other)
            }
            #[inline(always)]
            fn wrapping_sub(self, other: Self) -> Self {
                <$word>::wrapping_sub(self, other)
            }
            #[inline(always)]
            fn saturating_add(self, other: Self) -> Self {
                <$word>::saturating_add(self, other)
            }
            #[inline(always)]
            fn saturating_sub(self, other: Self) -> Self {
                <$word>::saturating_sub(self, other)
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
        }
    };
}

word!(u32);
word!(u64);

/// How addresses and words go together: a narrow word counts granules from the arena's beginning,
/// a wide one is the address.
///
/// Narrow words may be those of a larger arena as long as nothing is allocated beyond their *reach*: the top gap
/// begins within it and goes on to the arena's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    base: u64,
    shift: u32,
    /// The address that the highest word in use stands for.
    reach: u64,
    /// Where the arena ends.
    top: u64,
}

impl Scale {
    /// For an arena, in granules of `2^shift`.
    pub(crate) fn new<W: Word>(arena: &Range<u64>, shift: u32) -> Self {
        let all = W::MAX.get().checked_shl(shift).unwrap_or(u64::MAX);
        let all = if all >> shift == W::MAX.get() {
            all
        } else {
            u64::MAX
        };
        let reach = arena.end.min(arena.start.saturating_add(all));
        Scale {
            base: arena.start,
            shift,
            reach,
            top: arena.end,
        }
    }

    /// Up to where blocks may lie.
    #[inline(always)]
    pub(crate) fn reach(self) -> u64 {
        self.reach
    }

    /// The arena, and the bits of its granule.
    pub(crate) fn arena(self) -> (Range<u64>, u32) {
        (self.base..self.top, self.shift)
    }

    /// Where a gap ends.
    #[inline(always)]
    pub(crate) fn gap_end<W: Word>(self, word: W) -> u64 {
        let end = self.address(word);
        if end == self.reach { self.top } else { end }
    }

    /// The granule that an address is in. It is not below the arena, and within the reach.
    #[inline(always)]
    pub(crate) fn word<W: Word>(self, address: u64) -> W {
        if W::IS_WIDE {
            W::of(address)
        } else {
            W::of((address - self.base) >> self.shift)
        }
    }

    /// The first granule that begins at the address, which is within the reach, or above it.
    #[inline(always)]
    pub(crate) fn word_above<W: Word>(self, address: u64) -> W {
        if W::IS_WIDE {
            return W::of(address);
        }
        let units = address - self.base;
        let is_within = units & ((1 << self.shift) - 1) != 0;
        W::of((units >> self.shift) + u64::from(is_within))
    }

    #[inline(always)]
    pub(crate) fn address<W: Word>(self, word: W) -> u64 {
        if W::IS_WIDE {
            word.get()
        } else {
            self.base + (word.get() << self.shift)
        }
    }

    /// Units of a number of granules.
    #[inline(always)]
    pub(crate) fn units<W: Word>(self, granules: W) -> u64 {
        if W::IS_WIDE {
            granules.get()
        } else {
            granules.get() << self.shift
        }
    }

    /// A number of units, a multiple of the granule, if words have it.
    #[inline(always)]
    pub(crate) fn size<W: Word>(self, units: u64) -> Option<W> {
        if W::IS_WIDE {
            return Some(W::of(units));
        }
        let granules = units >> self.shift;
        (granules <= W::MAX.get()).then_some(W::of(granules))
    }

    /// The same back, if words tell all of it.
    pub(crate) fn grid_of<W: Word>(self, grid: Grid<W>) -> Option<Grid> {
        let Grid { mask, phase } = grid;
        if W::IS_WIDE {
            return Some(Grid {
                mask: mask.get(),
                phase: phase.get(),
            });
        }
        let is_whole = mask < W::MAX;
        is_whole.then(|| {
            let mask = ((mask.get() + 1) << self.shift) - 1;
            // The first start above the base may be beyond the numbers.
            let phase = self.base.wrapping_add(self.units(phase)) & mask;
            Grid { mask, phase }
        })
    }

    /// A grid of starts, if one of them is in reach of words.
    ///
    /// An alignment beyond a word's bits becomes that of all bits: such a grid has one start in reach, and
    /// computing modulo 2^bits puts the next one above every end.
    #[inline(always)]
    pub(crate) fn grid<W: Word>(self, grid: Grid) -> Option<Grid<W>> {
        if W::IS_WIDE {
            return Some(Grid {
                mask: W::of(grid.mask),
                phase: W::of(grid.phase),
            });
        }
        let phase = (grid.phase.wrapping_sub(self.base) & grid.mask) >> self.shift;
        let mask = (grid.mask >> self.shift).min(W::MAX.get());
        (phase <= W::MAX.get()).then_some(Grid {
            mask: W::of(mask),
            phase: W::of(phase),
        })
    }
}
