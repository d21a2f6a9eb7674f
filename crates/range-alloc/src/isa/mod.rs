//! The few loops over the words of a node, for the instructions that the machine has.
//!
//! Every loop looks at all words and has no branch on their values. Callers are generic over
//! [`Isa`] and always inlined into an entry point that is compiled for that instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use crate::tree::Tree;
use crate::word::Word;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
pub(crate) use portable::Portable;

/// Words of each array of a leaf.
pub(crate) const SPOTS: usize = 32;
/// Most children of an inner node.
pub(crate) const FAN: usize = 64;
/// Alignment classes of a group.
pub(crate) const LANES: usize = 16;

/// Words of a leaf.
pub(crate) type Words<W> = [W; SPOTS];
/// A word for each class of a group.
pub(crate) type Lanes<W> = [W; LANES];
/// A short word for each child of a node.
pub(crate) type Row = [u32; FAN];

/// Where starts may be: `start % (mask + 1) == phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid<W = u64> {
    pub mask: W,
    pub phase: W,
}

impl<W: Word> Grid<W> {
    /// Units from `address` up to the next start; correct across the end of the numbers, as the
    /// alignment divides 2^bits.
    #[inline(always)]
    pub(crate) fn pad(self, address: W) -> W {
        self.phase.wrapping_sub(address).and(self.mask)
    }

    /// Units of the gap that are left from its first possible start on.
    #[inline(always)]
    pub(crate) fn usable(self, lo: W, hi: W) -> W {
        hi.wrapping_sub(lo).saturating_sub(self.pad(lo))
    }
}

/// The grids of a group. Lanes not in use have those of the first.
pub(crate) struct Classes<W> {
    pub masks: Lanes<W>,
    pub phases: Lanes<W>,
    /// All bits of a lane in use, none of another.
    pub active: Lanes<W>,
    pub used: usize,
    /// The bits that any of the masks in use has.
    pub any_mask: W,
    /// The lowest 16 bits of masks and phases, twice.
    pub twice: [[u32; 2]; LANES],
    /// Whether a phase in use is not 0.
    pub any_phase: bool,
}

impl<W: Word> Classes<W> {
    pub(crate) fn new(first: Grid<W>) -> Self {
        let mut classes = Classes {
            masks: [first.mask; LANES],
            phases: [first.phase; LANES],
            active: [W::ZERO; LANES],
            used: 0,
            any_mask: W::ZERO,
            twice: [[0; 2]; LANES],
            any_phase: false,
        };
        classes.add(first);
        classes
    }

    pub(crate) fn add(&mut self, grid: Grid<W>) {
        self.masks[self.used] = grid.mask;
        self.phases[self.used] = grid.phase;
        self.active[self.used] = W::MAX;
        self.any_mask = self.any_mask.max(grid.mask);
        let twice = |word: W| (word.get() as u32 & 0xffff) * 0x1_0001;
        self.twice[self.used] = [twice(grid.mask), twice(grid.phase)];
        self.any_phase |= grid.phase != W::ZERO;
        self.used += 1;
    }

    pub(crate) fn grid(&self, lane: usize) -> Grid<W> {
        Grid {
            mask: self.masks[lane],
            phase: self.phases[lane],
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<W> Classes<W> {
    /// The same in 16 bits, twice.
    #[inline(always)]
    pub(crate) fn twice_in_use(&self) -> &[[u32; 2]] {
        &self.twice[..self.used.min(LANES)]
    }

    /// Masks and phases of the lanes in use.
    #[inline(always)]
    pub(crate) fn in_use(&self) -> (&[W], &[W]) {
        let used = self.used.min(LANES);
        (&self.masks[..used], &self.phases[..used])
    }
}

impl<W> Classes<W> {
    /// Bits of the lanes in use.
    #[inline(always)]
    pub(crate) fn all(&self) -> u32 {
        (1 << self.used) - 1
    }
}

/// Loops over the words of a node. Bit `i` of an answer is about word `i`.
pub(crate) trait Isa<W: Word>: Sized {
    /// How many words are `most` or less.
    fn count_at_most<const N: usize>(words: &[W; N], most: W) -> u32;

    /// Which gaps `lo..hi` hold `size` units at the grid.
    fn fits(lo: &Words<W>, hi: &Words<W>, grid: Grid<W>, size: W) -> u32;

    /// The same at or above `from`.
    fn fits_from(lo: &Words<W>, hi: &Words<W>, from: W, grid: Grid<W>, size: W) -> u32;

    /// In which classes the gap `lo..hi` has as much as `most`, and something.
    fn is_most(lo: W, hi: W, classes: &Classes<W>, most: &Lanes<W>) -> u32;

    /// Raises `most` to what the gap `lo..hi` has for each class; tells whether that is more.
    fn raise_by_gap(lo: W, hi: W, classes: &Classes<W>, most: &mut Lanes<W>) -> bool;

    /// Raises `most` to what another has; tells whether that is more.
    fn raise(most: &mut Lanes<W>, other: &Lanes<W>) -> bool;

    /// Sets the lanes in use to the most that one of the gaps `lo..hi` has. `largest` is not below
    /// any gap.
    fn maxima(lo: &Words<W>, hi: &Words<W>, largest: W, classes: &Classes<W>, most: &mut Lanes<W>);

    /// In which lanes both have the same.
    fn same(a: &Lanes<W>, b: &Lanes<W>) -> u32;

    /// Which words are `least` or more.
    fn row_at_least(row: &Row, least: u32) -> u64;

    /// The largest word once there is another at a place.
    fn row_max_with(row: &Row, at: usize, word: u32) -> u32;

    /// Moves the words from `at` on up by one, so that the last one is lost, and puts one there.
    fn open<const N: usize>(words: &mut [W; N], at: usize, word: W);

    /// Moves the words above `at` down by one; the last one stays.
    fn close<const N: usize>(words: &mut [W; N], at: usize);

    /// Does work that is seldom needed, out of the way of the rest.
    fn aside<J: Job>(tree: &mut Tree<W>, job: J) -> J::Out;

    /// Does work of which there is a simpler case that is not to carry its weight.
    fn apart<J: Job>(tree: &mut Tree<W>, job: J) -> J::Out;
}

/// A change that is compiled for each instruction set and word; `run` is to be inlined always.
pub(crate) trait Job {
    type Out;
    fn run<W: Word, I: Isa<W>>(self, tree: &mut Tree<W>) -> Self::Out;
}

/// The same for a question.
pub(crate) trait Look {
    type Out;
    fn look<W: Word, I: Isa<W>>(self, tree: &Tree<W>) -> Self::Out;
}

/// Does the work. `simd` is what [`has_simd`] said.
#[inline(always)]
pub(crate) fn run<W: Word, J: Job>(simd: bool, tree: &mut Tree<W>, job: J) -> J::Out
where
    Portable: Isa<W>,
    Simd: Isa<W>,
{
    #[cfg(target_arch = "x86_64")]
    if simd {
        debug_assert!(has_simd());
        // SAFETY: the machine has the features.
        return unsafe { avx2::run(tree, job) };
    }
    let _ = simd;
    job.run::<W, Portable>(tree)
}

/// Answers the question. `simd` is what [`has_simd`] said.
#[inline(always)]
pub(crate) fn look<W: Word, L: Look>(simd: bool, tree: &Tree<W>, question: L) -> L::Out
where
    Portable: Isa<W>,
    Simd: Isa<W>,
{
    #[cfg(target_arch = "x86_64")]
    if simd {
        debug_assert!(has_simd());
        // SAFETY: the machine has the features.
        return unsafe { avx2::look(tree, question) };
    }
    let _ = simd;
    question.look::<W, Portable>(tree)
}

/// What there is besides [`Portable`].
#[cfg(target_arch = "x86_64")]
pub(crate) type Simd = Avx2;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Simd = Portable;

/// Whether this machine runs [`Simd`].
pub(crate) fn has_simd() -> bool {
    #[cfg(miri)]
    {
        false
    }
    #[cfg(all(target_arch = "x86_64", feature = "std", not(miri)))]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(any(miri, all(target_arch = "x86_64", feature = "std"))))]
    {
        cfg!(all(
            target_arch = "x86_64",
            target_feature = "avx2",
            target_feature = "bmi1",
            target_feature = "bmi2",
            target_feature = "lzcnt",
            target_feature = "popcnt"
        ))
    }
}

#[cfg(test)]
mod tests;
