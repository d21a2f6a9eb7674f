//! The nodes. A leaf holds blocks and the gap below each; an inner node holds children and where
//! they begin; a group holds what fits into them, for eight alignments at a time.

use crate::isa::{FAN, Grid, LANES, Lanes, Row, Words};
use crate::pool::{Pool, Zeroed};

/// Most blocks in a leaf: their ends take one more word.
pub(crate) const LEAF: usize = FAN - 1;
/// No leaf.
pub(crate) const NONE: u32 = u32::MAX;
/// Most levels of inner nodes: any two neighbours hold more than eight between them, so that
/// this is enough for all the nodes that 32 bits can number.
pub(crate) const DEPTH: usize = 16;
/// Most groups of classes.
pub(crate) const GROUPS: usize = 8;

pub(crate) const LEAVES_A_CHUNK: usize = 16;
pub(crate) const INNERS_A_CHUNK: usize = 4;

/// Up to 31 blocks. Block `i` is `hi[i]..lo[i + 1]`, the gap below it `lo[i]..hi[i]`.
///
/// The words above `len` hold empty gaps. The leaf answers for the addresses `lo[0]..lo[len]`, and the next leaf begins where it ends. The
/// last block of the last leaf is empty and stands at the end of the arena, so that every gap is
/// below some block.
#[repr(C, align(64))]
pub(crate) struct Leaf {
    pub lo: Words,
    pub hi: Words,
    pub len: u32,
    /// Which blocks are freed lazily.
    pub lazy: u32,
    pub next: u32,
    pub prev: u32,
}

// SAFETY: integers only.
unsafe impl Zeroed for Leaf {}

impl Leaf {
    /// Bits of the blocks that there are.
    #[inline(always)]
    pub(crate) fn all(&self) -> u32 {
        low_bits(self.len)
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.lo[self.len as usize]
    }

    /// Makes the gaps above the last block empty.
    pub(crate) fn clear_above(&mut self) {
        let len = self.len as usize;
        let end = self.lo[len];
        self.lo[len..].fill(end);
        self.hi[len..].fill(end);
    }
}

/// The `count` lowest bits, `count` below 32.
#[inline(always)]
pub(crate) fn low_bits(count: u32) -> u32 {
    (1u32 << (count % 32)) - 1
}

/// Opens a place for a bit, which is 0.
#[inline(always)]
pub(crate) fn open_bit(bits: u32, at: usize) -> u32 {
    let low = bits & low_bits(at as u32);
    low | (bits & !low) << 1
}

/// Takes a bit out.
#[inline(always)]
pub(crate) fn close_bit(bits: u32, at: usize) -> u32 {
    let low = bits & low_bits(at as u32);
    low | (bits >> 1 & !low_bits(at as u32))
}

/// Up to 32 children.
#[repr(C, align(64))]
pub(crate) struct Inner {
    /// Where each child begins; the first word means nothing, as whoever comes here is above it.
    pub keys: Words,
    pub children: [u32; FAN],
    pub len: u32,
    /// Which children have blocks that are freed lazily.
    pub lazy: u32,
}

// SAFETY: integers only.
unsafe impl Zeroed for Inner {}

/// A word for each class of a group, in a line of its own.
#[repr(C, align(64))]
pub(crate) struct Maxima(pub Lanes);

// SAFETY: integers only.
unsafe impl Zeroed for Maxima {}

/// For each class of a group a short word for each child; 0 where there is no child.
#[repr(C, align(64))]
pub(crate) struct Rows(pub [Row; LANES]);

/// A maximum as it stands in a row. `SATURATED` is that or more: the child knows.
#[inline(always)]
pub(crate) fn short(maximum: u64) -> u32 {
    maximum.min(SATURATED as u64) as u32
}

pub(crate) const SATURATED: u32 = u32::MAX;

// SAFETY: integers only.
unsafe impl Zeroed for Rows {}

/// What fits into the nodes, for up to eight classes of alignment.
pub(crate) struct Group {
    pub masks: Lanes,
    pub phases: Lanes,
    /// All bits of a lane in use, none of another.
    pub active: Lanes,
    pub used: usize,
    /// The largest usable gap in each leaf.
    pub leaf: Pool<Maxima, LEAVES_A_CHUNK>,
    /// The largest usable gap below each inner node.
    pub inner: Pool<Maxima, INNERS_A_CHUNK>,
    pub rows: Pool<Rows, INNERS_A_CHUNK>,
}

impl Group {
    pub(crate) fn new(grid: Grid) -> Self {
        Group {
            masks: [grid.mask; LANES],
            phases: [grid.phase; LANES],
            active: core::array::from_fn(|lane| if lane == 0 { u64::MAX } else { 0 }),
            used: 1,
            leaf: Pool::new(),
            inner: Pool::new(),
            rows: Pool::new(),
        }
    }

    pub(crate) fn lane_of(&self, grid: Grid) -> Option<usize> {
        (0..self.used)
            .find(|lane| self.masks[*lane] == grid.mask && self.phases[*lane] == grid.phase)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.leaf.bytes() + self.inner.bytes() + self.rows.bytes()
    }
}
