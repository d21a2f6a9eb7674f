use super::{FAN, Grid, Isa, LANES, Lanes, Row, Words};

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
    fn at_most(words: &Words, most: u64) -> u32 {
        bits(|at| words[at] <= most)
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
    fn usable(lo: u64, hi: u64, masks: &Lanes, phases: &Lanes) -> Lanes {
        core::array::from_fn(|lane| {
            let pad = phases[lane].wrapping_sub(lo) & masks[lane];
            (hi - lo).saturating_sub(pad)
        })
    }

    #[inline(always)]
    fn maxima(lo: &Words, hi: &Words, _: u64, masks: &Lanes, phases: &Lanes, used: usize) -> Lanes {
        let mut most = [0; LANES];
        for (lane, most) in most.iter_mut().enumerate().take(used) {
            let (mask, phase) = (masks[lane], phases[lane]);
            for at in 0..FAN {
                let pad = phase.wrapping_sub(lo[at]) & mask;
                *most = (*most).max(hi[at].wrapping_sub(lo[at]).saturating_sub(pad));
            }
        }
        most
    }

    #[inline(always)]
    fn follow(were: &Lanes, now: &Lanes, top: &Lanes) -> (Lanes, u32) {
        let mut shrunk = 0;
        for lane in 0..LANES {
            let is = (were[lane] == top[lane]) & (now[lane] < top[lane]);
            shrunk |= u32::from(is) << lane;
        }
        (
            core::array::from_fn(|lane| now[lane].max(top[lane])),
            shrunk,
        )
    }

    #[inline(always)]
    fn row_at_least(row: &Row, least: u32) -> u32 {
        bits(|at| row[at] >= least)
    }

    #[inline(always)]
    fn row_max(row: &Row) -> u32 {
        row.iter().fold(0, |max, word| max.max(*word))
    }

    #[inline(always)]
    fn open(words: &mut Words, at: usize) {
        words.copy_within(at..FAN - 1, at + 1);
    }

    #[inline(always)]
    fn close(words: &mut Words, at: usize) {
        words.copy_within(at + 1.., at);
    }
}
