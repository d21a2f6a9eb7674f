use super::{Classes, Grid, Isa, Job, LANES, Lanes, Row, SPOTS, Words};
use crate::tree::Tree;
use crate::word::Word;

/// Plain loops, which compilers turn into whatever vectors the target always has.
pub(crate) struct Portable;

#[inline(always)]
fn bits(count: usize, is: impl Fn(usize) -> bool) -> u64 {
    let mut bits = 0;
    for at in 0..count {
        bits |= u64::from(is(at)) << at;
    }
    bits
}

impl<W: Word> Isa<W> for Portable {
    #[inline(always)]
    fn count_at_most<const N: usize>(words: &[W; N], most: W) -> u32 {
        words.iter().map(|word| u32::from(*word <= most)).sum()
    }

    #[inline(always)]
    fn fits(lo: &Words<W>, hi: &Words<W>, grid: Grid<W>, size: W) -> u32 {
        bits(SPOTS, |at| grid.usable(lo[at], hi[at]) >= size) as u32
    }

    #[inline(always)]
    fn fits_from(lo: &Words<W>, hi: &Words<W>, from: W, grid: Grid<W>, size: W) -> u32 {
        bits(SPOTS, |at| {
            let lo = lo[at].max(from);
            hi[at].saturating_sub(lo).saturating_sub(grid.pad(lo)) >= size
        }) as u32
    }

    #[inline(always)]
    fn is_most(lo: W, hi: W, classes: &Classes<W>, most: &Lanes<W>) -> u32 {
        let is =
            |lane: usize| most[lane] != W::ZERO && classes.grid(lane).usable(lo, hi) == most[lane];
        bits(classes.used, is) as u32
    }

    #[inline(always)]
    fn raise_by_gap(lo: W, hi: W, classes: &Classes<W>, most: &mut Lanes<W>) -> bool {
        let mut is_more = false;
        for (lane, most) in most.iter_mut().enumerate().take(classes.used) {
            let usable = classes.grid(lane).usable(lo, hi);
            is_more |= usable > *most;
            *most = usable.max(*most);
        }
        is_more
    }

    #[inline(always)]
    fn raise(most: &mut Lanes<W>, other: &Lanes<W>) -> bool {
        let mut is_more = false;
        for (most, other) in most.iter_mut().zip(other) {
            is_more |= *other > *most;
            *most = (*other).max(*most);
        }
        is_more
    }

    #[inline(always)]
    fn maxima(lo: &Words<W>, hi: &Words<W>, _: W, classes: &Classes<W>, most: &mut Lanes<W>) {
        for (lane, most) in most.iter_mut().enumerate().take(classes.used) {
            let grid = classes.grid(lane);
            let gaps = lo.iter().zip(hi);
            *most = gaps.fold(W::ZERO, |most, (lo, hi)| most.max(grid.usable(*lo, *hi)));
        }
    }

    #[inline(always)]
    fn same(a: &Lanes<W>, b: &Lanes<W>) -> u32 {
        bits(LANES, |lane| a[lane] == b[lane]) as u32
    }

    #[inline(always)]
    fn row_at_least(row: &Row, least: u32) -> u64 {
        bits(row.len(), |at| row[at] >= least)
    }

    #[inline(always)]
    fn row_max_with(row: &Row, at: usize, word: u32) -> u32 {
        let others = row.iter().enumerate();
        others.fold(
            word,
            |max, (other, word)| {
                if other == at { max } else { max.max(*word) }
            },
        )
    }

    #[inline(always)]
    fn open<const N: usize>(words: &mut [W; N], at: usize, word: W) {
        words.copy_within(at..N - 1, at + 1);
        words[at] = word;
    }

    #[inline(always)]
    fn close<const N: usize>(words: &mut [W; N], at: usize) {
        words.copy_within(at + 1.., at);
    }

    #[inline(always)]
    fn aside<J: Job>(tree: &mut Tree<W>, job: J) -> J::Out {
        aside(tree, job)
    }

    #[inline(always)]
    fn apart<J: Job>(tree: &mut Tree<W>, job: J) -> J::Out {
        apart(tree, job)
    }
}

#[cold]
#[inline(never)]
fn aside<W: Word, J: Job>(tree: &mut Tree<W>, job: J) -> J::Out {
    job.run::<W, Portable>(tree)
}

#[inline(never)]
fn apart<W: Word, J: Job>(tree: &mut Tree<W>, job: J) -> J::Out {
    job.run::<W, Portable>(tree)
}
