//! The few loops over the words of a node, for the instructions that the machine has.
//!
//! Every loop looks at all words and has no branch on their values. Callers are generic over
//! [`Isa`] and always inlined into an entry point that is compiled for that instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
pub(crate) use portable::Portable;

/// Words of a node, and most children that it has.
pub(crate) const FAN: usize = 32;
/// Alignment classes of a group.
pub(crate) const LANES: usize = 8;

/// Words of a node.
pub(crate) type Words = [u64; FAN];
/// A word for each class of a group.
pub(crate) type Lanes = [u64; LANES];
/// A short word for each child of a node.
pub(crate) type Row = [u32; FAN];

/// Where starts may be: `start % (mask + 1) == phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub mask: u64,
    pub phase: u64,
}

impl Grid {
    /// Units from `address` up to the next start; correct across the end of the numbers, as the
    /// alignment divides 2^64.
    #[inline(always)]
    pub(crate) fn pad(self, address: u64) -> u64 {
        self.phase.wrapping_sub(address) & self.mask
    }

    /// Units of the gap that are left from its first possible start on.
    #[inline(always)]
    pub(crate) fn usable(self, lo: u64, hi: u64) -> u64 {
        (hi - lo).saturating_sub(self.pad(lo))
    }
}

/// Loops over the words of a node. Bit `i` of an answer is about word `i`.
pub(crate) trait Isa {
    /// Which words are `most` or less.
    fn at_most(words: &Words, most: u64) -> u32;

    /// Which gaps `lo..hi` hold `size` units at the grid, at or above `from`.
    fn fits(lo: &Words, hi: &Words, from: u64, grid: Grid, size: u64) -> u32;

    /// Units that the gap `lo..hi` has for each class.
    fn usable(lo: u64, hi: u64, masks: &Lanes, phases: &Lanes) -> Lanes;

    /// The most that one of the gaps `lo..hi` has, for the first `used` classes; the other lanes
    /// are 0. `largest` is not below any gap.
    fn maxima(
        lo: &Words,
        hi: &Words,
        largest: u64,
        masks: &Lanes,
        phases: &Lanes,
        used: usize,
    ) -> Lanes;

    /// The larger of both, and which lanes of `now` are below those of `top` although they `were`
    /// the same.
    fn follow(were: &Lanes, now: &Lanes, top: &Lanes) -> (Lanes, u32);

    /// Which words are `least` or more.
    fn row_at_least(row: &Row, least: u32) -> u32;

    /// The largest word.
    fn row_max(row: &Row) -> u32;

    /// Moves the words from `at` on up by one; the last one is lost, the one at `at` stays.
    fn open(words: &mut Words, at: usize);

    /// Moves the words above `at` down by one; the last one stays.
    fn close(words: &mut Words, at: usize);
}

/// Work that is compiled for each instruction set; `run` is to be inlined always.
pub(crate) trait Job {
    type Out;
    fn run<I: Isa>(self) -> Self::Out;
}

/// Does the work. `wide` is what [`is_wide`] said.
#[inline]
pub(crate) fn run<J: Job>(wide: bool, job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    if wide {
        debug_assert!(is_wide());
        // SAFETY: the machine has the features.
        return unsafe { run_avx2(job) };
    }
    let _ = wide;
    job.run::<Portable>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn run_avx2<J: Job>(job: J) -> J::Out {
    job.run::<Avx2>()
}

/// Whether this machine runs [`Avx2`].
pub(crate) fn is_wide() -> bool {
    #[cfg(all(target_arch = "x86_64", feature = "std"))]
    {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt")
    }
    #[cfg(not(all(target_arch = "x86_64", feature = "std")))]
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
