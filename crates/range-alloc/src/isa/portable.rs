use super::{FAN, Grid, Isa, LANES, Lanes, Words};

/// Plain loops, which compilers turn into whatever vectors the target always has.
pub(crate) struct Portable;

#[inline(always)]
fn bits(is: impl Fn(usize) -> bool) -> u32 {
    let mut bits = 0;
    for at in 0..FAN {
        bits |= u32::from(is(at)) << at;
    }
    bits
}

impl Isa for Portable {
    #[inline(always)]
    fn at_least(words: &Words, least: u64) -> u32 {
        bits(|at| words[at] >= least)
    }

    #[inline(always)]
    fn at_most(words: &Words, most: u64) -> u32 {
        bits(|at| words[at] <= most)
    }

    #[inline(always)]
    fn max(words: &Words) -> u64 {
        let mut max = 0;
        for word in words {
            max = max.max(*word);
        }
        max
    }

    #[inline(always)]
    fn fits(lo: &Words, hi: &Words, from: u64, grid: Grid, size: u64) -> u32 {
        bits(|at| {
            let lo = lo[at].max(from);
            let gap = hi[at].saturating_sub(lo);
            gap.saturating_sub(grid.pad(lo)) >= size
        })
    }

    #[inline(always)]
    fn usable(lo: &Words, hi: &Words, mut which: u32, masks: &Lanes, phases: &Lanes) -> Lanes {
        let mut most = [0; LANES];
        while which != 0 {
            let at = which.trailing_zeros() as usize % FAN;
            which &= which - 1;
            let (lo, gap) = (lo[at], hi[at].wrapping_sub(lo[at]));
            for lane in 0..LANES {
                let pad = phases[lane].wrapping_sub(lo) & masks[lane];
                most[lane] = most[lane].max(gap.saturating_sub(pad));
            }
        }
        most
    }

    #[inline(always)]
    fn gaps(lo: &Words, hi: &Words) -> u32 {
        bits(|at| lo[at] != hi[at])
    }
}
