//! The nodes. A leaf holds blocks and the gap below each; an inner node holds children and where
//! they begin; a group holds what fits into them, for sixteen alignments at a time.

use alloc::vec::Vec;

use crate::error::OutOfMemory;
use crate::isa::{Classes, FAN, Grid, Isa, LANES, Lanes, Row, SPOTS, Words};
use crate::pool::{Linked, Pool, Zeroed};
use crate::word::Word;

/// Most blocks in a leaf: their ends take one more word.
pub(crate) const LEAF: usize = SPOTS - 1;
/// No leaf.
pub(crate) const NONE: u32 = u32::MAX;
/// Most levels of inner nodes: any two neighbours hold more than 16 between them, so that this is
/// enough for all the nodes that 32 bits can number.
pub(crate) const DEPTH: usize = 12;
/// Most groups of classes.
pub(crate) const GROUPS: usize = 4;

/// Up to 31 blocks. Block `i` is `hi[i]..lo[i + 1]`, the gap below it `lo[i]..hi[i]`.
///
/// The words above `len` hold empty gaps at the end or above. The leaf answers for the addresses `lo[0]..lo[len]`, and the next leaf begins where it ends. The
/// last block of the last leaf is empty and stands at the end of the arena, so that every gap is
/// below some block.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Leaf<W> {
    pub lo: Words<W>,
    pub hi: Words<W>,
    pub len: u32,
    /// Which blocks are freed lazily.
    pub lazy: u32,
    pub next: u32,
    pub prev: u32,
}

// SAFETY: integers only.
unsafe impl<W: Word> Zeroed for Leaf<W> {}

impl<W> Linked for Leaf<W> {
    fn link(&mut self) -> &mut u32 {
        &mut self.next
    }
}

impl<W: Word> Leaf<W> {
    /// Bits of the blocks that there are.
    #[inline(always)]
    pub(crate) fn all(&self) -> u32 {
        low_bits(self.len)
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> W {
        self.lo[self.len as usize]
    }

    /// The largest usable gap for each class.
    #[inline(always)]
    pub(crate) fn maxima<I: Isa<W>>(&self, classes: &Classes<W>) -> Lanes<W> {
        let gaps = self.lo.iter().zip(&self.hi);
        let largest = gaps.fold(W::ZERO, |most, (lo, hi)| most.max(hi.wrapping_sub(*lo)));
        let mut most = [W::ZERO; LANES];
        I::maxima(&self.lo, &self.hi, largest, classes, &mut most);
        most
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

/// The `count` lowest bits, `count` below 64.
#[inline(always)]
pub(crate) fn low_bits_of_64(count: u32) -> u64 {
    (1u64 << (count % 64)) - 1
}

/// Opens a place for a bit, which is 0.
#[inline(always)]
pub(crate) fn open_bit(bits: u64, at: usize) -> u64 {
    let low = low_bits_of_64(at as u32);
    bits & low | (bits & !low) << 1
}

/// Takes a bit out.
#[inline(always)]
pub(crate) fn close_bit(bits: u64, at: usize) -> u64 {
    let low = low_bits_of_64(at as u32);
    bits & low | bits >> 1 & !low
}

/// Up to 64 children.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Inner<W> {
    /// Where each child begins. The first word is 0, as whoever comes here is above it, and words
    /// without a child are the highest: an address is at or above so many words as there are children up to it.
    pub keys: [W; FAN],
    pub children: [u32; FAN],
    /// Which children have blocks that are freed lazily.
    pub lazy: u64,
    pub len: u32,
}

// SAFETY: integers only.
unsafe impl<W: Word> Zeroed for Inner<W> {}

impl<W: Word> Inner<W> {
    /// Lets the keys without a child be what they are to be.
    pub(crate) fn clear_above(&mut self) {
        self.keys[0] = W::ZERO;
        self.keys[self.len as usize..].fill(W::MAX);
    }
}

impl<W> Linked for Inner<W> {
    fn link(&mut self) -> &mut u32 {
        &mut self.children[0]
    }
}

/// A word for each class of a group.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Maxima<W>(pub Lanes<W>);

// SAFETY: integers only.
unsafe impl<W: Word> Zeroed for Maxima<W> {}

/// A short word for each child; 0 where there is no child.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct AlignedRow(pub Row);

// SAFETY: integers only.
unsafe impl Zeroed for AlignedRow {}

/// The rows of each inner node: one for each class in use, in a power of two of places, since most
/// arenas have a class or two.
pub(crate) struct Rows {
    all: Pool<AlignedRow>,
    /// A node has `2^shift` places.
    shift: u32,
}

impl Rows {
    fn new() -> Self {
        let all = Pool::new();
        Rows { all, shift: 0 }
    }

    /// Makes room for the nodes below `count`.
    pub(crate) fn ensure(&mut self, count: usize) -> Result<(), OutOfMemory> {
        self.all.ensure(count << self.shift)
    }

    /// Makes places for `lanes` classes in each node.
    pub(crate) fn widen(&mut self, lanes: usize) -> Result<(), OutOfMemory> {
        let (was, shift) = (self.shift, lanes.next_power_of_two().trailing_zeros());
        if shift <= was {
            return Ok(());
        }
        let count = self.all.len() >> was;
        let mut all = Pool::new();
        all.ensure(count << shift)?;
        for node in 0..count {
            all.slice_mut(node << shift..(node << shift) + (1 << was))
                .copy_from_slice(self.all.slice(node << was..(node + 1) << was));
        }
        *self = Rows { all, shift };
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn get(&self, node: u32, lane: usize) -> &Row {
        &self.all.get((node << self.shift) + lane as u32).0
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, node: u32, lane: usize) -> &mut Row {
        &mut self.all.get_mut((node << self.shift) + lane as u32).0
    }

    /// All rows of a node.
    #[inline(always)]
    pub(crate) fn of_mut(&mut self, node: u32) -> &mut [AlignedRow] {
        let first = (node as usize) << self.shift;
        self.all.slice_mut(first..first + (1 << self.shift))
    }

    /// A row of two different nodes.
    pub(crate) fn two_mut(&mut self, a: u32, b: u32, lane: usize) -> (&mut Row, &mut Row) {
        let lane = lane as u32;
        let (a, b) = (a << self.shift, b << self.shift);
        let (a, b) = self.all.two_mut(a + lane, b + lane);
        (&mut a.0, &mut b.0)
    }

    fn bytes(&self) -> usize {
        self.all.bytes()
    }
}

/// A maximum as it stands in a row. In wide trees `SATURATED` is that or more: the child knows.
#[inline(always)]
pub(crate) fn short<W: Word>(maximum: W) -> u32 {
    maximum.get().min(u64::from(SATURATED)) as u32
}

/// Whether a word of a row leaves open what the maximum is.
#[inline(always)]
pub(crate) fn is_saturated<W: Word>(short: u32) -> bool {
    W::IS_WIDE && short == SATURATED
}

const SATURATED: u32 = u32::MAX;

/// What fits into the nodes, for up to sixteen classes of alignment.
pub(crate) struct Group<W: Word> {
    pub classes: Classes<W>,
    pub sums: Sums<W>,
}

/// The largest usable gaps.
pub(crate) struct Sums<W: Word> {
    /// In each leaf.
    pub leaf: Pool<Maxima<W>>,
    /// Below each inner node.
    pub inner: Pool<Maxima<W>>,
    /// Below each child of each inner node.
    pub rows: Rows,
}

impl<W: Word> Group<W> {
    pub(crate) fn new(grid: Grid<W>) -> Self {
        let sums = Sums {
            leaf: Pool::new(),
            inner: Pool::new(),
            rows: Rows::new(),
        };
        let classes = Classes::new(grid);
        Group { classes, sums }
    }

    /// The grids of the classes in use.
    pub(crate) fn grids(&self) -> impl Iterator<Item = Grid<W>> + '_ {
        (0..self.classes.used).map(|lane| self.classes.grid(lane))
    }

    pub(crate) fn lane_of(&self, grid: Grid<W>) -> Option<usize> {
        (0..self.classes.used).find(|lane| self.classes.grid(*lane) == grid)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.sums.leaf.bytes() + self.sums.inner.bytes() + self.sums.rows.bytes()
    }
}

/// The groups there are: nearly always one, which is found without a look at memory elsewhere.
pub(crate) struct Groups<W: Word> {
    /// Has, in lane 0, the alignment that every start has.
    pub first: Group<W>,
    pub others: Vec<Group<W>>,
}

impl<W: Word> Groups<W> {
    pub(crate) fn new(first: Group<W>) -> Self {
        let others = Vec::new();
        Groups { first, others }
    }

    pub(crate) fn len(&self) -> usize {
        1 + self.others.len()
    }

    #[inline(always)]
    pub(crate) fn get(&self, number: u8) -> &Group<W> {
        match number {
            0 => &self.first,
            _ => &self.others[usize::from(number) - 1],
        }
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> &mut Group<W> {
        match number {
            0 => &mut self.first,
            _ => &mut self.others[number - 1],
        }
    }

    /// The one that was added last.
    pub(crate) fn last_mut(&mut self) -> &mut Group<W> {
        self.others.last_mut().unwrap_or(&mut self.first)
    }

    pub(crate) fn push(&mut self, group: Group<W>) -> Result<(), OutOfMemory> {
        self.others.try_reserve(1).map_err(|_| OutOfMemory)?;
        self.others.push(group);
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Group<W>> {
        core::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group<W>> {
        core::iter::once(&mut self.first).chain(&mut self.others)
    }

    pub(crate) fn bytes(&self) -> usize {
        let sums: usize = self.iter().map(Group::bytes).sum();
        sums + self.others.capacity() * size_of::<Group<W>>()
    }
}
