use core::error::Error;
use core::fmt;
use core::ops::Range;

/// There is no memory for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("no memory for bookkeeping")
    }
}

impl Error for OutOfMemory {}

/// Why there is no arena.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArenaError {
    /// The range has no addresses.
    Empty {
        /// As asked for.
        range: Range<u64>,
    },
    /// The granule is not a power of two, or larger than [`MAX_ALIGN`](crate::MAX_ALIGN).
    Granule {
        /// As asked for.
        granule: u64,
    },
    /// An end of the range is not a multiple of the granule.
    Uneven {
        /// As asked for.
        range: Range<u64>,
        /// As asked for.
        granule: u64,
    },
    /// An alignment to prepare for is none.
    Request(AllocError),
    /// No memory for bookkeeping.
    OutOfMemory,
}

impl fmt::Display for ArenaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArenaError::Empty { range } => write!(out, "{range:#x?} has no addresses"),
            ArenaError::Granule { granule } => {
                write!(out, "granule {granule} is not a power of two up to 2^40")
            }
            ArenaError::Uneven { range, granule } => {
                write!(
                    out,
                    "{range:#x?} does not begin and end at multiples of {granule}"
                )
            }
            ArenaError::Request(error) => error.fmt(out),
            ArenaError::OutOfMemory => OutOfMemory.fmt(out),
        }
    }
}

impl Error for ArenaError {}

impl From<OutOfMemory> for ArenaError {
    fn from(_: OutOfMemory) -> Self {
        ArenaError::OutOfMemory
    }
}

/// Why nothing was allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocError {
    /// The size is 0.
    ZeroSize,
    /// The size, rounded up to granules, is not a number of 64 bits.
    TooLarge {
        /// As asked for.
        size: u64,
    },
    /// The alignment is 0, not a power of two, or larger than [`MAX_ALIGN`](crate::MAX_ALIGN).
    Align {
        /// As asked for.
        align: u64,
    },
    /// The phase is not below the alignment, or cannot be met by multiples of the granule.
    Phase {
        /// As asked for.
        phase: u64,
        /// The alignment, at least the granule.
        align: u64,
    },
    /// The zone has no addresses in the arena.
    Zone {
        /// As asked for.
        zone: Range<u64>,
    },
    /// `alloc_at`: the range is not within the arena, or not at a multiple of the granule.
    Outside {
        /// As asked for.
        start: u64,
        /// As asked for.
        size: u64,
    },
    /// `alloc_at`: an allocation is in the way.
    Occupied {
        /// The lowest one.
        by: Range<u64>,
    },
    /// No gap fits.
    NoSpace {
        /// Units that are freed lazily: a purge might help.
        lazy: u64,
    },
    /// No memory for bookkeeping; nothing has changed.
    OutOfMemory,
}

impl fmt::Display for AllocError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocError::ZeroSize => out.write_str("size 0"),
            AllocError::TooLarge { size } => write!(out, "size {size} exceeds 64 bits in granules"),
            AllocError::Align { align } => {
                write!(out, "alignment {align} is not a power of two up to 2^40")
            }
            AllocError::Phase { phase, align } => {
                write!(out, "phase {phase} does not go with alignment {align}")
            }
            AllocError::Zone { zone } => write!(out, "zone {zone:#x?} is not in the arena"),
            AllocError::Outside { start, size } => {
                write!(out, "{size} at {start:#x} is not in the arena's granules")
            }
            AllocError::Occupied { by } => write!(out, "{by:#x?} is allocated"),
            AllocError::NoSpace { lazy: 0 } => out.write_str("no gap fits"),
            AllocError::NoSpace { lazy } => {
                write!(out, "no gap fits; {lazy} are freed lazily, not purged yet")
            }
            AllocError::OutOfMemory => OutOfMemory.fmt(out),
        }
    }
}

impl Error for AllocError {}

impl From<OutOfMemory> for AllocError {
    fn from(_: OutOfMemory) -> Self {
        AllocError::OutOfMemory
    }
}

/// Why nothing was freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FreeError {
    /// The address is not in the arena.
    Outside {
        /// As asked for.
        start: u64,
    },
    /// Nothing is allocated there: never was, or has been freed already.
    NotAllocated {
        /// As asked for.
        start: u64,
    },
    /// It has been freed lazily already.
    FreedLazily {
        /// As asked for.
        start: u64,
    },
    /// An allocation holds the address but begins below it.
    Inside {
        /// As asked for.
        start: u64,
        /// Which allocation.
        of: Range<u64>,
    },
    /// The allocation there has another size.
    Size {
        /// As asked for.
        size: u64,
        /// Which allocation.
        of: Range<u64>,
    },
    /// `free_part`: a part of size 0, one that ends outside of its allocation, or one that does not
    /// begin and end at multiples of the granule.
    Part {
        /// As asked for.
        start: u64,
        /// As asked for.
        size: u64,
    },
    /// `free_part`: cutting one allocation into two takes memory, and there is none.
    OutOfMemory,
}

impl FreeError {
    /// With the size that was asked for, which is looked for rounded up.
    pub(crate) fn for_size(self, size: u64) -> FreeError {
        match self {
            FreeError::Size { of, .. } => FreeError::Size { size, of },
            other => other,
        }
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreeError::Outside { start } => write!(out, "{start:#x} is not in the arena"),
            FreeError::NotAllocated { start } => {
                write!(out, "nothing is allocated at {start:#x}; freed twice?")
            }
            FreeError::FreedLazily { start } => write!(out, "{start:#x} is freed already, lazily"),
            FreeError::Inside { start, of } => write!(out, "{start:#x} is inside of {of:#x?}"),
            FreeError::Size { size, of } => write!(out, "{of:#x?} is not of size {size}"),
            FreeError::Part { start, size } => {
                write!(out, "{size} at {start:#x} is not a part of one allocation")
            }
            FreeError::OutOfMemory => OutOfMemory.fmt(out),
        }
    }
}

impl Error for FreeError {}

impl From<OutOfMemory> for FreeError {
    fn from(_: OutOfMemory) -> Self {
        FreeError::OutOfMemory
    }
}
